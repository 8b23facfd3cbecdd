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

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.client.consumer.executor import (
    ConsumeExecutor,
    ConsumeRequest,
    Finished,
    Later,
    ResultKind,
    batches_of,
    direct_result,
)
from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.process_queue import AssignedQueue, Runtime
from penstock.client.consumer.send_back import SendBack
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.message import ReceivedMessage

_log = logging.getLogger(__name__)

SWEEP_MS_MIN: Final = 100
TIME_OUT_LEVEL: Final = 3
"""Delay level of a message whose listener takes too long."""


class ConsumeMessageConcurrentlyService:
    """Consumes the messages of a queue in any order, on as many workers as there are."""

    def __init__(
        self,
        runtime: Runtime,
        executor: ConsumeExecutor,
        offsets: OffsetTable,
        statistics: ConsumerStatistics,
        *,
        give_back: SendBack | None,
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
        self._is_stopped = True
        if not await self._executor.stop(wait_ms):
            _log.warning(
                "listeners did not end in time; their messages will come again",
                extra={"running": len(self._executor.running()), "waited_ms": wait_ms},
            )

    def submit(self, assigned: AssignedQueue, messages: Sequence[ReceivedMessage]) -> None:
        if messages and not self._is_stopped:
            batches = batches_of(messages, self._batch)
            self._executor.submit(ConsumeRequest(assigned, batches, self._finished))

    async def dropped(self, assigned: AssignedQueue) -> bool:
        """Nothing to wait for: what runs now finds its queue dropped."""
        return True

    async def released(self, assigned: AssignedQueue) -> None:
        """Nothing is locked."""

    async def consume_directly(self, message: ReceivedMessage) -> dict[str, Any]:
        """Call the listener with one message and wait for it; nothing is settled by it."""
        ended: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()

        def done(_: ConsumeRequest, finished: list[Finished]) -> None:
            if not ended.done():
                ended.set_result(finished[0])

        nowhere = AssignedQueue(message.queue, message.offset, self._runtime.monotonic_ms())
        self._executor.submit(ConsumeRequest(nowhere, [[message]], done))
        return direct_result(await ended, is_ordered=False)

    def sweep(self, now_s: float) -> int:
        """Give back what listeners have had for too long; returns how many messages."""
        count = 0
        for running in self._executor.running():
            if (now_s - running.since_s) * 1000 < self._timeout_ms:
                continue
            assigned = running.request.assigned
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

    def _finished(self, request: ConsumeRequest, finished: list[Finished]) -> None:
        """Calls ended; on the client's loop."""
        assigned = request.assigned
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


class Failure(NamedTuple):
    """A message to be given back, and with which delay."""

    message: ReceivedMessage
    delay_level: int


def failures_of(finished: Finished) -> list[Failure]:
    """Which messages of a call failed: none, all, or those behind the ones done."""
    if finished.is_success:
        return []
    answer = finished.answer
    if isinstance(answer, Later):
        failed = finished.messages[max(0, answer.done) :]
        return [Failure(message, answer.delay_level) for message in failed]
    return [Failure(message, 0) for message in finished.messages]


def _log_exception(call: Finished) -> None:
    first = call.messages[0]
    _log.warning(
        "listener raised",
        extra={"message_id": first.message_id, "topic": first.topic, "count": len(call.messages)},
        exc_info=call.error,
    )
