"""The producer: its life, and every way to send.

    with Producer("127.0.0.1:9876", "orders") as producer:
        producer.send(Message("orders", b"hello", tag="new"))

    async with Producer("127.0.0.1:9876", "orders") as producer:
        await producer.send_async(Message("orders", b"hello"))

``send`` blocks; ``send_async`` gives a future, ``send_callback`` calls back, ``send_oneway`` asks
for no answer. Each takes ``queue`` (this one and no other) or ``selector`` (a function that chooses
one), and a ``timeout_ms`` of its own. A message with an ``ordering_key`` goes to the queue of its
key. What is wrong with a message is raised at once, as ``InvalidMessage``; what goes wrong later is
a ``SendFailed`` (``BrokerBusy``: slow down), ``NoRoute``, or ``WouldBlock`` without a permit.

Threads: every method may be called from any thread but the client's own.
Not here: what happens on the client's thread (``sending.py``).
"""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Final, Unpack

from penstock.client.contexts import Contexts
from penstock.client.errors import StateError
from penstock.client.instance import instance
from penstock.client.loop import client_loop
from penstock.client.message import Message, SendResult
from penstock.client.name_servers import NameServerList, parse_name_servers
from penstock.client.options import resolve
from penstock.client.producer.checking import check_group
from penstock.client.producer.counts import ProducerStatistics
from penstock.client.producer.entrance import ANYWHERE, Aim, Entrance
from penstock.client.producer.handing_back import OnDone
from penstock.client.producer.machinery import Machinery
from penstock.client.producer.producer_options import ProducerOptions
from penstock.client.producer.selection import Selector
from penstock.client.producer.transaction import (
    Check,
    Execute,
    ExecuteAsync,
    TransactionResult,
    state_of,
)
from penstock.client.producer.transaction_state import TransactionState
from penstock.client.states import Life, State
from penstock.model.assignment import QueueRef

DEFAULT_GROUP: Final = "penstock-producers"


class Producer(Contexts):
    """Sends messages; make as few as you can, they are shared by threads and loops."""

    def __init__(
        self,
        name_servers: NameServerList = None,
        group: str = DEFAULT_GROUP,
        *,
        transaction_check: Check | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_group(group)
        self.group: Final = group
        self._life: Final = Life(f"producer {group!r}")
        self._name_servers: Final = parse_name_servers(name_servers)
        self._options: Final = resolve(ProducerOptions, options)
        self._check: Final = transaction_check
        self._machinery: Machinery | None = None
        self._entrance: Entrance | None = None

    @property
    def state(self) -> State:
        """Where it is in its life."""
        return self._life.state

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the cluster; connections are made when they are needed."""
        client_loop().run(self._start(None))

    async def start_async(self) -> None:
        """The same; a ``transaction_check`` that is a coroutine then runs on this event loop."""
        await client_loop().on(self._start(asyncio.get_running_loop()))

    def stop(self) -> None:
        """Wait for sends under way, up to ``stop_timeout_ms``, and leave."""
        if self._machinery is not None:
            self._machinery.thread.run(self._stop())
            self._machinery.callbacks.stop(self._options["stop_timeout_ms"])

    async def stop_async(self) -> None:
        """The same."""
        machinery = self._machinery
        if machinery is not None:
            await machinery.thread.on(self._stop())
            timeout_ms = self._options["stop_timeout_ms"]
            await asyncio.to_thread(machinery.callbacks.stop, timeout_ms)

    # --- one message --------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        *,
        queue: QueueRef | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send and wait until it is stored."""
        entrance = self._entered()
        encoded = entrance.encoded(message)
        return entrance.blocking(message, encoded, Aim(queue, selector, timeout_ms))

    def send_async(
        self,
        message: Message,
        *,
        queue: QueueRef | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Send; await the future for the result. Many at a time are fine: permits bound them."""
        entrance = self._entered()
        aim = ANYWHERE
        if queue is not None or selector is not None or timeout_ms is not None:
            aim = Aim(queue, selector, timeout_ms)
        return entrance.future(message, entrance.encoded(message), aim)

    def send_callback(
        self,
        message: Message,
        on_done: OnDone,
        *,
        queue: QueueRef | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send; ``on_done`` gets the result or the error, on a thread for callbacks.

        Blocks while there is no permit, except on that thread itself.
        """
        self._entered().callback(message, Aim(queue, selector, timeout_ms), on_done)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: QueueRef | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send and do not ask what became of it; it may be lost without a word."""
        self._entered().oneway(message, Aim(queue, selector, timeout_ms))

    # --- several messages ---------------------------------------------------------------------

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: QueueRef | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request; see ``split_batch`` for long lists."""
        entrance = self._entered()
        encoded = entrance.encoded_batch(messages)
        return entrance.blocking(messages[0], encoded, Aim(queue, None, timeout_ms), messages)

    def send_batch_async(
        self,
        messages: Sequence[Message],
        *,
        queue: QueueRef | None = None,
        timeout_ms: int | None = None,
    ) -> "asyncio.Future[SendResult]":
        """The same; await the future for the result."""
        entrance = self._entered()
        encoded = entrance.encoded_batch(messages)
        return entrance.future(messages[0], encoded, Aim(queue, None, timeout_ms), messages)

    # --- transactions -------------------------------------------------------------------------

    def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Store a half message, run ``execute(message)`` here, and tell the broker what it said.

        ``execute`` returns a ``TransactionState``. When it raises, the transaction stays open (the
        broker will ask ``transaction_check``) and the error is raised here.
        """
        entrance = self._entered()
        half = entrance.encoded_half(message)
        result = entrance.blocking(message, half, Aim(timeout_ms=timeout_ms, is_half=True))
        state = TransactionState.UNKNOWN if result.is_ok else TransactionState.ROLLBACK
        try:
            if result.is_ok:
                state = state_of(execute(message))
        finally:
            self._end_transaction(message, result, state)
        return TransactionResult(result, state)

    async def send_in_transaction_async(
        self, message: Message, execute: ExecuteAsync, *, timeout_ms: int | None = None
    ) -> TransactionResult:
        """The same; ``execute`` may be a coroutine function."""
        entrance = self._entered()
        half = entrance.encoded_half(message)
        aim = Aim(timeout_ms=timeout_ms, is_half=True)
        result = await entrance.future(message, half, aim)
        state = TransactionState.UNKNOWN if result.is_ok else TransactionState.ROLLBACK
        try:
            if result.is_ok:
                said = execute(message)
                state = state_of(await said if inspect.isawaitable(said) else said)
        finally:
            self._end_transaction(message, result, state)
        return TransactionResult(result, state)

    # --- what it shows ------------------------------------------------------------------------

    def queues(self, topic: str) -> list[QueueRef]:
        """The queues that messages of a topic may go to now."""
        return client_loop().run(self._queues(topic))

    async def queues_async(self, topic: str) -> list[QueueRef]:
        """The same."""
        return await client_loop().on(self._queues(topic))

    def statistics(self) -> ProducerStatistics:
        """Counts, what is in flight, who waits for a permit and since when, who is avoided."""
        if self._machinery is None:
            raise StateError(f"producer {self.group!r} has not been started")
        return self._machinery.statistics()

    # --- inside -------------------------------------------------------------------------------

    async def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._life.begin()
        shared = instance(self._name_servers, self._options)
        machinery = Machinery(self.group, self._options, shared, client_loop(), self._check)
        machinery.transactions.listener_loop = loop
        await shared.start()
        shared.add_producer(machinery)
        self._machinery = machinery
        self._entrance = Entrance(machinery)
        self._life.started()

    async def _stop(self) -> None:
        machinery = self._machinery
        if machinery is None or not self._life.is_running:
            return
        self._life.state = State.STOPPING
        self._entrance = None
        try:
            await machinery.stop()
        finally:
            self._life.state = State.STOPPED
            await machinery.shared.remove_producer(machinery)

    async def _queues(self, topic: str) -> list[QueueRef]:
        self._life.check_running()
        assert self._machinery is not None, "it runs"
        route = await self._machinery.shared.routes.get_or_look_up(
            topic, default_queues=self._options["auto_create_queues"]
        )
        return list(route.write_queues())

    def _entered(self) -> Entrance:
        entrance = self._entrance
        if entrance is None:
            self._life.check_running()
            raise StateError(f"producer {self.group!r} is not running")
        return entrance

    def _end_transaction(
        self, message: Message, result: SendResult, state: TransactionState
    ) -> None:
        if self._machinery is not None:
            self._machinery.thread.post(self._machinery.transactions.end, message, result, state)
