"""Properties as a column of maps, without a loop over rows: RocketMQ's strings, AMQP's headers.

Of property strings (``name 01 value 02 ...``) all separators are found in one pass over the bytes
of a batch; names and values are then spans between them. The rules are those of
``wire/rocketmq/properties.py``: a pair needs a name and a value, of two pairs with one name the
last wins, in the place of the first.

Not here: where the strings are (``gather.py``); origins with other properties (``columns.py``).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.bulk.gather import Buffers, Spans, as_text
from penstock.bulk.layout import TYPES, Column
from penstock.bulk.tickets import MESSAGE_ID
from penstock.model.record import Record, Shape, Wire
from penstock.wire.amqp.origin import ATTEMPTS, PREFIX, AmqpFacts
from penstock.wire.amqp.properties import FLAGS, NAMES
from penstock.wire.rocketmq.properties import parse_properties

_NAME_END: Final = 1
_PAIR_END: Final = 2
_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


def property_maps(strings: pa.Array, hidden: frozenset[str]) -> pa.Array:
    """The maps of a binary column of property strings, without pairs of ``hidden`` names."""
    count = len(strings)
    offsets = np.frombuffer(strings.buffers()[1], np.int32)[
        strings.offset : strings.offset + count + 1
    ].astype(np.int64)
    content = strings.buffers()[2]
    if content is None or offsets[0] == offsets[-1]:
        return _maps(np.zeros(count + 1, np.int32), pa.array([], pa.string()), None)
    data = np.frombuffer(content, np.uint8)[: offsets[-1]]
    starts, ends = _pairs(data, offsets)
    middles = _middles(data, starts, ends)
    is_pair = (middles > starts) & (ends > middles + 1)
    if not is_pair.all():
        starts, middles, ends = starts[is_pair], middles[is_pair], ends[is_pair]
    source = Buffers([content])
    if hidden:
        keep = ~_is_short_hidden(data, starts, middles, hidden)
        starts, middles, ends = starts[keep], middles[keep], ends[keep]
    names = source.binary(_spans(starts, middles))
    if hidden:
        wanted = pc.invert(pc.is_in(names, pa.array(sorted(hidden)).cast(pa.binary())))
        if not pc.all(wanted).as_py():
            keep = wanted.to_numpy(zero_copy_only=False)
            names = names.filter(wanted)
            starts, middles, ends = starts[keep], middles[keep], ends[keep]
    bounds = np.searchsorted(starts, offsets).astype(np.int32)
    if len(twin_rows(names, bounds)):
        return _slow_maps(strings, hidden)
    values = source.binary(_spans(middles + 1, ends))
    return _maps(bounds, as_text(names), as_text(values))


def maps_of(properties: Sequence[Mapping[str, str]]) -> pa.Array:
    """The column of maps that were read one by one."""
    return pa.array([list(each.items()) for each in properties], TYPES["properties"])


def twin_rows(names: pa.Array, bounds: Column) -> Column:
    """The rows that have two pairs of one name."""
    sizes = np.diff(bounds)
    if not len(names) or sizes.max() < 2:
        return np.empty(0, np.int64)
    encoded = names.dictionary_encode()
    count = len(encoded.dictionary)
    numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    keys = np.repeat(np.arange(len(sizes)), sizes) * count + numbers
    keys.sort()
    twins: Column = np.unique(keys[1:][keys[1:] == keys[:-1]] // count)
    return twins


def _pairs(data: Column, offsets: Column) -> tuple[Column, Column]:
    """Where the pieces between two pair ends, or between one and the border of a row, are."""
    ends = np.flatnonzero(data[offsets[0] :] == _PAIR_END) + offsets[0]
    row_ends = offsets[1:][offsets[1:] > offsets[:-1]]
    unended = row_ends[data[row_ends - 1] != _PAIR_END]
    if not len(unended):
        starts = np.empty_like(ends)
        starts[0], starts[1:] = offsets[0], ends[:-1] + 1
        return starts, ends
    # A row's end takes no byte: whatever follows begins right there.
    steps = np.concatenate([np.ones(len(ends), np.int64), np.zeros(len(unended), np.int64)])
    every = np.concatenate([ends, unended])
    order = np.argsort(every, kind="stable")
    # A row's end may be the place of the next row's first byte, which may be a pair end itself:
    # the end of the row comes first.
    order = order[np.lexsort((steps[order], every[order]))]
    every, steps = every[order], steps[order]
    starts = np.empty_like(every)
    starts[0], starts[1:] = offsets[0], (every + steps)[:-1]
    return starts, every


def _middles(data: Column, starts: Column, ends: Column) -> Column:
    """The first name end of each piece; the start itself where there is none."""
    marks = np.flatnonzero(data == _NAME_END)
    if len(marks) == len(starts) and (marks >= starts).all() and (marks < ends).all():
        return marks
    at = np.searchsorted(marks, starts)
    found = np.append(marks, len(data))[at]
    return np.where(found < ends, found, starts)


def _is_short_hidden(
    data: Column, starts: Column, middles: Column, hidden: frozenset[str]
) -> Column:
    """Which names are hidden ones of at most 8 bytes: nearly all of what clients add.

    A name is then one number. Those at the end of the data are left to who looks closer.
    """
    room = len(data) - 8
    if room < 0:
        return np.zeros(len(starts), np.bool_)
    overlapping: Column = np.ndarray((room + 1,), "<u8", buffer=data, strides=(1,))
    length = middles - starts
    found = overlapping[np.minimum(starts, room)] & _MASKS[np.minimum(length, 8)]
    numbers, lengths = _short_names(hidden)
    at = np.minimum(np.searchsorted(numbers, found), len(numbers) - 1)
    is_hidden: Column = (numbers[at] == found) & (lengths[at] == length) & (starts <= room)
    return is_hidden


@lru_cache(maxsize=8)
def _short_names(names: frozenset[str]) -> tuple[Column, Column]:
    """The short ones as numbers, ascending, and their lengths; two may not be one number."""
    short = {name.encode() for name in names if len(name.encode()) <= 8 and "\0" not in name}
    pairs = sorted((int.from_bytes(name, "little"), len(name)) for name in short or {b""})
    return np.array([n for n, _ in pairs], np.uint64), np.array([n for _, n in pairs], np.int64)


def _slow_maps(strings: pa.Array, hidden: frozenset[str]) -> pa.Array:
    parsed = map(parse_properties, strings.to_pylist())
    return maps_of([{k: v for k, v in each.items() if k not in hidden} for each in parsed])


def _spans(starts: Column, ends: Column) -> Spans:
    return Spans(np.ones(len(starts), np.int64), starts, ends - starts)


def _maps(bounds: Column, names: pa.Array, values: pa.Array | None) -> pa.Array:
    return pa.MapArray.from_arrays(
        pa.array(bounds, pa.int32()), names, names if values is None else values
    )


# ---- amqp maps ----------------------------------------------------------------------------------
# AMQP's properties as a column of maps, without a loop over rows.
#
# A content header is walked for all rows at once: property by property in the order of the flags,
# then entry by entry through the tables of headers. Each step finds one name and one value in every
# row that still has one; at the end all of them are put in the order of their rows.
#
# | short and long texts    stand in the header, and are pointed at
# | integers, booleans      are written as text
# | anything else           tables, arrays, floats, decimals, names that come twice, bytes that are
# |                         no content header: such rows are read one by one, as everybody reads
# |                         them (``wire/amqp/origin.py``), and put among the others
#
# Invariant: the maps are those of ``amqp_properties``, row by row.


HIDDEN: Final = frozenset((ATTEMPTS,))
"""Headers that are the broker's own."""
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
    walk = _HeaderWalk(content, offsets)
    walk.basics()
    return walk.maps(headers)


class _HeaderWalk:
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
            rows, values = rows[is_there], _buffer_spans(0, place[is_there], size[is_there])
            self._put(rows, _word(name, len(rows)), values, rank=2)
        elif name in _SIZES and name not in _ELSEWHERE:
            numbers = self._data[place].astype(np.int64)
            self._put_numbers(rows, _word(PREFIX + name, len(rows)), numbers, rank=1)
        elif name not in _ELSEWHERE:
            names = _word(PREFIX + name, len(rows))
            self._put(rows, names, _buffer_spans(0, place, size), rank=1)

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
            self._entries(rows, _buffer_spans(0, at + 1, name_size), tags, value_at, sizes)
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
                self._put(some, name, _buffer_spans(0, at + 4, sizes[chosen] - 4))
            elif tag == ord("t"):
                is_true = self._data[at] != 0
                self._put(
                    some,
                    name,
                    _buffer_spans(1, np.where(is_true, 0, 4), np.where(is_true, 4, 5)),
                )
            elif tag == ord("V"):
                self._put(some, name, _buffer_spans(1, np.zeros_like(at), np.zeros_like(at)))
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
        values = _buffer_spans(len(self._buffers) - 1, edges[:-1], np.diff(edges))
        self._put(rows, names, values, rank=rank)

    def _put(self, rows: Column, names: Spans, values: Spans, *, rank: int = 0) -> None:
        self._keys.append(rows * _RANKS + rank)
        self._names.append(names)
        self._values.append(values)


def _word(word: str, count: int) -> Spans:
    """A name that we give, for some rows."""
    return _buffer_spans(1, np.full(count, _WORDS.index(word.encode())), np.full(count, len(word)))


def _buffer_spans(buffer: int, place: Column, length: Column) -> Spans:
    """Spans in one of our buffers; ``Buffers`` counts from 1."""
    return Spans(np.full(len(place), buffer + 1, np.int64), place, length)


def _joined(spans: list[Spans]) -> Spans:
    none = np.empty(0, np.int64)
    return Spans(
        np.concatenate([*(each.buffer for each in spans), none]),
        np.concatenate([*(each.place for each in spans), none]),
        np.concatenate([*(each.length for each in spans), none]),
    )
