"""What other protocols, filters and Spark may know of a RocketMQ message (D15, D16).

    key         __SHARDINGKEY, else the first of KEYS      message id  UNIQ_KEY
    tag         TAGS                                       born        bornTimestamp
    attempts    reconsumeTimes                             expire      the record's own
    deliver     the record's own, else TIMER_DELIVER_MS or ali-ons' __STARTDELIVERTIME
    properties  those whose names are not RocketMQ's

Invariant: only ``wire/rocketmq`` looks into RocketMQ's origin bytes; everybody else asks here.

Not here: making RocketMQ bytes out of other messages (``adapters/rocketmq/present.py``).
"""

import zlib
from struct import Struct
from typing import Final

from penstock.model.record import Facts, Record
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.properties import (
    KEYS,
    START_DELIVER_TIME,
    SYSTEM_NAMES,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    parse_properties,
    value_span,
)
from penstock.wire.rocketmq.stored import HEADS, HOST_BITS, SYS_FLAG_AT, SysFlag

_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_TIMES_BEFORE_BODY: Final = 16
"""reconsumeTimes, preparedTransaction and bodyLen lie right in front of the body."""
_PREPARED_BEFORE_BODY: Final = 12
_UNIQ_MARK: Final = UNIQ_KEY.encode() + b"\x01"
_KEYS_MARK: Final = KEYS.encode() + b"\x01"
_ZLIB_TYPES: Final = (0, 3)
_TYPE_NAMES: Final = {1: "LZ4", 2: "ZSTD"}


class RocketmqFacts:
    """The reader of RocketMQ records; satisfies the engine's ``FactsReader``."""

    def keys(self, record: Record) -> list[bytes]:
        """The keys under which the record can be looked up: UNIQ_KEY and each of KEYS."""
        properties = record.properties
        at, size = value_span(properties, _KEYS_MARK)
        found = properties[at : at + size].split() if size else []
        at, size = value_span(properties, _UNIQ_MARK)
        return [properties[at : at + size], *found] if size else found

    def properties(self, record: Record) -> dict[str, str]:
        """All properties, RocketMQ's own included: what an SQL92 filter may name."""
        return parse_properties(record.properties)

    def facts(self, record: Record) -> Facts:
        """Everything but the body."""
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
