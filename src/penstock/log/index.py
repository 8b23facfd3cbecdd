"""A queue is an index over the log: 48 byte entries, newest in memory, the rest on file (D4).

Entry: ``position u64, first_offset u64, cumulative_bytes u64, store_ms i64, length u32,
messages u32, tag_hash i32, flags u32``. ``cumulative_bytes`` counts the record bytes *before* the
entry; ``store_ms`` never decreases; ``flags`` are ``IndexFlag``. ``first_offset`` grows by
``messages`` from entry to entry, except over holes (records lost to corruption).

The tail is one run of packed bytes, so that ten million messages of backlog cost no memory and
dispatch unpacks a stretch with one call. ``staged_offset`` and ``staged_bytes`` run ahead of
``next_offset`` and ``end_bytes`` inside ``Store.append``, and while entries are *promised*: a
commit of staged rows (D19) gives hundreds of thousands of offsets at once, and their entries are
made piece by piece (``IndexSet.enter``). What is appended to the queue meanwhile waits behind them.

Not here: what a subscription has settled (``engine/subscription/cursor.py``).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntFlag
from struct import Struct
from typing import Final, Protocol

import msgspec

from penstock.log.catalog import Definitions, Op
from penstock.log.format import INDEX_DEFERRED, INDEX_EXPIRES, INDEX_RELEASED, INDEX_TRANSIENT
from penstock.log.side_files import Owner, SideFiles
from penstock.model.errors import AlreadyExists, NotFound
from penstock.model.ids import is_transient_id

__all__ = [
    "ENTRY",
    "ENTRY_BYTES",
    "ENTRY_FACTS",
    "ENTRY_PLACE",
    "INDEX_DIRECTORY",
    "IndexEntry",
    "IndexFlag",
    "QueueIndex",
    "QueueState",
    "RunEntries",
    "queue_of",
]


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


class QueueState(msgspec.Struct, frozen=True):
    """What a queue's catalog row says as of the last snapshot."""

    incarnation: int
    min_offset: int = 0
    next_offset: int = 0
    end_bytes: int = 0
    last_position: int = -1
    transient_from: int = -1


class QueueIndex:
    """The index of one queue."""

    __slots__ = (
        "_files",
        "_planned_bytes",
        "_tail",
        "_tail_first",
        "end_bytes",
        "incarnation",
        "is_dirty",
        "last_position",
        "min_offset",
        "next_offset",
        "promised",
        "queue_id",
        "staged",
        "staged_bytes",
        "staged_offset",
        "transient_from",
    )

    def __init__(
        self, queue_id: int, incarnation: int, files: SideFiles, *, entries_max: int = 65536
    ) -> None:
        self.queue_id: Final = queue_id
        self.incarnation: Final = incarnation
        self.next_offset = 0
        """First offset without an entry: the one the next message gets, if none is promised."""
        self.min_offset = 0
        """Nothing below can be read any more."""
        self.end_bytes = 0
        """Record bytes of all entries so far."""
        self.staged: list[bytes] = []
        """Packed entries of the append that is under way, one or many in each."""
        self.staged_offset = 0
        """First offset that was given to nobody."""
        self.staged_bytes = 0
        self.promised: deque[PromisedEntries] = deque()
        """Entries of messages that have their offsets already; to be looked at only."""
        self.last_position = -1
        """Position of the last record that made entries here (of the release, if released)."""
        self.transient_from = -1
        """Offset of the first transient entry ever, -1 for none."""
        self.is_dirty = False
        """True when something changed since the last snapshot took note."""
        self._tail = bytearray()
        """Packed entries not on file yet; the first ``_planned_bytes`` are on their way there."""
        self._tail_first = 0
        """Offset of the first entry in the tail; ``next_offset`` while it is empty."""
        self._planned_bytes = 0
        self._files = IndexFiles(queue_id, files, entries_max=entries_max)

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
        at = 0
        tail, tail_first = self._tail, self._tail_first
        if from_offset < tail_first:
            found = self._files.entries(from_offset, count_max, tail_first)
            count_max -= len(found)
        elif self.next_offset - tail_first == len(tail) // ENTRY_BYTES:
            at = from_offset - tail_first
        else:
            span = (tail_first, self.next_offset)
            at = find_offset(self._read_tail, len(tail) // ENTRY_BYTES, span, from_offset)
        if count_max > 0 and tail:
            found.extend(ENTRY.iter_unpack(tail[at * ENTRY_BYTES : (at + count_max) * ENTRY_BYTES]))
        return found

    def plain_run(self, from_offset: int, count_max: int) -> tuple[list[int], list[int]] | None:
        """Positions and lengths of the next entries, from ``from_offset`` on, if they are plain.

        Plain: in memory, one message each, no hole, no flag. None when that cannot be told at
        once, or there is nothing.
        """
        tail, first, end = self._tail, self._tail_first, self.next_offset
        if from_offset < first or from_offset < self.min_offset or from_offset >= end:
            return None
        if (end - first) * ENTRY_BYTES != len(tail):
            return None
        count = min(count_max, end - from_offset)
        return plain_columns(tail, (from_offset - first) * ENTRY_BYTES, count)

    def search_time(self, store_ms: int) -> int:
        """Offset of the first entry stored at or after ``store_ms``; ``next_offset`` if none."""
        count = len(self._tail) // ENTRY_BYTES
        ordinal = find_time(self._read_tail, count, store_ms)
        if ordinal == 0:
            found = self._files.search_time(store_ms, self._tail_first)
        elif ordinal == count:
            return self.next_offset
        else:
            found = first_offset(self._read_tail, ordinal)
        return max(found, self.min_offset)

    def bytes_between(self, start: int, end: int) -> int:
        """Record bytes of the entries that begin in [start, end)."""
        return max(0, self._bytes_before(end) - self._bytes_before(start))

    def located(
        self, from_offset: int, to_offset: int, entries_max: int
    ) -> tuple[list[tuple[str, int, int]], bytes, int]:
        """Where the entries of [from, to) are: files, packed entries not on file, where they end.

        With more than ``entries_max`` entries that are not on file the end is below ``to``. For
        readers of another process, which never come here for a single entry.
        """
        tail, tail_first = self._tail, self._tail_first
        files = self._files.covering(from_offset, min(to_offset, tail_first))
        if to_offset <= tail_first or not tail:
            return files, b"", to_offset
        count, span = len(tail) // ENTRY_BYTES, (tail_first, self.next_offset)
        low = find_offset(self._read_tail, count, span, max(from_offset, tail_first))
        high = find_offset(self._read_tail, count, span, to_offset - 1) + 1
        high = min(high, count)
        if high - low > entries_max:
            high = low + entries_max
            to_offset = first_offset(self._read_tail, high)
        return files, bytes(tail[low * ENTRY_BYTES : high * ENTRY_BYTES]), to_offset

    @property
    def messages(self) -> int:
        """Offsets that can still be asked for."""
        return self.next_offset - self.min_offset

    @property
    def tail_bytes(self) -> int:
        """Bytes of entries in memory."""
        return len(self._tail)

    # Writing (only by the store)

    def take_staged(self, position: int) -> int:
        """Take the staged entries in: their records are written, the last one at ``position``.

        Gives ``unplanned_bytes``, for whoever decides when tails are written.
        """
        self.last_position = position
        if self.promised:
            packed = b"".join(self.staged)
            self.promised.append(PackedEntries(packed, self.staged_offset, self.staged_bytes))
            self.staged.clear()
            return self.unplanned_bytes
        is_first = not self._tail
        self._tail += b"".join(self.staged)
        if is_first:
            self._tail_first = first_offset(self._read_tail, 0)
        self.staged.clear()
        self.next_offset = self.staged_offset
        self.end_bytes = self.staged_bytes
        return len(self._tail) - self._planned_bytes

    def undo_staged(self) -> None:
        """The append under way did not take place."""
        self.staged.clear()
        if self.promised:
            self.staged_offset, self.staged_bytes = self.promised[-1].end
        else:
            self.staged_offset = self.next_offset
            self.staged_bytes = self.end_bytes

    def promise(self, entries: Sequence[PromisedEntries], position: int) -> None:
        """Offsets are given to messages whose entries follow; their record is at ``position``."""
        self.promised.extend(entries)
        self.staged_offset, self.staged_bytes = self.promised[-1].end
        self.last_position = position

    def enter(self, count_max: int) -> int:
        """Make about so many promised entries; how many were made."""
        made = 0
        is_first = not self._tail
        while self.promised and made < count_max:
            packed, self.next_offset, self.end_bytes = self.promised[0].take(
                count_max - made, self.next_offset, self.end_bytes
            )
            self._tail += packed
            made += len(packed) // ENTRY_BYTES
            if (self.next_offset, self.end_bytes) == self.promised[0].end:
                self.promised.popleft()
        if is_first and self._tail:
            self._tail_first = first_offset(self._read_tail, 0)
        return made

    @property
    def unplanned_bytes(self) -> int:
        """Bytes of the tail nobody has been asked to write."""
        return len(self._tail) - self._planned_bytes

    def plan_flush(self) -> None:
        """Hand every entry of the tail to the commit thread for writing."""
        if self._planned_bytes < len(self._tail):
            # Through a view: a second copy of this size would come from the system and go back.
            self._files.plan(bytes(memoryview(self._tail)[self._planned_bytes :]), self)
            self._planned_bytes = len(self._tail)

    def written(self, path: str, size: int) -> None:
        """The first ``size`` bytes of the tail are on file now."""
        self._files.written(path, size)
        del self._tail[:size]
        self._planned_bytes -= size
        self._tail_first = first_offset(self._read_tail, 0) if self._tail else self.next_offset

    def trim(self, min_offset: int) -> None:
        """Entries below ``min_offset`` point at nothing any more; whole files of them go."""
        if min_offset > self.min_offset:
            self.min_offset = min(min_offset, self.next_offset)
            self._files.trim(self.min_offset)

    def drop(self) -> None:
        """The queue is deleted: every file goes.

        Nothing is in it any more for whoever looks on, as a page does that is made in pieces.
        """
        self.min_offset = self.next_offset
        self._files.drop()

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

    def restore(self, state: QueueState, paths: Sequence[str]) -> None:
        """Go on from a snapshot: the row plus ``paths``, checked against their rows, in order."""
        self.min_offset = state.min_offset
        self.next_offset = self.staged_offset = self._tail_first = state.next_offset
        self.end_bytes = self.staged_bytes = state.end_bytes
        self.last_position = state.last_position
        self.transient_from = state.transient_from
        self._files.restore(paths)

    def empty(self) -> None:
        """Forget every entry (before a rebuild from the log; ``lift`` brings offsets back)."""
        self._files.empty()
        self.next_offset = self.staged_offset = self._tail_first = self.min_offset
        self.end_bytes = self.staged_bytes = 0
        self.transient_from = -1

    def lift(self, next_offset: int) -> None:
        """Offsets below were handed out before, whether or not their records are still there."""
        if next_offset > self.next_offset:
            self.next_offset = self.staged_offset = next_offset
            if not self._tail:
                self._tail_first = next_offset

    def _bytes_before(self, offset: int) -> int:
        found = self.entries(offset, 1)
        if not found:
            return self.end_bytes
        _, first, before, _, length, *_ = found[0]
        # Inside a batch: the batch began before ``offset``, so all of it is counted as before.
        return before if first >= offset else before + length

    def _read_tail(self, at: int, size: int) -> bytes:
        return bytes(self._tail[at : at + size])


# ---- promised entries ---------------------------------------------------------------------------
# Entries of a queue that follow: made of facts when it is their turn, or packed already and behind
# such. One behind the other, without a hole.


class PromisedEntries(Protocol):
    """Some of them."""

    @property
    def end(self) -> tuple[int, int]:
        """``next_offset`` and ``end_bytes`` of the queue behind the last one."""
        ...

    def take(self, count_max: int, offset: int, before: int) -> tuple[bytes, int, int]:
        """At most so many packed entries from this offset on; where the next one begins.

        ``before``: record bytes before the first.
        """
        ...


class PackedEntries:
    """What was appended while others were promised."""

    __slots__ = ("_packed", "end")

    def __init__(self, packed: bytes, end_offset: int, end_bytes: int) -> None:
        self._packed = packed
        self.end: Final = (end_offset, end_bytes)

    def take(self, count_max: int, offset: int, before: int) -> tuple[bytes, int, int]:
        """All of them: a turn's worth."""
        del count_max, offset, before
        return self._packed, *self.end


class RunEntries:
    """Records that lie one behind the other, each a message, and nothing between them."""

    __slots__ = ("_at", "_facts", "_position", "_store_ms", "end")

    def __init__(self, position: int, facts: bytes, *, end: tuple[int, int], store_ms: int) -> None:
        """``facts``: ``ENTRY_FACTS`` of each."""
        self._position = position
        self._facts = facts
        self._at = 0
        self._store_ms = store_ms
        self.end: Final = end

    def take(self, count_max: int, offset: int, before: int) -> tuple[bytes, int, int]:
        """The next ones."""
        end = min(len(self._facts), self._at + count_max * ENTRY_FACTS.size)
        facts = self._facts[self._at : end]
        self._at = end
        packed: list[bytes] = []
        add, pack, store_ms, at = packed.append, ENTRY_PLACE.pack, self._store_ms, self._position
        lengths = _LENGTHS.iter_unpack(facts)
        for (each,), (length,) in zip(_EACH_FACTS.iter_unpack(facts), lengths, strict=True):
            add(pack(at, offset, before, store_ms, each))
            at += length
            before += length
            offset += 1
        self._position = at
        return b"".join(packed), offset, before


# ---- index files --------------------------------------------------------------------------------
# The part of a queue's index that is on file: packed entries, found by offset or by time.
#
# Files ``index/<queue_id>-<first_offset>.idx`` hold at most ``entries_max`` entries. Memory holds
# two integers for each file and no handle. Where the span of offsets equals the number of entries,
# entry i is at offset first + i; else (batches, holes) it is found by binary search.
#
# Invariants: files follow one another in the order of offsets; only the newest grows.


ENTRY: Final = Struct("<QQQqIIiI")
ENTRY_BYTES: Final = ENTRY.size
IndexEntry = tuple[int, int, int, int, int, int, int, int]
"""(position, first_offset, cumulative_bytes, store_ms, length, messages, tag_hash, flags)"""
ENTRY_PLACE: Final = Struct("<QQQq16s")
ENTRY_FACTS: Final = Struct("<IIiI")
"""The same in two steps: the last four fields are often equal from entry to entry."""
_EACH_FACTS: Final = Struct("16s")
_LENGTHS: Final = Struct("<I12x")

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


NOWHERE: Final[tuple[int, tuple[IndexEntry, ...]]] = (-1, ())


class IndexFiles:
    """The index files of one queue."""

    __slots__ = (
        "_counts",
        "_entries_max",
        "_files",
        "_firsts",
        "_looked",
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
        self._looked = NOWHERE
        """The last offset of which one entry was wanted, and that entry: a thousand subscriptions
        that wait at one place are asked about one after the other. What is on file stays as it is.
        """

    def __len__(self) -> int:
        return len(self._firsts)

    def entries(self, from_offset: int, count_max: int, end: int) -> list[IndexEntry]:
        """At most ``count_max`` entries from the one that holds ``from_offset``, or the next one.

        ``end`` is the first offset that is not on file.
        """
        looked_at, looked = self._looked
        if count_max == 1 and from_offset == looked_at:
            return [*looked]
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
        if count_max == 1 and found:
            self._looked = from_offset, tuple(found)
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
        self._looked = NOWHERE
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
        self._looked = NOWHERE
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


# ---- index set ----------------------------------------------------------------------------------
# All queue indexes of a store, and the rule when their tails are written.
#
# A tail is handed to the commit thread when it has ``QUEUE_TAIL_BYTES_MAX``; all tails are when
# together they may have half of ``index_tail_bytes_max``, and at every snapshot. So memory is
# bounded for one busy queue as well as for 50,000 quiet ones, and no queue holds a file open.
#
# A durable queue has a catalog row from the moment it is created: the same transaction commits
# before any sync of records that name it (D6). Queues with transient ids have none, and a restart
# forgets them.


QUEUE_KIND: Final = "queue"
QUEUE_TAIL_BYTES_MAX: Final = 4096 * ENTRY_BYTES


class IndexSet:
    """Queue indexes by id; knows which changed since the last snapshot."""

    def __init__(
        self,
        files: SideFiles,
        definitions: Definitions,
        *,
        entries_max: int,
        tail_bytes_max: int,
    ) -> None:
        self._files = files
        self._definitions = definitions
        self._entries_max = entries_max
        self._planned_at_bytes = max(tail_bytes_max // 2, ENTRY_BYTES)
        self._unplanned_bytes = 0
        self._dirty: list[QueueIndex] = []
        self.by_id: dict[int, QueueIndex] = {}
        self.promising: dict[QueueIndex, None] = {}
        """Queues with promised entries; to be looked at only."""

    def get(self, queue_id: int) -> QueueIndex:
        """The index of an existing queue."""
        index = self.by_id.get(queue_id)
        if index is None:
            raise NotFound(f"the store has no queue {queue_id}")
        return index

    def create(self, queue_id: int, incarnation: int) -> QueueIndex:
        if queue_id in self.by_id:
            raise AlreadyExists(f"queue {queue_id} is in the store already; ids are never reused")
        index = self.make(queue_id, incarnation)
        if not is_transient_id(queue_id):
            self._definitions.note((QUEUE_KIND, str(queue_id), index.state()))
        return index

    def make(self, queue_id: int, incarnation: int) -> QueueIndex:
        """The object alone, without a row (recovery has the row already)."""
        index = QueueIndex(queue_id, incarnation, self._files, entries_max=self._entries_max)
        self.by_id[queue_id] = index
        return index

    def drop(self, queue_id: int) -> None:
        """Delete a queue: its entries can be read no more and its records lose a reason to stay."""
        index = self.get(queue_id)
        del self.by_id[queue_id]
        self.promising.pop(index, None)
        index.drop()
        if not is_transient_id(queue_id):
            self._definitions.note((QUEUE_KIND, str(queue_id), None))

    def take_in(self, touched: Sequence[QueueIndex], position: int, size_bytes: int) -> None:
        """Staged entries become visible: their records are written, the last at ``position``.

        ``size_bytes``: at least what the entries of all these queues take.
        """
        for index in touched:
            self._grown(index, index.take_staged(position))
        self._unplanned_bytes += size_bytes
        if self._unplanned_bytes > self._planned_at_bytes:
            self._plan_all()

    def promise(self, index: QueueIndex, entries: Sequence[PromisedEntries], position: int) -> None:
        """Offsets of a queue are given; ``enter`` makes the entries."""
        index.promise(entries, position)
        self.promising[index] = None

    def enter(self, count_max: int) -> tuple[int, list[QueueIndex]]:
        """Make about so many promised entries; how many, and the queues that have all of theirs."""
        made, whole = 0, []
        while self.promising and made < count_max:
            index = next(iter(self.promising))
            count = index.enter(count_max - made)
            self._grown(index, index.unplanned_bytes)
            made += count
            if not index.promised:
                del self.promising[index]
                whole.append(index)
        self._unplanned_bytes += made * ENTRY_BYTES
        if self._unplanned_bytes > self._planned_at_bytes:
            self._plan_all()
        return made, whole

    def _grown(self, index: QueueIndex, unplanned_bytes: int) -> None:
        if not index.is_dirty:
            index.is_dirty = True
            self._dirty.append(index)
        if unplanned_bytes >= QUEUE_TAIL_BYTES_MAX:
            index.plan_flush()

    def trim(self, queue_id: int, min_offset: int) -> None:
        """Entries below ``min_offset`` lost their records to retention."""
        index = self.by_id.get(queue_id)
        if index is not None and min_offset > index.min_offset:
            index.trim(min_offset)
            if not index.is_dirty:
                index.is_dirty = True
                self._dirty.append(index)

    def capture(self) -> list[Op]:
        """Plan every tail and give the rows of all queues that changed since the last call."""
        self._plan_all()
        ops: list[Op] = []
        for index in self._dirty:
            index.is_dirty = False
            if self.by_id.get(index.queue_id) is index and not is_transient_id(index.queue_id):
                ops.append((QUEUE_KIND, str(index.queue_id), index.state()))
        self._dirty.clear()
        return ops

    @property
    def dirty_count(self) -> int:
        """Queues that the next snapshot has to write."""
        return len(self._dirty)

    def _plan_all(self) -> None:
        for index in self._dirty:
            if self.by_id.get(index.queue_id) is index:
                index.plan_flush()
        self._unplanned_bytes = 0
