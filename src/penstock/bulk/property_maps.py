"""Property strings (``name 01 value 02 ...``) as a column of maps, without a loop over rows.

All separators are found in one pass over the bytes of a batch; names and values are then spans
between them. The rules are those of ``wire/rocketmq/properties.py``: a pair needs a name and a
value, of two pairs with one name the last wins, in the place of the first.

Not here: where the strings are (``gather.py``); origins with other properties (``columns.py``).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.bulk.layout import Column
from penstock.bulk.schema import TYPES
from penstock.bulk.views import Buffers, Spans, as_text
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
