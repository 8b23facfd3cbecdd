"""From index entries to the headers of their records: one gather for each segment.

``gather`` looks every record's header up and judges it: a record is *good* when it lies where its
entry says, with that length, as a message of a version we know, and with spans inside it. The rest
is lost to the reader. Bytes are checked against the crc only when asked for: that is a call for
each record, and costs more than all the rest.

Invariant: of a good record every span can be read.

Not here: columns (``columns.py``), who knows the index files (``broker.py``, ``offline.py``).
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google_crc32c import value as crc32c

from penstock.bulk.layout import ENTRY, HEADER, Column, entries_in, headers_at, kinds, picked, plain
from penstock.log.format import (
    HEADER_BYTES,
    HEADER_VERSION,
    LONG_PAD,
    PAD_SHIFT,
    TARGET_BYTES,
    decode_record,
)
from penstock.log.segment import LOG_DIR, segment_path
from penstock.model.queries import IndexFile, LocateResponse
from penstock.model.record import Record, RecordKind

_MESSAGE: Final = int(RecordKind.MESSAGE)


class GatheredRecords:
    """Good records: their entries, headers and where their origins begin."""

    def __init__(
        self,
        entries: Column,
        headers: Column,
        segments: list[MappedSegment],
        segment_numbers: Column,
        places: Column,
    ) -> None:
        self.entries: Final = entries
        self.headers: Final = headers
        self._segments = segments
        self._numbers = segment_numbers
        """1 for the first segment, as in ``Buffers``."""
        self._places = places
        self._origins = places + HEADER_BYTES + TARGET_BYTES * headers["targets"].astype(np.int64)

    def __len__(self) -> int:
        return len(self.entries)

    def buffers(self) -> Buffers:
        """What the spans point into."""
        return Buffers([segment.data for segment in self._segments])

    def spans(self, part: str) -> Spans:
        """Where ``key``, ``tag``, ``props`` or ``body`` of each record is."""
        length = self.headers[f"{part}_len"].astype(np.int64)
        return Spans(self._numbers.copy(), self._origins + self.headers[f"{part}_at"], length)

    def record(self, row: int) -> Record:
        """One record as the broker's own reader gives it; for the uncommon ones."""
        segment = self._segments[int(self._numbers[row]) - 1]
        place = int(self._places[row])
        data = bytes(segment.data[place : place + int(self.headers["len"][row])])
        position = segment.base + place
        record = decode_record(data, 0, position)
        if record is None:
            raise DamagedRecord(position)
        return record

    def take(self, rows: Column) -> GatheredRecords:
        """Some of the records, in any order."""
        return GatheredRecords(
            picked(self.entries, rows),
            picked(self.headers, rows),
            self._segments,
            self._numbers[rows],
            self._places[rows],
        )


class DamagedRecord(Exception):
    """A record that had to be read as a whole fails its checksum; the argument is its position."""


def gather(
    maps: SegmentMaps, entries: Column, *, is_checked: bool
) -> tuple[GatheredRecords, Column]:
    """The good records of these entries, and the numbers of the entries whose record is lost."""
    count = len(entries)
    positions = entries["position"]
    headers = np.zeros(count, HEADER)
    numbers = np.zeros(count, np.int64)
    places = np.zeros(count, np.int64)
    is_good = np.zeros(count, np.bool_)
    segments: list[MappedSegment] = []
    for segment, rows in maps.groups(positions, entries["length"].astype(np.uint64)):
        if segment is None or not len(rows):
            continue
        segments.append(segment)
        place = (positions[rows] - np.uint64(segment.base)).astype(np.int64)
        found = headers_at(segment.data, segment.size_bytes, place)
        judged = _judged(found, picked(entries, rows), place)
        if is_checked:
            judged &= _checked(segment.data, place, found)
        if len(rows) == count:
            headers, numbers, places, is_good = found, np.ones(count, np.int64), place, judged
        else:
            plain(headers)[rows], numbers[rows] = plain(found), len(segments)
            places[rows], is_good[rows] = place, judged
    gathered = GatheredRecords(entries, headers, segments, numbers, places)
    if is_good.all():
        return gathered, np.empty(0, np.int64)
    return gathered.take(np.flatnonzero(is_good)), np.flatnonzero(~is_good)


def _judged(headers: Column, entries: Column, places: Column) -> Column:
    """Which headers can be those of the records that the entries speak of."""
    length = headers["len"].astype(np.int64)
    flags = headers["flags"]
    # Long padding is rare and larger: the sum is then an upper bound, the crc says the rest.
    pad = np.where(flags & LONG_PAD, 8, flags >> PAD_SHIFT)
    size = length - HEADER_BYTES - TARGET_BYTES * headers["targets"].astype(np.int64) - pad
    good: Column = (
        (headers["position"] == entries["position"])
        & (length == entries["length"])
        & (headers["messages"] == entries["messages"])
        & (headers["kind"] == _MESSAGE)
        & (headers["header_version"] <= HEADER_VERSION)
        & (places + length <= PLACE_MAX)
        & (size >= 0)
    )
    for part in ("key", "tag", "props", "body"):
        good &= headers[f"{part}_at"] + headers[f"{part}_len"].astype(np.int64) <= size
    return good


def _checked(data: Any, places: Column, headers: Column) -> Column:
    """Which records are the bytes that were written."""
    ends = places + headers["len"]
    spans = zip(places.tolist(), ends.tolist(), headers["crc"].tolist(), strict=True)
    return np.array([crc32c(bytes(data[at + 4 : end])) == crc for at, end, crc in spans], np.bool_)


# ---- segments -----------------------------------------------------------------------------------
# Segments of a log mapped for reading: any record by its position, without a copy.
#
# A map is made of a segment when one of its records is wanted, and again when the segment has
# grown. A segment that was removed keeps its map until the last reader of it is gone; one that is
# not mapped is then missing, which is the caller's data loss. At most ``maps_max`` maps are kept.
#
# Unlike the broker (D22), a process of its own may map: its resident pages are the page cache's.
# A sector that the disk cannot read ends the process (SIGBUS), and only it: the broker starts it
# again, other reads go on behind their last batch, and the one that needs the sector fails when its
# patience is over, with "no answer from Penstock's Flight port".
# Nothing above a reader's durable end is looked at.


MAPS_MAX: Final = 32
"""2 GiB of address space with segments of 64 MiB."""
_SUFFIX: Final = ".seg"


class MappedSegment:
    """One segment file as far as it went when it was mapped."""

    __slots__ = ("base", "data", "size_bytes")

    def __init__(self, base: int, data: mmap.mmap | bytes) -> None:
        self.base: Final = base
        self.data: Final = data
        self.size_bytes: Final = len(data)


class SegmentMaps:
    """The maps of one data directory; threads may share it."""

    def __init__(self, directory: Path, *, maps_max: int = MAPS_MAX) -> None:
        self._directory = directory
        self._maps_max = maps_max
        self._maps: OrderedDict[int, MappedSegment] = OrderedDict()
        self._bases: list[int] = []
        self._lock = threading.Lock()

    def groups(
        self, positions: Column, lengths: Column
    ) -> list[tuple[MappedSegment | None, Column]]:
        """Which of the records lie in which segment; None for those that are in none.

        The second part of a pair are the numbers of the records.
        """
        if not len(positions):
            return []
        bases = self._listed(int(positions.max()))
        which = np.searchsorted(np.asarray(bases, np.uint64), positions, "right")
        found: list[tuple[MappedSegment | None, Column]] = []
        for number in kinds(which):
            rows = np.flatnonzero(which == number)
            ends = positions[rows] + lengths[rows]
            segment = self._segment(bases[number - 1], int(ends.max())) if number else None
            if segment is None:
                found.append((None, rows))
                continue
            is_there = ends <= segment.base + segment.size_bytes
            if is_there.all():
                found.append((segment, rows))
            else:
                found += [(segment, rows[is_there]), (None, rows[~is_there])]
        return found

    def close(self) -> None:
        """Forget every map; those in use live as long as their users."""
        with self._lock:
            self._maps.clear()
            self._bases = []

    def _listed(self, position: int) -> list[int]:
        """Bases of the segments; listed again when ``position`` may lie in a new one."""
        with self._lock:
            bases = self._bases
            last = self._maps.get(bases[-1]) if bases else None
            if last is None or position >= last.base + last.size_bytes:
                self._bases = bases = self._list()
            return bases

    def _list(self) -> list[int]:
        try:
            names = os.listdir(self._directory / LOG_DIR)
        except FileNotFoundError:
            return []
        stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _segment(self, base: int, end: int) -> MappedSegment | None:
        """The map of a segment, long enough to hold ``end`` if the file is."""
        with self._lock:
            segment = self._maps.get(base)
            if segment is None or segment.base + segment.size_bytes < end:
                segment = self._map(base) or segment
                if segment is None:
                    return None
                limit = self._limit(base)
                if limit and segment.base + segment.size_bytes > limit:
                    # Bytes behind the base of the next segment cannot belong to the log.
                    segment = MappedSegment(base, segment.data[: limit - base])
                self._maps[base] = segment
                if len(self._maps) > self._maps_max:
                    self._maps.popitem(last=False)
            self._maps.move_to_end(base)
            return segment

    def _limit(self, base: int) -> int:
        at = bisect_right(self._bases, base)
        return self._bases[at] if at < len(self._bases) else 0

    def _map(self, base: int) -> MappedSegment | None:
        try:
            fd = os.open(self._directory / segment_path(base), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            size = os.fstat(fd).st_size
            data = mmap.mmap(fd, size, access=mmap.ACCESS_READ) if size else b""
            return MappedSegment(base, data)
        finally:
            os.close(fd)


# ---- index entries ------------------------------------------------------------------------------
# Those of a range come from files and from the broker's tail, a file at a time.
#
# Invariant: they ascend and do not overlap, whatever a damaged file says.
# What is missing between two of them is a hole, which the caller counts.


class IndexFileGone(Exception):
    """A file was removed since it was named; whoever named it should be asked again."""


def index_entries(
    directory: Path, located: LocateResponse, start: int, end: int
) -> Iterator[Column]:
    """The entries that hold any offset of [start, end), at most a file of them at a time."""
    firsts = [file.first_offset for file in located.files]
    for number, file in enumerate(located.files):
        behind = firsts[number + 1] if number + 1 < len(firsts) else end
        if behind <= start or file.first_offset >= end:
            continue
        found = _within(_read(directory, file, start, end), start, end)
        if len(found):
            yield found
            start = max(start, _end_of(found))
    found = _within(entries_in(located.tail), start, end)
    if len(found):
        yield found


def _end_of(entries: Column) -> int:
    return int(entries["first_offset"][-1]) + int(entries["messages"][-1])


def _read(directory: Path, file: IndexFile, start: int, end: int) -> Column:
    """Entries of a file, from the one that holds ``start`` if that is easy to find."""
    try:
        fd = os.open(directory / file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise IndexFileGone(file.path) from None
    try:
        # Without batches and holes entry i is at offset first + i.
        guess = start - file.first_offset
        if 0 <= guess < file.entries:
            count = min(end - start, file.entries - guess)
            found = _pread(fd, guess, count)
            if len(found) == count and int(found["first_offset"][0]) == start:
                return found
        return _pread(fd, 0, file.entries)
    finally:
        os.close(fd)


def _pread(fd: int, first: int, count: int) -> Column:
    data = os.pread(fd, count * ENTRY.itemsize, first * ENTRY.itemsize)
    return entries_in(data[: len(data) // ENTRY.itemsize * ENTRY.itemsize])


def _within(entries: Column, start: int, end: int) -> Column:
    """Those that hold any offset of [start, end), and ascend."""
    first = entries["first_offset"].astype(np.int64)
    behind = first + entries["messages"]
    is_in = (behind > start) & (first < end) & (entries["messages"] > 0) & (first >= 0)
    if not is_in.all():
        entries, first, behind = entries[is_in], first[is_in], behind[is_in]
    if (first[1:] < behind[:-1]).any():
        reached = np.maximum.accumulate(np.concatenate([[0], behind[:-1]]))
        entries = entries[first >= reached]
    return entries


# ---- views --------------------------------------------------------------------------------------
# Byte strings that lie anywhere in a few buffers as one Arrow column, made without a loop.
#
# Arrow's BinaryView is 16 bytes for each value: its length, then either the value itself (up to 12
# bytes) or its first 4 bytes, the number of a buffer and the place in it. numpy fills these in for
# all rows at once; the cast to an ordinary binary column copies every value in C. So a column costs
# the same whatever lies between two values in the log.
#
# | buffer 0      bytes made up by us: values that stand nowhere as they should be read
# | buffer 1 ...  segments of the log


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

    def take(self, rows: Column) -> Spans:
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
