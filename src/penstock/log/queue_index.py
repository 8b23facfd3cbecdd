"""A queue is an index over the log: 48 byte entries, newest in memory, the rest on file (D4).

Entry: ``position u64, first_offset u64, cumulative_bytes u64, store_ms i64, length u32,
messages u32, tag_hash i32, flags u32``. ``cumulative_bytes`` counts the record bytes *before* the
entry; ``store_ms`` never decreases; ``flags`` are ``IndexFlag``. ``first_offset`` grows by
``messages`` from entry to entry, except over holes (records lost to corruption).

* Where the span of offsets equals the number of entries, entry i is at offset first + i; else
  (batches, holes) it is found by binary search.
* Files ``index/<queue_id>-<first_offset>.idx`` hold at most ``entries_max`` entries each; memory
  holds the tail that is not on file yet, and one pair of integers for each file.
* ``staged_offset`` and ``staged_bytes`` run ahead of ``next_offset`` and ``end_bytes`` only inside
  ``Store.append``.

Not here: when tails are written (``store.py``), what a subscription has settled (``engine/``).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from enum import IntFlag
from struct import Struct
from typing import Final

import msgspec

from penstock.log.cursors import (
    INDEX_DEFERRED,
    INDEX_EXPIRES,
    INDEX_RELEASED,
    INDEX_TRANSIENT,
)
from penstock.log.side_files import SideFiles

ENTRY: Final = Struct("<QQQqIIiI")
ENTRY_BYTES: Final = ENTRY.size
IndexEntry = tuple[int, int, int, int, int, int, int, int]
"""(position, first_offset, cumulative_bytes, store_ms, length, messages, tag_hash, flags)"""

INDEX_DIRECTORY: Final = "index"
SCAN_ENTRIES: Final = 4096
"""Entries read at a time when many are looked through."""

_SPAN: Final = Struct("<Q20xI")
_FIRST_AT: Final = 8
_OFFSET: Final = Struct("<Q")
_TIME: Final = Struct("<q")
_TIME_AT: Final = 24


class IndexFlag(IntFlag):
    """What dispatch must know about a message before it reads the record."""

    RELEASED = INDEX_RELEASED
    """The entry was made by a release record; ``position`` is that of the delayed original."""
    TRANSIENT = INDEX_TRANSIENT
    """Dropped at restart (D6): gone when ``position`` is below ``Recovered.start_position``."""
    DEFERRED = INDEX_DEFERRED
    """Has a deliver time of its own (Pulsar's deliver_at)."""
    EXPIRES = INDEX_EXPIRES
    """Has an expire time: worth reading when it is at the head."""


class QueueIndex:
    """The index of one queue."""

    __slots__ = (
        "_counts",
        "_entries_max",
        "_files",
        "_firsts",
        "_plan_path",
        "_plan_room",
        "_planned",
        "_unwritten",
        "end_bytes",
        "incarnation",
        "is_dirty",
        "last_position",
        "min_offset",
        "next_offset",
        "queue_id",
        "staged",
        "staged_bytes",
        "staged_offset",
        "tail",
        "tail_first",
        "transient_from",
    )

    def __init__(
        self, queue_id: int, incarnation: int, files: SideFiles, *, entries_max: int = 65536
    ) -> None:
        self.queue_id: Final = queue_id
        self.incarnation: Final = incarnation
        self.next_offset = 0
        """Offset the next message gets."""
        self.staged_offset = 0
        self.staged_bytes = 0
        self.staged: list[bytes] = []
        """Packed entries of the append that is under way."""
        self.min_offset = 0
        """Nothing below can be read any more."""
        self.end_bytes = 0
        """Record bytes of all entries so far."""
        self.last_position = -1
        """Position of the last record that made entries here (of the release, if released)."""
        self.transient_from = -1
        """Offset of the first transient entry ever, -1 for none."""
        self.is_dirty = False
        """True when something changed since the last snapshot took note."""
        self.tail = bytearray()
        """Packed entries not on file yet."""
        self.tail_first = 0
        """Offset of the first entry in the tail; ``next_offset`` while it is empty."""
        self._files = files
        self._entries_max = entries_max
        self._firsts: list[int] = []
        self._counts: list[int] = []
        self._planned = 0
        self._plan_path = ""
        self._plan_room = 0
        self._unwritten: list[int] = []

    # Reading

    def entries(self, from_offset: int, count_max: int) -> list[IndexEntry]:
        """At most ``count_max`` entries from the one that holds ``from_offset`` on.

        The first may begin below ``from_offset`` (inside a batch) or above it (hole). Fewer than
        asked for means that there are no more.
        """
        from_offset = max(from_offset, self.min_offset)
        if from_offset >= self.next_offset or count_max <= 0:
            return []
        found: list[IndexEntry] = []
        if from_offset < self.tail_first:
            found = self._entries_on_file(from_offset, count_max)
        if len(found) < count_max and self.tail:
            at = 0
            if from_offset > self.tail_first:
                at = self._tail_at(from_offset)
            end = at + (count_max - len(found)) * ENTRY_BYTES
            found.extend(ENTRY.iter_unpack(self.tail[at:end]))
        return found

    def search_time(self, store_ms: int) -> int:
        """Offset of the first entry stored at or after ``store_ms``; ``next_offset`` if none."""
        if self.tail and self._tail_time(0) < store_ms:
            count = len(self.tail) // ENTRY_BYTES
            ordinal = bisect_left(range(count), store_ms, key=self._tail_time)
            if ordinal == count:
                return self.next_offset
            return max(self._tail_first_offset(ordinal), self.min_offset)
        # The last file that begins before the time is the only one that can hold the border.
        number = bisect_left(range(len(self._firsts)), store_ms, key=self._file_time) - 1
        if number < 0:
            return self.min_offset if self._firsts or self.tail else self.next_offset
        read, count = self._file(number)
        ordinal = bisect_left(
            range(count),
            store_ms,
            key=lambda i: int(_TIME.unpack(read(i * ENTRY_BYTES + _TIME_AT, 8))[0]),
        )
        if ordinal == count:
            return max(self._file_end(number), self.min_offset)
        first = int(_OFFSET.unpack(read(ordinal * ENTRY_BYTES + _FIRST_AT, 8))[0])
        return max(first, self.min_offset)

    def bytes_between(self, start: int, end: int) -> int:
        """Record bytes of the entries that begin in [start, end)."""
        return max(0, self._bytes_before(end) - self._bytes_before(start))

    @property
    def messages(self) -> int:
        """Offsets that can still be asked for."""
        return self.next_offset - self.min_offset

    # Writing (only by the store)

    def take_staged(self, position: int) -> None:
        """Take the staged entries in: their records are written, the last one at ``position``."""
        if not self.tail:
            self.tail_first = int(_OFFSET.unpack_from(self.staged[0], _FIRST_AT)[0])
        self.tail += b"".join(self.staged)
        self.staged.clear()
        self.next_offset = self.staged_offset
        self.end_bytes = self.staged_bytes
        self.last_position = position

    def undo_staged(self) -> None:
        """The append under way did not take place."""
        self.staged.clear()
        self.staged_offset = self.next_offset
        self.staged_bytes = self.end_bytes

    @property
    def unplanned_bytes(self) -> int:
        """Bytes of the tail nobody has been asked to write."""
        return len(self.tail) - self._planned

    def plan_flush(self) -> None:
        """Hand every entry of the tail to the commit thread for writing."""
        while self._planned < len(self.tail):
            if not self._plan_room:
                first = self._tail_first_offset(self._planned // ENTRY_BYTES)
                self._plan_path = self._path(first)
                self._plan_room = self._entries_max * ENTRY_BYTES
                self._unwritten.append(first)
            data = bytes(self.tail[self._planned : self._planned + self._plan_room])
            self._files.append(self._plan_path, data, self)
            self._planned += len(data)
            self._plan_room -= len(data)

    def written(self, path: str, size: int) -> None:
        """The first ``size`` bytes of the tail are on file now."""
        first = _first_of(path)
        count = size // ENTRY_BYTES
        if self._firsts and self._firsts[-1] == first:
            self._counts[-1] += count
        else:
            self._firsts.append(first)
            self._counts.append(count)
            self._unwritten.remove(first)
        del self.tail[:size]
        self._planned -= size
        self.tail_first = self._tail_first_offset(0) if self.tail else self.next_offset

    def trim(self, min_offset: int) -> None:
        """Entries below ``min_offset`` point at nothing any more; whole files of them go."""
        if min_offset <= self.min_offset:
            return
        self.min_offset = min(min_offset, self.next_offset)
        # The newest file stays: it is still being appended to.
        while len(self._firsts) > 1 and self._firsts[1] <= self.min_offset:
            self._files.remove(self._path(self._firsts.pop(0)))
            del self._counts[0]

    def drop(self) -> None:
        """The queue is deleted: every file goes, also those only planned."""
        for first in (*self._firsts, *self._unwritten):
            self._files.remove(self._path(first))

    # State (catalog row and recovery)

    def state(self) -> bytes:
        """Body of the queue's catalog row: everything the files do not say."""
        return msgspec.json.encode(
            QueueState(
                incarnation=self.incarnation,
                min_offset=self.min_offset,
                next_offset=self.next_offset,
                end_bytes=self.end_bytes,
                last_position=self.last_position,
                transient_from=self.transient_from,
            )
        )

    def restore(self, state: "QueueState", paths: Sequence[str]) -> None:
        """Go on from a snapshot: the row plus ``paths``, checked against their rows, in order."""
        self.min_offset = state.min_offset
        self.next_offset = self.staged_offset = self.tail_first = state.next_offset
        self.end_bytes = self.staged_bytes = state.end_bytes
        self.last_position = state.last_position
        self.transient_from = state.transient_from
        for path in paths:
            self._firsts.append(_first_of(path))
            self._counts.append(self._files.planned_size(path) // ENTRY_BYTES)
        if self._firsts:
            self._plan_path = self._path(self._firsts[-1])
            self._plan_room = (self._entries_max - self._counts[-1]) * ENTRY_BYTES

    def empty(self) -> None:
        """Forget every entry (before a rebuild from the log; ``lift`` brings offsets back)."""
        self._firsts.clear()
        self._counts.clear()
        self._plan_room = 0
        self.next_offset = self.staged_offset = self.tail_first = self.min_offset
        self.end_bytes = self.staged_bytes = 0
        self.transient_from = -1

    def lift(self, next_offset: int) -> None:
        """Offsets below were handed out before, whether or not their records are still there."""
        if next_offset > self.next_offset:
            self.next_offset = self.staged_offset = next_offset
            if not self.tail:
                self.tail_first = next_offset

    # Parts

    def _entries_on_file(self, from_offset: int, count_max: int) -> list[IndexEntry]:
        found: list[IndexEntry] = []
        number = max(bisect_right(self._firsts, from_offset) - 1, 0)
        while number < len(self._firsts) and len(found) < count_max:
            read, count = self._file(number)
            ordinal = 0
            if not found:
                ordinal = _entry_at(
                    read, count, self._firsts[number], self._file_end(number), from_offset
                )
            wanted = min(count - ordinal, count_max - len(found))
            if wanted > 0:
                found.extend(ENTRY.iter_unpack(read(ordinal * ENTRY_BYTES, wanted * ENTRY_BYTES)))
            number += 1
        return found

    def _tail_at(self, offset: int) -> int:
        tail = self.tail
        first = self.tail_first
        if self.next_offset - first == len(tail) // ENTRY_BYTES:
            return (offset - first) * ENTRY_BYTES

        def read(at: int, size: int) -> bytes:
            return bytes(tail[at : at + size])

        count = len(tail) // ENTRY_BYTES
        return ENTRY_BYTES * _entry_at(read, count, first, self.next_offset, offset)

    def _bytes_before(self, offset: int) -> int:
        if offset >= self.next_offset:
            return self.end_bytes
        found = self.entries(offset, 1)
        if not found:
            return self.end_bytes
        entry = found[0]
        # Inside a batch: the batch began before ``offset``, so all of it is counted as before.
        return entry[2] if entry[1] >= offset else entry[2] + entry[4]

    def _file(self, number: int) -> tuple[Callable[[int, int], bytes], int]:
        path = self._path(self._firsts[number])
        files = self._files
        return (lambda at, size: files.read(path, at, size)), self._counts[number]

    def _file_end(self, number: int) -> int:
        following = number + 1
        return self._firsts[following] if following < len(self._firsts) else self.tail_first

    def _file_time(self, number: int) -> int:
        path = self._path(self._firsts[number])
        return int(_TIME.unpack(self._files.read(path, _TIME_AT, 8))[0])

    def _tail_time(self, ordinal: int) -> int:
        return int(_TIME.unpack_from(self.tail, ordinal * ENTRY_BYTES + _TIME_AT)[0])

    def _tail_first_offset(self, ordinal: int) -> int:
        return int(_OFFSET.unpack_from(self.tail, ordinal * ENTRY_BYTES + _FIRST_AT)[0])

    def _path(self, first: int) -> str:
        return f"{INDEX_DIRECTORY}/{self.queue_id:010d}-{first:020d}.idx"


class QueueState(msgspec.Struct, frozen=True):
    """What a queue's catalog row says as of the last snapshot."""

    incarnation: int
    min_offset: int = 0
    next_offset: int = 0
    end_bytes: int = 0
    last_position: int = -1
    transient_from: int = -1


def _first_of(path: str) -> int:
    return int(path.rpartition("-")[2].removesuffix(".idx"))


def queue_of(path: str) -> int:
    """The queue whose index file this is."""
    return int(path.rpartition("/")[2].partition("-")[0])


def _entry_at(
    read: Callable[[int, int], bytes], count: int, first: int, end: int, offset: int
) -> int:
    """Ordinal of the entry that holds ``offset``, or of the next one, in a run [first, end)."""
    if end - first == count and offset >= first:
        return offset - first

    def first_offset(ordinal: int) -> int:
        return int(_OFFSET.unpack(read(ordinal * ENTRY_BYTES + _FIRST_AT, 8))[0])

    ordinal = bisect_right(range(count), offset, key=first_offset) - 1
    if ordinal < 0:
        return 0
    begin, messages = _SPAN.unpack(read(ordinal * ENTRY_BYTES + _FIRST_AT, _SPAN.size))
    return ordinal if offset < begin + messages else ordinal + 1
