"""What a subscription has settled in one queue: a low mark and ranges above it (D13).

Everything below ``low_mark`` is settled; above it, sorted disjoint half-open ranges are. Settling
the offset at the low mark absorbs the ranges that then touch it. Offsets count messages, so single
messages inside a batch record are settled like any others (D4).

Invariants: low_mark < starts[0] < ends[0] < starts[1] < ... : ranges neither touch each other nor
the low mark. The number of ranges is bounded by the holes between them, which are messages in
flight, coming back, delayed or skipped, each with its own limit.
Not here: who holds an unsettled offset (``pending``, ``redelivery``), saving (``lane``).
"""

from bisect import bisect_left, bisect_right
from typing import Final

SPARSE: Final = 8
"""Ranges in a stretch, for each one added to it, from which on they are added one by one."""


class Cursor:
    """Low mark plus settled ranges."""

    __slots__ = ("ends", "low_mark", "settled_above", "starts")

    def __init__(self, low_mark: int = 0) -> None:
        self.low_mark = low_mark
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.settled_above = 0
        """Settled offsets above the low mark."""

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The settled ranges above the low mark, sorted."""
        return list(zip(self.starts, self.ends, strict=True))

    def is_settled(self, offset: int) -> bool:
        """Whether the offset needs no further delivery."""
        if offset < self.low_mark:
            return True
        at = bisect_right(self.starts, offset)
        return at > 0 and offset < self.ends[at - 1]

    def next_unsettled(self, offset: int) -> int:
        """The first offset at or above that is not settled."""
        offset = max(offset, self.low_mark)
        at = bisect_right(self.starts, offset) - 1
        return max(offset, self.ends[at]) if at >= 0 else offset

    def settled_in(self, start: int, end: int) -> int:
        """How many offsets of [start, end) are settled."""
        total = max(0, min(end, self.low_mark) - start)
        for at in range(bisect_right(self.ends, start), len(self.starts)):
            if self.starts[at] >= end:
                break
            total += min(end, self.ends[at]) - max(start, self.starts[at])
        return total

    def unsettled_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """The gaps in [start, end): half-open ranges of offsets that are not settled."""
        gaps = []
        at = max(start, self.low_mark)
        for index in range(bisect_right(self.ends, at), len(self.starts)):
            if at >= end or self.starts[index] >= end:
                break
            if self.starts[index] > at:
                gaps.append((at, self.starts[index]))
            at = self.ends[index]
        if at < end:
            gaps.append((at, end))
        return gaps

    def settle(self, start: int, end: int) -> int:
        """Settle [start, end); returns how many of them were not settled before."""
        low = self.low_mark
        if start <= low:
            return self._raise_low(end) if end > low else 0
        if end <= start:
            return 0
        starts, ends = self.starts, self.ends
        # Acks come mostly in order: the new range begins at or behind the last one.
        if not ends or start > ends[-1]:
            starts.append(start)
            ends.append(end)
            fresh = end - start
        elif start == ends[-1]:
            ends[-1] = end
            fresh = end - start
        else:
            fresh = self._merge(start, end)
        self.settled_above += fresh
        return fresh

    def settle_runs(self, runs: list[tuple[int, int]]) -> int:
        """Settle ascending, disjoint ranges at once; returns how many were not settled before."""
        fresh = at = 0
        while at < len(runs) and runs[at][0] <= self.low_mark:
            fresh += self.settle(*runs[at])
            at += 1
        runs = runs[at:]
        if not runs:
            return fresh
        first = bisect_left(self.ends, runs[0][0])
        last = bisect_right(self.starts, runs[-1][1])
        # Rebuilding the stretch pays only while it is not much longer than what is added to it.
        if last - first > SPARSE * len(runs):
            return fresh + sum([self.settle(start, end) for start, end in runs])
        there = list(zip(self.starts[first:last], self.ends[first:last], strict=True))
        joined = joined_ranges(there + runs)
        before = sum([end - start for start, end in there])
        added = sum([end - start for start, end in joined]) - before
        self.starts[first:last] = [start for start, _ in joined]
        self.ends[first:last] = [end for _, end in joined]
        self.settled_above += added
        return fresh + added

    def settle_upto(self, end: int) -> int:
        """Settle everything below ``end``; returns how many were not settled before."""
        return self._raise_low(end) if end > self.low_mark else 0

    def seek(self, offset: int) -> None:
        """Settle exactly what is below ``offset``, backwards or forwards."""
        self.low_mark = offset
        self.starts.clear()
        self.ends.clear()
        self.settled_above = 0

    def restore(self, low_mark: int, ranges: list[tuple[int, int]]) -> None:
        """Take over a saved state."""
        self.seek(low_mark)
        for start, end in ranges:
            self.settle(start, end)

    def _raise_low(self, end: int) -> int:
        fresh = end - self.low_mark
        starts, ends = self.starts, self.ends
        if starts and starts[0] <= end:
            absorbed = bisect_right(starts, end)
            for at in range(absorbed):
                self.settled_above -= ends[at] - starts[at]
                fresh -= min(end, ends[at]) - starts[at]
            end = max(end, ends[absorbed - 1])
            del starts[:absorbed], ends[:absorbed]
        self.low_mark = end
        return fresh

    def _merge(self, start: int, end: int) -> int:
        starts, ends = self.starts, self.ends
        first = bisect_left(ends, start)  # first range that ends at or behind our start
        last = bisect_right(starts, end)  # one past the last range that begins within reach
        covered = 0
        new_start, new_end = start, end
        if first < last:
            for at in range(first, last):
                covered += max(0, min(end, ends[at]) - max(start, starts[at]))
            new_start = min(start, starts[first])
            new_end = max(end, ends[last - 1])
        starts[first:last] = [new_start]
        ends[first:last] = [new_end]
        return end - start - covered


def joined_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets as sorted ranges that do not touch."""
    joined: list[tuple[int, int]] = []
    last_start = last_end = -1
    for start, end in sorted(ranges):
        if start == last_end:
            last_end = end
        elif start < last_end:
            last_end = max(end, last_end)
        else:
            if last_end >= 0:
                joined.append((last_start, last_end))
            last_start, last_end = start, end
    if last_end >= 0:
        joined.append((last_start, last_end))
    return joined
