"""AMQP's properties as a column of maps, without a loop over rows.

A content header is walked for all rows at once: property by property in the order of the flags,
then entry by entry through the tables of headers. Each step finds one name and one value in every
row that still has one; at the end all of them are put in the order of their rows.

    short and long texts    stand in the header, and are pointed at
    integers, booleans      are written as text
    anything else           tables, arrays, floats, decimals, names that come twice, bytes that are
                            no content header: such rows are read one by one, as everybody reads
                            them (``wire/amqp/origin.py``), and put among the others

Invariant: the maps are those of ``amqp_properties``, row by row.
Not here: where the bytes are (``gather.py``), key, tag and body (spans of the record).
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.bulk.layout import Column
from penstock.bulk.property_maps import maps_of, twin_rows
from penstock.bulk.views import Buffers, Spans
from penstock.model.record import Record, Shape, Wire
from penstock.wire.amqp.origin import ATTEMPTS, PREFIX, AmqpFacts
from penstock.wire.amqp.properties import FLAGS, NAMES

HIDDEN: Final = frozenset((ATTEMPTS,))
"""Headers that are the broker's own."""
MESSAGE_ID: Final = "message_id"
"""A row has no column for it, so it is a property (D16)."""
ENTRIES_MAX: Final = 64
"""Headers that are walked by columns; a row with more of them is read by itself."""

_SIZES: Final = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_ELSEWHERE: Final = frozenset(("headers", "timestamp", "type", "expiration"))
"""What is no property of a row: the table itself, and facts that have another place."""
_RANKS: Final = 4
_UNUSED_FLAGS: Final = 0x0003
_INTEGERS: Final = {ord(tag): kind for tag, kind in zip("bBsuIilLT", "bBhHiIqqq", strict=True)}
_TEXT_TAGS: Final = b"Sx"
_FIXED: Final = np.full(256, -1, np.int64)
"""Bytes of a value by its tag; -1 = it is not walked."""
for _tag, _kind in _INTEGERS.items():
    _FIXED[_tag] = np.dtype(_kind).itemsize
_FIXED[ord("t")], _FIXED[ord("V")] = 1, 0
_FIXED[list(_TEXT_TAGS)] = 4

_WORDS: Final = b"true" + b"false" + b"".join(name.encode() for name in (MESSAGE_ID, *(
    PREFIX + name for name in NAMES if name not in (*_ELSEWHERE, MESSAGE_ID))))  # fmt: skip

_FACTS: Final = AmqpFacts()
_HIDDEN_NAMES: Final = pa.array(sorted(HIDDEN)).cast(pa.binary())


def amqp_properties(content_header: bytes) -> dict[str, str]:
    """The properties of one message as a row has them."""
    shape = Shape(wire=int(Wire.AMQP), props_len=len(content_header))
    facts = _FACTS.facts(Record(content_header, shape, 0))
    found = facts.properties
    if facts.message_id:
        found.setdefault(MESSAGE_ID, facts.message_id)
    return found


def amqp_maps(headers: pa.Array) -> pa.Array:
    """The maps of a binary column of content headers."""
    count = len(headers)
    offsets = np.frombuffer(headers.buffers()[1], np.int32)[
        headers.offset : headers.offset + count + 1
    ].astype(np.int64)
    content = headers.buffers()[2]
    if content is None or offsets[0] == offsets[-1]:
        return maps_of([{}] * count)
    walk = _Walk(content, offsets)
    walk.basics()
    return walk.maps(headers)


class _Walk:
    """One pass over the content headers of a batch."""

    def __init__(self, content: pa.Buffer, offsets: Column) -> None:
        # A few bytes more, so that a length at the very end can be read and then be disbelieved.
        self._data: Column = np.frombuffer(bytes(content[: offsets[-1]]) + bytes(16), np.uint8)
        self._at, self._ends = offsets[:-1].copy(), offsets[1:]
        self._is_walked = self._ends - self._at >= 2
        self._buffers: list[bytes | Column] = [self._data, _WORDS]
        self._keys: list[Column] = []
        """Row and rank of every pair: headers come before AMQP's own properties."""
        self._names: list[Spans] = []
        self._values: list[Spans] = []

    def basics(self) -> None:
        """Walk the properties, and the headers among them."""
        at = self._at
        flags = self._number(at, ">u2")
        self._is_walked &= flags & _UNUSED_FLAGS == 0
        at += 2
        for name in NAMES:
            rows = np.flatnonzero(self._is_walked & (flags & FLAGS[name] > 0))
            if not len(rows):
                continue
            place = at[rows]
            if name in _SIZES:
                size = np.full(len(rows), _SIZES[name])
            elif name == "headers":
                size = 4 + self._number(place, ">u4")
            else:
                size = self._data[place].astype(np.int64)
                place += 1
            is_within = place + size <= self._ends[rows]
            if not is_within.all():
                self._is_walked[rows[~is_within]] = False
                rows, place, size = rows[is_within], place[is_within], size[is_within]
            at[rows] = place + size
            self._basic(name, rows, place, size)
        self._is_walked &= at == self._ends

    def maps(self, headers: pa.Array) -> pa.Array:
        """Everything that was found, in the order of rows; the rest read one by one."""
        count = len(self._ends)
        keys = np.concatenate([*self._keys, np.empty(0, np.int64)])
        order = np.argsort(keys, kind="stable")
        rows = keys[order] // _RANKS
        is_kept = self._is_walked[rows]
        order, rows = order[is_kept], rows[is_kept]
        source = Buffers(self._buffers)
        names = source.binary(_joined(self._names).take(order))
        is_kept = ~pc.is_in(names, _HIDDEN_NAMES).to_numpy(zero_copy_only=False)
        if not is_kept.all():
            order, rows, names = order[is_kept], rows[is_kept], names.filter(pa.array(is_kept))
        try:
            texts = names.cast(pa.string())
        except pa.ArrowInvalid:
            # Two names may be the same once their bytes are replaced.
            return maps_of([amqp_properties(each) for each in headers.to_pylist()])
        values = source.text(_joined(self._values).take(order))
        bounds = np.searchsorted(rows, np.arange(count + 1)).astype(np.int32)
        maps = pa.MapArray.from_arrays(pa.array(bounds, pa.int32()), texts, values)
        slow = np.union1d(np.flatnonzero(~self._is_walked), twin_rows(names, bounds))
        if not len(slow):
            return maps
        single = maps_of([amqp_properties(headers[row].as_py()) for row in slow.tolist()])
        chosen = np.arange(count)
        chosen[slow] = count + np.arange(len(slow))
        return pa.concat_arrays([maps, single]).take(pa.array(chosen))

    # Private, in call order

    def _number(self, place: Column, kind: str) -> Column:
        """A big-endian number at each place; places may lie at most a few bytes behind the data."""
        room = len(self._data) - np.dtype(kind).itemsize
        overlapping: Column = np.ndarray((room + 1,), kind, buffer=self._data, strides=(1,))
        return overlapping[np.minimum(place, room)].astype(np.int64)

    def _basic(self, name: str, rows: Column, place: Column, size: Column) -> None:
        """Note one property of some rows."""
        if name == "headers":
            self._table(rows, place + 4, place + size)
        elif name == MESSAGE_ID:
            # An empty one is none; it comes last, because a header of that name goes before it.
            is_there = size > 0
            rows, values = rows[is_there], _spans(0, place[is_there], size[is_there])
            self._put(rows, _word(name, len(rows)), values, rank=2)
        elif name in _SIZES and name not in _ELSEWHERE:
            numbers = self._data[place].astype(np.int64)
            self._put_numbers(rows, _word(PREFIX + name, len(rows)), numbers, rank=1)
        elif name not in _ELSEWHERE:
            names = _word(PREFIX + name, len(rows))
            self._put(rows, names, _spans(0, place, size), rank=1)

    def _table(self, rows: Column, at: Column, ends: Column) -> None:
        """Walk the tables of some rows, an entry of each at a time."""
        for _ in range(ENTRIES_MAX):
            is_left = at < ends
            if not is_left.all():
                rows, at, ends = rows[is_left], at[is_left], ends[is_left]
            if not len(rows):
                return
            name_size: Column = self._data[at].astype(np.int64)
            # A value has a tag at least.
            tag_at: Column = at + 1 + name_size
            tags: Column = self._data[np.minimum(tag_at, ends - 1)]
            is_text = np.isin(tags, list(_TEXT_TAGS))
            sizes: Column = _FIXED[tags] + np.where(is_text, self._number(tag_at + 1, ">u4"), 0)
            is_entry = (tag_at < ends) & (_FIXED[tags] >= 0) & (tag_at + 1 + sizes <= ends)
            if not is_entry.all():
                self._is_walked[rows[~is_entry]] = False
                rows, at, ends = rows[is_entry], at[is_entry], ends[is_entry]
                name_size, tag_at = name_size[is_entry], tag_at[is_entry]
                tags, sizes = tags[is_entry], sizes[is_entry]
            value_at = tag_at + 1
            self._entries(rows, _spans(0, at + 1, name_size), tags, value_at, sizes)
            at = value_at + sizes
        self._is_walked[rows[at < ends]] = False

    def _entries(
        self, rows: Column, names: Spans, tags: Column, place: Column, sizes: Column
    ) -> None:
        """Note one entry of each row."""
        for tag in np.unique(tags).tolist():
            chosen = np.flatnonzero(tags == tag)
            some, name, at = rows[chosen], names.take(chosen), place[chosen]
            if tag in _TEXT_TAGS:
                self._put(some, name, _spans(0, at + 4, sizes[chosen] - 4))
            elif tag == ord("t"):
                is_true = self._data[at] != 0
                self._put(some, name, _spans(1, np.where(is_true, 0, 4), np.where(is_true, 4, 5)))
            elif tag == ord("V"):
                self._put(some, name, _spans(1, np.zeros_like(at), np.zeros_like(at)))
            else:
                numbers = self._number(at, f">{_INTEGERS[tag]}")
                if tag == ord("T"):
                    # Unsigned in the header; nothing that is a time is as large as that.
                    self._is_walked[some[numbers < 0]] = False
                self._put_numbers(some, name, numbers)

    def _put_numbers(self, rows: Column, names: Spans, numbers: Column, *, rank: int = 0) -> None:
        texts = pa.array(numbers).cast(pa.string())
        edges = np.frombuffer(texts.buffers()[1], np.int32)[: len(rows) + 1].astype(np.int64)
        self._buffers.append(np.frombuffer(texts.buffers()[2] or b"", np.uint8))
        values = _spans(len(self._buffers) - 1, edges[:-1], np.diff(edges))
        self._put(rows, names, values, rank=rank)

    def _put(self, rows: Column, names: Spans, values: Spans, *, rank: int = 0) -> None:
        self._keys.append(rows * _RANKS + rank)
        self._names.append(names)
        self._values.append(values)


def _word(word: str, count: int) -> Spans:
    """A name that we give, for some rows."""
    return _spans(1, np.full(count, _WORDS.index(word.encode())), np.full(count, len(word)))


def _spans(buffer: int, place: Column, length: Column) -> Spans:
    """Spans in one of our buffers; ``views.Buffers`` counts from 1."""
    return Spans(np.full(len(place), buffer + 1, np.int64), place, length)


def _joined(spans: list[Spans]) -> Spans:
    none = np.empty(0, np.int64)
    return Spans(
        np.concatenate([*(each.buffer for each in spans), none]),
        np.concatenate([*(each.place for each in spans), none]),
        np.concatenate([*(each.length for each in spans), none]),
    )
