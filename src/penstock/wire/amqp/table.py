"""Field tables and arrays: a map of names to typed values, as arguments and headers carry it.

    table   | length u32 | name (u8 length, bytes) | tag | value | name | tag | value | ...
    array   | length u32 | tag | value | tag | value | ...

    t bool   b i8   s i16   I i32   l i64   f float32   D scale u8, u32   S u32, text   V nothing
    T u64 s  B u8   u u16   i u32   L i64   d float64   F table  A array  x u32, bytes

Values read: bool, int, ``Timestamp``, float, Decimal, str (S), bytes (x), dict, list and None.
Text that is not UTF-8 keeps its bytes as surrogates and is written back as it was. Numbers are
written as RabbitMQ writes them (``l``, ``d``); ``Tagged`` asks for another tag.

Invariants: no length is believed before it was compared with what is there; nesting is bounded by
``TABLE_DEPTH_MAX``; every failure is an ``AmqpError``.
Not here: whether an argument makes sense (``adapters/amqp``); tables of messages stay bytes on
their way through (``properties.py``), ``text_spans`` checks them without building anything.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from struct import Struct, error
from typing import Any, Final, NamedTuple

from penstock.wire.amqp.codes import syntax_error

TABLE_DEPTH_MAX: Final = 64
"""Tables in tables; real ones have 3 (x-death: table, array, table)."""
NAME_BYTES_MAX: Final = 255
DECIMAL_SCALE_MAX: Final = 255

EMPTY_TABLE: Final = bytes(4)

_LENGTH: Final = Struct(">I")
_DECIMAL: Final = Struct(">BI")
_TABLE, _ARRAY, _TEXT, _BYTES, _DECIMAL_TAG, _TIME, _VOID = b"FASxDTV"
_NUMBERS: Final = {
    ord(tag): Struct(">" + code) for tag, code in zip("tbBsuIilLfdT", "?bBhHiIqqfdQ", strict=True)
}
"""Values of one number, by tag."""
_SIZES: Final = {
    **{tag: layout.size for tag, layout in _NUMBERS.items()},
    _DECIMAL_TAG: 5,
    _VOID: 0,
}


class Timestamp(int):
    """Seconds since 1970, tag T; an int otherwise."""

    __slots__ = ()


class Tagged(NamedTuple):
    """A value to be written with this tag and no other."""

    tag: str
    value: Any


Table = dict[str, Any]
Span = tuple[int, int]
Spans = list[Span]


def decode_table(data: bytes, at: int = 0, depth: int = 0) -> tuple[Table, int]:
    """The table whose length stands at ``at``, and where it ends; of two equal names the last."""
    at, end = _bounds(data, at, depth)
    found: Table = {}
    while at < end:
        name, at = _name(data, at, end)
        found[name], at = _value(data, at, end, depth)
    return found, end


def decode_entries(data: bytes, at: int, end: int) -> Table:
    """The entries of a table without its length, as AMQPLAIN's response is written."""
    return decode_table(_LENGTH.pack(end - at) + data[at:end])[0]


def split_table(data: bytes) -> list[tuple[bytes, bytes]]:
    """(name, tag and value) of every entry, as bytes: for changing one and keeping the others."""
    at, end = _bounds(data, 0, 0)
    found: list[tuple[bytes, bytes]] = []
    while at < end:
        value_at = at + 1 + data[at]
        stop = _skip(data, value_at, end, 0, [])
        found.append((data[at + 1 : value_at], data[value_at:stop]))
        at = stop
    return found


def join_table(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The table of these entries, its length included."""
    pieces = [bytes((len(name),)) + name + value for name, value in entries]
    body = b"".join(pieces)
    return _LENGTH.pack(len(body)) + body


def text_spans(data: bytes, at: int, limit: int) -> tuple[Spans, dict[bytes, Span], int]:
    """Check the table at ``at``, which must end by ``limit``.

    Gives where the text of its values lies (nested tables included), name -> where tag and value
    lie (not those), and its end.
    """
    at, end = _bounds(data, at, 0, limit)
    texts: Spans = []
    names: dict[bytes, Span] = {}
    while at < end:
        value_at = at + 1 + data[at]
        stop = _skip(data, value_at, end, 0, texts)
        names[data[at + 1 : value_at]] = (value_at, stop)
        at = stop
    return texts, names, end


def _bounds(data: bytes, at: int, depth: int, limit: int | None = None) -> tuple[int, int]:
    """Where the entries behind the length at ``at`` begin and end."""
    if depth > TABLE_DEPTH_MAX:
        raise syntax_error(f"field tables nested more than {TABLE_DEPTH_MAX} deep")
    limit = len(data) if limit is None else limit
    if at + 4 > limit:
        raise syntax_error("field table ends within its length")
    size = int.from_bytes(data[at : at + 4], "big")
    end = at + 4 + size
    if end > limit:
        raise syntax_error(f"field table of {size} bytes announced, {limit - at - 4} there")
    return at + 4, end


def _name(data: bytes, at: int, end: int) -> tuple[str, int]:
    stop = at + 1 + data[at]
    if stop >= end:
        raise syntax_error("field table ends within an entry")
    return data[at + 1 : stop].decode("utf-8", "surrogateescape"), stop


def _value(data: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    """The value whose tag is at ``at``, and where it ends."""
    tag = data[at]
    layout = _NUMBERS.get(tag)
    stop = _skip_one(data, at, end)
    if layout is not None:
        (number,) = layout.unpack_from(data, at + 1)
        return (Timestamp(number) if tag == _TIME else number), stop
    if tag == _TEXT:
        return data[at + 5 : stop].decode("utf-8", "surrogateescape"), stop
    if tag == _TABLE:
        return decode_table(data, at + 1, depth + 1)[0], stop
    if tag == _ARRAY:
        return _array(data, at + 1, depth + 1), stop
    if tag == _DECIMAL_TAG:
        scale, digits = _DECIMAL.unpack_from(data, at + 1)
        return Decimal(digits).scaleb(-scale), stop
    return (data[at + 5 : stop] if tag == _BYTES else None), stop


def _array(data: bytes, at: int, depth: int) -> list[Any]:
    at, end = _bounds(data, at, depth)
    found: list[Any] = []
    while at < end:
        value, at = _value(data, at, end, depth)
        found.append(value)
    return found


def _skip_one(data: bytes, at: int, end: int) -> int:
    """Where the value whose tag is at ``at`` ends; not looked into."""
    if at >= end:
        raise syntax_error("field table ends within an entry")
    tag = data[at]
    size = _SIZES.get(tag)
    if size is None:
        if tag not in b"SxFA":
            raise syntax_error(f"field table has a value of unknown type {chr(tag)!r}")
        size = 4 + int.from_bytes(data[at + 1 : at + 5], "big")
    stop = at + 1 + size
    # A length cut short reads as a smaller one; it ends past the table all the same.
    if stop > end:
        raise syntax_error(f"field table ends within a value of type {chr(tag)!r}")
    return stop


def _skip(data: bytes, at: int, end: int, depth: int, texts: Spans) -> int:
    """The same, checking what is inside and noting where text lies."""
    stop = _skip_one(data, at, end)
    tag = data[at]
    if tag == _TEXT:
        texts.append((at + 5, stop))
    elif tag in (_TABLE, _ARRAY):
        inner, inner_end = _bounds(data, at + 1, depth + 1)
        while inner < inner_end:
            if tag == _TABLE:
                inner += 1 + data[inner]
            inner = _skip(data, inner, inner_end, depth + 1, texts)
    return stop


def encode_table(table: Mapping[str, Any], depth: int = 0) -> bytes:
    """The bytes of a table, its length included."""
    if depth > TABLE_DEPTH_MAX:
        raise syntax_error(f"field tables nested more than {TABLE_DEPTH_MAX} deep")
    pieces: list[bytes] = []
    for name, value in table.items():
        encoded = name.encode("utf-8", "surrogateescape")
        if len(encoded) > NAME_BYTES_MAX:
            raise syntax_error(f"field name of {len(encoded)} bytes, limit {NAME_BYTES_MAX}")
        pieces += (bytes((len(encoded),)), encoded, encode_value(value, depth))
    body = b"".join(pieces)
    return _LENGTH.pack(len(body)) + body


def encode_value(value: Any, depth: int = 0) -> bytes:
    """Tag and bytes of one value."""
    tag, value = value if isinstance(value, Tagged) else (_tag_of(value), value)
    try:
        return tag.encode() + _encode(ord(tag), value, depth)
    except (error, AttributeError, TypeError, OverflowError, UnicodeEncodeError) as problem:
        raise syntax_error(f"{value!r} is no field value of type {tag}: {problem}") from None


def _tag_of(value: Any) -> str:
    for kind, tag in _TAGS:
        if isinstance(value, kind):
            return tag
    raise syntax_error(f"a {type(value).__name__} cannot be a field value")


_TAGS: Final[tuple[tuple[type, str], ...]] = (
    (str, "S"), (bool, "t"), (Timestamp, "T"), (int, "l"), (float, "d"), (dict, "F"), (list, "A"),
    (tuple, "A"), (bytes, "x"), (Decimal, "D"), (type(None), "V"),
)  # fmt: skip


def _encode(tag: int, value: Any, depth: int) -> bytes:
    layout = _NUMBERS.get(tag)
    if layout is not None:
        return layout.pack(value)
    if tag == _TABLE:
        return encode_table(value, depth + 1)
    if tag == _ARRAY:
        if depth >= TABLE_DEPTH_MAX:
            raise syntax_error(f"field tables nested more than {TABLE_DEPTH_MAX} deep")
        body = b"".join([encode_value(item, depth + 1) for item in value])
        return _LENGTH.pack(len(body)) + body
    if tag in (_TEXT, _BYTES):
        body = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        return _LENGTH.pack(len(body)) + body
    if tag == _DECIMAL_TAG:
        return _encode_decimal(Decimal(value))
    if tag != _VOID or value is not None:
        raise TypeError("no such type")
    return b""


def _encode_decimal(value: Decimal) -> bytes:
    sign, _, exponent = value.as_tuple()
    if sign or not isinstance(exponent, int) or not -DECIMAL_SCALE_MAX <= exponent <= 9:
        raise syntax_error(f"decimal {value} does not fit a scale of one octet and no sign")
    scale = max(-exponent, 0)
    return _DECIMAL.pack(scale, int(value.scaleb(scale)))
