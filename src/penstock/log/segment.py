"""Segments: the files the log is cut into, each named by the position of its first byte.

    log/00000000000000000000.seg   positions 0 ... 67,108,800
    log/00000000000067108800.seg   positions 67,108,800 ...

``position - base`` is the place in the file. Frames never cross a segment, and a segment begins
where the one before it ended, unless that one was removed (retention may take any segment, D12) or
lost bytes. Only the last segment grows.

Not here: what is in a segment (``format.py``), when to begin a new one (``writer.py``), when one
may go (``retention.py``).
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from penstock.log.format import HEAD_BYTES, FrameHead, find_head, parse_head
from penstock.log.storage import File, Storage

LOG_DIR: Final = "log"
_NAME: Final = re.compile(r"(\d{20})\.seg")
_WALK_BYTES: Final = 64 * 1024
"""How much is read at once when only frame heads are wanted."""


def segment_path(base: int) -> str:
    """Where the segment that begins at ``base`` lies."""
    return f"{LOG_DIR}/{base:020d}.seg"


class Segment:
    """One segment file as it is known to be."""

    __slots__ = ("base", "size_bytes")

    def __init__(self, base: int, size_bytes: int = 0) -> None:
        self.base = base
        self.size_bytes = size_bytes

    @property
    def end(self) -> int:
        """Position of the first byte that is not in the segment."""
        return self.base + self.size_bytes

    @property
    def path(self) -> str:
        return segment_path(self.base)

    def __repr__(self) -> str:
        return f"Segment({self.base}, {self.size_bytes} B)"


class SegmentSet:
    """All segments in the order of their positions."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._segments: list[Segment] = []
        self.last: Segment | None = None
        """The segment that grows."""

    @classmethod
    def load(cls, storage: Storage) -> "SegmentSet":
        """The segments there are; none when there is no log yet."""
        segments = cls()
        if not storage.exists(LOG_DIR):
            return segments
        for name in storage.list(LOG_DIR):
            match = _NAME.fullmatch(name)
            if match is not None:
                base = int(match[1])
                try:
                    segments.add(base, storage.size(segment_path(base)))
                except FileNotFoundError:  # a running broker's retention was faster
                    continue
        # Bytes behind the base of the next segment cannot belong to the log.
        for segment, following in zip(segments._segments, segments._bases[1:], strict=False):
            segment.size_bytes = min(segment.size_bytes, following - segment.base)
        return segments

    def __iter__(self) -> Iterator[Segment]:
        return iter(tuple(self._segments))

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def first(self) -> Segment | None:
        return self._segments[0] if self._segments else None

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def find(self, position: int) -> Segment | None:
        """The segment that holds ``position``, or None when it is gone or not yet written."""
        at = bisect_right(self._bases, position) - 1
        if at < 0:
            return None
        segment = self._segments[at]
        return segment if position < segment.base + segment.size_bytes else None

    def at_or_after(self, position: int) -> list[Segment]:
        """Segments with any byte at ``position`` or behind it; empty ones by their base."""
        return [s for s in self._segments if s.end > position or s.base >= position]

    def add(self, base: int, size_bytes: int = 0) -> Segment:
        """Take in a segment; bases only grow."""
        assert not self._bases or base > self._bases[-1], f"segment {base} out of order"
        segment = Segment(base, size_bytes)
        self._bases.append(base)
        self._segments.append(segment)
        self.last = segment
        return segment

    def discard(self, segment: Segment) -> None:
        """Forget a segment; its file is the caller's business."""
        at = self._segments.index(segment)
        del self._segments[at], self._bases[at]
        self.last = self._segments[-1] if self._segments else None


def make_log_dir(storage: Storage) -> None:
    """Make the directory of the log if it is not there yet, durably in any case.

    A process that was killed may have made it without living to see it durable.
    """
    storage.make_dir(LOG_DIR)
    storage.sync_dir("")


def remove_segment(storage: Storage, segments: SegmentSet, segment: Segment) -> None:
    """Unlink a segment; the caller syncs the directory once for all it removes."""
    storage.remove(segment.path)
    segments.discard(segment)


def walk_heads(file: File, segment: Segment, at: int = 0) -> Iterator[FrameHead]:
    """Every good frame head of a segment from byte ``at`` on; bad stretches are skipped.

    Only heads are checked, so this is quick and says nothing about records.
    """
    size, base = segment.size_bytes, segment.base
    start, buffer = at, b""
    while at + HEAD_BYTES <= size:
        if at < start or at + HEAD_BYTES > start + len(buffer):
            start, buffer = at, file.read(at, min(_WALK_BYTES, size - at))
            if len(buffer) < HEAD_BYTES:
                return
        head = parse_head(buffer, at - start, base + at)
        if head is None:
            head = find_head(buffer, at - start + 1, base + start)
            if head is None:
                # A head may begin in the last bytes read: look at them again with what follows.
                at = max(at + 8, (start + len(buffer) - HEAD_BYTES + 8) & -8)
                continue
        yield head
        at = head.end_position - base
