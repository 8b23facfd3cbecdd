"""Body bytes of what waits in a lane and of what is in flight, for operators.

The index knows what records weigh in the log; their bodies are known to whoever reads them. Up to
``SAMPLE_MAX`` messages all are read, and the figures are exact. Of more, so many are read, spread
over all of them, and the figures are the mean body times the messages: exact when bodies have one
size. So a look costs the same however much waits.

Not here: what limits count, which is always exact (``ready_bytes.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.engine.host import IndexEntry
from penstock.engine.lane import Lane
from penstock.model.record import Record

SAMPLE_MAX: Final = 32

Read = Callable[[Sequence[tuple[int, int]]], list[Record | None]]


def body_bytes(lane: Lane, read: Read) -> tuple[int, int]:
    """Of the ready messages, and of those in flight."""
    ready = lane.ready_messages + lane.redelivery.delayed_messages
    in_flight = lane.pending.messages
    if not ready + in_flight:
        return 0, 0
    floor, end = lane.floor(), lane.end
    if end - floor <= SAMPLE_MAX:
        return _counted(lane, lane.queue.index.entries(floor, SAMPLE_MAX), read)
    step = (end - floor) / SAMPLE_MAX
    # The low mark is in there: something of that entry is unsettled.
    offsets = [lane.cursor.low_mark, *(floor + int(step * at) for at in range(1, SAMPLE_MAX))]
    entries = [entry for at in offsets for entry in lane.queue.index.entries(at, 1)]
    sizes = _sizes(lane, entries, read)
    mean = sum(sizes.values()) / max(1, sum([entry[5] for entry in entries if entry[1] in sizes]))
    return round(mean * ready), round(mean * in_flight)


def _counted(lane: Lane, entries: list[IndexEntry], read: Read) -> tuple[int, int]:
    sizes = _sizes(lane, entries, read)
    held = sum([size for at, size in sizes.items() if lane.pending.holds(at)])
    return sum(sizes.values()) - held, held


def _sizes(lane: Lane, entries: list[IndexEntry], read: Read) -> dict[int, int]:
    """First offset -> body bytes, of those that are not settled."""
    is_settled = lane.cursor.is_settled
    entries = [
        entry for entry in entries if not all(map(is_settled, range(entry[1], entry[1] + entry[5])))
    ]
    records = read([(entry[0], entry[4]) for entry in entries])
    return {
        entry[1]: 0 if record is None else record.shape.body_len
        for entry, record in zip(entries, records, strict=True)
    }
