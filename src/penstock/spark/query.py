"""How far each batch of a streaming query goes: where it begins, its limits, what is lost.

Lives in the process that Spark keeps for the query on the driver's side. Spark asks ``following``
after each batch, and every 10 ms when idle; so it waits at the broker (long poll). ``start`` is in
Spark's commit log when it asks, so that is where the position is acknowledged: ``commit`` comes a
batch late, and for the last batch never.

Invariants: an end never lies below its start, nor beyond what is durable, nor beyond the limits;
with nothing new the answer is the very start that was given; with a frozen target (AvailableNow)
it is reached and never passed.

Not here: Spark's interface and the lease's thread (``readers.py``).
"""

import contextlib
import difflib
import itertools
import logging
import os
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.bulk.tickets import BulkError
from penstock.model.errors import PenstockError
from penstock.model.queries import PollRequest, PollResponse
from penstock.model.spark_batch import DATA_LOSS, EPOCH, BatchProgress
from penstock.spark.options import PAUSED, SourceOptions
from penstock.spark.tasks import ADVICE
from penstock.spark.upstream import (
    EARLIEST,
    LATEST,
    BadOffsets,
    OffsetsByQueue,
    Position,
    SourceQueues,
    Upstream,
    local_poll,
    parse_offsets,
    position,
    proportional_ends,
    rows_between,
)

POLL_MS: Final = 600
"""How long an idle query waits at the broker: two questions a second instead of 85. Longer would
cost the broker less, but Spark asks the sources of a query in turn, and others wait meanwhile."""
PAUSE_S: Final = 0.1
"""While it is to rest, Spark asks every 10 ms."""


class BatchPlanner:
    """Plans the batches of one query: its first position, and the end of each batch after that.

    It never answers an end below its start, and gives the same start back while there is nothing
    to read. It reads no rows.
    """

    def __init__(
        self,
        options: SourceOptions,
        upstream: Upstream,
        *,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
        checkpoint: str = "",
    ) -> None:
        self._options: Final = options
        self._upstream: Final = upstream
        self._clock: Final = clock
        self._rest: Final = rest
        self.admission: Final = Admission(options.target_batch_s, options.rows_max or 1 << 40)
        self._target: OffsetsByQueue | None = None
        self._latest: dict[str, Any] | None = None
        self._running: tuple[Position, int, float] | None = None
        """End, rows and beginning of the batch that Spark was given last."""
        self._idle_since = clock()
        self._row_bytes = 0.0
        self.checkpoint = checkpoint or uuid.uuid4().hex
        """The id of the query's checkpoint: this one until its positions name another."""

    def initial(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        found = self._upstream.resolve()
        first = starting(self._options, self._upstream, found, default=LATEST_WORD)
        return msgspec.structs.replace(first, checkpoint=self.checkpoint).as_json()

    def freeze(self) -> None:
        """AvailableNow: what there is at this moment, and nothing that comes later."""
        self._target = self._upstream.resolve().by_queue("end")

    def latest(self) -> dict[str, Any] | None:
        """Where the queues ended at the last poll, for Spark's progress."""
        return self._latest

    def following(self, given: dict[str, Any], *, is_unlimited: bool = False) -> dict[str, Any]:
        """The end of the next batch, or ``given`` itself when there is none yet."""
        start = position(given)
        self.checkpoint = start.checkpoint or self.checkpoint
        check_topics(start, self._options)
        report = self._end_of_batch(start)
        if self._options.pause_file and os.path.exists(self._options.pause_file):
            self._pause(start, report)
            return given
        rows_max = 0 if is_unlimited else self._rows_max()
        answer = self._ask(start, rows_max, is_unlimited, report)
        look = None if self._options.fails_on_data_loss else self._earliest
        usable, begins = judge(start, answer, earliest=look)
        end = self._end(usable, begins, answer, rows_max)
        rows = rows_between(start, end)
        is_changed = rows > 0 or bool(begins) or usable.offsets.keys() != start.offsets.keys()
        if not is_changed or (self._waits(rows, answer.lag_rows) and not is_unlimited):
            return given
        self._running = (end, rows, self._clock())
        return end.as_json()

    # Private, in call order

    def _pause(self, start: Position, report: BatchProgress | None) -> None:
        """Come to rest: the broker learns where, and whoever made the file that it is so.

        Spark asks for the next batch when the one before is in its commit log, so nothing is under
        way now.
        """
        if report is not None:
            with contextlib.suppress(PenstockError):
                self._ask(start, 1, True, report)
        with contextlib.suppress(OSError), open(self._options.pause_file, "w") as file:
            file.write(PAUSED)
        self._rest(PAUSE_S)

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
    ) -> PollResponse[str]:
        is_bounded = self._target is not None or is_unlimited
        request = PollRequest(
            subscription=self._options.subscription,
            checkpoint=self.checkpoint,
            start=start.offsets,
            epoch=start.epoch,
            rows_max=rows_max,
            own_rows_max=0 if is_unlimited else self._options.rows_max,
            bytes_max=0 if is_unlimited else self._options.bytes_max,
            rows_min=0 if is_bounded else self._rows_wanted(rows_max),
            wait_ms=0 if is_bounded else POLL_MS,
            report=report,
        )
        try:
            answer = self._upstream.poll(request)
        except BulkError as problem:
            if problem.kind not in (EPOCH, DATA_LOSS):
                raise
            if self._options.fails_on_data_loss:
                raise BulkError(problem.kind, f"{problem}{ADVICE}") from None
            # The broker does not take these offsets any more; ``judge`` says what is left of them.
            answer = local_poll(self._upstream.resolve(), request)
        if answer.lag_rows:
            self._row_bytes = answer.lag_bytes / answer.lag_rows
        self._latest = {
            **Position(
                epoch=answer.epoch,
                offsets=answer.latest,
                incarnations=answer.incarnations,
                checkpoint=self.checkpoint,
            ).as_json(),
            "subscription": self._options.subscription,
            "endpoint": self._options.location,
            # For whoever watches the query: Spark has no other place for a source's figures.
            "lag_rows": answer.lag_rows,
            "lag_ms": answer.lag_ms,
            "admitted_rows": rows_max,
        }
        return answer

    def _earliest(self) -> OffsetsByQueue:
        return self._upstream.resolve().by_queue("earliest")

    def _end(
        self, start: Position, begins: OffsetsByQueue, answer: PollResponse[str], rows_max: int
    ) -> Position:
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
            checkpoint=self.checkpoint,
        )

    def _bounded(
        self, at: OffsetsByQueue, answer: PollResponse[str], rows_max: int, *, is_moved: bool
    ) -> OffsetsByQueue:
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
        return proportional_ends(at, target, limit)

    def _rows_wanted(self, rows_max: int) -> int:
        """Rows that are worth a batch."""
        options = self._options
        rolled = min(options.roll_rows, rows_max) if rows_max else options.roll_rows
        return max(options.rows_min, rolled)

    def _waits(self, rows: int, lag_rows: int) -> bool:
        """Whether the batch is held back until there are more rows, or it is late enough."""
        options = self._options
        if self._target is not None or rows >= self._rows_wanted(self._rows_max()):
            return False
        if rows < lag_rows and rows >= options.rows_min:
            return False  # limited by bytes: no wait makes it larger
        return self._clock() - self._idle_since < options.trigger_delay_s_max


def _between(at: OffsetsByQueue, ends: OffsetsByQueue, latest: OffsetsByQueue) -> OffsetsByQueue:
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


def _only(offsets: OffsetsByQueue, wanted: OffsetsByQueue) -> OffsetsByQueue:
    return {
        topic: {queue: offsets[topic][queue] for queue in queues if queue in offsets.get(topic, {})}
        for topic, queues in wanted.items()
        if queues
    }


# ---- rows of a batch ----------------------------------------------------------------------------
# F17, Spark admission: how many rows the next batch may have, so that it takes about its target.
#
# Who grants: the drain rate measured on the batches before. Who spends: ``latestOffset``. Who
# stops: nobody; a slow batch makes the next one smaller. What wakes it: the end of each batch.
#
# A batch has two costs: ``fixed_s`` whatever it holds (planning, commits, a trigger interval) and
# ``row_s`` for each row. Batches of clearly different sizes tell them apart; where both together
# reach the target are the rows of the next batch, in steps that are bounded. Until there are two
# sizes all the time counts as the rows'. Rules:
#
# * The first batch pays for everything that is cold: it may lower the limit, its rate is not kept.
# * A batch that was not full says what little there was, not what could be done: it raises nothing,
#   and lowers only when it took longer than its target.
# * Times are never twice the same, and on a busy machine far from it. All pairs of the batches that
#   are kept say what rows take, the more the further their sizes are apart; and in doubt it is
#   little. Who has too many rows is late by what cannot be told from chance, who has too few falls
#   behind without end.
# * A batch that takes far longer or shorter than expected may be a hiccup: a short one raises
#   nothing yet, one far too long lowers at once. Two in a row are a change, as is a late one behind
#   which fewer rows take less, and still too long: what was learned before is over.
# * Where the fixed cost is all of the target or more, fewer rows would not help, and the backlog
#   grow: the rows may always take so long that they are a fifth of the batch.
# * A limit that stood for a while is tried with another size: the machine may have been busy when
#   it was learned, and at one size a fixed cost looks like that of rows.
#
# Pure: times come in as arguments. Not here: limits of bytes and minimum rows (above), the
# producers' side (F18, at the broker).


FIRST_ROWS: Final = 5_000
"""Small enough for a transformation of 1 ms a row, four steps below 1 M rows a batch."""
ROWS_MIN: Final = 10
ROWS_MAX: Final = 1 << 40
STEP_MAX: Final = 4.0
"""Up, from a batch so short that it could all be the rows' time and the next one in its target."""
STEP_UP: Final = 2.0
STEP_MIN: Final = 0.5
STEP_LATE: Final = 1.5
"""Up, where the target is passed or the fixed cost is most of it, and rows may take their time."""
KEPT: Final = 16
"""Batches that are remembered."""
LEVEL: Final = 3
"""Of them, those that say what a batch takes now."""
DOUBT: Final = 0.25
"""Of what the pairs say: the part that says least decides, that which says most warns."""
OFF: Final = 2.0
"""Times as long as expected, or the inverse: that is hardly chance, but a hiccup or a change."""
STILL_LATE: Final = 1.25
"""The same of the next one, when it has the fewer rows of the time that the late one took."""
FIRST_PATIENCE: Final = 2.0
"""Targets that a first batch may last before it counts as too large."""
SHORTEST_S: Final = 1e-6
"""A batch that a coarse clock calls shorter took this long: its rate is divided by."""
_SAME: Final = 0.75
"""Of the rows of another batch, or the inverse: nearer ones are of the same size."""
FIXED_ROOM: Final = 1.25
"""Of the fixed cost: so long may a batch take at least."""
LOOK_AGAIN: Final = 16
"""Batches of one size after which another one is tried."""


class Admission(msgspec.Struct):
    """The limit of one query, and what it was learned from."""

    target_s: float
    rows_max: int = ROWS_MAX
    """The user's limit."""
    rows: int = 0
    """Limit of the next batch."""
    row_s: float = 0.0
    """Seconds each row takes; 0 = not known yet, or too little to be seen."""
    fixed_s: float = 0.0
    """Seconds a batch takes whatever it holds."""
    batches: int = 0
    row_s_max: float = 0.0
    """What a row may take at most, as far as can be seen."""
    _kept: list[tuple[int, float]] = []
    """Rows and seconds of the last batches."""
    _off: float = 1.0
    """How many times as long as expected the last batch took; 1 = about as long."""
    _age: int = 0
    """Batches since the size changed."""

    def __post_init__(self) -> None:
        self.rows = min(FIRST_ROWS, self.rows_max)

    @property
    def rate(self) -> float:
        """Rows per second; 0 = not known yet."""
        rows, took_s = self._kept[-1] if self._kept else (0, 1.0)
        return rows / took_s

    @property
    def goal_s(self) -> float:
        """How long a batch may take."""
        return max(self.target_s, FIXED_ROOM * self.fixed_s)

    def observe(self, rows: int, took_s: float) -> None:
        """A batch of so many rows took so long."""
        if rows <= 0 or took_s <= 0:
            return
        took_s = max(took_s, SHORTEST_S)
        self.batches += 1
        if self.batches == 1:
            if took_s > FIRST_PATIENCE * self.target_s:
                self._set(min(rows, self.rows) * STEP_MIN)
            return
        self._learn(rows, took_s)
        least = STEP_MIN * rows
        if rows >= _SAME * self.rows:
            self._set(min(max(self._tried(rows), least), self._step(rows, took_s) * rows))
        elif took_s > self.goal_s:
            # How so many rows would do that never came together nobody knows.
            self._set(min(self.rows, max(self._wanted(), least), STEP_UP * rows))
        if self._off > 1 and took_s > self.goal_s:
            self._set(min(self.rows, max(rows * self.goal_s / took_s, least)))

    def _learn(self, rows: int, took_s: float) -> None:
        """What a row takes, and what it is not the rows that take."""
        expected_s = max(self.fixed_s + self.row_s * rows, SHORTEST_S)
        off = took_s / expected_s if self._kept else 1.0
        if 1 / OFF < off < OFF:
            is_change = self._off > 1 and self._is_by_rows(rows, took_s, expected_s)
            off = 1.0
        else:
            is_change = (off > 1) == (self._off > 1) and self._off != 1
        if is_change:
            del self._kept[:-1]
        self._off = 1.0 if is_change else off
        before = self._kept[-1][0] if self._kept else 0
        self._age = self._age + 1 if _SAME * before <= rows <= before / _SAME else 0
        self._kept = [*self._kept[1 - KEPT :], (rows, took_s)]
        self._fit()

    def _is_by_rows(self, rows: int, took_s: float, expected_s: float) -> bool:
        """Whether the late batch before and this one are told better by rows that became slow."""
        late_rows, late_s = self._kept[-1]
        by_rows_s = late_s / late_rows * rows
        if took_s < STILL_LATE * expected_s:
            return False
        return max(took_s, by_rows_s) / min(took_s, by_rows_s) < took_s / expected_s

    def _fit(self) -> None:
        lately = self._kept[-LEVEL:]
        slopes = sorted(
            ((took - took_then) / (at - other), abs(at - other))
            for (at, took), (other, took_then) in itertools.combinations(self._kept, 2)
            if min(at, other) < _SAME * max(at, other)
        )
        # As if they took all of it.
        row_s = self.row_s_max = statistics.median(took / at for at, took in lately)
        if slopes:
            self.row_s_max = min(max(0.0, _weighted(slopes, 1 - DOUBT)), row_s)
            row_s = min(max(0.0, _weighted(slopes, DOUBT)), row_s)
        self.row_s = row_s
        self.fixed_s = max(0.0, statistics.median(took - row_s * at for at, took in lately))

    def _tried(self, rows: int) -> float:
        if self._age <= LOOK_AGAIN or rows >= self.rows_max:
            return self._wanted()
        self._age = 0
        # Fewer rows keep the target; from the least there are only more.
        return rows * (STEP_MIN if rows * STEP_MIN >= ROWS_MIN else STEP_UP)

    def _wanted(self) -> float:
        left_s = self.goal_s - self.fixed_s
        return left_s / self.row_s if self.row_s * ROWS_MAX > left_s else ROWS_MAX

    def _step(self, rows: int, took_s: float) -> float:
        """How many times as many rows the next batch may have."""
        if self._off < 1:
            return 1.0  # not before it is sure
        if max(took_s, self.goal_s) <= self.target_s:
            return min(STEP_MAX, max(STEP_UP, self.target_s / took_s))
        return STEP_UP if self.row_s_max * rows <= self.goal_s / 2 else STEP_LATE

    def _set(self, rows: float) -> None:
        self.rows = max(1, min(max(int(rows), ROWS_MIN), self.rows_max))


def _weighted(slopes: list[tuple[float, int]], share: float) -> float:
    """The slope below which there is such a share of the weights; they are sorted."""
    left = share * sum(weight for _, weight in slopes)
    for slope, weight in slopes:
        left -= weight
        if left <= 0:
            return slope
    return slopes[-1][0]


# ---- beginning ----------------------------------------------------------------------------------
# Where a query begins and a batch read ends: earliest, latest, offsets by queue, or times.
#
# A queue that the user's JSON does not name begins at its earliest offset and ends at its latest
# one; a topic or queue in it that does not exist is an error, as is an offset above what there is.


EARLIEST_WORD: Final = "earliest"
LATEST_WORD: Final = "latest"


def starting(
    options: SourceOptions, upstream: Upstream, found: SourceQueues, *, default: str = EARLIEST_WORD
) -> Position:
    """The first position of a query."""
    earliest = found.by_queue("earliest")
    if options.starting_at_ms >= 0:
        times = {topic: {"": options.starting_at_ms} for topic in earliest}
        offsets = _at_times(times, upstream, found, "earliest")
    elif options.starting_times:
        times = parse_offsets("startingOffsetsByTimestamp", options.starting_times, is_nested=False)
        offsets = _at_times(times, upstream, found, "earliest")
    else:
        word = options.starting or default
        offsets = _by_word_or_offset("startingOffsets", word, found, "earliest")
        if not options.fails_on_data_loss:
            offsets = _not_below(offsets, earliest)
    return Position(epoch=found.epoch, offsets=offsets, incarnations=found.by_queue("incarnation"))


def ending(options: SourceOptions, upstream: Upstream, found: SourceQueues) -> Position:
    if options.ending_at_ms >= 0:
        times = {topic: {"": options.ending_at_ms} for topic in found.by_queue("end")}
        offsets = _at_times(times, upstream, found, "end")
    elif options.ending_times:
        times = parse_offsets("endingOffsetsByTimestamp", options.ending_times, is_nested=False)
        offsets = _at_times(times, upstream, found, "end")
    else:
        if options.ending == EARLIEST_WORD:
            raise BadOffsets("option endingOffsets: earliest would end before it begins")
        offsets = _by_word_or_offset("endingOffsets", options.ending or LATEST_WORD, found, "end")
    return Position(epoch=found.epoch, offsets=offsets, incarnations=found.by_queue("incarnation"))


def _by_word_or_offset(
    option: str, text: str, found: SourceQueues, otherwise: str
) -> OffsetsByQueue:
    if text.lower() == EARLIEST_WORD:
        return found.by_queue("earliest")
    if text.lower() == LATEST_WORD:
        return found.by_queue("end")
    earliest, ends = found.by_queue("earliest"), found.by_queue("end")
    given = parse_offsets(option, text)
    offsets = found.by_queue(otherwise)
    for topic, queues in _known(option, given, ends).items():
        for queue, offset in queues.items():
            end = ends[topic][queue]
            if offset > end:
                raise BadOffsets(
                    f"option {option}: offset {offset} of queue {queue} of topic {topic!r} is above"
                    f" its end {end}"
                )
            special = {EARLIEST: earliest[topic][queue], LATEST: end}
            offsets[topic][queue] = special.get(offset, offset)
    return offsets


def _at_times(
    times: OffsetsByQueue, upstream: Upstream, found: SourceQueues, otherwise: str
) -> OffsetsByQueue:
    offsets = found.by_queue(otherwise)
    for topic, queues in _known("offsets by timestamp", times, offsets).items():
        for wanted, at_ms in queues.items():
            for queue, offset in upstream.at_time(topic, at_ms).items():
                if wanted in ("", queue) and queue in offsets[topic]:
                    offsets[topic][queue] = offset
    return offsets


def _known(option: str, given: OffsetsByQueue, there: OffsetsByQueue) -> OffsetsByQueue:
    """What the user named, after a look whether it is there."""
    for topic, queues in given.items():
        if topic not in there:
            close = difflib.get_close_matches(topic, there, n=1, cutoff=0.4)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise BadOffsets(f"option {option}: topic {topic!r} is not read by this query{hint}")
        for queue in queues:
            if queue and queue not in there[topic]:
                raise BadOffsets(
                    f"option {option}: topic {topic!r} has no queue {queue!r}; it has"
                    f" {', '.join(there[topic])}"
                )
    return given


def _not_below(offsets: OffsetsByQueue, earliest: OffsetsByQueue) -> OffsetsByQueue:
    return {
        topic: {queue: max(offset, earliest[topic][queue]) for queue, offset in queues.items()}
        for topic, queues in offsets.items()
    }


# ---- losses -------------------------------------------------------------------------------------
# What can have happened to a queue since a checkpoint was written, and what is done about it.
#
# | gone         the topic or queue does not exist any more
# | made anew    same name, another incarnation: its offsets name other messages
# | behind       retention removed messages that were not read
# | ahead        the log ends below the position: it lost its end
#
# With ``failOnDataLoss`` each is an error that says what to do. Without, the query goes on with
# what there is, and the log says so: made anew begins at the earliest, ahead at the end.
#
# A topic that is in the checkpoint and not among those that are read is no loss, but somebody
# else's checkpoint, or another list of topics (``check_topics``).
#
# Not here: messages that are missing inside a range (``readers.py``).


_log = logging.getLogger(__name__)


LOSSES_NAMED_MAX: Final = 5
"""Queues that one error names."""


class Loss(msgspec.Struct, frozen=True):
    """One queue whose messages are not what the checkpoint says."""

    kind: str
    topic: str
    queue: str
    text: str


def losses(start: Position, answer: PollResponse[str]) -> list[Loss]:
    """Everything that is wrong with a start, by queue."""
    found = []
    for topic, queues in start.offsets.items():
        for queue, offset in queues.items():
            where = f"queue {queue} of topic {topic!r}"
            end = answer.latest.get(topic, {}).get(queue)
            earliest = answer.starts.get(topic, {}).get(queue, 0)
            before = start.incarnations.get(topic, {}).get(queue, 0)
            now = answer.incarnations.get(topic, {}).get(queue, before)
            if end is None:
                found.append(Loss("gone", topic, queue, f"{where} is gone"))
            elif before and now != before:
                text = f"{where} was deleted and made anew since offset {offset} was read"
                found.append(Loss("made anew", topic, queue, text))
            elif earliest > offset:
                text = f"{earliest - offset} messages of {where} were removed before they were read"
                text += f" (position {offset}, earliest {earliest})"
                found.append(Loss("behind", topic, queue, text))
            elif end < offset:
                text = f"{where} ends at {end}, below the position {offset}: its log lost its end"
                found.append(Loss("ahead", topic, queue, text))
    return found


def check_topics(start: Position, options: SourceOptions) -> None:
    """Refuse a checkpoint of a query that reads other topics: those it has are not lost.

    Who accepts loss may read fewer of them than before, but not quite others: that would begin
    anew, and nobody would notice.
    """
    named = {*options.topics, *options.optional_topics}
    left = [repr(topic) for topic in start.offsets if topic not in named]
    is_other = len(left) == len(start.offsets)
    if not left or not options.topics or not (is_other or options.fails_on_data_loss):
        return
    text = (
        f"the checkpoint is of a query that reads {', '.join(map(repr, start.offsets))}, and this"
        f" one reads {', '.join(map(repr, options.topics))}: "
    )
    if not is_other:
        text += f"name {', '.join(left)}, too, set failOnDataLoss=false to go on without, or "
    raise BadOffsets(f"{text}begin with a new checkpoint")


def judge(
    start: Position, answer: PollResponse[str], *, earliest: Callable[[], OffsetsByQueue] | None
) -> tuple[Position, OffsetsByQueue]:
    """The start to go on from, and where queues begin that are not continued.

    Without ``earliest``, which looks up where queues begin now, every loss is a ``BulkError``.
    """
    found = losses(start, answer)
    if not found:
        return start, {}
    if earliest is None:
        texts = [each.text for each in found[:LOSSES_NAMED_MAX]]
        if len(found) > LOSSES_NAMED_MAX:
            texts.append(f"and {len(found) - LOSSES_NAMED_MAX} more")
        raise BulkError(DATA_LOSS, "; ".join(texts) + _reason(answer) + ADVICE)
    offsets = {topic: dict(queues) for topic, queues in start.offsets.items()}
    begins: OffsetsByQueue = {}
    for each in found:
        _log.warning("data loss, going on: %s%s", each.text, _reason(answer))
        topic, queue = each.topic, each.queue
        if each.kind == "gone":
            del offsets[topic][queue]
        elif each.kind != "behind":
            there = answer.latest if each.kind == "ahead" else earliest()
            offsets[topic][queue] = there[topic][queue]
            begins.setdefault(topic, {})[queue] = there[topic][queue]
    kept = {topic: queues for topic, queues in offsets.items() if queues}
    return msgspec.structs.replace(start, offsets=kept, epoch=answer.epoch), begins


def _reason(answer: PollResponse[str]) -> str:
    """What the broker knows of it: a lease that was broken is not the query's fault."""
    return f"; the broker says: {answer.lost}" if answer.lost else ""
