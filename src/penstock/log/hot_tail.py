"""The hot tail: the newest records as objects, so that live consumers never touch the disk.

Two generations: records go into the young one; when it has half of the bounds it becomes the old
one and the former old one is dropped whole. So evicting costs nothing, and the bounds (bytes and
number) hold at any time.

Live consumers of one busy queue read what was written, in that order: a stretch of records is then
a slice, checked by its positions. Only readers of something else make the look-up by position, and
only then is it filled.

Not here: reading from disk (``reader.py``), the choice between the two (``store.py``).
"""

from bisect import bisect_left
from collections.abc import Sequence

from penstock.model.record import Record


class _Generation:
    """Records in the order of the log."""

    __slots__ = ("_by_position", "positions", "records")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.records: list[Record] = []
        self._by_position: dict[int, Record] = {}
        """Lags behind the lists until somebody asks."""

    def run(self, wanted: list[int]) -> list[Record]:
        """The records at the first of these positions, if they follow one another here."""
        if not wanted:
            return []
        start = bisect_left(self.positions, wanted[0])
        found = self.positions[start : start + len(wanted)]
        count = len(found)
        is_run = found == (wanted if count == len(wanted) else wanted[:count])
        return self.records[start : start + count] if is_run else []

    def by_position(self) -> dict[int, Record]:
        """All of them, to be looked up."""
        known = self._by_position
        done = len(known)
        if done < len(self.positions):
            known.update(zip(self.positions[done:], self.records[done:], strict=True))
        return known


class HotTail:
    """Newest records by position."""

    __slots__ = ("_bytes_half", "_old", "_records_half", "_young", "_young_bytes")

    def __init__(self, *, bytes_max: int, records_max: int) -> None:
        self._bytes_half = bytes_max // 2
        self._records_half = records_max // 2
        self._young = _Generation()
        self._old = _Generation()
        self._young_bytes = 0

    def add(self, records: list[Record], positions: list[int], size_bytes: int) -> None:
        """Keep records that were just appended there and take ``size_bytes`` in the log."""
        young, young_bytes = self._young, self._young_bytes + size_bytes
        if young_bytes > self._bytes_half or len(young.records) + len(records) > self._records_half:
            if size_bytes > self._bytes_half or len(records) > self._records_half:
                return  # one frame as large as the tail would only drive out everything else
            self._old, self._young = young, _Generation()
            young, young_bytes = self._young, size_bytes
        young.positions += positions
        young.records += records
        self._young_bytes = young_bytes

    def get(self, position: int) -> Record | None:
        """The record at ``position`` if it is still here."""
        return self.get_many([(position, 0)])[0]

    def run(self, positions: list[int]) -> list[Record] | None:
        """The records at these positions if they are here and nothing lies between them."""
        young = self._young
        if not positions:
            return []
        if young.positions and positions[0] >= young.positions[0]:
            start = bisect_left(young.positions, positions[0])
            end = start + len(positions)
            return young.records[start:end] if young.positions[start:end] == positions else None
        found = self._old.run(positions)
        found += young.run(positions[len(found) :])
        return found if len(found) == len(positions) else None

    def get_many(self, wanted: Sequence[tuple[int, int]]) -> list[Record | None]:
        """One answer for each (position, length)."""
        found = self.run([position for position, _ in wanted])
        if found is not None:
            return [*found]
        young, old = self._young.by_position().get, self._old.by_position().get
        return [young(position) or old(position) for position, _ in wanted]

    def __len__(self) -> int:
        return len(self._young.records) + len(self._old.records)
