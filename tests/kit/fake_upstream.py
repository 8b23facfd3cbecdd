"""An upstream of Spark's source that is made of plain lists: topics grow, shrink and are made anew.

Not here: what it stands for (``penstock.spark.upstream``).
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from penstock.bulk.layout import arrow_schema
from penstock.bulk.tickets import Summary
from penstock.model.queries import PollRequest, PollResponse
from penstock.model.spark_batch import BatchProgress
from penstock.spark.tasks import ReadRange
from penstock.spark.upstream import Position, SourceQueue, SourceQueues, local_poll


class FakeUpstream:
    """Queues with a beginning and an end; rows carry their offsets."""

    def __init__(self, **topics: int) -> None:
        """``FakeUpstream(orders=2)``: topic orders with two empty queues."""
        self.epoch = 1
        self.queues: dict[tuple[str, str], SourceQueue] = {}
        self.asked: list[PollRequest[str]] = []
        self.kept: list[Position] = []
        self.reported: list[tuple[BatchProgress, str, str]] = []
        self.missing: set[int] = set()
        """Offsets that no read finds."""
        self.times: dict[int, int] = {}
        """Wall time to the offset of every queue."""
        self._incarnation = 0
        self._summary = Summary()
        for topic, queues in topics.items():
            for number in range(queues):
                self.make(topic, str(number))

    def make(self, topic: str, queue: str, *, earliest: int = 0, end: int = 0) -> None:
        """A queue, or another one under the same name."""
        self._incarnation += 1
        self.queues[topic, queue] = SourceQueue(
            topic=topic, queue=queue, incarnation=self._incarnation, earliest=earliest, end=end,
            bytes=(end - earliest) * 100,
        )  # fmt: skip

    def move(self, topic: str, queue: str, *, earliest: int | None = None, end: int = 0) -> None:
        """Retention took something, or messages came."""
        old = self.queues[topic, queue]
        first = old.earliest if earliest is None else earliest
        last = end or old.end
        self.queues[topic, queue] = msgspec.structs.replace(
            old, earliest=first, end=last, bytes=(last - first) * 100
        )

    def grow(self, topic: str, queue: str, rows: int) -> None:
        """So many messages came."""
        self.move(topic, queue, end=self.queues[topic, queue].end + rows)

    def resolve(self) -> SourceQueues:
        """All queues."""
        return SourceQueues(
            epoch=self.epoch, queues=[self.queues[key] for key in sorted(self.queues)]
        )

    def at_time(self, topic: str, at_ms: int) -> dict[str, int]:
        """The offset that ``times`` names, in every queue of the topic."""
        return {queue: self.times[at_ms] for name, queue in self.queues if name == topic}

    def poll(self, request: PollRequest[str]) -> PollResponse[str]:
        """At once."""
        self.asked.append(request)
        return local_poll(self.resolve(), request)

    def read(self, wanted: ReadRange) -> Iterator[Any]:
        """Three rows at a time."""
        there = [each for each in range(wanted.start, wanted.end) if each not in self.missing]
        schema = arrow_schema(list(wanted.columns))
        for at in range(0, len(there), 3):
            rows = [
                {"topic": wanted.topic, "queue": 0, "offset": each, "body": b"%d" % each}
                for each in there[at : at + 3]
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)
        self._summary = Summary(
            next_offset=wanted.end,
            rows=len(there),
            read=len(there),
            lost=wanted.end - wanted.start - len(there),
        )

    def summary(self) -> Summary:
        """Of the last read."""
        return self._summary

    def renew_lease(self, start: Position) -> str:
        """Remembered."""
        self.kept.append(start)
        return ""

    def report(self, progress: BatchProgress, *, state: str = "running", text: str = "") -> None:
        """Remembered."""
        self.reported.append((progress, state, text))

    def close(self) -> None:
        """Nothing is open."""
