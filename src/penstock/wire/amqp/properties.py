"""Properties of a message: the content header from its flags on.

    | flags u16 | those present, in this order |

    bit 15 content-type    12 delivery-mode u8   9 reply-to     6 timestamp u64   3 app-id
        14 content-encod.  11 priority u8        8 expiration   5 type            2 cluster-id
        13 headers (table) 10 correlation-id     7 message-id   4 user-id         0 more flags

Everything without a type is a short string. Bit 0 would announce another word of flags: no property
has one there, so it must be clear.

On their way through properties stay the bytes they came as (``locate_properties`` only finds where
each lies and checks that they fill the header exactly); ``Properties`` is for making and reading
them.

Invariants: ``decode_properties(encode_properties(p))`` is ``p``; failures are ``AmqpError``.
Not here: class, weight and body size in front (``frames.py``), what they mean (``origin.py``).
"""

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from typing import Any, Final

import msgspec

from penstock.wire.amqp.codes import SHORT_BYTES_MAX, frame_error, syntax_error
from penstock.wire.amqp.table import Table, decode_table, encode_table, text_spans

DELIVERY_TRANSIENT: Final = 1
DELIVERY_PERSISTENT: Final = 2

NAMES: Final = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id",
    "reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
"""In the order of their flags, from bit 15 down."""
FLAGS: Final = {name: 1 << 15 - place for place, name in enumerate(NAMES)}
FLAGS_KEPT: Final = 256
"""Combinations of flags that are remembered; a client uses a handful."""
_UNUSED: Final = 0x0003
_SIZES: Final = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_ORDER: Final = tuple((FLAGS[name], name, _SIZES.get(name, 0)) for name in NAMES)
_U16: Final = Struct(">H")
NO_PROPERTIES: Final = bytes(2)


class Properties(msgspec.Struct, gc=False, kw_only=True):
    """All 14; None = not there. Short strings that are not UTF-8 keep their bytes as surrogates."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


class PropertySpans(msgspec.Struct, gc=False):
    """Where each property lies in the bytes that were walked."""

    spans: dict[str, tuple[int, int]]
    """Contents only: without the length of a short string, with that of the table."""
    texts: list[tuple[int, int]]
    """Contents of text values inside the headers."""
    header_names: dict[bytes, tuple[int, int]]
    """Name of each header -> where its tag and value lie."""


def locate_properties(data: bytes, at: int, end: int) -> PropertySpans:
    """Check the properties in ``data[at:end]`` and find them."""
    if end - at < 2:
        raise frame_error("content header ends within its flags")
    (flags,) = _U16.unpack_from(data, at)
    if flags & _UNUSED:
        raise syntax_error(f"property flags {flags:#06x} announce properties nobody knows")
    at += 2
    found = PropertySpans({}, [], {})
    spans = found.spans
    for name, size in _present(flags):
        if size:
            stop = at + size
        elif name == "headers":
            found.texts, found.header_names, stop = text_spans(data, at, end)
        elif at < end:
            stop = at + 1 + data[at]
            at += 1
        else:
            stop = end + 1
        if stop > end:
            raise frame_error(f"content header ends within {name.replace('_', '-')}")
        spans[name] = (at, stop)
        at = stop
    if at != end:
        raise frame_error(f"content header with {end - at} bytes too many")
    return found


@lru_cache(maxsize=FLAGS_KEPT)
def _present(flags: int) -> tuple[tuple[str, int], ...]:
    """Name and fixed size (0 = it says so itself) of the properties these flags announce."""
    return tuple((name, size) for flag, name, size in _ORDER if flags & flag)


def decode_properties(data: bytes) -> Properties:
    """The properties in these bytes, flags first."""
    values: dict[str, Any] = {}
    for name, (at, end) in locate_properties(data, 0, len(data)).spans.items():
        if name == "headers":
            values[name] = decode_table(data, at)[0]
        elif name in _SIZES:
            values[name] = int.from_bytes(data[at:end], "big")
        else:
            values[name] = data[at:end].decode("utf-8", "surrogateescape")
    return Properties(**values)


def encode_properties(properties: Properties) -> bytes:
    flags = 0
    pieces = [b""]
    for flag, name, size in _ORDER:
        value = getattr(properties, name)
        if value is None:
            continue
        flags |= flag
        if name == "headers":
            pieces.append(encode_table(value))
        elif size:
            pieces.append(_number(name, value, size))
        else:
            raw = _raw(name, value)
            pieces += (_short_length(name, raw), raw)
    pieces[0] = _U16.pack(flags)
    return b"".join(pieces)


def edit_properties(raw: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """The same properties but for these changes; None takes one away.

    New contents are as ``PropertySpans`` has them. For dead letters, BCC and direct reply-to: what
    is not named stays byte for byte.
    """
    spans = locate_properties(raw, 0, len(raw)).spans
    flags = 0
    pieces = [b""]
    for flag, name, size in _ORDER:
        content = raw[slice(*spans[name])] if name in spans else None
        content = changes.get(name, content)
        if content is None:
            continue
        flags |= flag
        if size or name == "headers":
            pieces.append(content)
        else:
            pieces += (_short_length(name, content), content)
    pieces[0] = _U16.pack(flags)
    return b"".join(pieces)


def _number(name: str, value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "big")
    except OverflowError:
        raise syntax_error(f"{name} {value} does not fit {size} octets") from None


def _raw(name: str, value: str) -> bytes:
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise syntax_error(f"{name} {value[:32]!r} is not Unicode text") from None


def _short_length(name: str, raw: bytes) -> bytes:
    if len(raw) > SHORT_BYTES_MAX:
        raise syntax_error(f"{name} of {len(raw)} bytes, limit {SHORT_BYTES_MAX}")
    return bytes((len(raw),))
