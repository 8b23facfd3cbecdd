"""The record on disk: 88 bytes of facts, its targets, the bytes the protocol sent (D2).

    byte   0     4     8    9       10    12        14       15         16         20
           | crc | len | kind | proto | flags | targets | priority | hdr_ver | messages |
           20          28         36        44          52           60
           | position  | store_ms | born_ms | expire_ms | deliver_ms |
           60       64        66        68       72         76          80        84         88
           | key_at | key_len | tag_len | tag_at | props_at | props_len | body_at | body_len |
           88
           | queue_id u32, first_offset u64 | x targets | origin bytes | zero padding |

Little-endian. ``crc`` is the crc32c of everything behind it up to ``len``. ``len`` counts all of
the above, is a multiple of 8 and at least ``messages``, so that ``position + i`` names message
``i`` of a batch (D4). ``position`` is where the record itself lies: a copy elsewhere is not valid.

Padding: the upper four bits of ``flags`` belong to this file. Bits 13-15 count the padding bytes
(0-7); bit 12 says that the padding is longer, because of ``messages``, and that its length is the
u64 in the last 8 bytes. Spans (``key_at`` ...) count from the start of the origin bytes.

Invariant, checked before the write and after the read: spans lie inside the origin bytes, there is
at least one message, and the length is the one the parts add up to.

Not here: frames (``frame.py``), what settle and release records say (``cursors.py``).
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from penstock.model.errors import FormatTooNew, InvariantBroken
from penstock.model.ids import UNASSIGNED_OFFSET, QueueId, QueueOffset
from penstock.model.record import NO_STAMP, Record, Shape

Targets = Sequence[tuple[QueueId, QueueOffset]]
"""Where a record goes: (queue, offset of its first message there) for each queue."""

HEADER_VERSION: Final = 1
HEADER_BYTES: Final = 88
TARGET_BYTES: Final = 12
RECORD_BYTES_MAX: Final = 1 << 29
"""Half the largest frame; larger than any message limit a protocol allows (RabbitMQ: 512 MiB)."""
TARGETS_MAX: Final = (1 << 16) - 1

HEADER_FIELDS: Final[list[tuple[str, str]]] = [
    ("crc", "<u4"),
    ("len", "<u4"),
    ("kind", "u1"),
    ("proto", "u1"),
    ("flags", "<u2"),
    ("targets", "<u2"),
    ("priority", "u1"),
    ("header_version", "u1"),
    ("messages", "<u4"),
    ("position", "<u8"),
    ("store_ms", "<i8"),
    ("born_ms", "<i8"),
    ("expire_ms", "<i8"),
    ("deliver_ms", "<i8"),
    ("key_at", "<u4"),
    ("key_len", "<u2"),
    ("tag_len", "<u2"),
    ("tag_at", "<u4"),
    ("props_at", "<u4"),
    ("props_len", "<u4"),
    ("body_at", "<u4"),
    ("body_len", "<u4"),
]
"""The header as a numpy dtype description, for readers that decode many at once."""

TARGET_COUNT_AT: Final = 12
FLAGS_MASK: Final = 0x0FFF
"""The part of ``flags`` that belongs to ``RecordFlag``."""
LONG_PAD: Final = 0x1000
PAD_SHIFT: Final = 13

_SEALED: Final = "IBBHHBBIQqqqqIHHIIIII"
"""The header behind its crc."""
_HEADER: Final = struct.Struct("<I" + _SEALED)
_PACK_NONE: Final = struct.Struct("<" + _SEALED).pack
_PACK_HEAD: Final = struct.Struct("<" + _SEALED[:8]).pack
_PACK_TAIL: Final = struct.Struct("<" + _SEALED[11:]).pack
_PACK_ONE: Final = struct.Struct("<" + _SEALED + "IQ").pack
_TARGET: Final = struct.Struct("<IQ")
_TARGET_COUNT: Final = struct.Struct("<H")
_LONG_PAD_LEN: Final = struct.Struct("<Q")
_STAMP: Final = struct.Struct(">q")
_PADS: Final = tuple(bytes(count) for count in range(8))
_JOIN_BYTES_MAX: Final = 16 * 1024
"""Origins above this are not copied an extra time for the sake of a single crc call."""
assert _HEADER.size == HEADER_BYTES


def record_length(record: Record, targets: int) -> int:
    """Bytes the record will take in the log with that many targets."""
    length = (HEADER_BYTES + TARGET_BYTES * targets + len(record.origin) + 7) & -8
    messages = record.shape.messages
    return length if length >= messages else (messages + 7) & -8


def encode(record: Record, targets: Targets, position: int, store_ms: int) -> bytes:
    """One record as bytes; a batch is cheaper through ``encode_batch``."""
    parts, _ = encode_batch((record,), (targets,), position, store_ms)
    return b"".join(parts)


def encode_batch(
    records: Sequence[Record], targets: Sequence[Targets], position: int, store_ms: int
) -> tuple[list[bytes], list[int]]:
    """Encode records that lie one behind the other from ``position`` on.

    Fills in ``position`` and ``store_ms`` of each record and stamps its origin (``stamp_*_at``).
    Returns the pieces to join and the length of each record. The hottest loop of the broker: one
    pack, one crc and two small objects for a record with one target.
    """
    parts: list[bytes] = []
    lengths: list[int] = []
    add, add_length, join = parts.append, lengths.append, b"".join
    pack_one, pads = _PACK_ONE, _PADS
    at: Any = position  # LogPosition(at) would be a call for each record
    for record, where in zip(records, targets, strict=True):
        shape = record.shape
        if (
            shape.stamp_offset_at != NO_STAMP
            or shape.stamp_position_at != NO_STAMP
            or shape.stamp_store_ms_at != NO_STAMP
        ):
            _stamp(record, where, at, store_ms)
        origin, messages, flags = record.origin, shape.messages, shape.flags
        size = len(origin)
        natural = HEADER_BYTES + TARGET_BYTES + size
        length = (natural + 7) & -8
        record.position = at
        record.store_ms = store_ms
        if len(where) != 1 or size > _JOIN_BYTES_MAX or messages > length:
            length = _encode_uncommon(record, where, parts)
            add_length(length)
            at += length
            continue
        key_at, key_len, tag_at, tag_len = (
            shape.key_at, shape.key_len, shape.tag_at, shape.tag_len
        )  # fmt: skip
        props_at, props_len, body_at, body_len = (
            shape.props_at, shape.props_len, shape.body_at, shape.body_len
        )  # fmt: skip
        if (
            key_at + key_len > size or tag_at + tag_len > size or props_at + props_len > size
            or body_at + body_len > size or messages < 1 or flags > FLAGS_MASK
        ):  # fmt: skip
            raise _unfit(shape, size)
        [(queue_id, offset)] = where
        pad = length - natural
        head = pack_one(
            length, shape.kind, shape.wire, flags | pad << PAD_SHIFT, 1, shape.priority,
            HEADER_VERSION, messages, at, store_ms, record.born_ms, shape.expire_ms,
            shape.deliver_ms, key_at, key_len, tag_len, tag_at, props_at, props_len, body_at,
            body_len, queue_id, offset,
        )  # fmt: skip
        sealed = join((head, origin, pads[pad]))
        add(crc32c(sealed).to_bytes(4, "little"))
        add(sealed)
        add_length(length)
        at += length
    return parts, lengths


class Template(NamedTuple):
    """The bytes that records of one shape, size and target have in common, and how to add the rest.

    ``pack(head, position, middle, offset, origin)`` with ``middle(store_ms, born_ms, tail,
    queue_id)``, which is mostly the same for many: ``length - 4`` bytes, the record behind its crc.
    """

    head: bytes
    tail: bytes
    pack: Callable[..., bytes]
    length: int


pack_middle: Final = struct.Struct("<qq44sI").pack
"""``Template.pack`` wants it."""


def template(shape: Shape, size: int) -> Template | None:
    """The bytes that records of one shape have in common; None for uncommon ones.

    That is all but position, times of store and birth, target and ``size`` bytes of content. Runs
    of one shape are the rule in a busy broker, and packing them costs a third of packing every
    field. Only for one target, stamps are the caller's; ``encode_batch`` takes the rest.
    """
    natural = HEADER_BYTES + TARGET_BYTES + size
    length = (natural + 7) & -8
    if size > _JOIN_BYTES_MAX or shape.messages > length:
        return None
    if not _fits(shape, size):
        raise _unfit(shape, size)
    head, tail = _ends(shape, length, length - natural, targets=1)
    return Template(head, tail, _packer(length - HEADER_BYTES - TARGET_BYTES), length)


def _ends(shape: Shape, length: int, pad: int, *, targets: int) -> tuple[bytes, bytes]:
    """The header before position, store_ms and born_ms, and behind them."""
    head = _PACK_HEAD(
        length, shape.kind, shape.wire, shape.flags | pad << PAD_SHIFT, targets, shape.priority,
        HEADER_VERSION, shape.messages,
    )  # fmt: skip
    tail = _PACK_TAIL(
        shape.expire_ms, shape.deliver_ms, shape.key_at, shape.key_len, shape.tag_len,
        shape.tag_at, shape.props_at, shape.props_len, shape.body_at, shape.body_len,
    )  # fmt: skip
    return head, tail


@lru_cache(maxsize=1 + _JOIN_BYTES_MAX // 8)
def _packer(padded_size: int) -> Callable[..., bytes]:
    """Packs a whole record behind its crc; an origin shorter than the field is zero-padded."""
    return struct.Struct(f"<16sQ64sQ{padded_size}s").pack


def encode_untargeted(record: Record) -> bytes:
    """A record of our own for no queue, its position and store time filled in, behind its crc.

    Every acknowledgement ends up in one: what those of one size have in common is packed once.
    """
    origin = record.origin
    head, tail, pack = _untargeted(record.shape, len(origin))
    return pack(head, record.position, record.store_ms, record.born_ms, tail, origin)


@lru_cache(maxsize=256)
def _untargeted(shape: Shape, size: int) -> tuple[bytes, bytes, Callable[..., bytes]]:
    length = (HEADER_BYTES + size + 7) & -8
    if not _fits(shape, size) or shape.messages != 1 or length > RECORD_BYTES_MAX:
        raise _unfit(shape, size)
    head, tail = _ends(shape, length, length - HEADER_BYTES - size, targets=0)
    return head, tail, struct.Struct(f"<16sQqq44s{length - HEADER_BYTES}s").pack


def _encode_uncommon(record: Record, targets: Targets, parts: list[bytes]) -> int:
    """Any record, at leisure: several targets or none, a large origin, a large batch.

    Large origins are not copied: their pieces are joined once, into the frame.
    """
    shape = record.shape
    size, count = len(record.origin), len(targets)
    natural = HEADER_BYTES + TARGET_BYTES * count + size
    length = record_length(record, count)
    pad = length - natural
    pad_bits, padding = pad << PAD_SHIFT, bytes(pad)
    if pad >= 8:
        pad_bits, padding = LONG_PAD, bytes(pad - 8) + _LONG_PAD_LEN.pack(pad)
    if not _fits(shape, size) or length > RECORD_BYTES_MAX or count > TARGETS_MAX:
        raise _unfit(shape, size)
    facts = _PACK_NONE(
        length, shape.kind, shape.wire, shape.flags | pad_bits, count, shape.priority,
        HEADER_VERSION, shape.messages, record.position, record.store_ms, record.born_ms,
        shape.expire_ms, shape.deliver_ms, shape.key_at, shape.key_len, shape.tag_len,
        shape.tag_at, shape.props_at, shape.props_len, shape.body_at, shape.body_len,
    )  # fmt: skip
    head = facts + b"".join([_TARGET.pack(*target) for target in targets])
    crc = crc32c_extend(crc32c_extend(crc32c(head), record.origin), padding)
    parts += (crc.to_bytes(4, "little"), head, record.origin, padding)
    return length


def _stamp(record: Record, targets: Targets, position: int, store_ms: int) -> None:
    """Write offset, position and store time into origin bytes that carry them (D3)."""
    shape, origin = record.shape, bytearray(record.origin)
    if shape.stamp_offset_at >= 0 and targets and targets[0][1] != UNASSIGNED_OFFSET:
        _STAMP.pack_into(origin, shape.stamp_offset_at, targets[0][1])
    if shape.stamp_position_at >= 0:
        _STAMP.pack_into(origin, shape.stamp_position_at, position)
    if shape.stamp_store_ms_at >= 0:
        _STAMP.pack_into(origin, shape.stamp_store_ms_at, store_ms)
    record.origin = bytes(origin)


def _fits(shape: Shape, size: int) -> bool:
    """True when an origin of ``size`` bytes can be what the shape says."""
    return (
        shape.key_at + shape.key_len <= size and shape.tag_at + shape.tag_len <= size
        and shape.props_at + shape.props_len <= size and shape.body_at + shape.body_len <= size
        and shape.messages >= 1 and shape.flags <= FLAGS_MASK
    )  # fmt: skip


def _unfit(shape: Shape, size: int) -> InvariantBroken:
    return InvariantBroken(
        f"a record of {size} origin bytes cannot be written as {shape}: every span lies in the "
        f"origin, flags below {FLAGS_MASK + 1:#x}, size up to {RECORD_BYTES_MAX}"
    )


def decode(buffer: bytes, at: int, position: int) -> tuple[Record, Targets] | None:
    """The record at ``buffer[at:]`` and its targets, or None when it is damaged."""
    record = decode_record(buffer, at, position)
    if record is None:
        return None
    return record, read_targets(buffer, at)


def decode_record(buffer: bytes, at: int, position: int) -> Record | None:
    """The record at ``buffer[at:]`` that must lie at ``position``, or None when it is damaged."""
    if at < 0 or len(buffer) - at < HEADER_BYTES:
        return None
    (
        crc, length, kind, wire, flags, count, priority, version, messages, found_position,
        store_ms, born_ms, expire_ms, deliver_ms, key_at, key_len, tag_len, tag_at, props_at,
        props_len, body_at, body_len,
    ) = _HEADER.unpack_from(buffer, at)  # fmt: skip
    end = at + length
    if found_position != position or length < HEADER_BYTES or end > len(buffer):
        return None
    if crc32c(buffer[at + 4 : end]) != crc:
        return None
    if version > HEADER_VERSION:
        raise record_too_new(version, position)
    start = at + HEADER_BYTES + TARGET_BYTES * count
    pad = flags >> PAD_SHIFT if not flags & LONG_PAD else padding_length(buffer, end, flags)
    origin = buffer[start : end - pad]
    size = len(origin)
    if (
        key_at + key_len > size or tag_at + tag_len > size or props_at + props_len > size
        or body_at + body_len > size or messages < 1 or messages > length or length & 7
    ):  # fmt: skip
        # The crc says these are the bytes that were written: then we wrote nonsense.
        raise InvariantBroken(f"record at position {position} has a good crc and senseless facts")
    # Not looked up among known ones: that costs as much as making it, and nobody packs it again.
    shape = Shape(
        wire, kind, flags & FLAGS_MASK, priority, messages, expire_ms, deliver_ms, key_at, key_len,
        tag_at, tag_len, props_at, props_len, body_at, body_len,
    )  # fmt: skip
    return Record(origin, shape, born_ms, found_position, store_ms)


def read_targets(buffer: bytes, at: int) -> Targets:
    """The targets of a record already known to be good."""
    count = _TARGET_COUNT.unpack_from(buffer, at + TARGET_COUNT_AT)[0]
    start = at + HEADER_BYTES
    if count == 1:
        return (_TARGET.unpack_from(buffer, start),)
    return tuple(_TARGET.iter_unpack(buffer[start : start + TARGET_BYTES * count]))


def padding_length(buffer: bytes, end: int, flags: int) -> int:
    """How many padding bytes a good record that ends at ``end`` has."""
    if flags & LONG_PAD:
        return int(_LONG_PAD_LEN.unpack_from(buffer, end - 8)[0])
    return flags >> PAD_SHIFT


def record_too_new(version: int, position: int) -> FormatTooNew:
    """The error for a good record whose header version we do not know."""
    return FormatTooNew(
        f"the log record at position {position} has header version {version}, this Penstock knows "
        f"{HEADER_VERSION}; use the newer Penstock that wrote it"
    )
