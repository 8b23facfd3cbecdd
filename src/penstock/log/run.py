"""A run: consecutive records of one shape and size for one queue, staged by columns.

A busy broker's frames are long runs. In one, positions, offsets and index entries are arithmetic:
they are made for all of its records by a few calls into C, and what remains for each record is its
packing, its checksum and three fields to fill in.

Invariant: bytes, entries and fields are those that staging record by record gives (``intake.py``).

Not here: where runs begin and end, and the rest of a frame (``intake.py``).
"""

import sys
from array import array
from collections.abc import Iterable
from itertools import repeat
from typing import Any, Final

from google_crc32c import value as crc32c

from penstock.log.entry import pack_middle
from penstock.log.index_files import ENTRY_PLACE
from penstock.log.packing import Packing, Stamps, packing_of
from penstock.log.staged import Appending, Staged
from penstock.model.record import Record, tag_hash

_CRC_GAP: Final = bytearray(4)
_ENTRY_WORDS: Final = 6
_HASH_MASK: Final = 0xFFFFFFFF
_IS_SWAPPED: Final = sys.byteorder == "big"


def stage_run(batch: list[Appending], staged: Staged) -> bool:
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
) -> "array[int]":
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


def _column(typecode: Any, values: Iterable[int]) -> "array[int]":
    """Little-endian words."""
    column = array(typecode, values)
    if _IS_SWAPPED:
        column.byteswap()
    return column
