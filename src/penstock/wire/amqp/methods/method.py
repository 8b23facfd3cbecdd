"""Methods as small structs, and the table that reads and writes all of them.

    byte  0          2           4
          | class u16 | method u16 | arguments one behind the other |

A method is declared once, as a struct whose annotations name the wire types of its arguments:

    @declared(10, 30)
    class Tune(Method, gc=False):
        channel_max: U16 = 0
        frame_max: U32 = 0

``plan`` turns the declaration into steps: fixed arguments next to each other are read by one
``Struct``, neighbouring bits share octets (lowest bit first), strings and tables stand alone.

Invariant: a ``ShortStr`` is UTF-8 (else 501); every failure is an ``AmqpError``.
Not here: reading any of them (``methods/__init__.py``), frames around them (``amqp/frames.py``),
fast paths for what a broker sees per message (``amqp/parser.py``, ``amqp/serializer.py``).
"""

from collections.abc import Callable
from itertools import groupby
from struct import Struct, error
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar, get_args

import msgspec

from penstock.wire.amqp.codes import SHORT_BYTES_MAX, frame_error, syntax_error
from penstock.wire.amqp.table import decode_table, encode_table

U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
Bit = Annotated[bool, "bit"]
ShortStr = Annotated[str, "short"]
LongStr = Annotated[bytes, "long"]
TableArg = Annotated[dict[str, Any], "table"]

IDS: Final = Struct(">HH")
_LENGTH: Final = Struct(">I")
_FIXED: Final = "BHIQ"


class Step(NamedTuple):
    """One stretch of the arguments: how many fields, and how they are read and written."""

    fields: int
    read: Callable[[bytes, int], tuple[tuple[Any, ...], int]]
    write: Callable[[tuple[Any, ...]], bytes]


class Method(msgspec.Struct, gc=False):
    """One method of a class, its arguments as fields."""

    class_id: ClassVar[int] = 0
    method_id: ClassVar[int] = 0
    steps: ClassVar[tuple[Step, ...]] = ()

    def encode(self) -> bytes:
        """The payload of its method frame."""
        values = [getattr(self, name) for name in self.__struct_fields__]
        pieces = [IDS.pack(self.class_id, self.method_id)]
        at = 0
        try:
            for step in self.steps:
                pieces.append(step.write(tuple(values[at : at + step.fields])))
                at += step.fields
        except (error, TypeError, AttributeError) as problem:
            raise syntax_error(f"{self!r} does not fit its frame: {problem}") from None
        return b"".join(pieces)


M = TypeVar("M", bound=Method)
METHODS: Final[dict[tuple[int, int], type[Method]]] = {}
"""By (class, method); complete once the package is imported."""


def declared(class_id: int, method_id: int) -> Callable[[type[M]], type[M]]:
    """Enter a struct into the table of methods."""

    def enter(kind: type[M]) -> type[M]:
        kind.class_id, kind.method_id = class_id, method_id
        kind.steps = plan([get_args(hint)[1] for hint in kind.__annotations__.values()])
        METHODS[class_id, method_id] = kind
        return kind

    return enter


def plan(kinds: list[str]) -> tuple[Step, ...]:
    """The steps that read and write arguments of these wire types."""
    steps: list[Step] = []
    for family, group in groupby(kinds, lambda kind: "fixed" if kind in _FIXED else kind):
        members = list(group)
        if family == "fixed":
            steps.append(_fixed(Struct(">" + "".join(members))))
        elif family == "bit":
            steps.append(_bits(len(members)))
        else:
            steps += [_VARIABLE[family]] * len(members)
    return tuple(steps)


def _fixed(layout: Struct) -> Step:
    def read(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        return layout.unpack_from(data, at), at + layout.size

    return Step(len(layout.unpack(bytes(layout.size))), read, lambda v: layout.pack(*v))


def _bits(count: int) -> Step:
    octets = (count + 7) // 8

    def read(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        packed = int.from_bytes(data[at : at + octets], "little")
        if at + octets > len(data):
            raise IndexError
        return tuple(bool(packed >> bit & 1) for bit in range(count)), at + octets

    def write(values: tuple[Any, ...]) -> bytes:
        packed = sum(1 << bit for bit, value in enumerate(values) if value)
        return packed.to_bytes(octets, "little")

    return Step(count, read, write)


def short_text(data: bytes, at: int) -> tuple[str, int]:
    """The short string at ``at`` and where it ends."""
    end = at + 1 + data[at]
    raw = data[at + 1 : end]
    if end > len(data):
        raise IndexError
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        raise frame_error(f"short string {raw[:32]!r} is not UTF-8") from None


def short_bytes(text: str) -> bytes:
    """A short string on the wire."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise syntax_error(f"{text[:32]!r} is not Unicode text") from None
    if len(raw) > SHORT_BYTES_MAX:
        raise syntax_error(f"short string of {len(raw)} bytes, limit {SHORT_BYTES_MAX}")
    return bytes((len(raw),)) + raw


def _read_short(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
    text, end = short_text(data, at)
    return (text,), end


def _read_long(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
    (size,) = _LENGTH.unpack_from(data, at)
    end = at + 4 + size
    if end > len(data):
        raise IndexError
    return (data[at + 4 : end],), end


def _read_table(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
    table, end = decode_table(data, at)
    return (table,), end


_VARIABLE: Final = {
    "short": Step(1, _read_short, lambda v: short_bytes(v[0])),
    "long": Step(1, _read_long, lambda v: _LENGTH.pack(len(v[0])) + v[0]),
    "table": Step(1, _read_table, lambda v: encode_table(v[0])),
}
