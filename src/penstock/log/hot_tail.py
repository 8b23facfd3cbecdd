"""The hot tail: the newest records as objects, so that live consumers never touch the disk.

Two generations: records go into the young one; when it has half of the bounds it becomes the old
one and the former old one is dropped whole. So adding and evicting cost one dict operation for a
record and no bookkeeping, and the bounds (bytes and number) hold at any time.

Not here: reading from disk (``reader.py``), the choice between the two (``store.py``).
"""

from collections.abc import Sequence
from operator import attrgetter

from penstock.model.record import Record

_position_of = attrgetter("position")


class HotTail:
    """Newest records by position."""

    __slots__ = ("_bytes_half", "_old", "_records_half", "_young", "_young_bytes")

    def __init__(self, *, bytes_max: int, records_max: int) -> None:
        self._bytes_half = bytes_max // 2
        self._records_half = records_max // 2
        self._young: dict[int, Record] = {}
        self._old: dict[int, Record] = {}
        self._young_bytes = 0

    def add(self, records: Sequence[Record], size_bytes: int) -> None:
        """Keep records that were just appended and take ``size_bytes`` in the log."""
        if size_bytes > self._bytes_half or len(records) > self._records_half:
            return  # one frame as large as the tail would only drive out everything else
        if (
            self._young_bytes + size_bytes > self._bytes_half
            or len(self._young) + len(records) > self._records_half
        ):
            self._old = self._young
            self._young = {}
            self._young_bytes = 0
        self._young.update(zip(map(_position_of, records), records, strict=True))
        self._young_bytes += size_bytes

    def get(self, position: int) -> Record | None:
        """The record at ``position`` if it is still here."""
        record = self._young.get(position)
        return record if record is not None else self._old.get(position)

    def get_many(self, wanted: Sequence[tuple[int, int]]) -> list[Record | None]:
        """One answer for each (position, length)."""
        young, old = self._young.get, self._old.get
        return [young(position) or old(position) for position, _ in wanted]

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
