"""Where rows come from: what a query asks of a Penstock, a data directory or a RocketMQ.

An ``Upstream`` knows the topics of its options. Queues are texts (``offsets.Marks``).
Not here: the three kinds (``over_flight.py``, ``offline.py``, ``rocketmq.py``), which one is taken
(``connections.py``), who asks (``query.py`` on the driver, ``reading.py`` on executors).
"""

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from penstock.bulk.link import Summary
from penstock.model.progress import BatchProgress
from penstock.spark.offsets import Marks, Position
from penstock.spark.shares import ends_within


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """What can be read of a queue."""

    topic: str
    queue: str
    incarnation: int = 0
    earliest: int
    end: int
    bytes: int = 0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """All queues of the options' topics."""

    epoch: int
    queues: list[Queue]

    def marks(self, field: str) -> Marks:
        """One number of each queue: ``earliest``, ``end`` or ``incarnation``."""
        found: Marks = {}
        for each in self.queues:
            found.setdefault(each.topic, {})[each.queue] = getattr(each, field)
        return found

    @property
    def row_bytes(self) -> float:
        """Average size of a message; 0 when it is not known."""
        rows = sum(each.end - each.earliest for each in self.queues)
        return sum(each.bytes for each in self.queues) / rows if rows else 0.0


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """How far may the next batch go? 0 = no limit."""

    start: Position
    rows_max: int = 0
    bytes_max: int = 0
    rows_min: int = 0
    wait_ms: int = 0
    report: BatchProgress | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the next batch ends, and what else is there."""

    epoch: int
    ends: Marks
    latest: Marks
    starts: Marks
    """Earliest offsets of queues that the start does not have, or whose start is gone."""
    incarnations: Marks
    lag_rows: int = 0
    lag_bytes: int = 0
    lost: str = ""
    """Why messages behind the start are gone, where the upstream knows: a broken lease."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a queue, as a task reads it."""

    topic: str
    queue: str
    start: int
    end: int
    epoch: int = 0
    incarnation: int = 0
    columns: tuple[str, ...]


class Upstream(Protocol):
    """A place with rows."""

    def found(self) -> Found:
        """Topics, their queues and what can be read of each."""
        ...

    def at_time(self, topic: str, at_ms: int) -> dict[str, int]:
        """First offsets stored at or after a time; the end of a queue where there is none."""
        ...

    def poll(self, ask: Ask) -> Answer:
        """How far the next batch may go; waits. Notes ``ask.start`` as processed."""
        ...

    def read(self, wanted: Range) -> Iterator[Any]:
        """Rows as ``pyarrow.RecordBatch`` es."""
        ...

    def summary(self) -> Summary:
        """What became of the range that was read last."""
        ...

    def keep(self, start: Position) -> str:
        """Hold what is not processed yet; the text says when that was given up before."""
        ...

    def report(self, progress: BatchProgress, *, state: str = "running", text: str = "") -> None:
        """Tell how a batch went."""
        ...

    def close(self) -> None:
        """Give back what is open."""
        ...


def local_answer(found: Found, ask: Ask) -> Answer:
    """What a broker would say, worked out here from what there is."""
    earliest, ends = found.marks("earliest"), found.marks("end")
    offsets = ask.start.offsets
    starts: Marks = {}
    begin: Marks = {}
    for topic, queues in ends.items():
        for queue, end in queues.items():
            first = earliest[topic][queue]
            at = offsets.get(topic, {}).get(queue)
            if at is None or at < first:
                starts.setdefault(topic, {})[queue] = first
                at = first
            begin.setdefault(topic, {})[queue] = min(at, end)
    rows_max = ask.rows_max
    if ask.bytes_max and found.row_bytes:
        by_bytes = max(1, int(ask.bytes_max / found.row_bytes))
        rows_max = min(rows_max, by_bytes) if rows_max else by_bytes
    lag = sum(end - begin[topic][queue] for topic in ends for queue, end in ends[topic].items())
    return Answer(
        epoch=found.epoch,
        ends=ends_within(begin, ends, rows_max),
        latest=ends,
        starts=starts,
        incarnations=found.marks("incarnation"),
        lag_rows=lag,
        lag_bytes=int(lag * found.row_bytes),
    )
