"""Encoding an append: bytes, offsets and index entries of every record, before the one write.

``stage`` fills a ``StagedFrame`` frame. Long runs of one shape for one queue are staged by columns
(``stage_run``), everything between them record by record (``_stage_mixed``). Both give the same
bytes. Where runs are is said by whoever made the batch.

* Delayed and staged records name their queues with ``UNASSIGNED_OFFSET`` and get no entry.
* A release record gives the record it points back at its offsets: the entry's position, length,
  messages and tag are those of the original, its store time is that of the release.

Not here: the layout of a record (``format.py``), the frame and the file (``writer.py``), who calls
(``store.py``).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec
from google_crc32c import value as crc32c

from penstock.log.format import (
    INDEX_RELEASED,
    INDEX_TRANSIENT,
    Release,
    decode_release,
    encode_batch,
    encode_untargeted,
    entry_flags,
    pack_middle,
    template,
)
from penstock.log.index import ENTRY, ENTRY_FACTS, ENTRY_PLACE, QueueIndex
from penstock.model.ids import UNASSIGNED_OFFSET, LogPosition
from penstock.model.record import NO_STAMP, Record, RecordFlag, RecordKind, Shape, tag_hash

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


# ---- what goes in, and the frame it becomes ----------------------------------------------------
# A frame on its way into the log: what goes in, its bytes, and what follows when they are written.
#
# Everything in it is tentative (``QueueIndex.staged``, ``staged_offset``, ``staged_bytes``):
# ``IndexSet.take_in`` makes it real once the frame is written, ``StagedFrame.undo`` takes it back
# when it is not. In between nothing of a queue has changed that a reader could see.


NO_POSITION: Final = LogPosition(-1)
NO_OFFSET: Final = -1

Runs = Sequence[tuple[int, int]]
"""Stretches [start, end) of a batch, in order, whose records share one shape object, one size and
their queues: they are staged by columns (``stage_run``)."""


class Appending(msgspec.Struct, gc=False):
    """One record on its way into the log."""

    record: Record
    queues: tuple[QueueIndex, ...] = ()
    """Target queues, each at most once; none for settle records and cancelled delays."""
    first_offset: int = NO_OFFSET
    """Offset of the first message in the first target, filled in by the append; before that, of a
    record with the flag ``PLACED``, the one it wants. It gets it, unless that is given out."""
    other_offsets: tuple[int, ...] = ()
    """The same for the other targets."""

    @property
    def first_offsets(self) -> tuple[int, ...]:
        """One for each target, empty before the append."""
        return () if self.first_offset == NO_OFFSET else (self.first_offset, *self.other_offsets)


class DelayedAppend(NamedTuple):
    """A delayed or release record of a frame: it concerns more than indexes."""

    appending: Appending
    length: int
    release: Release | None


class StagedFrame(msgspec.Struct, eq=False):
    """A frame on its way."""

    at: Any  # LogPosition(at) would be a call for each record
    """Where the next record goes."""
    store_ms: int
    index_ms: int
    """Store time of index entries, which never goes back."""
    parts: list[bytes | bytearray] = []
    """Pieces of the records, to be joined."""
    records: list[Record] = []
    positions: list[int] = []
    """Where each of them lies."""
    touched: list[QueueIndex] = []
    """Queues that get entries, each once."""
    delayed_appends: list[DelayedAppend] = []

    def touch(self, index: QueueIndex, flags: int) -> tuple[int, int]:
        """A queue is about to get entries with these flags: from which offset and bytes on."""
        if not index.staged:
            self.touched.append(index)
        if flags & INDEX_TRANSIENT and index.transient_from < 0:
            index.transient_from = index.staged_offset
        return index.staged_offset, index.staged_bytes

    def undo(self, batch: Iterable[Appending]) -> None:
        """The frame is not written: no offset was given to anybody."""
        for index in self.touched:
            index.undo_staged()
        for appending in batch:
            appending.first_offset, appending.other_offsets = NO_OFFSET, ()
            appending.record.position = NO_POSITION


# ---- encoding record by record -----------------------------------------------------------------


def stage(batch: list[Appending], staged: StagedFrame, runs: Runs = ()) -> None:
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


def _stage_mixed(batch: list[Appending], staged: StagedFrame) -> None:
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


def _stage_settlement(
    record: Record, staged: StagedFrame, sealed: list[bytes], position: Any
) -> int:
    """A record for no queue, of which every turn has one; its length."""
    record.position, record.store_ms = position, staged.store_ms
    data = encode_untargeted(record)
    sealed.append(data)
    return _CRC_BYTES + len(data)


def _seal(sealed: list[bytes], staged: StagedFrame) -> None:
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


def _stage_uncommon(appending: Appending, staged: StagedFrame, position: int) -> int:
    """Any record at leisure: several targets or none, stamps, delays, releases; its length."""
    record = appending.record
    shape = record.shape
    is_unindexed = shape.kind == _MESSAGE and bool(shape.flags & UNINDEXED)
    where: list[Any] = []
    wanted = appending.first_offset if shape.flags & _PLACED else NO_OFFSET
    for index in appending.queues:
        offset = UNASSIGNED_OFFSET if is_unindexed else max(index.staged_offset, wanted)
        where.append((index.queue_id, offset))
    if where:
        appending.first_offset, *others = [offset for _, offset in where]
        appending.other_offsets = tuple(others)
    pieces, (length,) = encode_batch((record,), (where,), position, staged.store_ms)
    staged.parts += pieces
    if is_unindexed:
        staged.delayed_appends.append(DelayedAppend(appending, length, None))
    elif shape.kind == _RELEASE:
        release = decode_release(record.origin)
        staged.delayed_appends.append(DelayedAppend(appending, length, release))
        flags = release.flags | INDEX_RELEASED
        _enter(appending, staged, release._replace(flags=flags))
    elif shape.kind == _MESSAGE:
        hashed = tag_hash(record.tag) if shape.tag_len else 0
        facts = Release(position, length, shape.messages, hashed, entry_flags(shape))
        _enter(appending, staged, facts)
    return length


def _enter(appending: Appending, staged: StagedFrame, facts: Release) -> None:
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


# ---- packing: what records of one shape share --------------------------------------------------
# How the log packs the records of one shape, worked out once for all of them.
#
# Runs of one shape are the rule in a busy broker: one producer, one topic, one kind of message.
# What is left to do for each record is its position, its times, its target and its content.
#
# Invariant: a record of this shape and size, packed with this, gives the bytes of
# ``format.encode``.


UNINDEXED: Final = int(RecordFlag.DELAYED | RecordFlag.NO_INDEX)
_PLACED: Final = int(RecordFlag.PLACED)
_STAMP_BYTES: Final = 8


class Stamps(NamedTuple):
    """How offset, position and store time get into an origin that carries them (D3)."""

    split: Callable[[bytes], tuple[Any, ...]]
    """The bytes before each of the three stamps, of a whole origin."""
    join: Callable[..., bytes]
    """``(bytes, offset, bytes, position, bytes, store_ms)``: the origin up to ``end``, stamped."""
    end: int

    def stamp(self, origin: bytes, offset: int, position: int, store_ms: int) -> bytes:
        """A whole origin with its stamps."""
        first, second, third = self.split(origin)
        front = self.join(first, offset, second, position, third, store_ms)
        return front + origin[self.end :]


class Packing(NamedTuple):
    """What records of one shape and size have in common on disk; for one target queue."""

    head: bytes
    tail: bytes
    pack: Callable[..., bytes]
    """See ``format.Template``."""
    length: int
    """Bytes of the whole record."""
    messages: int
    flags: int
    """Flags of its index entry."""
    facts: bytes
    """The end of its index entry (``ENTRY_FACTS``), as long as it has no tag."""
    tag_at: int
    tag_end: int
    """0 when it has no tag."""
    stamps: Stamps | None


@lru_cache(maxsize=256)
def packing_of(shape: Shape, size: int) -> Packing | None:
    """How records of this shape with ``size`` origin bytes are packed; None: one by one.

    Remembered, for messages differ in size more than in kind.
    """
    if shape.kind != _MESSAGE or shape.flags & (UNINDEXED | _PLACED):
        return None
    places = (shape.stamp_offset_at, shape.stamp_position_at, shape.stamp_store_ms_at)
    stamps = None
    if places != (NO_STAMP, NO_STAMP, NO_STAMP):
        stamps = _stamps(*places)
        if stamps is None or stamps.end > size:
            return None
    common = template(shape, size)
    if common is None:
        return None
    head, tail, pack, length = common
    flags = entry_flags(shape)
    facts = ENTRY_FACTS.pack(length, shape.messages, 0, flags)
    tag_end = shape.tag_at + shape.tag_len if shape.tag_len else 0
    return Packing(
        head, tail, pack, length, shape.messages, flags, facts, shape.tag_at, tag_end, stamps
    )


@lru_cache(maxsize=64)
def _stamps(offset_at: int, position_at: int, store_ms_at: int) -> Stamps | None:
    """Stamps in the order in which RocketMQ stores them; any other order is staged on its own."""
    first = offset_at
    second = position_at - offset_at - _STAMP_BYTES
    third = store_ms_at - position_at - _STAMP_BYTES
    if min(first, second, third) < 0:
        return None
    return Stamps(
        Struct(f"{first}s8x{second}s8x{third}s").unpack_from,
        Struct(f">{first}sq{second}sq{third}sq").pack,
        store_ms_at + _STAMP_BYTES,
    )


# ---- runs, encoded by columns ------------------------------------------------------------------
# A run: consecutive records of one shape and size for one queue, staged by columns.
#
# A busy broker's frames are long runs. In one, positions, offsets and index entries are arithmetic:
# they are made for all of its records by a few calls into C, and what remains for each record is
# its packing, its checksum and three fields to fill in.
#
# Invariant: bytes, entries and fields are those that staging record by record gives.


_CRC_GAP: Final = bytearray(4)
_ENTRY_WORDS: Final = 6
_HASH_MASK: Final = 0xFFFFFFFF
_IS_SWAPPED: Final = sys.byteorder == "big"


def stage_run(batch: list[Appending], staged: StagedFrame) -> bool:
    """Stage records of one shape and size for the same queues; False: not by columns."""
    first, queues = batch[0].record, batch[0].queues
    packing = packing_of(first.shape, len(first.origin))
    if packing is None or len(queues) != 1:
        return False
    records = [appending.record for appending in batch]
    origins = [record.origin for record in records]
    index, count, at, length = queues[0], len(records), staged.at, packing.length
    start, bytes_before = staged.touch(index, packing.flags)
    messages = packing.messages
    offsets = list(range(start, start + count * messages, messages))
    positions: list[Any] = list(range(at, at + count * length, length))
    if packing.stamps is not None:
        origins = _stamped(origins, packing.stamps, offsets, positions, staged.store_ms)
        for record, origin in zip(records, origins, strict=True):
            record.origin = origin
    middles = _middles(records, packing, index.queue_id, staged.store_ms)
    sealed = list(map(packing.pack, repeat(packing.head), positions, middles, offsets, origins))
    staged.parts.append(_with_crcs(sealed, length))
    entries = _entries(
        packing, positions, offsets, bytes_before=bytes_before, index_ms=staged.index_ms
    )
    if packing.tag_end:
        entries[5::_ENTRY_WORDS] = _column("Q", _tag_words(origins, packing))
    index.staged.append(entries.tobytes())
    index.staged_offset += count * messages
    index.staged_bytes += count * length
    staged.records += records
    staged.positions += positions
    staged.at += count * length
    store_ms = staged.store_ms
    for appending, record, position, offset in zip(batch, records, positions, offsets, strict=True):
        appending.first_offset = offset
        record.position = position
        record.store_ms = store_ms
    return True


def _middles(
    records: list[Record], packing: Packing, queue_id: int, store_ms: int
) -> Iterable[bytes]:
    """What ``Template.pack`` wants for each record: few different ones, for few milliseconds."""
    births = [record.born_ms for record in records]
    tail = packing.tail
    if births.count(births[0]) == len(births):
        return repeat(pack_middle(store_ms, births[0], tail, queue_id))
    known = {born_ms: pack_middle(store_ms, born_ms, tail, queue_id) for born_ms in set(births)}
    return map(known.__getitem__, births)


def _with_crcs(sealed: list[bytes], length: int) -> bytearray:
    """Each of these records behind its crc."""
    data = _CRC_GAP.join((b"", *sealed))
    crcs = _column("I", map(crc32c, sealed))
    memoryview(data).cast("I")[0 :: length // crcs.itemsize] = crcs
    return data


def _entries(
    packing: Packing, positions: list[int], offsets: list[int], *, bytes_before: int, index_ms: int
) -> array[int]:
    """The index entries of a run, as words."""
    count, length = len(positions), packing.length
    sums = list(range(bytes_before, bytes_before + count * length, length))
    entries = array("Q", ENTRY_PLACE.pack(0, 0, 0, index_ms, packing.facts) * count)
    entries[0::_ENTRY_WORDS] = _column("Q", positions)
    entries[1::_ENTRY_WORDS] = _column("Q", offsets)
    entries[2::_ENTRY_WORDS] = _column("Q", sums)
    return entries


def _tag_words(origins: list[bytes], packing: Packing) -> list[int]:
    """The last words of entries with a tag: its hash below, the flags above."""
    at, end = packing.tag_at, packing.tag_end
    tags = [origin[at:end] for origin in origins]
    words = {tag: tag_hash(tag) & _HASH_MASK | packing.flags << 32 for tag in set(tags)}
    return [words[tag] for tag in tags]


def _stamped(
    origins: list[bytes], stamps: Stamps, offsets: list[int], positions: list[int], store_ms: int
) -> list[bytes]:
    """The origins with offset, position and store time in them."""
    split, join, end = stamps
    return [
        join(first, offset, second, position, third, store_ms) + origin[end:]
        for (first, second, third), offset, position, origin in zip(
            map(split, origins), offsets, positions, origins, strict=True
        )
    ]


def _column(typecode: Any, values: Iterable[int]) -> array[int]:
    column = array(typecode, values)
    if _IS_SWAPPED:
        column.byteswap()
    return column
