"""The two halves of an append that touch every message: offsets before the write, entries after.

``stage`` gives each record its offsets tentatively (``QueueIndex.staged_offset``); ``unstage``
takes them back when the write failed; ``index_batch`` turns written records into index entries.
Between the halves nothing of a queue has changed that a reader could see.

* Delayed and staged records name their queues with ``UNASSIGNED_OFFSET`` and get no entry.
* A release record gives the record it points back at its offsets: the entry's position, length,
  messages and tag are those of the original, its store time is that of the release.

Not here: bytes (``entry.py``), the frame and the file (``writer.py``), who calls (``store.py``).
"""

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.log.cursors import INDEX_RELEASED, Release, decode_release, entry_flags
from penstock.log.entry import Targets
from penstock.log.queue_index import ENTRY, QueueIndex
from penstock.model.position import UNASSIGNED_OFFSET, QueueId, QueueOffset
from penstock.model.record import Record, RecordFlag, RecordKind, tag_hash

_MESSAGE: Final = int(RecordKind.MESSAGE)
_RELEASE: Final = int(RecordKind.RELEASE)
UNINDEXED: Final = int(RecordFlag.DELAYED | RecordFlag.NO_INDEX)


class Appending(msgspec.Struct, gc=False):
    """One record on its way into the log."""

    record: Record
    queues: tuple[QueueIndex, ...] = ()
    """Target queues; none for settle records and cancelled delays."""
    first_offsets: tuple[int, ...] = ()
    """Offset of the first message in each target, filled in by the append."""


SpecialHandler = Callable[[Appending, int, Release | None], None]
"""Told of every delayed and release record: (appending, length in the log, release or None)."""


def stage(batch: list[Appending]) -> list[Targets]:
    """Assign offsets tentatively; the target list of each record."""
    targets: list[Targets] = []
    add = targets.append
    for appending in batch:
        record = appending.record
        queues = appending.queues
        if record.flags & UNINDEXED and record.kind == _MESSAGE:
            appending.first_offsets = (UNASSIGNED_OFFSET,) * len(queues)
            add([(QueueId(index.queue_id), UNASSIGNED_OFFSET) for index in queues])
        elif len(queues) == 1:
            index = queues[0]
            offset = index.staged_offset
            index.staged_offset = offset + record.messages
            appending.first_offsets = (offset,)
            add(((QueueId(index.queue_id), QueueOffset(offset)),))
        else:
            where: list[tuple[QueueId, QueueOffset]] = []
            for index in queues:
                where.append((QueueId(index.queue_id), QueueOffset(index.staged_offset)))
                index.staged_offset += record.messages
            appending.first_offsets = tuple([offset for _, offset in where])
            add(where)
    return targets


def unstage(batch: list[Appending]) -> None:
    """The write failed: no offset was given to anybody."""
    for appending in batch:
        appending.first_offsets = ()
        appending.record.position = type(appending.record.position)(-1)
        for index in appending.queues:
            index.staged_offset = index.next_offset


def index_batch(
    batch: list[Appending], lengths: list[int], store_ms: int, special: SpecialHandler
) -> list[QueueIndex]:
    """Make the entries of written records; the queues that got any, each once."""
    touched: list[QueueIndex] = []
    pack = ENTRY.pack
    for appending, length in zip(batch, lengths, strict=True):
        record = appending.record
        if (
            record.kind != _MESSAGE
            or record.flags
            or record.expire_ms
            or record.deliver_ms
            or len(appending.queues) != 1
        ):
            _index_special(appending, length, store_ms, touched, special)
            continue
        index = appending.queues[0]
        staged = index.staged
        if not staged:
            touched.append(index)
        bytes_before = index.end_bytes
        index.end_bytes = bytes_before + length
        staged.append(
            pack(
                record.position,
                appending.first_offsets[0],
                bytes_before,
                store_ms,
                length,
                record.messages,
                tag_hash(record.tag) if record.tag_len else 0,
                0,
            )
        )
    for index in touched:
        index.take_staged(batch[-1].record.position)
    return touched


def _index_special(
    appending: Appending,
    length: int,
    store_ms: int,
    touched: list[QueueIndex],
    special: SpecialHandler,
) -> None:
    record = appending.record
    position = int(record.position)
    if record.kind == _RELEASE:
        release = decode_release(record.origin)
        special(appending, length, release)
        position, length = release.position, release.length
        tag, flags = release.tag_hash, release.flags | INDEX_RELEASED
    elif record.kind != _MESSAGE:
        return
    elif record.flags & UNINDEXED:
        special(appending, length, None)
        return
    else:
        tag = tag_hash(record.tag) if record.tag_len else 0
        flags = entry_flags(record)
    for index, offset in zip(appending.queues, appending.first_offsets, strict=True):
        if not index.staged:
            touched.append(index)
        index.staged.append(
            ENTRY.pack(
                position, offset, index.end_bytes, store_ms, length, record.messages, tag, flags
            )
        )
        index.end_bytes += length
        if flags & 2 and index.transient_from < 0:
            index.transient_from = offset
