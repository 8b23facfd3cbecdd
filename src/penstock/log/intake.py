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
from penstock.log.entry import Template, encode_batch, template
from penstock.log.queue_index import ENTRY, QueueIndex
from penstock.model.position import UNASSIGNED_OFFSET, LogPosition
from penstock.model.record import Record, RecordFlag, RecordKind, tag_hash

_MESSAGE: Final = int(RecordKind.MESSAGE)
_RELEASE: Final = int(RecordKind.RELEASE)
_TRANSIENT: Final = int(RecordFlag.TRANSIENT)
UNINDEXED: Final = int(RecordFlag.DELAYED | RecordFlag.NO_INDEX)
NO_POSITION: Final = LogPosition(-1)


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
) -> None:
    """Encode records from ``position`` on, assign their offsets and prepare their entries.

    The hottest loop of the broker: it does everything in one pass, and recomputes what records of
    one shape share only when the shape changes.
    """
    parts, touched = staged.parts, staged.touched
    add, pack_entry = parts.append, ENTRY.pack
    shape: tuple[int, ...] = ()
    # Offset and bytes of the queue at hand are kept here and written back when the queue changes.
    index: QueueIndex | None = None
    offset = bytes_before = 0
    at: Any = position  # LogPosition(at) would be a call for each record
    for appending in batch:
        record = appending.record
        queues = appending.queues
        origin = record.origin
        facts = (
            len(origin), len(queues), record.messages, record.kind, record.wire, record.flags,
            record.priority, record.expire_ms, record.deliver_ms, record.key_at, record.key_len,
            record.tag_at, record.tag_len, record.props_at, record.props_len, record.body_at,
            record.body_len, record.stamp_offset_at, record.stamp_position_at,
            record.stamp_store_ms_at,
        )  # fmt: skip
        if facts != shape:
            common = _common(appending)
            if common is None:
                if index is not None:
                    index.staged_offset, index.staged_bytes = offset, bytes_before
                    index = None
                at += _stage_uncommon(appending, staged, at, store_ms, index_ms)
                continue
            head, tail, pack, length = common
            messages, tag_len, flags = record.messages, record.tag_len, entry_flags(record)
            shape = facts
        if queues[0] is not index:
            if index is not None:
                index.staged_offset, index.staged_bytes = offset, bytes_before
            index = queues[0]
            offset, bytes_before = index.staged_offset, index.staged_bytes
            queue_id, add_entry = index.queue_id, index.staged.append
            if not index.staged:
                touched.append(index)
        sealed = pack(head, at, store_ms, record.born_ms, tail, queue_id, offset, origin)
        add(crc32c(sealed).to_bytes(4, "little"))
        add(sealed)
        tag = tag_hash(record.tag) if tag_len else 0
        add_entry(pack_entry(at, offset, bytes_before, index_ms, length, messages, tag, flags))
        appending.first_offsets = (offset,)
        record.position = at
        record.store_ms = store_ms
        offset += messages
        bytes_before += length
        at += length
    if index is not None:
        index.staged_offset, index.staged_bytes = offset, bytes_before


def _common(appending: Appending) -> Template | None:
    """What the records of this one's shape share; None when it must be staged on its own."""
    record = appending.record
    if (
        len(appending.queues) != 1
        or record.kind != _MESSAGE
        or record.flags & (UNINDEXED | _TRANSIENT)
        or record.stamp_offset_at + record.stamp_position_at + record.stamp_store_ms_at != -3
    ):
        return None
    return template(record)


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
