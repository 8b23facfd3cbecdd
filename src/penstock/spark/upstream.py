"""Where rows come from: what a query asks of a Penstock, a data directory or a RocketMQ.

An ``Upstream`` knows the topics of its options. Queues are texts (``OffsetsByQueue``): the number
in the topic, or ``broker:number`` for RocketMQ.

Not here: the three kinds (``over_flight.py``, ``rocketmq.py``), which one is taken
(``open_upstream``), who asks (``query.py`` on the driver, ``tasks.py`` on executors).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from penstock.bulk.tickets import Summary
from penstock.model.errors import PenstockError
from penstock.model.queries import PollRequest, PollResponse
from penstock.model.spark_batch import BatchProgress
from penstock.spark.tasks import ReadRange


class SourceQueue(msgspec.Struct, frozen=True, kw_only=True):
    """What can be read of a queue."""

    topic: str
    queue: str
    incarnation: int = 0
    earliest: int
    end: int
    bytes: int = 0


class SourceQueues(msgspec.Struct, frozen=True, kw_only=True):
    """All queues of the options' topics."""

    epoch: int
    queues: list[SourceQueue]

    def by_queue(self, field: str) -> OffsetsByQueue:
        """One number of each queue: ``earliest``, ``end`` or ``incarnation``."""
        found: OffsetsByQueue = {}
        for each in self.queues:
            found.setdefault(each.topic, {})[each.queue] = getattr(each, field)
        return found

    @property
    def row_bytes(self) -> float:
        """Average size of a message; 0 when it is not known."""
        rows = sum(each.end - each.earliest for each in self.queues)
        return sum(each.bytes for each in self.queues) / rows if rows else 0.0


class Upstream(Protocol):
    """Where the rows of a query come from: a broker, a data directory or a RocketMQ cluster.

    The driver's side resolves, polls and keeps the lease; executors read ranges and report.
    """

    def resolve(self) -> SourceQueues:
        """Topics, their queues and what can be read of each."""
        ...

    def at_time(self, topic: str, at_ms: int) -> dict[str, int]:
        """First offsets stored at or after a time; the end of a queue where there is none."""
        ...

    def poll(self, request: PollRequest[str]) -> PollResponse[str]:
        """How far the next batch may go; waits. Notes ``request.start`` as processed."""
        ...

    def read(self, wanted: ReadRange) -> Iterator[Any]:
        """Rows as ``pyarrow.RecordBatch`` es."""
        ...

    def summary(self) -> Summary:
        """What became of the range that was read last."""
        ...

    def renew_lease(self, start: Position) -> str:
        """Hold what is not processed yet; the text says when that was given up before."""
        ...

    def report(
        self, progress: BatchProgress, *, state: str = "running", text: str = ""
    ) -> None: ...

    def close(self) -> None: ...


def local_poll(found: SourceQueues, request: PollRequest[str]) -> PollResponse[str]:
    """What a broker would answer, worked out here from what there is."""
    earliest, ends = found.by_queue("earliest"), found.by_queue("end")
    starts: OffsetsByQueue = {}
    begin: OffsetsByQueue = {}
    for topic, queues in ends.items():
        for queue, end in queues.items():
            first = earliest[topic][queue]
            at = request.start.get(topic, {}).get(queue)
            if at is None or at < first:
                starts.setdefault(topic, {})[queue] = first
                at = first
            begin.setdefault(topic, {})[queue] = min(at, end)
    rows_max = request.rows_max
    if request.bytes_max and found.row_bytes:
        by_bytes = max(1, int(request.bytes_max / found.row_bytes))
        rows_max = min(rows_max, by_bytes) if rows_max else by_bytes
    lag = sum(end - begin[topic][queue] for topic in ends for queue, end in ends[topic].items())
    return PollResponse(
        epoch=found.epoch,
        ends=proportional_ends(begin, ends, rows_max),
        latest=ends,
        starts=starts,
        incarnations=found.by_queue("incarnation"),
        lag_rows=lag,
        lag_bytes=int(lag * found.row_bytes),
    )


# ---- offsets ------------------------------------------------------------------------------------
# Positions as they stand in Spark's checkpoint, and offsets as users write them.
#
# | {"version": 1, "epoch": 3, "offsets": {"orders": {"0": 120, "1": 98}},
# |  "incarnations": {"orders": {"0": 17, "1": 18}}}
#
# Spark compares positions as text, so the same position is always the same JSON: topics by name,
# queues by number. ``incarnations`` tell a topic that was deleted and made anew. ``begins`` stands
# in the end of a batch only, for queues that were not there at its start: where they begin is part
# of the batch, or else a batch that is done again after a crash could begin elsewhere.
#
# Not here: what "earliest" and times mean today (``query.py``).


VERSION: Final = 1
LATEST: Final = -1
EARLIEST: Final = -2
"""In users' JSON, as in Kafka's."""

OffsetsByQueue = dict[str, dict[str, int]]
"""{topic: {queue: number}}."""


class BadOffsets(PenstockError):
    """Offsets that cannot be read."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a query is in every queue."""

    epoch: int = 0
    offsets: OffsetsByQueue = {}
    incarnations: OffsetsByQueue = {}
    begins: OffsetsByQueue = {}
    checkpoint: str = ""
    """An id made with the first position and kept in all that follow: it tells the queries on one
    subscription apart, over restarts. Checkpoints of before have none until their next batch."""

    def as_json(self) -> dict[str, Any]:
        """What Spark stores; equal positions give equal text."""
        found: dict[str, Any] = {
            "version": VERSION,
            "epoch": self.epoch,
            "offsets": ordered(self.offsets),
            "incarnations": ordered(self.incarnations),
        }
        if self.begins:
            found["begins"] = ordered(self.begins)
        if self.checkpoint:
            found["checkpoint"] = self.checkpoint
        return found

    def begin_of(self, end: Position, topic: str, queue: str) -> int:
        """Where the batch from here to ``end`` begins in a queue of ``end``."""
        begins = end.begins.get(topic, {})
        if queue in begins:
            return begins[queue]
        return self.offsets.get(topic, {}).get(queue, 0)


def position(data: Mapping[str, Any]) -> Position:
    """The position in a checkpoint; raises ``BadOffsets``."""
    version = data.get("version")
    if version != VERSION:
        raise BadOffsets(
            f"this checkpoint holds offsets of version {version!r}, known is {VERSION}: it was"
            " written by another Penstock or another source; use that one, or a new checkpoint"
        )
    try:
        return msgspec.convert(
            {name: value for name, value in data.items() if name != "version"}, Position
        )
    except msgspec.ValidationError as problem:
        raise BadOffsets(f"this checkpoint holds no offsets of Penstock: {problem}") from None


def rows_between(start: Position, end: Position) -> int:
    """Messages of a batch, if none of them is missing."""
    return sum(
        max(0, offset - start.begin_of(end, topic, queue))
        for topic, queues in end.offsets.items()
        for queue, offset in queues.items()
    )


def ordered(offsets: OffsetsByQueue) -> OffsetsByQueue:
    """Topics by name, queues by broker and number."""
    return {
        topic: dict(sorted(offsets[topic].items(), key=lambda item: queue_order(item[0])))
        for topic in sorted(offsets)
    }


def queue_order(queue: str) -> tuple[str, int, str]:
    """By broker, then by number: "10" comes behind "9"."""
    broker, _, number = queue.rpartition(":")
    return (broker, int(number), "") if number.isdigit() else (broker, -1, number)


def parse_offsets(option: str, text: str, *, is_nested: bool = True) -> OffsetsByQueue:
    """Offsets (or times) as users write them: ``{"orders": {"0": 23, "1": -2}}``.

    Without ``is_nested`` a topic may have one number for all its queues, kept under "".
    """
    example = '{"orders": {"0": 23, "1": -2}}'
    try:
        given = json.loads(text)
    except ValueError as problem:
        raise BadOffsets(
            f"option {option}: {text[:80]!r} is neither earliest, latest nor JSON like {example}"
            f" ({problem})"
        ) from None
    if not isinstance(given, dict) or not given:
        raise BadOffsets(f"option {option}: JSON like {example} is wanted, not {text[:80]}")
    return {topic: _queues(option, topic, each, is_nested) for topic, each in given.items()}


def _queues(option: str, topic: str, given: Any, is_nested: bool) -> dict[str, int]:
    if not is_nested and _is_number(given):
        return {"": given}
    if not isinstance(given, dict) or not given:
        raise BadOffsets(f"option {option}: topic {topic!r} needs its queues, like {{'0': 23}}")
    for queue, number in given.items():
        if queue_order(queue)[1] < 0:
            raise BadOffsets(f"option {option}: {queue!r} of topic {topic!r} is no queue")
        if not _is_number(number) or number < EARLIEST:
            raise BadOffsets(
                f"option {option}: {number!r} at queue {queue} of topic {topic!r} is no offset;"
                f" they begin at 0, {LATEST} is latest and {EARLIEST} earliest"
            )
    return dict(given)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# ---- shares -------------------------------------------------------------------------------------
# How a limit of rows is divided among queues, where no broker does it: by what each has waiting.
#
# Invariants: the shares add up to the limit or to all there is; no queue goes back; the same
# question has the same answer. Not here: the broker's own way, which knows bytes (``poll`` of the
# bulk lane).


def proportional_ends(start: OffsetsByQueue, ends: OffsetsByQueue, rows_max: int) -> OffsetsByQueue:
    """Ends for at most ``rows_max`` rows from ``start`` (0 = no limit); all queues are in both."""
    waiting = {
        (topic, queue): end - start[topic][queue]
        for topic, queues in ends.items()
        for queue, end in queues.items()
        if end > start[topic][queue]
    }
    total = sum(waiting.values())
    found = {topic: dict(start[topic]) for topic in ends}
    limit = min(rows_max, total) if rows_max else total
    if not limit:
        return found
    shares = {key: rows * limit // total for key, rows in waiting.items()}
    left = limit - sum(shares.values())
    # Rounding left fewer rows than there are queues; those with most waiting get one each.
    for key in sorted(waiting, key=lambda key: (-waiting[key], key[0], queue_order(key[1]))):
        extra = min(left, waiting[key] - shares[key], 1)
        shares[key] += extra
        left -= extra
    for (topic, queue), rows in shares.items():
        found[topic][queue] += rows
    return found
