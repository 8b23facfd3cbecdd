"""How a limit of rows and bytes is shared among queues: max-min fair, from the index alone.

Whoever has less than its share leaves the rest to the others. Bytes come from the cumulative bytes
of index entries (D4), so no record is read. When not even one record fits, the oldest one is given
all the same: a limit slows a query down, it does not stop it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.log.index import QueueIndex


class Stretch(NamedTuple):
    """What can be read of one queue."""

    entries: QueueIndex
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Record bytes in it."""
        return self.entries.bytes_between(self.start, self.end)


def divide(wanted: Sequence[int], total: int) -> list[int]:
    """``total`` for those who want so much: nobody gets more than it wants, none can be envied."""
    given = [0] * len(wanted)
    left = len(wanted)
    for at in sorted(range(len(wanted)), key=lambda each: wanted[each]):
        given[at] = min(wanted[at], total // left)
        total -= given[at]
        left -= 1
    return given


def ends_within(stretches: Sequence[Stretch], rows_max: int, bytes_max: int) -> list[int]:
    """Where each stretch ends so that all together are within the limits; 0 = no limit."""
    ends = [each.end for each in stretches]
    rows = [each.end - each.start for each in stretches]
    if 0 < rows_max < sum(rows):
        rows = divide(rows, rows_max)
        ends = [each.start + count for each, count in zip(stretches, rows, strict=True)]
    if bytes_max > 0 and any(rows):
        cut = [each._replace(end=end) for each, end in zip(stretches, ends, strict=True)]
        sizes = [each.size_bytes for each in cut]
        if sum(sizes) > bytes_max:
            shares = divide(sizes, bytes_max)
            ends = [_end_within(each, share) for each, share in zip(cut, shares, strict=True)]
            if all(end == each.start for each, end in zip(cut, ends, strict=True)):
                oldest = min(
                    (at for at, count in enumerate(rows) if count), key=lambda at: _age(cut[at])
                )
                ends[oldest] = cut[oldest].start + 1
    return ends


def _end_within(stretch: Stretch, size: int) -> int:
    """The last end up to which at most ``size`` bytes lie."""
    index, start, low, high = stretch.entries, stretch.start, stretch.start, stretch.end
    while low < high:
        middle = (low + high + 1) // 2
        if index.bytes_between(start, middle) <= size:
            low = middle
        else:
            high = middle - 1
    return low


def _age(stretch: Stretch) -> int:
    found = stretch.entries.entries(stretch.start, 1)
    return found[0][3] if found else 0
