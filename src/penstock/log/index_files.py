"""The part of a queue's index that is on file: packed entries, found by offset or by time.

Files ``index/<queue_id>-<first_offset>.idx`` hold at most ``entries_max`` entries. Memory holds
two integers for each file and no handle. Where the span of offsets equals the number of entries,
entry i is at offset first + i; else (batches, holes) it is found by binary search.

Invariants: files follow one another in the order of offsets; only the newest grows.

Not here: the entries that are not on file yet (``queue_index.py``), handles and writing
(``side_files.py``).
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from penstock.log.side_files import Owner, SideFiles

ENTRY: Final = Struct("<QQQqIIiI")
ENTRY_BYTES: Final = ENTRY.size
IndexEntry = tuple[int, int, int, int, int, int, int, int]
"""(position, first_offset, cumulative_bytes, store_ms, length, messages, tag_hash, flags)"""
ENTRY_PLACE: Final = Struct("<QQQq16s")
ENTRY_FACTS: Final = Struct("<IIiI")
"""The same in two steps: the last four fields are often equal from entry to entry."""

INDEX_DIRECTORY: Final = "index"

_FEW: Final = tuple(Struct("<" + "Q24xI8xI" * count) for count in range(65))
"""Positions, lengths and flags of so many entries; more are cheaper by columns."""
_OFFSET_AND_SPAN: Final = Struct("<Q20xI")
_OFFSET: Final = Struct("<Q")
_OFFSET_AT: Final = 8
_TIME: Final = Struct("<q")
_TIME_AT: Final = 24

Read = Callable[[int, int], bytes]
"""Bytes of a run of packed entries: (at, size)."""


def plain_columns(
    packed: bytes | bytearray, at: int, count: int
) -> tuple[list[int], list[int]] | None:
    """Positions and lengths of ``count`` packed entries; None when one of them has a flag."""
    if count < len(_FEW):
        fields = _FEW[count].unpack_from(packed, at)
        return None if any(fields[2::3]) else (list(fields[::3]), list(fields[1::3]))
    # Through a view: a second copy of this size would come from the system and go back.
    wanted = bytes(memoryview(packed)[at : at + count * ENTRY_BYTES])
    halves, words = array("I", wanted), array("Q", wanted)
    if sys.byteorder == "big":
        halves.byteswap()
        words.byteswap()
    if halves[11::12] != array("I", bytes(4 * count)):
        return None
    return words[::6].tolist(), halves[8::12].tolist()


class IndexFiles:
    """The index files of one queue."""

    __slots__ = (
        "_counts",
        "_entries_max",
        "_files",
        "_firsts",
        "_planned",
        "_queue_id",
        "_room_bytes",
    )

    def __init__(self, queue_id: int, files: SideFiles, *, entries_max: int) -> None:
        self._queue_id = queue_id
        self._files = files
        self._entries_max = entries_max
        self._firsts: list[int] = []
        self._counts: list[int] = []
        self._planned: list[int] = []
        """First offsets of files that are planned and not begun."""
        self._room_bytes = 0
        """What the newest file, planned or begun, still takes."""

    def __len__(self) -> int:
        return len(self._firsts)

    def entries(self, from_offset: int, count_max: int, end: int) -> list[IndexEntry]:
        """At most ``count_max`` entries from the one that holds ``from_offset``, or the next one.

        ``end`` is the first offset that is not on file.
        """
        found: list[IndexEntry] = []
        number = max(bisect_right(self._firsts, from_offset) - 1, 0)
        while number < len(self._firsts) and len(found) < count_max:
            read, count = self._reader(number), self._counts[number]
            ordinal = 0
            if not found:
                span = (self._firsts[number], self._end(number, end))
                ordinal = find_offset(read, count, span, from_offset)
            wanted = min(count - ordinal, count_max - len(found))
            if wanted > 0:
                found.extend(ENTRY.iter_unpack(read(ordinal * ENTRY_BYTES, wanted * ENTRY_BYTES)))
            number += 1
        return found

    def search_time(self, store_ms: int, end: int) -> int:
        """First offset of the first entry stored at or after ``store_ms``; ``end`` if none."""
        number = bisect_left(range(len(self._firsts)), store_ms, key=self._first_time) - 1
        if number < 0:
            return self._firsts[0] if self._firsts else end
        # Only the last file that begins before the time can hold the border.
        read, count = self._reader(number), self._counts[number]
        ordinal = find_time(read, count, store_ms)
        return self._end(number, end) if ordinal == count else first_offset(read, ordinal)

    def covering(self, from_offset: int, to_offset: int) -> list[tuple[str, int, int]]:
        """(path, first offset, entries) of the files with entries of [from, to), in order."""
        number = max(bisect_right(self._firsts, from_offset) - 1, 0)
        last = bisect_left(self._firsts, to_offset)
        return [
            (self._path(self._firsts[each]), self._firsts[each], self._counts[each])
            for each in range(number, last)
        ]

    def plan(self, data: bytes, owner: Owner) -> None:
        """Hand packed entries to the commit thread, behind those planned before."""
        at = 0
        while at < len(data):
            if not self._room_bytes:
                self._planned.append(int(_OFFSET.unpack_from(data, at + _OFFSET_AT)[0]))
                self._room_bytes = self._entries_max * ENTRY_BYTES
            newest = self._planned[-1] if self._planned else self._firsts[-1]
            piece = data[at : at + self._room_bytes]
            self._files.append(self._path(newest), piece, owner)
            self._room_bytes -= len(piece)
            at += len(piece)

    def written(self, path: str, size: int) -> None:
        """Planned entries of ``size`` bytes can be read from ``path`` now."""
        first = int(path.rpartition("-")[2].removesuffix(".idx"))
        if self._planned and self._planned[0] == first:
            self._firsts.append(self._planned.pop(0))
            self._counts.append(0)
        assert self._firsts[-1] == first, f"{path} was written out of order"
        self._counts[-1] += size // ENTRY_BYTES

    def trim(self, min_offset: int) -> None:
        """Remove files all of whose entries lie below; the newest stays, it may be growing."""
        while len(self._firsts) > 1 and self._firsts[1] <= min_offset:
            self._files.remove(self._path(self._firsts.pop(0)))
            del self._counts[0]

    def drop(self) -> None:
        """Remove every file, also those only planned."""
        for first in (*self._firsts, *self._planned):
            self._files.remove(self._path(first))

    def restore(self, paths: Sequence[str]) -> None:
        """Go on from files that were checked against their rows, in order."""
        for path in paths:
            self._firsts.append(int(path.rpartition("-")[2].removesuffix(".idx")))
            self._counts.append(self._files.planned_size(path) // ENTRY_BYTES)
        if self._firsts:
            self._room_bytes = (self._entries_max - self._counts[-1]) * ENTRY_BYTES

    def empty(self) -> None:
        """Forget the files (they are gone)."""
        self._firsts.clear()
        self._counts.clear()
        self._room_bytes = 0

    def _end(self, number: int, end: int) -> int:
        following = number + 1
        return self._firsts[following] if following < len(self._firsts) else end

    def _first_time(self, number: int) -> int:
        return int(_TIME.unpack(self._reader(number)(_TIME_AT, _TIME.size))[0])

    def _reader(self, number: int) -> Read:
        path, files = self._path(self._firsts[number]), self._files
        return lambda at, size: files.read(path, at, size)

    def _path(self, first: int) -> str:
        return f"{INDEX_DIRECTORY}/{self._queue_id:010d}-{first:020d}.idx"


def queue_of(path: str) -> int:
    """The queue whose index file this is."""
    return int(path.rpartition("/")[2].partition("-")[0])


def first_offset(read: Read, ordinal: int) -> int:
    """First offset of an entry of a packed run."""
    return int(_OFFSET.unpack(read(ordinal * ENTRY_BYTES + _OFFSET_AT, _OFFSET.size))[0])


def find_offset(read: Read, count: int, span: tuple[int, int], offset: int) -> int:
    """Ordinal of the entry that holds ``offset``, or of the next one, in a run of [first, end)."""
    first, end = span
    if end - first == count and offset >= first:
        return offset - first
    ordinal = bisect_right(range(count), offset, key=lambda i: first_offset(read, i)) - 1
    if ordinal < 0:
        return 0
    at = ordinal * ENTRY_BYTES + _OFFSET_AT
    begin, messages = _OFFSET_AND_SPAN.unpack(read(at, _OFFSET_AND_SPAN.size))
    return ordinal if offset < begin + messages else ordinal + 1


def find_time(read: Read, count: int, store_ms: int) -> int:
    """Ordinal of the first entry stored at or after ``store_ms``; ``count`` if none."""
    return bisect_left(
        range(count),
        store_ms,
        key=lambda i: int(_TIME.unpack(read(i * ENTRY_BYTES + _TIME_AT, _TIME.size))[0]),
    )
