"""The part of an append that touches every message: bytes, offsets and index entries in one pass.

``stage`` does all of it tentatively (``QueueIndex.staged``, ``staged_offset``, ``staged_bytes``);
``Staged.take_in`` makes it real once the frame is written, ``Staged.undo`` takes it back when it is
not. In between nothing of a queue has changed that a reader could see.

* Delayed and staged records name their queues with ``UNASSIGNED_OFFSET`` and get no entry.
* A release record gives the record it points back at its offsets: the entry's position, length,
  messages and tag are those of the original, its store time is that of the release.

Not here: the layout of a record (``entry.py``), the frame and the file (``writer.py``), who calls
(``store.py``).
"""

from collections.abc import Iterable
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec
from google_crc32c import value as crc32c

from penstock.log.cursors import (
    INDEX_RELEASED,
    INDEX_TRANSIENT,
    Release,
    decode_release,
    entry_flags,
)
from penstock.log.entry import encode_batch
from penstock.log.queue_index import ENTRY, ENTRY_FACTS, ENTRY_PLACE, QueueIndex
from penstock.log.shape import UNCOMMON, UNINDEXED, shape_of
from penstock.model.position import UNASSIGNED_OFFSET, LogPosition
from penstock.model.record import Record, RecordKind, tag_hash

_MESSAGE: Final = int(RecordKind.MESSAGE)
_RELEASE: Final = int(RecordKind.RELEASE)
NO_POSITION: Final = LogPosition(-1)
_CRC: Final = Struct("<I")


class Appending(msgspec.Struct, gc=False):
    """One record on its way into the log."""

    record: Record
    queues: tuple[QueueIndex, ...] = ()
    """Target queues, each at most once; none for settle records and cancelled delays."""
    first_offsets: tuple[int, ...] = ()
    """Offset of the first message in each target, filled in by the append."""


class Special(NamedTuple):
    """A delayed or release record of a frame: it concerns more than indexes."""

    appending: Appending
    length: int
    release: Release | None


class Staged:
    """A frame on its way: its bytes, and what follows when they are written or not."""

    __slots__ = ("parts", "special", "touched")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        """Pieces of the records, to be joined."""
        self.touched: list[QueueIndex] = []
        """Queues that get entries, each once."""
        self.special: list[Special] = []

    def take_in(self, position: int) -> None:
        """The frame is written, its last record at ``position``: entries become visible."""
        for index in self.touched:
            index.take_staged(position)

    def undo(self, batch: Iterable[Appending]) -> None:
        """The frame is not written: no offset was given to anybody."""
        for index in self.touched:
            index.undo_staged()
        for appending in batch:
            appending.first_offsets = ()
            appending.record.position = NO_POSITION


def stage(
    batch: list[Appending], staged: Staged, position: int, store_ms: int, index_ms: int
) -> int:
    """Encode records from ``position`` on, assign offsets, prepare entries; where they end.

    The hottest loop of the broker: it does everything in one pass, and recomputes what records of
    one shape or one queue share only when that changes.
    """
    sealed: list[bytes] = []
    add, pack_entry = sealed.append, ENTRY_PLACE.pack
    sample, size, born_ms, tag = UNCOMMON[0], -1, 0, b""
    # Offset and bytes of the queue at hand are kept here and written back when the queue changes.
    queues: tuple[QueueIndex, ...] | None = None
    index: QueueIndex | None = None
    offset = bytes_before = 0
    at: Any = position  # LogPosition(at) would be a call for each record
    for appending in batch:
        record = appending.record
        origin = record.origin
        # Made equal in what is no part of a shape, the rest is compared in one step.
        sample.origin = origin
        if record.born_ms != born_ms:
            sample.born_ms = born_ms = record.born_ms
        if record != sample or len(origin) != size:
            sample.origin, tag = b"", b""
            (
                sample, size, head, tail, pack, length, messages, flags, facts, tag_at, tag_end,
                stamps,
            ) = shape_of(record)  # fmt: skip
            sample.origin, sample.born_ms = origin, born_ms
            if size < 0 or flags & INDEX_TRANSIENT:
                queues = None
        if appending.queues is not queues:
            if index is not None:
                index.staged_offset, index.staged_bytes = offset, bytes_before
            index, queues = None, appending.queues
            if size < 0 or len(queues) != 1:
                queues = None
                _seal(sealed, staged)
                at += _stage_uncommon(appending, staged, at, store_ms, index_ms)
                continue
            index = queues[0]
            queue_id, add_entry = index.queue_id, index.staged.append
            offset, bytes_before = _open(index, staged, flags)
        if stamps is not None:
            first, second, third = stamps.split(origin)
            front = stamps.join(first, offset, second, at, third, store_ms)
            record.origin = origin = front + origin[stamps.end :]
        add(pack(head, at, store_ms, born_ms, tail, queue_id, offset, origin))
        if tag_end and tag != origin[tag_at:tag_end]:
            tag = origin[tag_at:tag_end]
            facts = ENTRY_FACTS.pack(length, messages, tag_hash(tag), flags)
        add_entry(pack_entry(at, offset, bytes_before, index_ms, facts))
        appending.first_offsets = (offset,)
        record.position = at
        record.store_ms = store_ms
        offset += messages
        bytes_before += length
        at += length
    if index is not None:
        index.staged_offset, index.staged_bytes = offset, bytes_before
    sample.origin = b""
    _seal(sealed, staged)
    return int(at)


def _open(index: QueueIndex, staged: Staged, flags: int) -> tuple[int, int]:
    """A queue's turn begins: the offset and bytes it goes on from."""
    if not index.staged:
        staged.touched.append(index)
    if flags & INDEX_TRANSIENT and index.transient_from < 0:
        index.transient_from = index.staged_offset
    return index.staged_offset, index.staged_bytes


def _seal(sealed: list[bytes], staged: Staged) -> None:
    """Put a crc before each of these records, and all of them into the frame."""
    pieces = [b""] * (2 * len(sealed))
    pieces[0::2] = map(_CRC.pack, map(crc32c, sealed))
    pieces[1::2] = sealed
    staged.parts += pieces
    sealed.clear()


def _stage_uncommon(
    appending: Appending, staged: Staged, position: int, store_ms: int, index_ms: int
) -> int:
    """Any record at leisure: several targets or none, stamps, delays, releases; its length."""
    record = appending.record
    is_unindexed = record.kind == _MESSAGE and bool(record.flags & UNINDEXED)
    where: list[Any] = []
    for index in appending.queues:
        offset = UNASSIGNED_OFFSET if is_unindexed else index.staged_offset
        where.append((index.queue_id, offset))
    appending.first_offsets = tuple([offset for _, offset in where])
    pieces, (length,) = encode_batch((record,), (where,), position, store_ms)
    staged.parts += pieces
    if is_unindexed:
        staged.special.append(Special(appending, length, None))
    elif record.kind == _RELEASE:
        release = decode_release(record.origin)
        staged.special.append(Special(appending, length, release))
        flags = release.flags | INDEX_RELEASED
        _enter(appending, staged, release._replace(flags=flags), index_ms)
    elif record.kind == _MESSAGE:
        hashed = tag_hash(record.tag) if record.tag_len else 0
        facts = Release(position, length, record.messages, hashed, entry_flags(record))
        _enter(appending, staged, facts, index_ms)
    return length


def _enter(appending: Appending, staged: Staged, facts: Release, index_ms: int) -> None:
    """Prepare an entry in each target for the record ``facts`` points at."""
    position, length, messages, hashed, flags = facts
    for index, offset in zip(appending.queues, appending.first_offsets, strict=True):
        if not index.staged:
            staged.touched.append(index)
        if flags & INDEX_TRANSIENT and index.transient_from < 0:
            index.transient_from = offset
        index.staged.append(
            ENTRY.pack(
                position, offset, index.staged_bytes, index_ms, length, messages, hashed, flags
            )
        )
        index.staged_bytes += length
        index.staged_offset = offset + messages
