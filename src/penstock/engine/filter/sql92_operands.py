"""What stands on either side of an operator of a selector, and how texts become numbers.

Every operand's type is known when the expression is compiled, because properties are always texts;
so comparisons are picked once (``sql92_parser.py``) and nothing is dispatched per message.

Text to number is strict: a whole number for a whole literal (32 bits, or 64 if the literal needs
them), a decimal number for one with a point. What does not convert is an evaluation error.

Not here: the grammar (``sql92_parser.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

Properties = Mapping[str, str]

Test = Callable[[Properties], bool | None]
"""Three-valued: None is "unknown"."""

SMALL_BITS: Final = 32
"""Whole literals within 32 bits convert texts to 32 bits, and refuse longer ones."""

LARGE_BITS: Final = 64

_SHORT_CHARS: Final = 10
"""Fewer digits than this are within 32 bits, whatever they are."""

_DECIMAL: Final = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?|[+-]?Infinity", re.ASCII
)

_BLANKS: Final = "".join(map(chr, range(33)))


class Incomparable(ValueError):
    """A value that cannot be compared as the expression wants; the message does not match."""


class Property(msgspec.Struct, frozen=True):
    """A property of the message: a text, or unknown when it is missing."""

    name: str
    depth: int = 1


class Text(msgspec.Struct, frozen=True):
    """A string literal."""

    value: str
    depth: int = 1


class Number(msgspec.Struct, frozen=True):
    """A number literal, or one with a minus before it."""

    value: int | float
    bits: int
    """32 or 64 for whole numbers; 0 = decimal."""
    is_literal: bool = True
    """False behind a minus: checks of constants do not apply to it, as in every known parser."""
    depth: int = 1


class Truth(msgspec.Struct, frozen=True):
    """Anything that is true, false or unknown: a comparison, a logic term, or a literal."""

    test: Test
    is_literal: bool = False
    depth: int = 1


class Unknown(msgspec.Struct, frozen=True):
    """A value that is always unknown: minus anything that is no number literal."""

    depth: int = 1


Operand = Property | Text | Number | Truth | Unknown


def reader_of(number: Number) -> Callable[[str], int | float]:
    """How a text becomes comparable with this number."""
    if number.bits == SMALL_BITS:
        return to_small
    return to_large if number.bits == LARGE_BITS else to_decimal


def to_small(text: str) -> int:
    """A whole number of 32 bits."""
    if len(text) < _SHORT_CHARS and text.isdecimal():
        return int(text)
    value = _to_whole(text)
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return value
    raise Incomparable(f"{text[:40]!r} does not fit into 32 bits")


def to_large(text: str) -> int:
    """A whole number of 64 bits."""
    value = _to_whole(text)
    if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        return value
    raise Incomparable(f"{text[:40]!r} does not fit into 64 bits")


def _to_whole(text: str) -> int:
    # int() alone would take blanks and underscores too.
    if text.isdecimal() or (text[:1] in ("+", "-") and text[1:].isdecimal()):
        return int(text)
    raise Incomparable(f"{text[:40]!r} is not a whole number")


def to_decimal(text: str) -> float:
    """A decimal number; "not a number" is none."""
    found = _DECIMAL.fullmatch(text.strip(_BLANKS))
    if found is None:
        raise Incomparable(f"{text[:40]!r} is not a number")
    return float(found[1] or found[0])


def to_truth(text: str) -> bool:
    """``true`` in any case is true, every other text is false."""
    return text.lower() == "true"
