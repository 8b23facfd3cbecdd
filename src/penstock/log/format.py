"""What is on disk, byte by byte: frames, records, settlements and releases, the format number.

A frame is what one turn appends, and the unit that is either wholly there or torn (D1).

    byte   0        4     6     8           12          16                  24
           | magic  | ver | flg | frame_len | records   | base_position     |
           24                  32          36              40         44         48
           | durable_upto      | epoch     | prev_head_crc | head_crc | reserved |
           48 ... frame_len
           | record | record | ...   each a multiple of 8 bytes with its own crc (below)

Little-endian. ``frame_len`` counts head and records. ``base_position`` is the position of the
head's own first byte, so a head found anywhere else is not a head. ``durable_upto`` is the position
up to which everything was synced when this frame was written: it never decreases from frame to
frame, and the largest one is the synced mark at recovery. ``epoch`` changes when written bytes may
have been lost (D7).

``head_crc`` is the crc32c of these 48 bytes with ``head_crc`` itself taken as zero; place and rule
hold for all versions, so a newer format can be told from damage. ``prev_head_crc`` is the
``head_crc`` of the frame before, 0 where the writer did not know it (first frame of all, first
after a start that read no frame).

A frame with flag ``VOID`` holds no records: recovery put it over bytes that were torn before they
were ever known to be durable, so that they stay dropped as a unit.

Not here: where frames go (``writer.py``), what to do with bad ones (``scan.py``).
"""

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct, error
from typing import Any, Final, NamedTuple

import msgspec
from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from penstock.log.storage import Storage
from penstock.model.errors import FormatTooNew, InvariantBroken, LogCorrupt
from penstock.model.ids import UNASSIGNED_OFFSET, QueueId, QueueOffset, SubscriptionId
from penstock.model.record import NO_STAMP, Record, RecordFlag, RecordKind, Shape, tag_hash
from penstock.model.settlement import Settlement

MAGIC: Final = b"PNST"
VERSION: Final = 1
HEAD_BYTES: Final = 48
FRAME_BYTES_MAX: Final = 1 << 30
"""One write; Linux takes at most 2 GiB - 4 KiB in one call, and a turn is far smaller."""

VOID: Final = 1
"""Flag: the frame's content was dropped by recovery; ``frame_len`` says how far to skip."""

_HEAD: Final = struct.Struct("<4sHHIIQQIIII")
_PACK_FRONT: Final = struct.Struct("<4sHHIIQQII").pack
_PACK_END: Final = struct.Struct("<II").pack
_CRC_AT: Final = 40
_NO_CRC: Final = bytes(4)
_NO_END: Final = bytes(HEAD_BYTES - _CRC_AT)
assert _HEAD.size == HEAD_BYTES


class FrameHead(NamedTuple):
    """A checked frame head."""

    frame_len: int
    records: int
    base_position: int
    durable_upto: int
    epoch: int
    prev_head_crc: int
    head_crc: int
    flags: int

    @property
    def end_position(self) -> int:
        """Position of the first byte after the frame."""
        return self.base_position + self.frame_len

    @property
    def is_void(self) -> bool:
        """True when recovery dropped what was here."""
        return bool(self.flags & VOID)


def encode_head(
    frame_len: int,
    records: int,
    base_position: int,
    *,
    durable_upto: int,
    epoch: int = 0,
    prev_head_crc: int = 0,
    flags: int = 0,
) -> tuple[bytes, int]:
    """The 48 bytes of a head and their ``head_crc``, which the next frame carries on."""
    if (
        frame_len & 7
        or base_position & 7
        or not HEAD_BYTES <= frame_len <= FRAME_BYTES_MAX
        or durable_upto > base_position
    ):
        raise InvariantBroken(
            f"frame at {base_position} with {frame_len} bytes and synced mark {durable_upto}: "
            "lengths and positions are multiples of 8 and nothing is durable before it is written"
        )
    front = _PACK_FRONT(
        MAGIC, VERSION, flags, frame_len, records, base_position, durable_upto, epoch, prev_head_crc
    )
    head_crc = crc32c(front + _NO_END)
    return front + _PACK_END(head_crc, 0), head_crc


def parse_head(buffer: bytes, at: int, position: int) -> FrameHead | None:
    """The head at ``buffer[at:]`` if it is a good one for this ``position``, else None.

    Raises ``FormatTooNew`` for a good head of a version we do not know.
    """
    if buffer[at : at + 4] != MAGIC or len(buffer) - at < HEAD_BYTES:
        return None
    _, version, flags, frame_len, records, base, durable, epoch, previous, head_crc, _ = (
        _HEAD.unpack_from(buffer, at)
    )
    if base != position:
        return None
    middle = at + _CRC_AT
    if crc32c(buffer[at:middle] + _NO_CRC + buffer[middle + 4 : at + HEAD_BYTES]) != head_crc:
        return None
    if version > VERSION:
        raise FormatTooNew(
            f"the log frame at position {position} has format {version}, this Penstock knows "
            f"{VERSION}; use the newer Penstock that wrote it"
        )
    if frame_len & 7 or frame_len < HEAD_BYTES or durable > base:
        return None
    return FrameHead(frame_len, records, base, durable, epoch, previous, head_crc, flags)


def find_head(buffer: bytes, at: int, position: int) -> FrameHead | None:
    """The first good head in ``buffer`` from ``at`` on; ``buffer[0]`` is at ``position``.

    Heads start at multiples of 8, so positions, not places in the buffer, are what is aligned.
    """
    while (at := buffer.find(MAGIC, at)) >= 0:
        if not (position + at) & 7:
            head = parse_head(buffer, at, position + at)
            if head is not None:
                return head
        at += 1
    return None


# ---- entry --------------------------------------------------------------------------------------
# The record on disk: 88 bytes of facts, its targets, the bytes the protocol sent (D2).
#
# | byte   0     4     8    9       10    12        14       15         16         20
# |        | crc | len | kind | proto | flags | targets | priority | hdr_ver | messages |
# |        20          28         36        44          52           60
# |        | position  | store_ms | born_ms | expire_ms | deliver_ms |
# |        60       64        66        68       72         76          80        84         88
# |        | key_at | key_len | tag_len | tag_at | props_at | props_len | body_at | body_len |
# |        88
# |        | queue_id u32, first_offset u64 | x targets | origin bytes | zero padding |
#
# Little-endian. ``crc`` is the crc32c of everything behind it up to ``len``. ``len`` counts all of
# the above, is a multiple of 8 and at least ``messages``, so that ``position + i`` names message
# ``i`` of a batch (D4). ``position`` is where the record itself lies: a copy elsewhere is not
# valid.
#
# Padding: the upper four bits of ``flags`` belong to this file. Bits 13-15 count the padding bytes
# (0-7); bit 12 says that the padding is longer, because of ``messages``, and that its length is the
# u64 in the last 8 bytes. Spans (``key_at`` ...) count from the start of the origin bytes.
#
# Invariant, checked before the write and after the read: spans lie inside the origin bytes, there
# is at least one message, and the length is the one the parts add up to.


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


# ---- cursors ------------------------------------------------------------------------------------
# The bytes of settle and release records, and of cursor snapshots (D5, D14).
#
# A settle record's origin is a msgpack ``Settlement``; a release record's origin is a fixed 24 byte
# ``Release`` that points back at the delayed record; a cursor snapshot is a JSON ``CursorState`` in
# the catalog, so that a person can read it with the sqlite3 shell.
#
# Invariant: decoding what was encoded gives an equal value; anything else raises ``LogCorrupt``.


class CursorState(msgspec.Struct, gc=False):
    """Where one subscription stands in one queue, complete enough to go on from."""

    subscription_id: SubscriptionId
    queue_id: QueueId
    low_mark: QueueOffset
    """Everything below is settled."""
    ranges: list[tuple[int, int]] = []
    """Half-open [start, end) offsets at or above the low mark that are settled, ascending."""
    delivered_mark: int = 0
    """No offset at or above was ever delivered (reserved ahead, D13)."""
    counts: list[tuple[int, int]] = []
    """(offset, deliveries so far) of messages that went back."""


class Release(NamedTuple):
    """What a release record says about the delayed record it gives offsets to."""

    position: int
    length: int
    messages: int
    tag_hash: int
    flags: int
    """Index flags of the entries to make (``index.IndexFlag``) without RELEASED."""


# Plain numbers: arithmetic with members of an enum costs a microsecond.
_TRANSIENT: Final = int(RecordFlag.TRANSIENT)
_DELAYED: Final = int(RecordFlag.DELAYED)
_SETTLE: Final = Shape(kind=int(RecordKind.SETTLE))
_RELEASE: Final = Struct("<QIIiI")
_SETTLEMENT_ENCODER: Final = msgspec.msgpack.Encoder()
_SETTLEMENT_DECODER: Final = msgspec.msgpack.Decoder(Settlement)
_CURSOR_ENCODER: Final = msgspec.json.Encoder()
_CURSOR_DECODER: Final = msgspec.json.Decoder(CursorState)


def encode_settlement(settlement: Settlement) -> bytes:
    """Origin bytes of a settle record."""
    return _SETTLEMENT_ENCODER.encode(settlement)


def decode_settlement(origin: bytes) -> Settlement:
    """The settlement in a settle record's origin; padding after it is not allowed."""
    try:
        return _SETTLEMENT_DECODER.decode(origin)
    except msgspec.MsgspecError as problem:
        raise LogCorrupt(f"a settle record holds no settlement: {problem}") from problem


def settlement_record(settlement: Settlement, *, born_ms: int = 0) -> Record:
    """A settle record ready to be appended (it has no target queues)."""
    return Record(_SETTLEMENT_ENCODER.encode(settlement), _SETTLE, born_ms)


def encode_release(release: Release) -> bytes:
    """Origin bytes of a release record."""
    return _RELEASE.pack(*release)


def decode_release(origin: bytes) -> Release:
    """The release in a release record's origin."""
    try:
        return Release(*_RELEASE.unpack(origin))
    except error as problem:
        raise LogCorrupt(f"a release record holds no release: {problem}") from problem


def release_record(original: Record, length: int) -> Record:
    """A release record for a stored delayed record of ``length`` bytes in the log.

    Appended with target queues it gives the original an offset in each of them; appended with none
    it cancels the delayed record (RocketMQ's rollback).
    """
    shape = original.shape
    hashed = tag_hash(original.tag) if shape.tag_len else 0
    release = Release(original.position, length, shape.messages, hashed, entry_flags(shape))
    return Record(
        _RELEASE.pack(*release),
        Shape(kind=int(RecordKind.RELEASE), messages=shape.messages, deliver_ms=shape.deliver_ms),
        original.born_ms,
    )


INDEX_RELEASED: Final = 1
INDEX_TRANSIENT: Final = 2
INDEX_DEFERRED: Final = 4
INDEX_EXPIRES: Final = 8


def entry_flags(shape: Shape) -> int:
    """Flags of the index entries of such records: what dispatch must know without reading them.

    A topic-level delayed record is over its delay once it has an entry, so only a deliver time
    without DELAYED (Pulsar's deliver_at) makes an entry DEFERRED.
    """
    flags = INDEX_TRANSIENT if shape.flags & _TRANSIENT else 0
    if shape.deliver_ms and not shape.flags & _DELAYED:
        flags |= INDEX_DEFERRED
    if shape.expire_ms:
        flags |= INDEX_EXPIRES
    return flags


def encode_cursor(state: CursorState) -> bytes:
    return _CURSOR_ENCODER.encode(state)


def decode_cursor(body: bytes) -> CursorState:
    """The cursor state in a catalog row."""
    try:
        return _CURSOR_DECODER.decode(body)
    except msgspec.MsgspecError as problem:
        raise LogCorrupt(f"a cursor snapshot cannot be read: {problem}") from problem


# ---- format -------------------------------------------------------------------------------------
# The data directory's format number, in a file a person can read.
#
# ``format`` says ``penstock format 1``. A larger number means that a newer Penstock wrote the
# directory: it is left alone. A missing or unreadable file is written again, because every frame of
# the log carries the version as well and ``scan.py`` refuses newer ones.


FORMAT_NAME: Final = "format"
FORMAT_VERSION: Final = 1
_READ_BYTES: Final = 64
_TEXT: Final = re.compile(rb"penstock format (\d{1,9})\n")


def check_format(storage: Storage) -> str:
    """Make sure that we know the format; a note when the file had to be written again."""
    content = _read(storage)
    match = _TEXT.fullmatch(content) if content is not None else None
    if match is not None:
        version = int(match[1])
        if version > FORMAT_VERSION:
            raise FormatTooNew(
                f"this data directory has format {version}, this Penstock knows {FORMAT_VERSION};"
                " use the newer Penstock that wrote it"
            )
        return ""
    _write(storage)
    if content is None:
        return ""
    return "the file 'format' was unreadable and was written again"


def _read(storage: Storage) -> bytes | None:
    try:
        file = storage.open(FORMAT_NAME, create=False)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, _READ_BYTES)
    finally:
        file.close()


def _write(storage: Storage) -> None:
    fresh = f"{FORMAT_NAME}.new"
    text = f"penstock format {FORMAT_VERSION}\n".encode()
    file = storage.open(fresh, create=True)
    try:
        file.truncate(0)
        if file.write(text) != len(text):
            raise LogCorrupt("the disk is full: make room in the data directory and start again")
        file.sync()
    finally:
        file.close()
    storage.rename(fresh, FORMAT_NAME)
    storage.sync_dir("")
