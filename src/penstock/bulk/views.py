"""Byte strings that lie anywhere in a few buffers as one Arrow column, made without a loop.

Arrow's BinaryView is 16 bytes for each value: its length, then either the value itself (up to 12
bytes) or its first 4 bytes, the number of a buffer and the place in it. numpy fills these in for
all rows at once; the cast to an ordinary binary column copies every value in C. So a column costs
the same whatever lies between two values in the log.

    buffer 0      bytes made up by us: values that stand nowhere as they should be read
    buffer 1 ...  segments of the log

Not here: where the values are (``gather.py``, ``columns.py``).
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.bulk.layout import Column, kinds

INLINE_BYTES: Final = 12
PLACE_MAX: Final = (1 << 31) - 1
"""Places are 32 bits: no buffer may be longer."""
_HEAD: Final = np.dtype("V12")
_MASKS: Final = np.array(
    [[0xFF] * n + [0] * (INLINE_BYTES - n) for n in range(INLINE_BYTES + 1)], np.uint8
).view("<u4")


class Spans:
    """For each row the buffer, the place in it and the length of a value."""

    __slots__ = ("buffer", "length", "place")

    def __init__(self, buffer: Column, place: Column, length: Column) -> None:
        self.buffer: Final = buffer
        self.place: Final = place
        self.length: Final = length

    def __len__(self) -> int:
        return len(self.length)

    def take(self, rows: Column) -> "Spans":
        """Some rows, in any order."""
        return Spans(self.buffer[rows], self.place[rows], self.length[rows])


class Buffers:
    """The buffers that spans point into."""

    def __init__(self, segments: Sequence[Any]) -> None:
        self._segments: Final = segments
        self._own = bytearray()

    def put(self, spans: Spans, row: int, value: bytes) -> None:
        """Let ``row`` have a value that stands in no segment."""
        spans.buffer[row] = 0
        spans.place[row] = len(self._own)
        spans.length[row] = len(value)
        self._own += value

    @property
    def own_bytes(self) -> int:
        """How much was put."""
        return len(self._own)

    def value(self, spans: Spans, row: int) -> bytes:
        """One value, for those in no hurry."""
        number, place = int(spans.buffer[row]), int(spans.place[row])
        source = self._segments[number - 1] if number else self._own
        return bytes(source[place : place + int(spans.length[row])])

    def binary(self, spans: Spans, *, is_empty_null: bool = False) -> pa.Array:
        """The values as a binary column."""
        length, place, buffer = spans.length, spans.place, spans.buffer
        own = bytes(self._own) + bytes(INLINE_BYTES)
        sources = [own, *self._segments]
        words = np.empty((len(length), 4), "<u4")
        words[:, 0] = length
        is_short = length <= INLINE_BYTES
        short = int(np.count_nonzero(is_short))
        if short == len(length):
            words[:, 1:] = _heads(spans, sources)
        else:
            # The first bytes of a long value are for comparing, and nobody compares.
            words[:, 1], words[:, 2], words[:, 3] = 0, buffer, place
            if short:
                rows = np.flatnonzero(is_short)
                words[rows, 1:] = _heads(spans.take(rows), sources)
        validity = None
        if is_empty_null and (length == 0).any():
            validity = pa.py_buffer(np.packbits(length > 0, bitorder="little"))
        parts = [validity, pa.py_buffer(words), *map(pa.py_buffer, sources)]
        return pa.Array.from_buffers(pa.binary_view(), len(length), parts).cast(pa.binary())

    def text(self, spans: Spans, *, is_empty_null: bool = False) -> pa.Array:
        """The values as a string column; what is not UTF-8 is replaced."""
        return as_text(self.binary(spans, is_empty_null=is_empty_null))


def _heads(spans: Spans, sources: list[Any]) -> Column:
    """Values of at most 12 bytes as three words each."""
    numbers = kinds(spans.buffer)
    if len(numbers) == 1:
        heads = _heads_in(sources[numbers[0]], spans.place)
    else:
        heads = np.zeros((len(spans), 3), "<u4")
        for number in numbers:
            rows = np.flatnonzero(spans.buffer == number)
            heads[rows] = _heads_in(sources[number], spans.place[rows])
    heads &= _MASKS.take(spans.length, 0)
    return heads


def _heads_in(source: Any, place: Column) -> Column:
    """The 12 bytes at each place of one buffer; zeros where it has ended."""
    room = len(source) - INLINE_BYTES
    is_last = place > room
    if not is_last.any():
        overlapping: Column = np.ndarray((room + 1,), _HEAD, buffer=source, strides=(1,))
        found: Column = overlapping[place].view("<u4").reshape(-1, 3)
        return found
    heads = np.zeros((len(place), 3), "<u4")
    rows = np.flatnonzero(~is_last)
    if len(rows):
        heads[rows] = _heads_in(source, place[rows])
    # Those with fewer than 12 bytes behind their beginning, one by one.
    for row in np.flatnonzero(is_last).tolist():
        at = int(place[row])
        head = bytes(source[at : at + INLINE_BYTES]).ljust(INLINE_BYTES, b"\0")
        heads[row] = np.frombuffer(head, "<u4")
    return heads


def as_text(values: pa.Array) -> pa.Array:
    """A binary column as a string column; what is not UTF-8 is replaced, as Python does."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [v if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()]
        return pa.array(texts, pa.string())
