"""From index entries to the headers of their records: one gather for each segment.

``gather`` looks every record's header up and judges it: a record is *good* when it lies where its
entry says, with that length, as a message of a version we know, and with spans inside it. The rest
is lost to the reader. Bytes are checked against the crc only when asked for: that is a call for
each record, and costs more than all the rest.

Invariant: of a good record every span can be read.

Not here: columns (``columns.py``), which entries (``entries.py``).
"""

from typing import Any, Final

import numpy as np
from google_crc32c import value as crc32c

from penstock.bulk.layout import HEADER, Column, headers_at, picked, plain
from penstock.bulk.segments import MappedSegment, SegmentMaps
from penstock.bulk.views import PLACE_MAX, Buffers, Spans
from penstock.log.format import (
    HEADER_BYTES,
    HEADER_VERSION,
    LONG_PAD,
    PAD_SHIFT,
    TARGET_BYTES,
    decode_record,
)
from penstock.model.record import Record, RecordKind

_MESSAGE: Final = int(RecordKind.MESSAGE)


class Gathered:
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
        """1 for the first segment, as in ``views.Buffers``."""
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

    def take(self, rows: Column) -> "Gathered":
        """Some of the records, in any order."""
        return Gathered(
            picked(self.entries, rows),
            picked(self.headers, rows),
            self._segments,
            self._numbers[rows],
            self._places[rows],
        )


class DamagedRecord(Exception):
    """A record that had to be read as a whole fails its checksum; the argument is its position."""


def gather(maps: SegmentMaps, entries: Column, *, is_checked: bool) -> tuple[Gathered, Column]:
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
    gathered = Gathered(entries, headers, segments, numbers, places)
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
