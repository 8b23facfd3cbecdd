"""One streaming query as its source sees it: where it begins, how far each batch goes.

Lives in the process that Spark keeps for the query on the driver's side. Spark asks ``following``
after each batch, and every 10 ms when idle; so it waits at the broker (long poll). ``start`` is in
Spark's commit log when it asks, so that is where the position is acknowledged: ``commit`` comes a
batch late, and for the last batch never.

Invariants: an end never lies below its start, nor beyond what is durable, nor beyond the limits;
with nothing new the answer is the very start that was given; with a frozen target (AvailableNow)
it is reached and never passed.

Not here: Spark's interface (``stream_reader.py``), the lease's thread (``keeper.py``), limits by
time (``admission.py``).
"""

import time
from collections.abc import Callable
from typing import Any, Final

from penstock.bulk.link import DATA_LOSS, EPOCH, BulkError
from penstock.model.progress import BatchProgress
from penstock.spark.admission import Admission
from penstock.spark.beginning import LATEST_WORD, starting
from penstock.spark.losses import ADVICE, judge
from penstock.spark.offsets import Marks, Position, position, rows_between
from penstock.spark.options import SourceOptions
from penstock.spark.shares import ends_within
from penstock.spark.upstream import Answer, Ask, Upstream, local_answer

POLL_MS: Final = 600
"""How long an idle query waits at the broker: two questions a second instead of 85. Longer would
cost the broker less, but Spark asks the sources of a query in turn, and others wait meanwhile."""


class Query:
    """The positions of one query."""

    def __init__(
        self,
        options: SourceOptions,
        upstream: Upstream,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options: Final = options
        self._upstream: Final = upstream
        self._clock: Final = clock
        self.admission: Final = Admission(options.target_batch_s, options.rows_max or 1 << 40)
        self._target: Marks | None = None
        self._latest: dict[str, Any] | None = None
        self._running: tuple[Position, int, float] | None = None
        """End, rows and beginning of the batch that Spark was given last."""
        self._idle_since = clock()
        self._row_bytes = 0.0

    def initial(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        found = self._upstream.found()
        first = starting(self._options, self._upstream, found, default=LATEST_WORD)
        return first.as_json()

    def freeze(self) -> None:
        """AvailableNow: what there is at this moment, and nothing that comes later."""
        self._target = self._upstream.found().marks("end")

    def latest(self) -> dict[str, Any] | None:
        """Where the queues ended at the last poll, for Spark's progress."""
        return self._latest

    def following(self, given: dict[str, Any], *, is_unlimited: bool = False) -> dict[str, Any]:
        """The end of the next batch, or ``given`` itself when there is none yet."""
        start = position(given)
        report = self._end_of_batch(start)
        rows_max = 0 if is_unlimited else self._rows_max()
        answer = self._ask(start, rows_max, is_unlimited, report)
        look = None if self._options.fails_on_data_loss else self._earliest
        usable, begins = judge(start, answer, earliest=look)
        end = self._end(usable, begins, answer, rows_max)
        rows = rows_between(start, end)
        is_changed = rows > 0 or bool(begins) or usable.offsets.keys() != start.offsets.keys()
        if not is_changed or (self._waits(rows) and not is_unlimited):
            return given
        self._running = (end, rows, self._clock())
        return end.as_json()

    # Private, in call order

    def _end_of_batch(self, start: Position) -> BatchProgress | None:
        """What the batch that ends at ``start`` has taught, if it was given by us."""
        if self._running is None or start.offsets != self._running[0].offsets:
            return None
        _, rows, began = self._running
        self._running = None
        took = self._clock() - began
        self._idle_since = self._clock()
        self.admission.observe(rows, took)
        return BatchProgress(rows=rows, bytes=int(rows * self._row_bytes), batch_ms=took * 1000)

    def _rows_max(self) -> int:
        options = self._options
        if not options.target_batch_s:
            return options.rows_max
        # A query that asks for so many rows at least gets them at once.
        rows = max(self.admission.rows, options.rows_min)
        return min(rows, options.rows_max) if options.rows_max else rows

    def _ask(
        self, start: Position, rows_max: int, is_unlimited: bool, report: BatchProgress | None
    ) -> Answer:
        is_bounded = self._target is not None or is_unlimited
        ask = Ask(
            start=start,
            rows_max=rows_max,
            bytes_max=0 if is_unlimited else self._options.bytes_max,
            rows_min=0 if is_bounded else self._options.rows_min,
            wait_ms=0 if is_bounded else POLL_MS,
            report=report,
        )
        try:
            answer = self._upstream.poll(ask)
        except BulkError as problem:
            if problem.kind not in (EPOCH, DATA_LOSS):
                raise
            if self._options.fails_on_data_loss:
                raise BulkError(problem.kind, f"{problem}{ADVICE}") from None
            # The broker does not take these offsets any more; ``judge`` says what is left of them.
            answer = local_answer(self._upstream.found(), ask)
        if answer.lag_rows:
            self._row_bytes = answer.lag_bytes / answer.lag_rows
        self._latest = {
            **Position(
                epoch=answer.epoch, offsets=answer.latest, incarnations=answer.incarnations
            ).as_json(),
            "subscription": self._options.subscription,
            "endpoint": self._options.place,
        }
        return answer

    def _earliest(self) -> Marks:
        return self._upstream.found().marks("earliest")

    def _end(self, start: Position, begins: Marks, answer: Answer, rows_max: int) -> Position:
        """The end of the batch, with the queues that begin in it."""
        at = {topic: dict(queues) for topic, queues in start.offsets.items()}
        new = {topic: dict(queues) for topic, queues in begins.items()}
        for topic, queues in answer.latest.items():
            for queue, last in queues.items():
                if queue in at.get(topic, {}):
                    continue
                first = answer.starts.get(topic, {}).get(queue, 0)
                if last > first:
                    at.setdefault(topic, {})[queue] = first
                    new.setdefault(topic, {})[queue] = first
        ends = self._bounded(at, answer, rows_max, is_moved=bool(begins))
        # What is new and has no row in this batch is new in a later one.
        for topic, queues in list(new.items()):
            for queue, first in list(queues.items()):
                if queue not in begins.get(topic, {}) and ends[topic][queue] == first:
                    del queues[queue], ends[topic][queue]
        return Position(
            epoch=answer.epoch,
            offsets={topic: queues for topic, queues in ends.items() if queues},
            incarnations=_only(answer.incarnations, ends),
            begins={topic: queues for topic, queues in new.items() if queues},
        )

    def _bounded(self, at: Marks, answer: Answer, rows_max: int, *, is_moved: bool) -> Marks:
        """Ends that the limits and the frozen target allow, never below ``at``."""
        allowed = _between(at, answer.ends, answer.latest)
        target = _between(at, self._target or answer.latest, answer.latest)
        within = {
            topic: {queue: min(end, target[topic][queue]) for queue, end in queues.items()}
            for topic, queues in allowed.items()
        }
        is_stuck = self._target is not None and within == at and target != at
        if not is_stuck and not is_moved:
            return within
        # The broker gave all rows to queues that are at their target, or counted from another
        # start than this one: divide them here.
        limit = rows_max
        if self._options.bytes_max and self._row_bytes:
            by_bytes = max(1, int(self._options.bytes_max / self._row_bytes))
            limit = min(limit, by_bytes) if limit else by_bytes
        return ends_within(at, target, limit)

    def _waits(self, rows: int) -> bool:
        """Whether the batch is held back until there are more rows, or it is late enough."""
        options = self._options
        if self._target is not None or rows >= options.rows_min:
            return False
        return self._clock() - self._idle_since < options.trigger_delay_s_max


def _between(at: Marks, ends: Marks, latest: Marks) -> Marks:
    """The ends of the queues of ``at``, not below it and not above what there is."""
    return {
        topic: {
            queue: max(
                offset,
                min(
                    ends.get(topic, {}).get(queue, offset),
                    latest.get(topic, {}).get(queue, offset),
                ),
            )
            for queue, offset in queues.items()
        }
        for topic, queues in at.items()
    }


def _only(marks: Marks, wanted: Marks) -> Marks:
    return {
        topic: {queue: marks[topic][queue] for queue in queues if queue in marks.get(topic, {})}
        for topic, queues in wanted.items()
        if queues
    }
