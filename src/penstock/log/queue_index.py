"""A queue is an index over the log: 48 byte entries, newest in memory, the rest on file (D4).

Entry: ``position u64, first_offset u64, cumulative_bytes u64, store_ms i64, length u32,
messages u32, tag_hash i32, flags u32``. ``cumulative_bytes`` counts the record bytes *before* the
entry; ``store_ms`` never decreases; ``flags`` are ``IndexFlag``. ``first_offset`` grows by
``messages`` from entry to entry, except over holes (records lost to corruption).

The tail is one run of packed bytes, so that ten million messages of backlog cost no memory and
dispatch unpacks a stretch with one call. ``staged_offset`` and ``staged_bytes`` run ahead of
``next_offset`` and ``end_bytes`` only inside ``Store.append``.

Not here: the files (``index_files.py``), when tails are written (``index_set.py``), what a
subscription has settled (``engine/``).
"""

from collections.abc import Sequence
from enum import IntFlag
from typing import Final

import msgspec

from penstock.log.cursors import (
    INDEX_DEFERRED,
    INDEX_EXPIRES,
    INDEX_RELEASED,
    INDEX_TRANSIENT,
)
from penstock.log.index_files import (
    ENTRY,
    ENTRY_BYTES,
    ENTRY_FACTS,
    ENTRY_PLACE,
    INDEX_DIRECTORY,
    IndexEntry,
    IndexFiles,
    find_offset,
    find_time,
    first_offset,
    plain_columns,
    queue_of,
)
from penstock.log.side_files import SideFiles

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
        """Offset the next message gets."""
        self.min_offset = 0
        """Nothing below can be read any more."""
        self.end_bytes = 0
        """Record bytes of all entries so far."""
        self.staged: list[bytes] = []
        """Packed entries of the append that is under way, one or many in each."""
        self.staged_offset = 0
        self.staged_bytes = 0
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
        is_first = not self._tail
        self._tail += b"".join(self.staged)
        if is_first:
            self._tail_first = first_offset(self._read_tail, 0)
        self.staged.clear()
        self.next_offset = self.staged_offset
        self.end_bytes = self.staged_bytes
        self.last_position = position
        return len(self._tail) - self._planned_bytes

    def undo_staged(self) -> None:
        """The append under way did not take place."""
        self.staged.clear()
        self.staged_offset = self.next_offset
        self.staged_bytes = self.end_bytes

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
        """The queue is deleted: every file goes."""
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
