"""The stored message: what the log keeps of a RocketMQ send and what pull and pop give out (D3).

    byte   0            4        8          12        16     20            28
           | totalSize  | magic  | bodyCRC  | queueId | flag | queueOffset | commitLogOffset |
           36        40              48             56                64             72
           | sysFlag | bornTimestamp | bornHost (8) | storeTimestamp  | storeHost (8) |
           72               76                      84        88
           | reconsumeTimes | preparedTransaction   | bodyLen | body |
           | topicLen (1, V2: 2) | topic | propLen (2) | properties |

Big-endian. A host is ip and port i32; with its V6 bit in sysFlag the ip has 16 bytes, and all
behind it moves on by 12. Sheet: rocketmq.md 1.10.

A ``Record`` is built once, at the send. What only the append knows (queueOffset, commitLogOffset
and storeTimestamp) is left zero and stamped by the log (``Shape.stamp_*_at``): the record's
position is its commitLogOffset. A pull then is a concatenation of origins.

Behind it: batch bodies, copies of stored bytes for another queue (``placed``, ``retopic``), and
``RocketmqFacts``, which tells other protocols, filters and Spark what is in a message.

Invariants: spans of a record lie in its origin; ``decode_stored(encode_stored(m))`` is ``m``; only
this package looks into RocketMQ's origin bytes.
Not here: RocketMQ bytes made of other messages (``adapters/rocketmq/present.py``).
"""

import zlib
from collections.abc import Iterable
from enum import IntFlag
from functools import lru_cache
from struct import Struct, error
from typing import Final
from zlib import crc32

import msgspec

from penstock.model.record import SHAPES_KEPT, Facts, Record, RecordFlag, Shape, Wire
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.message_id import HOST_V4_BYTES, HOST_V6_BYTES, NO_HOST
from penstock.wire.rocketmq.message_id import offset_message_id as offset_id
from penstock.wire.rocketmq.properties import (
    PROPERTIES_BYTES_MAX,
    START_DELIVER_TIME,
    SYSTEM_NAMES,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    parse_properties,
    span_at,
    value_span,
)

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
"""The topic's length takes two bytes."""
MAGIC_BLANK: Final = 0xCBD43194
"""Fills the end of a commit log file; nothing behind it is a message."""

TOPIC_V1_BYTES_MAX: Final = 127
TOPIC_BYTES_MAX: Final = 255
"""Retry and dead-letter topics; the format would take 32767."""

QUEUE_ID_AT: Final = 12
QUEUE_OFFSET_AT: Final = 20
POSITION_AT: Final = 28
SYS_FLAG_AT: Final = 36

BATCH_MESSAGES_MAX: Final = 65536
"""A body of 4 MiB could claim three times as many; each costs us a few hundred bytes."""


class SysFlag(IntFlag):
    """``sysFlag`` of a message."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_TYPE = 0x700


HOST_BITS: Final = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
HEADS: Final = {
    bits: Struct(
        f">IIIiiqqiq{20 if bits & SysFlag.BORN_HOST_V6 else 8}sq"
        f"{20 if bits & SysFlag.STORE_HOST_V6 else 8}siqi"
    )
    for bits in (0, 0x10, 0x20, 0x30)
}
"""Everything in front of the body, by the V6 bits of sysFlag."""

_HOST_BITS_OF: Final = {
    (HOST_V4_BYTES, HOST_V4_BYTES): 0,
    (HOST_V6_BYTES, HOST_V4_BYTES): int(SysFlag.BORN_HOST_V6),
    (HOST_V4_BYTES, HOST_V6_BYTES): int(SysFlag.STORE_HOST_V6),
    (HOST_V6_BYTES, HOST_V6_BYTES): HOST_BITS,
}
_BLANK: Final = MAGIC_BLANK.to_bytes(4, "big")
_U16: Final = Struct(">H")
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_BATCH_HEAD: Final = Struct(">iiiii")
_SIZE_AND_MAGIC: Final = Struct(">II")
_OFFSET_AND_POSITION: Final = Struct(">qq")
_BEFORE_BODY: Final = Struct(">iqi")
"""reconsumeTimes, preparedTransaction and bodyLen lie right in front of the body."""
_TIMES_BEFORE_BODY: Final = 16
_PREPARED_BEFORE_BODY: Final = 12
_INNER: Final = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
_ZLIB_TYPES: Final = (0, 3)
_TYPE_NAMES: Final = {1: "LZ4", 2: "ZSTD"}
_UNIQ: Final = b"UNIQ_KEY\x01"
_TAGS: Final = b"TAGS\x01"
_KEYS: Final = b"KEYS\x01"
_SHARDING: Final = b"__SHARDINGKEY\x01"
_ROCKETMQ: Final = int(Wire.ROCKETMQ)
_COMPRESSED: Final = int(RecordFlag.COMPRESSED)


class StoredMessage(msgspec.Struct, gc=False, kw_only=True):
    """One stored message, read; hosts and properties still as bytes."""

    topic: str
    body: bytes = b""
    properties: bytes = b""
    queue_id: int = 0
    queue_offset: int = 0
    commit_log_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    """Without the V6 bits: the hosts say it themselves."""
    born_ms: int = 0
    born_host: bytes = NO_HOST
    store_ms: int = 0
    store_host: bytes = NO_HOST
    reconsume_times: int = 0
    prepared_offset: int = 0
    body_crc: int = -1
    """As it was read; -1 on the way out: computed."""

    @property
    def is_intact(self) -> bool:
        """True when the body is the one whose checksum was stored."""
        return self.body_crc in (-1, crc32(self.body) & 0x7FFFFFFF)

    @property
    def offset_message_id(self) -> str:
        return offset_id(self.store_host, self.commit_log_offset)

    def property_map(self) -> dict[str, str]:
        """All properties, system ones included."""
        return parse_properties(self.properties)


def stored_record(
    topic: str,
    queue_id: int,
    body: bytes,
    properties: bytes = b"",
    *,
    born_ms: int = 0,
    born_host: bytes = NO_HOST,
    store_host: bytes = NO_HOST,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
    deliver_ms: int = 0,
    expire_ms: int = 0,
) -> Record:
    """A record for the log; offset, position and store time are stamped by the append.

    Called per message: one pack, one join, and a ``Shape`` that messages of the same layout share.
    """
    magic, name_field = topic_field(topic)
    size, props_len = len(body), len(properties)
    if props_len > PROPERTIES_BYTES_MAX:
        raise _too_long(props_len)
    try:
        bits = _HOST_BITS_OF[len(born_host), len(store_host)]
        head = HEADS[bits]
        body_at = head.size
        props_at = body_at + size + len(name_field) + 2
        front = head.pack(
            props_at + props_len, magic, crc32(body) & 0x7FFFFFFF, queue_id, flag, 0, 0,
            sys_flag & ~HOST_BITS | bits, born_ms, born_host, 0, store_host, reconsume_times,
            prepared_offset, size,
        )  # fmt: skip
    except (error, KeyError) as problem:
        raise Malformed(f"message for {topic!r} has a field out of range: {problem}") from None
    origin = b"".join((front, body, name_field, _U16.pack(props_len), properties))
    key_at = key_len = tag_at = tag_len = 0
    # Looking here and not in a call: most messages have no sharding key, many no tag or keys.
    at = properties.rfind(_SHARDING)
    if at >= 0:
        key_at, key_len = span_at(properties, _SHARDING, at)
    if not key_len:
        at = properties.rfind(_KEYS)
        if at >= 0:
            key_at, key_len = _first_key(properties, at)
    at = properties.rfind(_TAGS)
    if at >= 0:
        tag_at, tag_len = span_at(properties, _TAGS, at)
    shape = _shape(
        _COMPRESSED if sys_flag & 1 else 0, expire_ms, deliver_ms,
        props_at + key_at if key_len else 0, key_len, props_at + tag_at if tag_len else 0, tag_len,
        props_at, props_len, body_at, size, 68 if bits & 0x10 else 56,
    )  # fmt: skip
    return Record(origin, shape, born_ms)


@lru_cache(maxsize=SHAPES_KEPT)
def _shape(
    flags: int,
    expire_ms: int,
    deliver_ms: int,
    key_at: int,
    key_len: int,
    *spans: int,
) -> Shape:
    """The shape of a stored message, shared by all that are laid out like it.

    Cached: producers send few layouts, and a hit saves building a struct of 20 fields per message.
    """
    tag_at, tag_len, props_at, props_len, body_at, body_len, store_ms_at = spans
    return Shape(
        wire=_ROCKETMQ,
        flags=flags,
        expire_ms=expire_ms,
        deliver_ms=deliver_ms,
        key_at=key_at,
        key_len=key_len,
        tag_at=tag_at,
        tag_len=tag_len,
        props_at=props_at,
        props_len=props_len,
        body_at=body_at,
        body_len=body_len,
        stamp_offset_at=QUEUE_OFFSET_AT,
        stamp_position_at=POSITION_AT,
        stamp_store_ms_at=store_ms_at,
    )


def record_of(message: StoredMessage, *, deliver_ms: int = 0, expire_ms: int = 0) -> Record:
    """The record that stores this message anew; its old offset, position and store time are lost.

    A wrong ``body_crc`` does not survive either: what is stored is what is checked from here on.
    """
    return stored_record(
        message.topic,
        message.queue_id,
        message.body,
        message.properties,
        born_ms=message.born_ms,
        born_host=message.born_host,
        store_host=message.store_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset,
        deliver_ms=deliver_ms,
        expire_ms=expire_ms,
    )


def encode_stored(message: StoredMessage) -> bytes:
    """The bytes of a message with everything as it says, for answers and tests."""
    magic, name_field = topic_field(message.topic)
    body, properties = message.body, message.properties
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise _too_long(len(properties))
    crc = crc32(body) & 0x7FFFFFFF if message.body_crc < 0 else message.body_crc
    try:
        bits = _HOST_BITS_OF[len(message.born_host), len(message.store_host)]
        head = HEADS[bits]
        total = head.size + len(body) + len(name_field) + 2 + len(properties)
        front = head.pack(
            total, magic, crc, message.queue_id, message.flag, message.queue_offset,
            message.commit_log_offset, message.sys_flag & ~HOST_BITS | bits, message.born_ms,
            message.born_host, message.store_ms, message.store_host, message.reconsume_times,
            message.prepared_offset, len(body),
        )  # fmt: skip
    except (error, KeyError) as problem:
        raise Malformed(f"message for {message.topic!r} out of range: {problem}") from None
    return b"".join((front, body, name_field, _U16.pack(len(properties)), properties))


def decode_stored(data: bytes, at: int = 0) -> tuple[StoredMessage, int]:
    """The message at ``data[at:]`` and where the next one begins."""
    try:
        bits = _I32.unpack_from(data, at + SYS_FLAG_AT)[0] & HOST_BITS
        head = HEADS[bits]
        (
            total, magic, crc, queue_id, flag, queue_offset, position, sys_flag, born_ms, born_host,
            store_ms, store_host, reconsume_times, prepared_offset, body_len,
        ) = head.unpack_from(data, at)  # fmt: skip
        end = at + total
        if magic not in (MAGIC_V1, MAGIC_V2) or end > len(data) or body_len < 0:
            raise Malformed(f"no stored message at byte {at}: magic {magic:#x}, {total} bytes")
        body_at = at + head.size
        topic_at = body_at + body_len
        topic_len = data[topic_at] if magic == MAGIC_V1 else _I16.unpack_from(data, topic_at)[0]
        topic_at += 1 if magic == MAGIC_V1 else 2
        props_at = topic_at + topic_len + 2
        (props_len,) = _I16.unpack_from(data, props_at - 2)
    except (error, IndexError):
        raise Malformed(f"stored message at byte {at} ends early") from None
    if topic_len < 0 or props_len < 0 or props_at + props_len > end:
        raise Malformed(f"stored message at byte {at}: its parts are longer than {total} bytes")
    message = StoredMessage(
        topic=data[topic_at : topic_at + topic_len].decode("utf-8", "replace"),
        body=data[body_at : body_at + body_len],
        properties=data[props_at : props_at + props_len],
        queue_id=queue_id,
        queue_offset=queue_offset,
        commit_log_offset=position,
        flag=flag,
        sys_flag=sys_flag & ~HOST_BITS,
        born_ms=born_ms,
        born_host=born_host,
        store_ms=store_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        body_crc=crc,
    )
    return message, end


def decode_all(data: bytes) -> list[StoredMessage]:
    """The messages of an answer's body, one behind the other."""
    found: list[StoredMessage] = []
    at = 0
    while at < len(data) and data[at + 4 : at + 8] != _BLANK:
        message, at = decode_stored(data, at)
        found.append(message)
    return found


@lru_cache(maxsize=4096)
def topic_field(topic: str) -> tuple[int, bytes]:
    """(magic, length and name): the short form as long as it can say it."""
    try:
        name = topic.encode()
    except UnicodeEncodeError:
        raise Malformed(f"topic {topic!r} is not Unicode text") from None
    if len(name) > TOPIC_BYTES_MAX:
        raise Malformed(f"topic of {len(name)} bytes, limit {TOPIC_BYTES_MAX}")
    if len(name) > TOPIC_V1_BYTES_MAX:
        return MAGIC_V2, _U16.pack(len(name)) + name
    return MAGIC_V1, bytes((len(name),)) + name


def _first_key(properties: bytes, at: int) -> tuple[int, int]:
    """The first of KEYS, which are separated by spaces."""
    at, size = span_at(properties, _KEYS, at)
    end = at + size
    while at < end and properties[at] == 32:
        at += 1
    space = properties.find(b" ", at, end)
    return at, (end if space < 0 else space) - at


def _too_long(props_len: int) -> Malformed:
    return Malformed(f"properties of {props_len} bytes, limit {PROPERTIES_BYTES_MAX}")


# ---- batches ------------------------------------------------------------------------------------
# Several messages in one body: what a batch send carries, and an inner batch when stored.
#
# | repeated: | totalSize i32 | magic i32 (0) | bodyCRC i32 (0) | flag i32 |
# |           | bodyLen i32 | body | propLen i16 | properties |
#
# A batch send is stored as separate messages, so a pull never shows its shape. Inner batches (a
# flag of the stored message) come from other brokers only; the client unwraps them.


class BatchItem(msgspec.Struct, gc=False):
    """One message of a batch."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def split_batch(body: bytes) -> list[BatchItem]:
    """The messages of a batch body, in order."""
    items: list[BatchItem] = []
    at, size = 0, len(body)
    while at < size:
        try:
            total, _, _, flag, body_len = _BATCH_HEAD.unpack_from(body, at)
            body_at = at + _BATCH_HEAD.size
            props_at = body_at + body_len + 2
            props_len = _I16.unpack_from(body, props_at - 2)[0] if body_len >= 0 else -1
        except error:
            raise Malformed(f"batch message at byte {at} of {size} ends early") from None
        end = at + total
        if props_len < 0 or props_at + props_len > end or end > size:
            raise Malformed(f"batch message at byte {at} of {size}: wrong length {total}")
        if len(items) == BATCH_MESSAGES_MAX:
            raise Malformed(f"batch of more than {BATCH_MESSAGES_MAX} messages; send smaller ones")
        items.append(
            BatchItem(
                body[body_at : body_at + body_len], body[props_at : props_at + props_len], flag
            )
        )
        at = end
    return items


def join_batch(items: Iterable[BatchItem]) -> bytes:
    """The body that carries these messages."""
    pieces: list[bytes] = []
    for item in items:
        body, properties = item.body, item.properties
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise _too_long(len(properties))
        total = _BATCH_HEAD.size + len(body) + 2 + len(properties)
        try:
            head = _BATCH_HEAD.pack(total, 0, 0, item.flag, len(body))
        except error:
            raise Malformed(f"message of {len(body)} bytes, flag {item.flag}: no fit") from None
        pieces += (head, body, _I16.pack(len(properties)), properties)
    return b"".join(pieces)


def unwrap(message: StoredMessage) -> list[StoredMessage]:
    """The messages of an inner batch, with the offsets it stands for; any other message itself."""
    if message.sys_flag & _INNER != _INNER:
        return [message]
    return [
        msgspec.structs.replace(
            message,
            body=item.body,
            properties=item.properties,
            flag=item.flag,
            sys_flag=message.sys_flag & ~_INNER,
            queue_offset=message.queue_offset + number,
            body_crc=-1,
        )
        for number, item in enumerate(split_batch(message.body))
    ]


# ---- stored bytes as another queue shows them ---------------------------------------------------
# A delayed message that was released, a committed half message or a copy in a second queue lies in
# the log once, under the topic and place it was first written for. Readers get a copy with the
# topic, queueId, queueOffset and commitLogOffset of the queue they read (D14). What is not named
# stays as it was, byte for byte; checksum and body are never touched.


def placed(origin: bytes, queue_id: int, queue_offset: int, position: int) -> bytes:
    """The message at another place: the common case, one copy."""
    copy = bytearray(origin)
    _I32.pack_into(copy, QUEUE_ID_AT, queue_id)
    _OFFSET_AND_POSITION.pack_into(copy, QUEUE_OFFSET_AT, queue_offset, position)
    return bytes(copy)


def retopic(
    origin: bytes,
    topic: str,
    *,
    properties: bytes | None = None,
    reconsume_times: int | None = None,
    prepared_offset: int | None = None,
    sys_flag: int | None = None,
) -> bytes:
    """The message under another topic, and what usually changes with it."""
    try:
        (old_flag,) = _I32.unpack_from(origin, SYS_FLAG_AT)
        head = HEADS[old_flag & HOST_BITS]
        _, old_magic = _SIZE_AND_MAGIC.unpack_from(origin)
        tail_at = head.size - _BEFORE_BODY.size
        old_times, old_prepared, body_len = _BEFORE_BODY.unpack_from(origin, tail_at)
        topic_at = head.size + body_len
        width = 1 if old_magic == MAGIC_V1 else 2
        topic_len = int.from_bytes(origin[topic_at : topic_at + width], "big")
        props_at = topic_at + width + topic_len + 2
        if properties is None:
            properties = origin[props_at:]
        magic, field = topic_field(topic)
        total = topic_at + len(field) + 2 + len(properties)
        front = bytearray(origin[: head.size])
        _SIZE_AND_MAGIC.pack_into(front, 0, total, magic)
        if sys_flag is not None:
            sys_flag = sys_flag & ~HOST_BITS | old_flag & HOST_BITS
            _I32.pack_into(front, SYS_FLAG_AT, sys_flag)
        _BEFORE_BODY.pack_into(
            front,
            tail_at,
            old_times if reconsume_times is None else reconsume_times,
            old_prepared if prepared_offset is None else prepared_offset,
            body_len,
        )
    except error as problem:
        raise Malformed(f"stored message cannot be changed: {problem}") from None
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise _too_long(len(properties))
    return b"".join(
        (front, origin[head.size : topic_at], field, _U16.pack(len(properties)), properties)
    )


class RocketmqFacts:
    """What others may know of a RocketMQ message (D15, D16); satisfies ``FactsReader``.

    key         __SHARDINGKEY, else the first of KEYS      message id  UNIQ_KEY
    tag         TAGS                                       born        bornTimestamp
    attempts    reconsumeTimes                             expire      the record's own
    deliver     the record's own, else TIMER_DELIVER_MS or ali-ons' __STARTDELIVERTIME
    properties  those whose names are not RocketMQ's
    """

    def keys(self, record: Record) -> list[bytes]:
        """The keys under which the record can be looked up: UNIQ_KEY and each of KEYS."""
        properties = record.properties
        at, size = value_span(properties, _KEYS)
        found = properties[at : at + size].split() if size else []
        at, size = value_span(properties, _UNIQ)
        return [properties[at : at + size], *found] if size else found

    def properties(self, record: Record) -> dict[str, str]:
        """All properties, RocketMQ's own included: what an SQL92 filter may name."""
        return parse_properties(record.properties)

    def facts(self, record: Record) -> Facts:
        properties = parse_properties(record.properties)
        deliver = properties.get(TIMER_DELIVER_MS) or properties.get(START_DELIVER_TIME, "")
        return Facts(
            key=record.key.decode("utf-8", "replace"),
            tag=record.tag.decode("utf-8", "replace"),
            message_id=properties.get(UNIQ_KEY, ""),
            born_ms=record.born_ms,
            expire_ms=record.expire_ms,
            deliver_ms=record.deliver_ms or _milliseconds(deliver),
            attempts=attempts_of(record.origin),
            properties={k: v for k, v in properties.items() if k not in SYSTEM_NAMES},
        )

    def body(self, record: Record, bytes_max: int) -> bytes:
        """The body as it was before its producer compressed it, at most ``bytes_max``."""
        return plain_body(record.body, sys_flag_of(record.origin), bytes_max)


def plain_body(body: bytes, sys_flag: int, bytes_max: int) -> bytes:
    """A body without the compression that ``sysFlag`` speaks of; for clients, too."""
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    kind = (sys_flag & SysFlag.COMPRESSION_TYPE) >> 8
    if kind not in _ZLIB_TYPES:
        name = _TYPE_NAMES.get(kind, f"type {kind}")
        raise Malformed(f"body is compressed with {name}; only zlib can be inflated here")
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, bytes_max + 1)
    except zlib.error as problem:
        raise Malformed(f"body cannot be inflated: {problem}") from None
    if len(plain) > bytes_max:
        raise Malformed(f"body inflates to more than {bytes_max} bytes")
    if not inflater.eof:
        raise Malformed("body ends in the middle of its compressed data")
    return plain


def sys_flag_of(origin: bytes) -> int:
    """The sysFlag of a stored message, V6 bits included."""
    return int(_I32.unpack_from(origin, SYS_FLAG_AT)[0])


def attempts_of(origin: bytes) -> int:
    """The reconsumeTimes of a stored message."""
    body_at = HEADS[sys_flag_of(origin) & HOST_BITS].size
    return int(_I32.unpack_from(origin, body_at - _TIMES_BEFORE_BODY)[0])


def prepared_offset_of(origin: bytes) -> int:
    """The preparedTransactionOffset of a stored message."""
    body_at = HEADS[sys_flag_of(origin) & HOST_BITS].size
    return int(_I64.unpack_from(origin, body_at - _PREPARED_BEFORE_BODY)[0])


def _milliseconds(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
