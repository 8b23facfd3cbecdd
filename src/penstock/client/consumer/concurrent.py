"""Concurrent consumption: messages of a queue in any order, on as many workers as there are.

    success          settled; the lowest unsettled offset may be committed
    exception, LATER given back to the broker (``send_back.py``), then settled; where no broker
                     takes it, tried again here after 5 s, unsettled all the time
    broadcasting     what fails is logged and settled: nobody else would get it
    time-out         a call running longer than the limit: its messages are given back and settled
                     while it still runs; what it answers in the end changes nothing

Invariants: a message leaves the cache when it succeeded or a broker has taken it back, never
before; results of a dropped queue change nothing.
Not here: calling listeners (``executor.py``), what may be committed (``process_queue.py``).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol

from penstock.client.consumer.executor import (
    ConsumeExecutor,
    ConsumeRequest,
    ConsumeResult,
    Finished,
    Later,
    ResultKind,
    Suspend,
)
from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.process_queue import AssignedQueue, DirectOutcome
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.consumer.subscription import retry_topic
from penstock.client.errors import ClientError
from penstock.client.message import Message, ReceivedMessage
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.headers import SendBackHeader

_log = logging.getLogger(__name__)

SWEEP_MS_MIN: Final = 100


class Failure(NamedTuple):
    """A message to be given back, and with which delay."""

    message: ReceivedMessage
    delay_level: int


class GiveBack(Protocol):
    """Who takes messages back; ``SendBack``."""

    async def give_back(self, message: ReceivedMessage, delay_level: int = 0) -> bool:
        """True when a broker has it now."""
        ...


class Runtime(Protocol):
    """What the service needs of its surroundings; the instance, or a fake without any loop."""

    def monotonic_ms(self) -> int:
        """Now."""
        ...

    def spawn(self, coroutine: Coroutine[Any, Any, object], name: str) -> object:
        """Run it by itself; its errors are logged."""
        ...

    def later(self, delay_ms: int, call: Callable[..., object], *args: Any) -> object:
        """Call it after a while; returns something with ``cancel``."""
        ...


def failures_of(finished: Finished) -> list[Failure]:
    """Which messages of a call failed: none, all, or those behind the ones done."""
    if finished.is_success:
        return []
    answer = finished.answer
    if isinstance(answer, Later):
        failed = finished.messages[max(0, answer.done) :]
        return [Failure(message, answer.delay_level) for message in failed]
    return [Failure(message, 0) for message in finished.messages]


def batches_of(messages: Sequence[ReceivedMessage], size: int) -> list[list[ReceivedMessage]]:
    """The messages in parts for one call each."""
    if size == 1:
        return [[message] for message in messages]
    return [list(messages[at : at + size]) for at in range(0, len(messages), size)]


class ConsumeMessageConcurrentlyService:
    """The consume service of a push consumer that is not ordered."""

    def __init__(
        self,
        runtime: Runtime,
        executor: ConsumeExecutor,
        offsets: OffsetTable,
        statistics: ConsumerStatistics,
        *,
        give_back: GiveBack | None,
        consume_batch: int = 1,
        consume_timeout_ms: int = 900_000,
        local_retry_ms: int = 5_000,
    ) -> None:
        self._runtime = runtime
        self._executor = executor
        self._offsets = offsets
        self._statistics = statistics
        self._give_back = give_back
        """None when broadcasting."""
        self._batch = consume_batch
        self._timeout_ms = consume_timeout_ms
        self._local_retry_ms = local_retry_ms
        self._is_stopped = False

    def start(self) -> None:
        """Start the workers and the sweep for calls that take too long."""
        self._executor.start()
        self._sweep_later()

    async def stop(self, wait_ms: int) -> None:
        """Take nothing more; wait for running calls."""
        self._is_stopped = True
        if not await self._executor.stop(wait_ms):
            _log.warning(
                "listeners did not end in time; their messages will come again",
                extra={"running": len(self._executor.running()), "waited_ms": wait_ms},
            )

    def submit(self, assigned: AssignedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Consume these; they are in the cache already."""
        if messages and not self._is_stopped:
            batches = batches_of(messages, self._batch)
            self._executor.submit(ConsumeRequest(assigned, batches, self._finished))

    async def dropped(self, assigned: AssignedQueue) -> bool:
        """Nothing to wait for: what runs now finds its queue dropped."""
        return True

    async def released(self, assigned: AssignedQueue) -> None:
        """Nothing is locked."""

    async def consume_directly(self, message: ReceivedMessage) -> DirectOutcome:
        """Call the listener with one message and wait for it; nothing is settled by it."""
        ended: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()

        def done(_: ConsumeRequest, finished: list[Finished]) -> None:
            if not ended.done():
                ended.set_result(finished[0])

        nowhere = AssignedQueue(message.queue, message.offset, self._runtime.monotonic_ms())
        self._executor.submit(ConsumeRequest(nowhere, [[message]], done))
        return direct_outcome(await ended, is_ordered=False)

    def sweep(self, now_s: float) -> int:
        """Give back what listeners have had for too long; returns how many messages."""
        count = 0
        for running in self._executor.running():
            if (now_s - running.since_s) * 1000 < self._timeout_ms:
                continue
            assigned = running.work.assigned
            stuck = assigned.process_queue.unsettled(running.batch)
            if stuck and not assigned.is_dropped and self._give_back is not None:
                count += len(stuck)
                failures = [Failure(message, TIME_OUT_LEVEL) for message in stuck]
                self._runtime.spawn(
                    self._give_back_all(assigned, failures, is_retried_here=False),
                    "give back timed out messages",
                )
        return count

    def _sweep_later(self) -> None:
        self._runtime.later(max(SWEEP_MS_MIN, self._timeout_ms), self._sweep)

    def _sweep(self) -> None:
        if self._is_stopped:
            return
        count = self.sweep(time.perf_counter())
        if count:
            _log.warning("listeners take too long", extra={"given_back": count})
        self._sweep_later()

    def _finished(self, work: ConsumeRequest, finished: list[Finished]) -> None:
        """Calls ended; on the client's loop."""
        assigned = work.assigned
        now_ms = self._runtime.monotonic_ms()
        topic = self._statistics.topic(assigned.queue.topic)
        topic.finished(finished, now_ms)
        if assigned.is_dropped:
            return
        assigned.last_consume_ms = now_ms
        failures: list[Failure] = []
        done: list[ReceivedMessage] = []
        for call in finished:
            if call.kind is ResultKind.SUCCESS:
                done += call.messages
                continue
            failed = failures_of(call)
            done += call.messages[: len(call.messages) - len(failed)]
            failures += failed
            if call.error is not None:
                _log_exception(call)
        self._settle(assigned, done)
        if failures:
            self._failed(assigned, failures)

    def _failed(self, assigned: AssignedQueue, failures: list[Failure]) -> None:
        if self._give_back is not None:
            self._runtime.spawn(self._give_back_all(assigned, failures), "give messages back")
            return
        for failure in failures:
            _log.warning(
                "message failed and is dropped: broadcasting has no retries",
                extra={"message_id": failure.message.message_id, "topic": failure.message.topic},
            )
        self._settle(assigned, [failure.message for failure in failures])

    async def _give_back_all(
        self, assigned: AssignedQueue, failures: list[Failure], *, is_retried_here: bool = True
    ) -> None:
        give_back = self._give_back
        assert give_back is not None, "broadcasting gives nothing back"
        topic = self._statistics.topic(assigned.queue.topic)
        for message, delay_level in failures:
            # A sweep or a drop may have settled it while the one before was on its way.
            if assigned.is_dropped or not assigned.process_queue.unsettled([message]):
                continue
            if await give_back.give_back(message, delay_level):
                topic.sent += 1
                self._settle(assigned, [message])
            elif is_retried_here:
                topic.retried += 1
                message.reconsume_times += 1
                self._runtime.later(self._local_retry_ms, self._retry_here, assigned, message)

    def _retry_here(self, assigned: AssignedQueue, message: ReceivedMessage) -> None:
        if not assigned.is_dropped:
            self.submit(assigned, [message])

    def _settle(self, assigned: AssignedQueue, messages: Sequence[ReceivedMessage]) -> None:
        if assigned.is_dropped:
            return
        cache = assigned.process_queue
        cache.settle(messages)
        offset = cache.commit_offset
        if offset >= 0:
            self._offsets.note(assigned.queue, offset)
        if assigned.wake is not None:
            assigned.wake()


def _log_exception(call: Finished) -> None:
    first = call.messages[0]
    _log.warning(
        "listener raised",
        extra={"message_id": first.message_id, "topic": first.topic, "count": len(call.messages)},
        exc_info=call.error,
    )


# ---- direct consume -----------------------------------------------------------------------------
# A message consumed on an operator's order (request 309): the answer in RocketMQ's words.
#
# The broker sends one stored message; the listener is called with it, whoever owns its queue.
# Nothing is settled, committed or sent back: the operator learns what the listener made of it.
#
# Not here: calling the listener (``ConsumeMessageService.consume_directly``), the request
# (``instance.py``).


SUCCESS: Final = "CR_SUCCESS"
LATER: Final = "CR_LATER"
ROLLBACK: Final = "CR_ROLLBACK"
COMMIT: Final = "CR_COMMIT"
RAISED: Final = "CR_THROW_EXCEPTION"

REMARK_CHARS_MAX: Final = 1_000
"""Of an exception's text: it goes to a terminal."""

_NAMES: Final = {
    None: SUCCESS,
    ConsumeResult.SUCCESS: SUCCESS,
    ConsumeResult.LATER: LATER,
    ConsumeResult.SUSPEND: LATER,
    ConsumeResult.COMMIT: COMMIT,
    ConsumeResult.ROLLBACK: ROLLBACK,
}


def direct_outcome(
    finished: Finished, *, is_ordered: bool, is_auto_commit: bool = True
) -> DirectOutcome:
    """What a call of the listener came to."""
    error, answer = finished.error, finished.answer
    if error is not None:
        result, remark = RAISED, f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]
    elif isinstance(answer, (Later, Suspend)):
        result, remark = LATER, ""
    else:
        result, remark = _NAMES[answer], ""
    return DirectOutcome(result, remark, int(finished.spent_ms), is_ordered, is_auto_commit)


def outcome_body(outcome: DirectOutcome) -> dict[str, object]:
    """The body of the answer (``spentTimeMills`` is RocketMQ's spelling)."""
    return {
        "order": outcome.is_ordered,
        "autoCommit": outcome.is_auto_commit,
        "consumeResult": outcome.result,
        "remark": outcome.remark or None,
        "spentTimeMills": outcome.spent_ms,
    }


# ---- send back ----------------------------------------------------------------------------------
# Giving a message back to its broker, to come again later or to become a dead letter.
#
# | 1. send-back (36) to the master of the broker it came from: it knows the message by its place
# | 2. where that fails, a fresh copy to the group's retry topic, on any broker
# | 3. where that fails, too, the caller tries the message again here, after 5 s
#
# The delay grows with each try: level 3 + tries (10 s, 30 s, 1 min, ... 2 h); the broker chooses it
# when the level is 0. After ``retries_max`` tries the broker files it under ``%DLQ%`` and the
# group.
#
# Not here: when to give back (``concurrent.py``, ``ordered.py``), pop (``pop_acks.py``).


FIRST_RETRY_LEVEL: Final = 3
TIME_OUT_LEVEL: Final = 3
"""Of a message whose listener takes too long."""
RETRIES_MAX_DEFAULT: Final = 16
"""What -1 means to a concurrent consumer."""

SEND_BACK_TIMEOUT_MS: Final = 5_000
DEAD_LETTER_LEVEL: Final = -1
"""Files a message under the dead letters at once."""

_NOT_COPIED: Final = frozenset(
    ("TRAN_MSG", "WAIT", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
)
"""Of a fresh copy: it is no half message and does not wait for its first delivery again."""


class BackSender(Protocol):
    """What the broker is asked; ``BrokerRequests`` answers it."""

    async def master_of(self, queue: QueueRef) -> str:
        """Where the master of a queue listens."""
        ...

    async def send_back(
        self, address: str, header: SendBackHeader, *, timeout_ms: int | None = None
    ) -> None:
        """Ask a broker to keep a message of its own for later."""
        ...


class CopySender(Protocol):
    """Who sends the fresh copy; ``InnerProducer``."""

    async def send(self, message: Message) -> None:
        """Send it; raises when it is not stored."""
        ...


def back_header(
    message: ReceivedMessage, group: str, delay_level: int, retries_max: int
) -> SendBackHeader:
    """The request that gives a message back."""
    return SendBackHeader(
        offset=message.commit_log_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.offset_message_id,
        origin_topic=message.topic,
        unit_mode=False,
        max_reconsume_times=retries_max,
    )


def copy_for_retry(message: ReceivedMessage, group: str, retries_max: int) -> Message:
    """The message as a fresh one for the retry topic of the group."""
    properties = {
        name: value for name, value in message.properties.items() if name not in _NOT_COPIED
    }
    tag = properties.pop("TAGS", None)
    keys = properties.pop("KEYS", "").split()
    properties["ORIGIN_MESSAGE_ID"] = (
        properties.get("ORIGIN_MESSAGE_ID") or message.offset_message_id
    )
    properties["RETRY_TOPIC"] = message.topic
    properties["RECONSUME_TIME"] = str(message.reconsume_times + 1)
    properties["MAX_RECONSUME_TIMES"] = str(retries_max)
    return Message(
        retry_topic(group),
        message.body,
        tag=tag,
        keys=keys,
        properties=properties,
        flag=message.flag,
        delay_level=FIRST_RETRY_LEVEL + message.reconsume_times,
    )


class SendBack:
    """Gives messages of one group back."""

    def __init__(
        self, group: str, retries_max: int, broker: BackSender, copies: CopySender
    ) -> None:
        self._group = group
        self.retries_max = RETRIES_MAX_DEFAULT if retries_max < 0 else retries_max
        self._broker = broker
        self._copies = copies

    async def give_back(self, message: ReceivedMessage, delay_level: int = 0) -> bool:
        """True when some broker has it now; False: it is still ours."""
        try:
            address = await self._broker.master_of(message.queue)
            header = back_header(message, self._group, delay_level, self.retries_max)
            await self._broker.send_back(address, header, timeout_ms=SEND_BACK_TIMEOUT_MS)
        except ClientError as problem:
            _log.warning(
                "message could not be sent back, a copy is sent instead",
                extra={"group": self._group, "message_id": message.message_id, "why": str(problem)},
            )
        else:
            return True
        try:
            await self._copies.send(copy_for_retry(message, self._group, self.retries_max))
        except ClientError as problem:
            _log.warning(
                "message could not be given back, it is tried again here",
                extra={"group": self._group, "message_id": message.message_id, "why": str(problem)},
            )
            return False
        return True
