"""Body bytes of what waits in a lane and of what is in flight, for operators.

The index knows what records weigh in the log; their bodies are known to whoever reads them. A few
messages are all read, and the figures are exact. Of more, the oldest and the newest are read, which
are the ones at hand, and the figures are their mean times the messages: exact when bodies have one
size. It is remembered while nothing comes or goes. So a look costs the same however much waits.

Bounds: ``ALL_MESSAGES_MAX`` messages and ``ALL_BYTES_MAX`` are read for an exact figure, twice
``EDGE_MESSAGES`` for a mean; a record above ``RECORD_BYTES_MAX`` is not read, but taken for its
log bytes, of which the body is all but some hundred.
Not here: what limits count, which is always exact (``ready_bytes.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.engine.host import IndexEntry
from penstock.engine.lane import Lane
from penstock.model.record import Record

ALL_MESSAGES_MAX: Final = 32
ALL_BYTES_MAX: Final = 128 * 1024
EDGE_MESSAGES: Final = 4
RECORD_BYTES_MAX: Final = 32 * 1024

Read = Callable[[Sequence[tuple[int, int]]], list[Record | None]]


class BodyBytes:
    """The figures of one lane."""

    __slots__ = ("_between", "_lane", "_mean", "_read")

    def __init__(self, lane: Lane, read: Read) -> None:
        self._lane = lane
        self._read = read
        self._between = (-1, -1)
        """The offsets that the mean is of."""
        self._mean = 0.0

    def look(self) -> tuple[int, int]:
        """Of the ready messages, and of those in flight."""
        lane = self._lane
        ready = lane.ready_messages + lane.redelivery.delayed_messages
        in_flight = lane.pending.messages
        if not ready + in_flight:
            return 0, 0
        low, end = lane.cursor.low_mark, lane.end
        index = lane.queue.index
        if end - low <= ALL_MESSAGES_MAX and index.bytes_between(low, end) <= ALL_BYTES_MAX:
            sizes = self._sizes(index.entries(lane.floor(), ALL_MESSAGES_MAX))
            held = sum([size for at, size in sizes.items() if lane.pending.holds(at)])
            return sum(sizes.values()) - held, held
        if self._between != (low, end):
            self._between = low, end
            # The entry of the low mark is not wholly settled, so there is something in it.
            edges = {
                entry[1]: entry
                for at in (lane.floor(), max(low, end - EDGE_MESSAGES))
                for entry in index.entries(at, EDGE_MESSAGES)
            }
            sizes = self._sizes(list(edges.values()))
            messages = sum([edges[at][5] for at in sizes])
            self._mean = sum(sizes.values()) / max(1, messages)
        return round(self._mean * ready), round(self._mean * in_flight)

    def _sizes(self, entries: list[IndexEntry]) -> dict[int, int]:
        """First offset -> body bytes, of those that are not settled."""
        is_settled = self._lane.cursor.is_settled
        left = [
            entry
            for entry in entries
            if not all(map(is_settled, range(entry[1], entry[1] + entry[5])))
        ]
        sizes = {entry[1]: entry[4] for entry in left}
        small = [entry for entry in left if entry[4] <= RECORD_BYTES_MAX]
        records = self._read([(entry[0], entry[4]) for entry in small])
        for entry, record in zip(small, records, strict=True):
            sizes[entry[1]] = 0 if record is None else record.shape.body_len
        return sizes
