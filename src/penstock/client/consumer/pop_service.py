"""What follows from a listener's answer about popped messages.

    success                    acknowledged
    failure                    invisible for a time that grows with its deliveries (pop_delays.py)
    failure, too often         acknowledged once it is older than four hours
    a level below 0            a dead letter
    ordered failure            it and all behind it in its queue: invisible for the suspend time
    longer than the invisible  ignored: the broker has given the message to somebody else already
    time, whatever it says

Messages wait here for a free worker; what waits longer than its invisible time is not consumed at
all. An ordered queue's messages are given to the listener batch after batch, each after the one
before it succeeded; queues of one pop run side by side.

Invariant: every message handed in is ended exactly once in its ``PopQueue``.
Not here: calling the listener (``listening.py``), requests (``pop_settling.py``), pops
(``pop.py``).
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.client.consumer.listening import Listening
from penstock.client.consumer.pop_delays import (
    RECONSUME_TIMES_MAX,
    retry_delay_ms,
    suspend_ms,
)
from penstock.client.consumer.pop_queue import PoppedMessage, PopQueue
from penstock.client.consumer.pop_settling import Settling
from penstock.client.consumer.results import Answer, Finished, Later, Suspend
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.consumer.work import Batch, Work
from penstock.model.clock import Clock

_log = logging.getLogger(__name__)

RETURN_MS: Final = 1
"""Invisible time of what is handed back unread: somebody else may have it at once."""


class PopWork(Work):
    """Messages of one pop on their way through the listener."""

    __slots__ = ("left", "popped_from", "rest")

    popped_from: PopQueue
    left: int
    """Messages not reported yet."""
    rest: list[Batch]
    """Ordered: batches that wait for those in front of them."""


class PopService:
    """Consumes popped messages of one group."""

    def __init__(
        self,
        listening: Listening,
        settling: Settling,
        statistics: ConsumerStatistics,
        clock: Clock,
        *,
        is_ordered: bool = False,
        consume_batch: int = 1,
        suspend_ms: int = 1_000,
        reconsume_times_max: int | None = None,
    ) -> None:
        self._listening = listening
        self._settling = settling
        self._statistics = statistics
        self._clock = clock
        self._is_ordered = is_ordered
        self._consume_batch = consume_batch
        self._suspend_ms = suspend_ms
        self._reconsume_times_max = reconsume_times_max
        self._works: set[PopWork] = set()
        self.too_late = 0
        """Messages whose invisible time was over before a result was there."""

    def submit(self, queue: PopQueue, messages: Sequence[PoppedMessage]) -> None:
        """Consume what one pop brought."""
        queue.found(len(messages))
        if not self._is_ordered:
            self._begin(queue, self._batches(messages))
            return
        by_queue: dict[int, list[PoppedMessage]] = {}
        for message in messages:
            by_queue.setdefault(message.handle.queue_id, []).append(message)
        for each in by_queue.values():
            first, *rest = self._batches(each)
            self._begin(queue, [first], rest)

    def sweep(self) -> None:
        """Leave what has waited for a worker longer than its invisible time."""
        now_ms = self._clock.monotonic_ms()
        for work in list(self._works):
            late: list[Batch] = []
            for _ in range(len(work.batches)):
                batch = self._take(work)
                if batch is None:
                    break
                if _popped(batch)[0].is_too_late(now_ms):
                    late.append(batch)
                else:
                    work.batches.append(batch)
            for batch in late:
                self._leave(work, _popped(batch))

    def dropped(self, queue: PopQueue) -> None:
        """The place is not ours any more: hand back what no worker has taken yet."""
        for work in list(self._works):
            if work.popped_from is not queue:
                continue
            waiting: list[Batch] = []
            while (batch := self._take(work)) is not None:
                waiting.append(batch)
            waiting += work.rest
            work.rest = []
            for batch in waiting:
                self._settling.give_back(_popped(batch), RETURN_MS)
                self._end(work, len(batch), in_time=True)

    def _begin(self, queue: PopQueue, batches: list[Batch], rest: Iterable[Batch] = ()) -> None:
        work = PopWork(queue, batches, self._done)
        work.popped_from = queue
        work.rest = list(rest)
        work.left = sum(map(len, batches)) + sum(map(len, work.rest))
        self._works.add(work)
        self._listening.submit(work)

    def _done(self, work: Work, calls: list[Finished]) -> None:
        """Calls of the listener ended; on the client's loop."""
        assert isinstance(work, PopWork)
        now_ms = self._clock.monotonic_ms()
        self._statistics.topic(work.popped_from.queue.topic).finished(calls, now_ms)
        work.popped_from.last_consume_ms = now_ms
        for call in calls:
            messages = _popped(call.messages)
            if any(each.is_too_late(now_ms) for each in messages):
                self._too_late(work, messages)
            elif self._is_ordered:
                self._settle_in_order(work, call, messages)
            else:
                self._settle(call, messages)
            self._end(work, len(messages), in_time=True)
        if self._is_ordered and work.rest and not work.batches:
            self._go_on(work)

    def _settle(self, call: Finished, messages: list[PoppedMessage]) -> None:
        if call.is_success:
            self._settling.ack(messages)
            return
        answer = call.answer
        level, done = (answer.delay_level, answer.done) if isinstance(answer, Later) else (0, 0)
        if done:
            self._settling.ack(messages[:done])
        if level < 0:
            self._settling.bury(messages[done:])
            return
        most = self._reconsume_times_max
        for message in messages[done:]:
            delay_ms = retry_delay_ms(
                message.reconsume_times,
                self._clock.wall_ms() - message.born_at_ms,
                level=level,
                reconsume_times_max=RECONSUME_TIMES_MAX if most is None else most,
            )
            if delay_ms is None:
                _log.warning(
                    "message given up: consumed too often, too old",
                    extra={"message_id": message.message_id, "times": message.reconsume_times},
                )
                self._settling.ack([message])
            else:
                self._settling.give_back([message], delay_ms)

    def _settle_in_order(
        self, work: PopWork, call: Finished, messages: list[PoppedMessage]
    ) -> None:
        if call.is_success:
            self._settling.ack(messages)
            return
        most = self._reconsume_times_max
        if most is not None and all(each.reconsume_times >= most for each in messages):
            self._settling.bury(messages)
            return
        wait_ms = suspend_ms(_wished_ms(call.answer) or self._suspend_ms)
        rest, work.rest = work.rest, []
        behind = [message for batch in rest for message in _popped(batch)]
        # Also what was not tried: the broker must not give it out before the failed one.
        self._settling.give_back([*messages, *behind], wait_ms)
        self._end(work, len(behind), in_time=True)

    def _go_on(self, work: PopWork) -> None:
        batch = work.rest.pop(0)
        late = any(each.is_too_late(self._clock.monotonic_ms()) for each in _popped(batch))
        if late or work.popped_from.is_dropped:
            # Those behind it are of the same pop: their time is over, too.
            rest, work.rest = [batch, *work.rest], []
            for each in rest:
                self._leave(work, _popped(each))
            return
        work.batches.append(batch)
        self._listening.submit(work)

    def _too_late(self, work: PopWork, messages: list[PoppedMessage]) -> None:
        self.too_late += len(messages)
        _log.warning(
            "result ignored: consuming took longer than the invisible time",
            extra={"queue": work.popped_from.queue, "messages": len(messages)},
        )

    def _leave(self, work: PopWork, messages: list[PoppedMessage]) -> None:
        self.too_late += len(messages)
        self._end(work, len(messages), in_time=False)

    def _end(self, work: PopWork, messages: int, *, in_time: bool) -> None:
        work.popped_from.ended(messages, in_time=in_time)
        work.left -= messages
        if work.left == 0:
            self._works.discard(work)

    def _take(self, work: PopWork) -> Batch | None:
        # Workers take from the same end at the same time.
        try:
            return work.batches.popleft()
        except IndexError:
            return None

    def _batches(self, messages: Sequence[PoppedMessage]) -> list[Batch]:
        size = self._consume_batch
        return [list(messages[at : at + size]) for at in range(0, len(messages), size)]


def _popped(batch: Batch) -> list[PoppedMessage]:
    return [message for message in batch if isinstance(message, PoppedMessage)]


def _wished_ms(answer: Answer) -> int:
    return answer.suspend_ms if isinstance(answer, Suspend) else 0
