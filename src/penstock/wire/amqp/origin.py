"""What the log keeps of a publish, and how a ``Record`` is made of it (D3).

    | exchange (u8, bytes) | routing key (u8, bytes) | flags u16, properties | body | BCC |
    0                                                 props_at                body_at

The first two are the bytes of the publish, the third those of the content header from its flags
on: a delivery copies all of them as they are. Behind the body are the routing keys that no reader
may see (u32, bytes each), mostly none: a dead letter goes to them, too. Spans of the record:
``key`` is the routing key, or the text header ``key`` when the default exchange was used (D16);
``tag`` is the property ``type``; ``properties`` are flags and properties as a whole; ``born_ms`` is
the timestamp, else now.

``Claims`` are what a header says that a broker must check or act on before it stores the message.
Most messages claim nothing: then all of them share ``NO_CLAIMS``.

Invariants: spans lie in the origin; ``body_at`` is ``props_at + props_len``.
Not here: many messages at a time (``parser.py``), making AMQP bytes out of other messages
(``adapters/amqp/present.py``).
"""

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from struct import Struct, error
from typing import Any, Final

import msgspec

from penstock.model.record import SHAPES_KEPT, Facts, Record, RecordFlag, Shape, Wire
from penstock.wire.amqp.codes import CLASS_BASIC, AmqpError, frame_error
from penstock.wire.amqp.methods.method import short_text
from penstock.wire.amqp.properties import (
    DELIVERY_PERSISTENT,
    NAMES,
    Properties,
    PropertySpans,
    decode_properties,
    locate_properties,
)
from penstock.wire.amqp.table import Table

PUBLISH_IDS: Final = bytes((0, CLASS_BASIC, 0, 40))
HEADS_KEPT: Final = 1024
"""Different publishes whose names are remembered; each has at most 520 bytes."""
EXPIRATION_MS_MAX: Final = (1 << 32) - 1
"""RabbitMQ's own limit of 49.7 days."""
TIMESTAMP_S_MAX: Final = (1 << 63) // 1000 - 1
"""What still is a time in milliseconds of 64 bits; larger ones are passed on, and not believed."""

_AMQP: Final = int(Wire.AMQP)
_TRANSIENT: Final = int(RecordFlag.TRANSIENT)
_TEXT_TAG: Final = ord("S")
_MANDATORY: Final = 1
_IMMEDIATE: Final = 2
_TICKET: Final = Struct(">4xH")
_LONG: Final = Struct(">I")


class PublishHead(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A basic.publish, read once for all that are equal; an adapter may key its routes by it."""

    exchange: str
    routing_key: str
    is_mandatory: bool
    is_immediate: bool
    names: bytes
    """Exchange and routing key as they came: the beginning of the origin."""


class Claims(msgspec.Struct, frozen=True, gc=False):
    """What a content header asks of the broker."""

    user_id: bytes | None = None
    """Must be the login."""
    reply_to: bytes | None = None
    """May be the pseudo queue of direct reply-to."""
    expiration: bytes | None = None
    has_headers: bool = False
    has_copies: bool = False
    """Headers CC or BCC name further routing keys."""

    @property
    def expiration_ms(self) -> int | None:
        """Time to live; None when there is none, -1 when it is no number of milliseconds."""
        return None if self.expiration is None else _milliseconds(self.expiration)


NO_CLAIMS: Final = Claims()


class ContentHeader(msgspec.Struct, gc=False):
    """What one content header means for the records made with it; spans count from the flags."""

    spans: PropertySpans
    claims: Claims
    flags: int
    priority: int
    born_ms: int
    """0 = now."""
    key: tuple[int, int]
    """Text of the header ``key``; (0, 0) = there is none."""
    tag: tuple[int, int]


@lru_cache(maxsize=HEADS_KEPT)
def publish_head(payload: bytes) -> PublishHead:
    """The publish in a method frame's payload."""
    try:
        _TICKET.unpack_from(payload)
        exchange, at = short_text(payload, 6)
        routing_key, end = short_text(payload, at)
        bits = payload[end]
    except (error, IndexError):
        raise frame_error("Publish ends within its arguments").about(0, CLASS_BASIC, 40) from None
    except AmqpError as problem:
        raise problem.about(0, CLASS_BASIC, 40) from None
    if len(payload) != end + 1:
        surplus = frame_error(f"Publish with {len(payload) - end - 1} bytes too many")
        raise surplus.about(0, CLASS_BASIC, 40)
    return PublishHead(
        exchange, routing_key, bool(bits & _MANDATORY), bool(bits & _IMMEDIATE), payload[6:end]
    )


def read_content_header(properties: bytes) -> ContentHeader:
    """Read a content header from its flags on; raises ``AmqpError`` when it is not one."""
    found = locate_properties(properties, 0, len(properties))
    spans, names = found.spans, found.header_names
    claims = NO_CLAIMS
    if names or "reply_to" in spans or "expiration" in spans or "user_id" in spans:
        claims = Claims(
            _octets(properties, spans, "user_id"),
            _octets(properties, spans, "reply_to"),
            _octets(properties, spans, "expiration"),
            bool(names),
            b"CC" in names or b"BCC" in names,
        )
    mode_at = spans.get("delivery_mode")
    is_persistent = mode_at is not None and properties[mode_at[0]] == DELIVERY_PERSISTENT
    priority_at = spans.get("priority")
    key_at, key_end = names.get(b"key", (0, 0))
    return ContentHeader(
        found,
        claims,
        0 if is_persistent else _TRANSIENT,
        0 if priority_at is None else properties[priority_at[0]],
        _born_ms(properties, spans) if "timestamp" in spans else 0,
        (key_at + 5, key_end) if key_at and properties[key_at] == _TEXT_TAG else (0, 0),
        spans.get("type", (0, 0)),
    )


def _octets(properties: bytes, spans: dict[str, tuple[int, int]], name: str) -> bytes | None:
    span = spans.get(name)
    return None if span is None else properties[span[0] : span[1]]


def _born_ms(properties: bytes, spans: dict[str, tuple[int, int]]) -> int:
    seconds = int.from_bytes(_octets(properties, spans, "timestamp") or b"", "big")
    return seconds * 1000 if seconds <= TIMESTAMP_S_MAX else 0


def record_of(
    head: PublishHead, header: ContentHeader, properties: bytes, body: bytes, now_ms: int
) -> Record:
    """The record of one publish; ``header`` is that of ``properties``."""
    shape = shape_of(head, header, len(properties), len(body), now_ms)
    return Record(b"".join((head.names, properties, body)), shape, header.born_ms or now_ms)


def publish_record(head: PublishHead, properties: bytes, body: bytes, now_ms: int) -> Record:
    """The same for bytes nobody has read yet: dead letters, HTTP, tests."""
    return record_of(head, read_content_header(properties), properties, body, now_ms)


def with_secret_keys(record: Record, keys: Sequence[str]) -> Record:
    """The record with routing keys that are kept for its death only; it must have none yet."""
    if not keys:
        return record
    pieces = [record.origin]
    for key in keys:
        raw = key.encode("utf-8", "surrogateescape")
        pieces += (_LONG.pack(len(raw)), raw)
    return Record(b"".join(pieces), record.shape, record.born_ms)


def secret_keys(record: Record) -> tuple[str, ...]:
    """The keys behind the body of an AMQP record."""
    origin = record.origin
    at = record.shape.body_at + record.shape.body_len
    keys = []
    while at < len(origin):
        (size,) = _LONG.unpack_from(origin, at)
        at += _LONG.size + size
        keys.append(origin[at - size : at].decode("utf-8", "surrogateescape"))
    return tuple(keys)


def shape_of(
    head: PublishHead, header: ContentHeader, props_len: int, body_len: int, now_ms: int
) -> Shape:
    """The shape of such a record; equal ones are the same object while they are in use."""
    props_at = len(head.names)
    if head.exchange:
        key_len = props_at - 2 - len(head.exchange.encode())
        key_at = props_at - key_len
    else:
        at, end = header.key
        key_at, key_len = props_at + at, end - at
    tag_at, tag_end = header.tag
    lives_ms = header.claims.expiration_ms
    expire_ms = 0 if lives_ms is None or lives_ms < 0 else now_ms + lives_ms
    return _shape(
        header.flags, header.priority, expire_ms, key_at if key_len else 0, key_len,
        props_at + tag_at if tag_end > tag_at else 0, tag_end - tag_at, props_at, props_len,
        body_len,
    )  # fmt: skip


@lru_cache(maxsize=SHAPES_KEPT)
def _shape(flags: int, priority: int, expire_ms: int, *spans: int) -> Shape:
    key_at, key_len, tag_at, tag_len, props_at, props_len, body_len = spans
    return Shape(
        wire=_AMQP,
        flags=flags,
        priority=priority,
        expire_ms=expire_ms,
        key_at=key_at,
        key_len=key_len,
        tag_at=tag_at,
        tag_len=tag_len,
        props_at=props_at,
        props_len=props_len,
        body_at=props_at + props_len,
        body_len=body_len,
    )


def _milliseconds(text: bytes) -> int:
    if not text.isdigit() or len(text) > 10:
        return -1
    value = int(text)
    return value if value <= EXPIRATION_MS_MAX else -1


# ---- facts --------------------------------------------------------------------------------------
# | key         routing key; with the default exchange the header ``key``, if it is text
# | tag         type                               message id  message-id
# | born        timestamp (seconds), else arrival  expire      the record's own (expiration)
# | attempts    header x-delivery-count
# | properties  headers: numbers and booleans as text, tables and arrays as JSON;
# |             other basics as ``amqp.<name>`` with underscores, so that an SQL filter can say them

ATTEMPTS: Final = "x-delivery-count"
PREFIX: Final = "amqp."
_NEUTRAL: Final = frozenset(("headers", "message_id", "timestamp", "type", "expiration"))
"""Basics that have a place of their own among the facts."""
_OTHERS: Final = tuple((name, PREFIX + name) for name in NAMES if name not in _NEUTRAL)


class AmqpFacts:
    """What other protocols, filters and Spark may know of an AMQP message (D15, D16).

    Only ``wire/amqp`` looks into AMQP's origin bytes; everybody else asks here. A stored message is
    never refused: what cannot be read of it is left out. Satisfies the engine's ``FactsReader``.
    """

    def keys(self, record: Record) -> list[bytes]:
        """The key under which the record can be looked up: its message-id."""
        properties = record.properties
        try:
            at, end = locate_properties(properties, 0, len(properties)).spans.get(
                "message_id", (0, 0)
            )
        except AmqpError:
            return []
        return [properties[at:end]] if end > at else []

    def properties(self, record: Record) -> dict[str, str]:
        """Everything that has a name: what an SQL92 filter may say."""
        basics = _read(record)
        found = _texts(basics.headers or {})
        for name, full_name in _OTHERS:
            value = getattr(basics, name)
            if value is not None:
                found[full_name] = text_of(value)
        return found

    def facts(self, record: Record) -> Facts:
        basics = _read(record)
        properties = self.properties(record)
        attempts = (basics.headers or {}).get(ATTEMPTS)
        properties.pop(ATTEMPTS, None)
        return Facts(
            key=record.key.decode("utf-8", "replace"),
            tag=record.tag.decode("utf-8", "replace"),
            message_id=text_of(basics.message_id or ""),
            born_ms=record.born_ms,
            expire_ms=record.expire_ms,
            deliver_ms=record.deliver_ms,
            attempts=attempts if type(attempts) is int and attempts > 0 else 0,
            properties=properties,
        )

    def body(self, record: Record, bytes_max: int) -> bytes:
        """The body; AMQP never compresses, a content-encoding is between its users."""
        return record.body


def text_of(value: Any) -> str:
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (dict, list)):
        return msgspec.json.encode(_plain(value)).decode()
    return "" if value is None else str(value)


def _read(record: Record) -> Properties:
    try:
        return decode_properties(record.properties)
    except AmqpError:
        return Properties()


def _texts(table: Table) -> dict[str, str]:
    return {_clean(name): text_of(value) for name, value in table.items()}


def _plain(value: Any) -> Any:
    """The same value in the few types JSON has."""
    if isinstance(value, dict):
        return {_clean(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return int(value)
    return str(value) if isinstance(value, Decimal) else text_of(value)


def _clean(text: str) -> str:
    """Text without the surrogates that stand for bytes which are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text
