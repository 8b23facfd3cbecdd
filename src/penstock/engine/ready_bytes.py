"""Body bytes of what is ready in a lane, exactly, for topics that limit them.

The index knows what records weigh in the log, not their bodies. So the sizes of bodies are kept
here, four bytes per offset from the low mark on, and only for lanes somebody asks about. The sum
of the unread is carried along: each offset is added once, when it is stored, and taken away once,
when it is read; what waits to be delivered again is summed up when asked.

Settled offsets count nothing. A seek starts over, and so does a restart: then the records from the
low mark on are read once, which the limit itself keeps few.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Final

from penstock.engine.lane import Lane
from penstock.model.record import Record

READ_ENTRIES: Final = 512
"""Records looked at in one go."""

TRIM_MIN: Final = 4096
"""Offsets below the low mark that are kept before they are cut off."""


class ReadyBytes:
    """The sizes of bodies in one lane."""

    __slots__ = ("_base", "_lane", "_read", "_read_upto", "_sizes", "_unread")

    def __init__(
        self, lane: Lane, read: Callable[[Sequence[tuple[int, int]]], list[Record | None]]
    ) -> None:
        self._lane = lane
        self._read = read
        self._base = self._read_upto = lane.floor()
        self._sizes = array("I")
        self._unread = 0

    def total(self) -> int:
        """Body bytes of the ready messages, those not yet visible included."""
        lane = self._lane
        if lane.next_offset < self._read_upto:
            self._start_over()
        self._extend()
        passed = lane.next_offset - self._base
        self._unread -= sum(self._sizes[self._read_upto - self._base : passed])
        self._read_upto = lane.next_offset
        self._trim()
        base, sizes = self._base, self._sizes
        return self._unread + sum(sizes[at - base] for at in lane.redelivery.again if at >= base)

    def _start_over(self) -> None:
        self._base = self._read_upto = self._lane.floor()
        self._sizes = array("I")
        self._unread = 0

    def _extend(self) -> None:
        """Learn the sizes of what was stored since the last look."""
        index = self._lane.queue.index
        is_settled = self._lane.cursor.is_settled
        end = index.next_offset
        while (start := self._base + len(self._sizes)) < end:
            entries = index.entries(start, READ_ENTRIES)
            if not entries:
                self._fill(end)
                return
            records = self._read([(entry[0], entry[4]) for entry in entries])
            for entry, record in zip(entries, records, strict=True):
                # Offsets that nothing was stored under, and all but the first of a batch.
                self._fill(entry[1])
                size = 0 if record is None or is_settled(entry[1]) else record.shape.body_len
                self._sizes.append(size)
                self._unread += size
                self._fill(entry[1] + entry[5])

    def _fill(self, end: int) -> None:
        self._sizes.extend([0] * (end - self._base - len(self._sizes)))

    def _trim(self) -> None:
        passed = min(self._lane.floor(), self._read_upto) - self._base
        if passed >= TRIM_MIN and 2 * passed >= len(self._sizes):
            del self._sizes[:passed]
            self._base += passed
