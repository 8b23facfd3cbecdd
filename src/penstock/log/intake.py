"""The part of an append that touches every message: bytes, offsets and index entries.

Long runs of one shape for one queue are staged by columns (``run.py``), everything between them
record by record. Both give the same. Where runs are is said by whoever made the batch.

* Delayed and staged records name their queues with ``UNASSIGNED_OFFSET`` and get no entry.
* A release record gives the record it points back at its offsets: the entry's position, length,
  messages and tag are those of the original, its store time is that of the release.

Not here: what becomes of it (``staged.py``), the layout of a record (``entry.py``), the frame and
the file (``writer.py``), who calls (``store.py``).
"""

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final

from google_crc32c import value as crc32c

from penstock.log.cursors import (
    INDEX_RELEASED,
    INDEX_TRANSIENT,
    Release,
    decode_release,
    entry_flags,
)
from penstock.log.entry import encode_batch, encode_untargeted, pack_middle
from penstock.log.index_files import ENTRY, ENTRY_FACTS, ENTRY_PLACE
from penstock.log.packing import UNINDEXED, packing_of
from penstock.log.queue_index import QueueIndex
from penstock.log.run import stage_run
from penstock.log.staged import Appending, Runs, Special, Staged
from penstock.model.ids import UNASSIGNED_OFFSET
from penstock.model.record import Record, RecordKind, Shape, tag_hash

_MESSAGE: Final = int(RecordKind.MESSAGE)
_SETTLE: Final = int(RecordKind.SETTLE)
_RELEASE: Final = int(RecordKind.RELEASE)
RUN_MIN: Final = 32
"""Records from which on a run is staged by columns: setting them up costs 6 us, and each record
then saves a fifth of one."""
SEAL_COLUMNS_MIN: Final = 8
"""The same for checksums alone."""
_PACK_ENTRY: Final = ENTRY_PLACE.pack
_PACK_CRC: Final = Struct("<I").pack
_CRC_BYTES: Final = 4


def stage(batch: list[Appending], staged: Staged, runs: Runs = ()) -> None:
    """Encode records one behind the other, assign offsets, prepare entries."""
    if len(batch) < RUN_MIN:
        _stage_mixed(batch, staged)
        return
    done = 0
    for start, end in _long_runs(runs, batch):
        if done < start:
            _stage_mixed(batch[done:start], staged)
        run = batch[start:end]
        if not stage_run(run, staged):
            _stage_mixed(run, staged)
        done = end
    if done < len(batch):
        _stage_mixed(batch[done:], staged)


def _long_runs(runs: Runs, batch: list[Appending]) -> Iterator[tuple[int, int]]:
    """The runs that are worth it, neighbours joined that go on alike."""
    start = end = 0
    for first, last in runs:
        if first == end and end > start and _is_alike(batch[start], batch[first]):
            end = last
            continue
        if end - start >= RUN_MIN:
            yield start, end
        start, end = first, last
    if end - start >= RUN_MIN:
        yield start, end


def _is_alike(one: Appending, other: Appending) -> bool:
    record, later = one.record, other.record
    return (
        later.shape is record.shape
        and other.queues is one.queues
        and len(later.origin) == len(record.origin)
    )


def _stage_mixed(batch: list[Appending], staged: Staged) -> None:
    """Stage records as they come; what one shape or one queue shares is kept meanwhile."""
    sealed: list[bytes] = []
    add, keep, keep_position = sealed.append, staged.records.append, staged.positions.append
    store_ms, index_ms, at, pack_entry = staged.store_ms, staged.index_ms, staged.at, _PACK_ENTRY
    shape: Shape | None = None
    size, born_ms, offset, bytes_before = -1, None, 0, 0
    # Offset and bytes of the queue at hand are kept here and written back when the queue changes.
    queues: tuple[QueueIndex, ...] | None = None
    index: QueueIndex | None = None
    for appending in batch:
        record = appending.record
        keep(record)
        keep_position(at)
        origin = record.origin
        if record.shape is not shape or len(origin) != size:
            if record.shape.kind == _SETTLE and not appending.queues:
                at += _stage_settlement(record, staged, sealed, at)
                continue  # what is kept stays: a message may go on like the one before
            shape, size, born_ms, tag = record.shape, len(origin), None, b""
            packing = packing_of(shape, size)
            if packing is not None:
                head, tail, pack, length, messages, flags, facts, tag_at, tag_end, stamps = packing
            if packing is None or flags & INDEX_TRANSIENT:
                queues = None
        if appending.queues is not queues:
            if index is not None:
                index.staged_offset, index.staged_bytes = offset, bytes_before
            index, queues = None, appending.queues
            if packing is None or len(queues) != 1:
                queues = None
                _seal(sealed, staged)
                at += _stage_uncommon(appending, staged, at)
                continue
            index = queues[0]
            queue_id, add_entry, born_ms = index.queue_id, index.staged.append, None
            offset, bytes_before = staged.touch(index, flags)
        if stamps is not None:
            record.origin = origin = stamps.stamp(origin, offset, at, store_ms)
        if record.born_ms != born_ms:
            born_ms = record.born_ms
            middle = pack_middle(store_ms, born_ms, tail, queue_id)
        add(pack(head, at, middle, offset, origin))
        if tag_end and tag != origin[tag_at:tag_end]:
            tag = origin[tag_at:tag_end]
            facts = ENTRY_FACTS.pack(length, messages, tag_hash(tag), flags)
        add_entry(pack_entry(at, offset, bytes_before, index_ms, facts))
        appending.first_offset, record.position, record.store_ms = offset, at, store_ms
        offset, bytes_before, at = offset + messages, bytes_before + length, at + length
    if index is not None:
        index.staged_offset, index.staged_bytes = offset, bytes_before
    _seal(sealed, staged)
    staged.at = at


def _stage_settlement(record: Record, staged: Staged, sealed: list[bytes], position: Any) -> int:
    """A record for no queue, of which every turn has one; its length."""
    record.position, record.store_ms = position, staged.store_ms
    data = encode_untargeted(record)
    sealed.append(data)
    return _CRC_BYTES + len(data)


def _seal(sealed: list[bytes], staged: Staged) -> None:
    """Put a crc before each of these records, and all of them into the frame."""
    parts = staged.parts
    if len(sealed) < SEAL_COLUMNS_MIN:
        for record in sealed:
            parts += (_PACK_CRC(crc32c(record)), record)
    else:
        pieces = [b""] * (2 * len(sealed))
        pieces[0::2] = map(_PACK_CRC, map(crc32c, sealed))
        pieces[1::2] = sealed
        parts += pieces
    sealed.clear()


def _stage_uncommon(appending: Appending, staged: Staged, position: int) -> int:
    """Any record at leisure: several targets or none, stamps, delays, releases; its length."""
    record = appending.record
    shape = record.shape
    is_unindexed = shape.kind == _MESSAGE and bool(shape.flags & UNINDEXED)
    where: list[Any] = []
    for index in appending.queues:
        offset = UNASSIGNED_OFFSET if is_unindexed else index.staged_offset
        where.append((index.queue_id, offset))
    if where:
        appending.first_offset, *others = [offset for _, offset in where]
        appending.other_offsets = tuple(others)
    pieces, (length,) = encode_batch((record,), (where,), position, staged.store_ms)
    staged.parts += pieces
    if is_unindexed:
        staged.special.append(Special(appending, length, None))
    elif shape.kind == _RELEASE:
        release = decode_release(record.origin)
        staged.special.append(Special(appending, length, release))
        flags = release.flags | INDEX_RELEASED
        _enter(appending, staged, release._replace(flags=flags))
    elif shape.kind == _MESSAGE:
        hashed = tag_hash(record.tag) if shape.tag_len else 0
        facts = Release(position, length, shape.messages, hashed, entry_flags(shape))
        _enter(appending, staged, facts)
    return length


def _enter(appending: Appending, staged: Staged, facts: Release) -> None:
    """Prepare an entry in each target for the record ``facts`` points at."""
    position, length, messages, hashed, flags = facts
    for index, offset in zip(appending.queues, appending.first_offsets, strict=True):
        staged.touch(index, flags)
        index.staged.append(
            ENTRY.pack(
                position, offset, index.staged_bytes, staged.index_ms, length, messages, hashed,
                flags,
            )
        )  # fmt: skip
        index.staged_bytes += length
        index.staged_offset = offset + messages
