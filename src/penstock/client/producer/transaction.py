"""Transactions: a half message, the sender's own work, and the word that makes it whole or nothing.

The half message is stored where no consumer sees it. Then the local work runs; what it says is sent
to the broker that stored the half (END_TRANSACTION, oneway). When that is lost, or the work did not
know yet, the broker asks (CHECK_TRANSACTION_STATE), and the producer's ``check`` function answers:
a plain function on a worker thread, a coroutine on the event loop of whoever started the producer.

A half message that was stored, but not as well as wanted, is rolled back and the work not done.
Local work that raises leaves the transaction unknown, so the broker asks; the error is raised.

Bound: ``checks_waiting_max`` questions at a time; further ones are dropped, the broker asks again.
Not here: storing the half message (``sender.py``).
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from penstock.client.errors import ClientError
from penstock.client.loop import LoopThread, listener_loop
from penstock.client.message import Message, ReceivedMessage, SendResult
from penstock.client.producer.hooks import EndContext, SendHook, TransactionState, call_hooks
from penstock.client.requests import BrokerRequests
from penstock.client.routes import RouteCache
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import CheckTransactionHeader, EndTransactionHeader
from penstock.wire.rocketmq.message_id import parse_offset_message_id
from penstock.wire.rocketmq.stored import StoredMessage

_log: Final = logging.getLogger(__name__)

Execute = Callable[[Message], TransactionState | None]
ExecuteAsync = Callable[[Message], TransactionState | Awaitable[TransactionState | None] | None]
Check = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState | None] | None]
"""Says what became of a transaction; None is unknown."""


class TransactionResult(msgspec.Struct, gc=False, frozen=True):
    """What became of a transaction."""

    result: SendResult
    """Of the half message."""
    state: TransactionState
    """What the broker was told."""


class Transactions:
    """The transactions of one producer; unless said otherwise on the client's thread."""

    def __init__(
        self,
        group: str,
        requests: BrokerRequests,
        routes: RouteCache,
        thread: LoopThread,
        *,
        check: Check | None,
        hooks: Sequence[SendHook],
        threads: int,
        waiting_max: int,
    ) -> None:
        self._group = group
        self._requests = requests
        self._routes = routes
        self._thread = thread
        self._check = check
        self._hooks = hooks
        self._threads = threads
        self._waiting_max = waiting_max
        self._waiting = 0
        self._pool: ThreadPoolExecutor | None = None
        self._is_stopped = False
        self.listener_loop: asyncio.AbstractEventLoop | None = None
        """Where coroutines run; None: on the shared loop for listeners."""

    def end(self, message: Message, result: SendResult, state: TransactionState) -> None:
        """Tell the broker; a broker that is gone will ask."""
        address = self._routes.address(result.queue.broker)
        try:
            _, position = parse_offset_message_id(result.offset_message_id)
        except Malformed as problem:
            _log.warning("transaction cannot be ended", extra={"why": str(problem)})
            return
        if address is None:
            _log.warning("transaction cannot be ended", extra={"broker": result.queue.broker})
            return
        context = EndContext(self._group, message.topic, result.message_id, state)
        context.tag = message.tag or ""
        context.keys = " ".join(message.keys)
        context.address = address
        context.offset_message_id = result.offset_message_id
        context.transaction_id = result.transaction_id or result.message_id
        self._send_end(context, position, result.queue_offset)

    def check(self, address: str, header: CheckTransactionHeader, stored: StoredMessage) -> None:
        if self._is_stopped:
            return
        if self._check is None:
            _log.warning(
                "a broker asks about a transaction, but there is no transaction_check",
                extra={"group": self._group, "topic": stored.topic},
            )
            return
        if self._waiting >= self._waiting_max:
            _log.warning("transaction check dropped", extra={"waiting": self._waiting})
            return
        broker = header.bname or self._routes.broker_at(address) or ""
        message = ReceivedMessage(stored, QueueRef(stored.topic, broker, stored.queue_id))
        context = EndContext(
            self._group, message.topic, message.message_id, TransactionState.UNKNOWN
        )
        context.tag = message.tag or ""
        context.keys = " ".join(message.keys)
        context.address = address
        context.offset_message_id = header.offset_msg_id or message.offset_message_id
        context.transaction_id = header.transaction_id or message.message_id
        context.is_from_check = True
        self._waiting += 1
        if inspect.iscoroutinefunction(self._check):
            loop = self.listener_loop
            if loop is None or loop.is_closed():
                loop = listener_loop().loop
            asyncio.run_coroutine_threadsafe(self._answer_async(message, header, context), loop)
            return
        if self._pool is None:
            name = f"penstock-checks-{self._group}"
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=name)
        self._pool.submit(self._answer, message, header, context)

    def stop(self) -> None:
        """No more answers: another producer of the group will be asked, or this one later."""
        self._is_stopped = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _answer(
        self, message: ReceivedMessage, header: CheckTransactionHeader, context: EndContext
    ) -> None:
        """On a worker thread."""
        assert self._check is not None, "checks without one are dropped"
        try:
            context.state = state_of(self._check(message))
        except Exception:
            _log.exception("transaction_check failed", extra={"topic": message.topic})
        self._thread.post(self._checked, header, context)

    async def _answer_async(
        self, message: ReceivedMessage, header: CheckTransactionHeader, context: EndContext
    ) -> None:
        """On the loop for listeners."""
        assert self._check is not None, "checks without one are dropped"
        try:
            said = self._check(message)
            context.state = state_of(await said if inspect.isawaitable(said) else said)
        except Exception:
            _log.exception("transaction_check failed", extra={"topic": message.topic})
        self._thread.post(self._checked, header, context)

    def _checked(self, header: CheckTransactionHeader, context: EndContext) -> None:
        self._waiting -= 1
        self._send_end(context, header.commit_log_offset, header.tran_state_table_offset)

    def _send_end(self, context: EndContext, position: int, queue_offset: int) -> None:
        header = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=queue_offset,
            commit_log_offset=position,
            commit_or_rollback=context.state.value,
            from_transaction_check=context.is_from_check,
            msg_id=context.message_id,
            transaction_id=context.transaction_id,
            topic=context.topic,
        )
        try:
            self._requests.end_transaction(context.address, header)
        except ClientError as problem:
            _log.warning("transaction cannot be ended", extra={"why": str(problem)})
        call_hooks(self._hooks, "ended", lambda hook: hook.transaction_ended(context))


def state_of(said: object) -> TransactionState:
    """What user code returned; None is unknown, anything else is its mistake."""
    if said is None:
        return TransactionState.UNKNOWN
    if not isinstance(said, TransactionState):
        raise TypeError(f"a transaction ends with a TransactionState, not {said!r}")
    return said
