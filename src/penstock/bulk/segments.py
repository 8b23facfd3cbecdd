"""Segments of a log mapped for reading: any record by its position, without a copy.

A map is made of a segment when one of its records is wanted, and again when the segment has grown.
A segment that was removed keeps its map until the last reader of it is gone; one that is not mapped
is then missing, which is the caller's data loss. At most ``maps_max`` maps are kept.

Unlike the broker (D22), a process of its own may map: its resident pages are the page cache's.
A sector that the disk cannot read ends the process (SIGBUS), and only it: the broker starts it
again, other reads go on behind their last batch, and the one that needs the sector fails when its
patience is over, with "no answer from Penstock's Flight port".

Not here: what is in a segment (``gather.py``). Nothing above a reader's durable end is looked at.
"""

import mmap
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from typing import Final

import numpy as np

from penstock.bulk.layout import Column, kinds
from penstock.log.segment import LOG_DIR, segment_path

MAPS_MAX: Final = 32
"""2 GiB of address space with segments of 64 MiB."""
_SUFFIX: Final = ".seg"


class MappedSegment:
    """One segment file as far as it went when it was mapped."""

    __slots__ = ("base", "data", "size_bytes")

    def __init__(self, base: int, data: mmap.mmap | bytes) -> None:
        self.base: Final = base
        self.data: Final = data
        self.size_bytes: Final = len(data)


class SegmentMaps:
    """The maps of one data directory; threads may share it."""

    def __init__(self, directory: Path, *, maps_max: int = MAPS_MAX) -> None:
        self._directory = directory
        self._maps_max = maps_max
        self._maps: OrderedDict[int, MappedSegment] = OrderedDict()
        self._bases: list[int] = []
        self._lock = threading.Lock()

    def groups(
        self, positions: Column, lengths: Column
    ) -> list[tuple[MappedSegment | None, Column]]:
        """Which of the records lie in which segment; None for those that are in none.

        The second part of a pair are the numbers of the records.
        """
        if not len(positions):
            return []
        bases = self._listed(int(positions.max()))
        which = np.searchsorted(np.asarray(bases, np.uint64), positions, "right")
        found: list[tuple[MappedSegment | None, Column]] = []
        for number in kinds(which):
            rows = np.flatnonzero(which == number)
            ends = positions[rows] + lengths[rows]
            segment = self._segment(bases[number - 1], int(ends.max())) if number else None
            if segment is None:
                found.append((None, rows))
                continue
            is_there = ends <= segment.base + segment.size_bytes
            if is_there.all():
                found.append((segment, rows))
            else:
                found += [(segment, rows[is_there]), (None, rows[~is_there])]
        return found

    def close(self) -> None:
        """Forget every map; those in use live as long as their users."""
        with self._lock:
            self._maps.clear()
            self._bases = []

    def _listed(self, position: int) -> list[int]:
        """Bases of the segments; listed again when ``position`` may lie in a new one."""
        with self._lock:
            bases = self._bases
            last = self._maps.get(bases[-1]) if bases else None
            if last is None or position >= last.base + last.size_bytes:
                self._bases = bases = self._list()
            return bases

    def _list(self) -> list[int]:
        try:
            names = os.listdir(self._directory / LOG_DIR)
        except FileNotFoundError:
            return []
        stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _segment(self, base: int, end: int) -> MappedSegment | None:
        """The map of a segment, long enough to hold ``end`` if the file is."""
        with self._lock:
            segment = self._maps.get(base)
            if segment is None or segment.base + segment.size_bytes < end:
                segment = self._map(base) or segment
                if segment is None:
                    return None
                limit = self._limit(base)
                if limit and segment.base + segment.size_bytes > limit:
                    # Bytes behind the base of the next segment cannot belong to the log.
                    segment = MappedSegment(base, segment.data[: limit - base])
                self._maps[base] = segment
                if len(self._maps) > self._maps_max:
                    self._maps.popitem(last=False)
            self._maps.move_to_end(base)
            return segment

    def _limit(self, base: int) -> int:
        at = bisect_right(self._bases, base)
        return self._bases[at] if at < len(self._bases) else 0

    def _map(self, base: int) -> MappedSegment | None:
        try:
            fd = os.open(self._directory / segment_path(base), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            size = os.fstat(fd).st_size
            data = mmap.mmap(fd, size, access=mmap.ACCESS_READ) if size else b""
            return MappedSegment(base, data)
        finally:
            os.close(fd)
