"""Rows of a stopped or copied data directory, without a broker (``path = DIR``).

``OfflineBulk`` answers what ``client.BulkClient`` answers, for a directory that does not change:
the same tickets give the same rows. It refuses a directory that a living broker has.

Not here: the directory (``stopped.py``), the rows (``reading.py``).
"""

import difflib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from penstock.bulk.link import (
    BAD_REQUEST,
    NO_TOPIC,
    Located,
    OffsetMap,
    QueueRange,
    Resolved,
    TopicRange,
)
from penstock.bulk.origins import known_origins
from penstock.bulk.reading import read_ticket
from penstock.bulk.segments import SegmentMaps
from penstock.bulk.stopped import StoppedDirectory, StoppedQueue
from penstock.bulk.tickets import BulkError, Summary, Ticket
from penstock.model.names import HIDDEN_PREFIXES


class OfflineBulk:
    """The queues of one directory; satisfies ``tickets.Bulk`` and ``reading.Place``."""

    def __init__(self, path: str | Path) -> None:
        self.directory: Final = Path(path)
        self.maps: Final = SegmentMaps(self.directory)
        self.origins: Final = known_origins()
        self.summary = Summary()
        """Of the last ``read`` that was read to its end."""
        self._opened: StoppedDirectory | None = None

    def __reduce__(self) -> tuple[Callable[..., "OfflineBulk"], tuple[str]]:
        """The path only; the copy opens it by itself."""
        return OfflineBulk, (str(self.directory),)

    def __enter__(self) -> "OfflineBulk":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resolve(self, topics: list[str] | None = None, *, pattern: str | None = None) -> Resolved:
        """Topics, their queues and what can be read of each."""
        opened = self._open()
        names = list(topics) if topics is not None else self._matching(pattern)
        found = []
        for name in sorted(names):
            queues = []
            for number, queue_id in enumerate(self._queue_ids(name)):
                queue = opened.queues[queue_id]
                queues.append(
                    QueueRange(
                        queue=number,
                        queue_id=queue_id,
                        incarnation=queue.state.incarnation,
                        earliest=queue.state.min_offset,
                        end=queue.end,
                    )
                )
            found.append(TopicRange(name=name, queues=queues))
        return Resolved(epoch=opened.epoch, topics=found)

    def by_time(self, topic: str, at_ms: int) -> OffsetMap:
        """First offsets stored at or after a time."""
        opened = self._open()
        ids = enumerate(self._queue_ids(topic))
        return {topic: {number: opened.first_at(queue_id, at_ms) for number, queue_id in ids}}

    def read(self, ticket: Ticket) -> Iterator[pa.RecordBatch]:
        """The rows of a ticket."""
        for batch, so_far in read_ticket(self, ticket):
            self.summary = so_far
            if batch.num_rows:
                yield batch

    def locate(self, ticket: Ticket, start: int) -> Located:
        """Where the entries of a ticket are."""
        opened = self._open()
        queue = self._queue(ticket)
        return Located(
            epoch=opened.epoch,
            queue_id=self._queue_ids(ticket.topic)[ticket.queue],
            incarnation=queue.state.incarnation,
            earliest=queue.state.min_offset,
            end=min(ticket.end, queue.end),
            files=queue.files,
            tail=bytes(queue.scanned),
            run_start=opened.end_position,
        )

    def close(self) -> None:
        """Give back what is open."""
        self.maps.close()
        self._opened = None

    def _open(self) -> StoppedDirectory:
        if self._opened is None:
            self._opened = StoppedDirectory(self.directory)
        return self._opened

    def _matching(self, pattern: str | None) -> list[str]:
        names = [
            name
            for name in self._open().topics
            if not name.rpartition("/")[2].startswith(HIDDEN_PREFIXES)
        ]
        if pattern is None:
            return names
        try:
            expression = re.compile(pattern)
        except re.error as problem:
            raise BulkError(BAD_REQUEST, f"pattern {pattern!r} cannot be used: {problem}") from None
        return [name for name in names if expression.fullmatch(name)]

    def _queue_ids(self, topic: str) -> list[int]:
        topics = self._open().topics
        found = topics.get(topic)
        if found is None:
            near = difflib.get_close_matches(topic, topics, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise BulkError(NO_TOPIC, f"there is no topic '{topic}' in {self.directory}{hint}")
        return found

    def _queue(self, ticket: Ticket) -> StoppedQueue:
        ids = self._queue_ids(ticket.topic)
        if ticket.queue >= len(ids):
            raise BulkError(
                BAD_REQUEST,
                f"topic '{ticket.topic}' has queues 0 to {len(ids) - 1}, no {ticket.queue}",
            )
        return self._open().queues[ids[ticket.queue]]
