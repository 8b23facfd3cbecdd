"""The reader: records from their positions, never believed unchecked.

Every record that leaves here has passed its crc and lies where it says. What cannot be given is
None and counted, apart: ``gone`` (its segment was removed) and ``corrupt`` (it is damaged; logged
with file and byte, P7). Neighbours are read together, through the page cache; nothing is mapped
(D22). Handles of a bounded number of segments are kept open.

``locate`` finds the record around any position inside it (D4: ``position + i``), walking frame
heads from the nearest mark; marks are noted every 64 KiB as walks pass by, for a bounded number of
segments.

Not here: the hot tail (``store.py``), recovery (``scan.py``).
"""

import errno
import logging
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from penstock.log.format import (
    FLAGS_MASK,
    HEAD_BYTES,
    HEADER_BYTES,
    HEADER_VERSION,
    TARGET_BYTES,
    FrameHead,
    Targets,
    decode,
    decode_record,
    padding_length,
    record_too_new,
)
from penstock.log.segment import Segment, SegmentSet, walk_heads
from penstock.log.storage import File, Storage
from penstock.model.record import Record, RecordKind, tag_hash

FILES_MAX: Final = 16
"""Segments kept open for reading: readers at a few places each, and descriptors are scarce."""
RUN_BYTES_MAX: Final = 1024 * 1024
"""Neighbours read by one call; more would only grow the buffer, not the speed."""
GAP_BYTES_MAX: Final = 4096
"""Reading over this many unwanted bytes costs less than a second call."""
READ_TRIES: Final = 2
"""Reads of a place that fails with EIO before it counts as damaged."""

MARK_BYTES: Final = 64 * 1024
SEGMENTS_MARKED_MAX: Final = 64
"""Segments whose marks are remembered: 8 KiB each when they are full."""
_WALK_BYTES: Final = 64 * 1024

_log = logging.getLogger(__name__)


class Located(NamedTuple):
    """The record around a position."""

    record: Record
    targets: Targets
    number: int
    """Which message of the batch, or which target of the fan-out, the position names (D4)."""


class LogReader:
    """Checked reads from the segments of one log."""

    def __init__(
        self, storage: Storage, segments: SegmentSet, *, files_max: int = FILES_MAX
    ) -> None:
        self._storage = storage
        self._segments = segments
        self._files_max = files_max
        self._files: OrderedDict[int, File] = OrderedDict()
        self._marks: OrderedDict[int, list[int]] = OrderedDict()
        self.gone_records = 0
        """Reads of records whose segment is not there any more."""
        self.corrupt_records = 0
        """Reads of records that are damaged."""
        self.reads = 0
        """Calls to the storage."""

    def read(self, position: int, length: int) -> Record | None:
        """The record of ``length`` bytes at ``position``; None when it is gone or corrupt."""
        return self.read_many(((position, length),))[0]

    def read_many(self, wanted: Sequence[tuple[int, int]]) -> list[Record | None]:
        """Records for (position, length) pairs, in their order; cheapest when positions ascend."""
        found: list[Record | None] = []
        at, count = 0, len(wanted)
        while at < count:
            start, length = wanted[at]
            end = start + length
            after = at + 1
            while after < count:
                position, length = wanted[after]
                if not end <= position <= end + GAP_BYTES_MAX:
                    break
                if position + length - start > RUN_BYTES_MAX:
                    break
                end = position + length
                after += 1
            found += self._read_run(wanted[at:after], start, end)
            at = after
        return found

    def locate(self, position: int) -> Located | None:
        """The record around ``position``; None when there is none, or it is gone or corrupt."""
        segment = self._segments.find(position)
        file = self._open(segment) if segment is not None else None
        if segment is None or file is None:
            self.gone_records += 1
            return None
        place = position - segment.base
        head = self._frame_around(file, segment, place)
        if head is None:
            return None
        start = head.base_position - segment.base
        if place < start + HEAD_BYTES:
            return None
        end = min(start + head.frame_len, segment.size_bytes)
        found = self._record_around(file, segment, (start + HEAD_BYTES, end), place)
        if found is None:
            found = self._salvaged_around(file, segment, head, place)
        if found is None:
            self._count_corrupt(segment, position)
            return None
        record, targets = found
        return Located(record, targets, position - record.position)

    def stretch(self, position: int, size: int) -> bytes:
        """Bytes of one frame, unchecked; fewer than asked for when some are not there."""
        segment = self._segments.find(position)
        file = self._open(segment) if segment is not None else None
        if segment is None or file is None:
            return b""
        return self._read(file, position - segment.base, size)

    def forget(self, segment: Segment) -> None:
        """Close what is open of a segment that is about to go."""
        self._marks.pop(segment.base, None)
        file = self._files.pop(segment.base, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _read_run(
        self, wanted: Sequence[tuple[int, int]], start: int, end: int
    ) -> list[Record | None]:
        """Neighbours by one call, if they share a segment."""
        segment = self._segments.find(start)
        if (segment is None or end > segment.end) and len(wanted) > 1:
            # The run begins or goes on in another segment, or some of it is gone: one by one.
            return [self._read_run((pair,), pair[0], sum(pair))[0] for pair in wanted]
        file = self._open(segment) if segment is not None else None
        if segment is None or file is None:
            self.gone_records += len(wanted)
            return [None] * len(wanted)
        data = self._read(file, start - segment.base, end - start)
        if not data and len(wanted) > 1:
            # A bad sector costs the records it holds, not their neighbours.
            return [self._read_run((pair,), pair[0], sum(pair))[0] for pair in wanted]
        found: list[Record | None] = []
        for position, _ in wanted:
            record = decode_record(data, position - start, position)
            if record is None:
                self._count_corrupt(segment, position)
            found.append(record)
        return found

    def _read(self, file: File, at: int, size: int) -> bytes:
        """Bytes of a segment; a sector that cannot be read is damage like any other.

        It is tried twice: a record that is called damaged is lost to its readers for good, and an
        error that passes (a path that failed over) must not do that.
        """
        for _ in range(READ_TRIES):
            self.reads += 1
            try:
                return file.read(at, size)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
        return b""

    def _open(self, segment: Segment) -> File | None:
        """The open file of a segment, None when retention has removed it."""
        file = self._files.get(segment.base)
        if file is not None:
            self._files.move_to_end(segment.base)
            return file
        try:
            file = self._storage.open(segment.path, create=False)
        except FileNotFoundError:
            return None
        self._files[segment.base] = file
        if len(self._files) > self._files_max:
            self._files.popitem(last=False)[1].close()
        return file

    def _frame_around(self, file: File, segment: Segment, place: int) -> FrameHead | None:
        """The head of the frame that holds byte ``place`` of a segment."""
        marks = self._marks.setdefault(segment.base, [0])
        self._marks.move_to_end(segment.base)
        if len(self._marks) > SEGMENTS_MARKED_MAX:
            self._marks.popitem(last=False)
        nearest = marks[bisect_right(marks, place) - 1]
        for head in walk_heads(file, segment, nearest):
            start = head.base_position - segment.base
            if start > place:
                return None
            if start >= marks[-1] + MARK_BYTES:
                marks.append(start)
            if place < start + head.frame_len:
                return head
        return None

    def _record_around(
        self, file: File, segment: Segment, span: tuple[int, int], place: int
    ) -> tuple[Record, Targets] | None:
        """Walk the lengths of a frame's records up to the one that holds ``place``."""
        at, end = span
        start, buffer = at, b""
        while at <= place:
            if at + 8 > start + len(buffer):
                start, buffer = at, self._read(file, at, min(_WALK_BYTES, end - at))
            length = int.from_bytes(buffer[at - start + 4 : at - start + 8], "little")
            if length < HEADER_BYTES or at + length > end:
                return None
            if place < at + length:
                data = self._read(file, at, length)
                return decode(data, 0, segment.base + at)
            at += length
        return None

    def _salvaged_around(
        self, file: File, segment: Segment, head: FrameHead, place: int
    ) -> tuple[Record, Targets] | None:
        """The same in a frame with a damaged record, which may have led the walk astray."""
        start = head.base_position - segment.base
        data = self._read(file, start, head.frame_len)
        base = head.base_position
        good, _ = salvage(data, HEAD_BYTES, len(data), base, head.records)
        for at, end in good:
            if at <= place - start < end:
                return decode(data, at, base + at)
        return None

    def _count_corrupt(self, segment: Segment, position: int) -> None:
        self.corrupt_records += 1
        _log.warning(
            "a record of the log is damaged and is left out",
            extra={"file": segment.path, "byte": position - segment.base, "position": position},
        )


# ---- salvage ------------------------------------------------------------------------------------
# Finding good records in bytes, whole frames at once or in what damage has left of them.
#
# A record is good when its crc fits and it says that it lies where it lies; so good records can be
# found without any help from what stands before them, in steps of 8 bytes.
#
# ``read_frame`` is the fast way: all records of a frame or None. ``salvage`` is the slow way for
# frames that are not whole: it gives the good records and the stretches between them.


ScannedRecord = tuple[int, int, int, int, int, int, int, int, int, Targets, bytes]
"""``(position, length, kind, flags, messages, store_ms, expire_ms, deliver_ms, tag_hash, targets,
payload)``: all that indexes and recovery need of a record. ``payload`` is the origin of settle,
release and stage-commit records and empty for messages, which stay on disk. A plain tuple, because
recovery makes millions of them."""

_BRIEF: Final = struct.Struct("<IIBxHHxBIQqxxxxxxxxqqxxxxxxHI")
"""The header fields of a scan: crc len kind flags targets version messages position store_ms
expire_ms deliver_ms tag_len tag_at."""
_CRC_LEN: Final = struct.Struct("<II")
_TARGET: Final = struct.Struct("<IQ")
_POSITION_AT: Final = 20
_SEARCH_STEPS: Final = 8192
"""Places looked at together when a good record is searched."""
_MESSAGE: Final = int(RecordKind.MESSAGE)


def read_frame(buffer: bytes, at: int, end: int, base: int) -> list[ScannedRecord] | None:
    """All records in ``buffer[at:end]``, or None when any of it is not a good record.

    ``base`` is the position of ``buffer[0]``; ``buffer`` reaches at least to ``end``.
    """
    found: list[ScannedRecord] = []
    add = found.append
    unpack, unpack_target = _BRIEF.unpack_from, _TARGET.unpack_from
    header_end_max = end - HEADER_BYTES
    while at < end:
        if at > header_end_max:
            return None
        (
            crc, length, kind, flags, count, version, messages, position, store_ms, expire_ms,
            deliver_ms, tag_len, tag_at,
        ) = unpack(buffer, at)  # fmt: skip
        after = at + length
        if position != base + at or length < HEADER_BYTES or after > end:
            return None
        if crc32c(buffer[at + 4 : after]) != crc:
            return None
        if version != HEADER_VERSION:
            raise record_too_new(version, position)
        start = at + HEADER_BYTES
        targets: Targets
        if count == 1:
            targets = (unpack_target(buffer, start),)
            start += TARGET_BYTES
        elif count:
            targets = tuple(_TARGET.iter_unpack(buffer[start : start + TARGET_BYTES * count]))
            start += TARGET_BYTES * count
        else:
            targets = ()
        tag = tag_hash(buffer[start + tag_at : start + tag_at + tag_len]) if tag_len else 0
        payload = (
            b""
            if kind == _MESSAGE
            else buffer[start : after - padding_length(buffer, after, flags)]
        )
        add((
            position, length, kind, flags & FLAGS_MASK, messages, store_ms, expire_ms, deliver_ms,
            tag, targets, payload,
        ))  # fmt: skip
        at = after
    return found


def good_length(buffer: bytes, at: int, end: int, base: int) -> int:
    """Length of the good record at ``buffer[at:]``; 0 when there is none."""
    if end - at < HEADER_BYTES:
        return 0
    crc, length = _CRC_LEN.unpack_from(buffer, at)
    if length < HEADER_BYTES or length & 7 or at + length > end:
        return 0
    stated = int.from_bytes(buffer[at + _POSITION_AT : at + _POSITION_AT + 8], "little")
    if stated != base + at or crc32c(buffer[at + 4 : at + length]) != crc:
        return 0
    return int(length)


def find_record(buffer: bytes, at: int, end: int, base: int) -> int:
    """The first place from ``at`` on, in steps of 8, with a good record; ``end`` if none."""
    while (steps := min(_SEARCH_STEPS, (end - at - HEADER_BYTES) // 8 + 1)) > 0:
        stated = struct.unpack_from(f"<{steps}Q", buffer, at + _POSITION_AT)
        for place, position in zip(range(at, at + 8 * steps, 8), stated, strict=True):
            if position == base + place and good_length(buffer, place, end, base):
                return place
        at += 8 * steps
    return end


def salvage(
    buffer: bytes, at: int, end: int, base: int, records: int | None
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Good records and damaged stretches of ``buffer[at:end]``, both as (start, end).

    ``records`` is how many there should be, if a good head says so. A damaged record's own length
    is believed only when that number comes out right: then nothing inside a damaged payload can
    pass for a record. Otherwise the nearest good record is where things go on.
    """
    if records is not None:
        good, bad = _pick(buffer, at, end, base, believes_lengths=True)
        if len(good) + len(bad) == records:
            return good, bad
    return _pick(buffer, at, end, base, believes_lengths=False)


def _pick(
    buffer: bytes, at: int, end: int, base: int, *, believes_lengths: bool
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    good: list[tuple[int, int]] = []
    bad: list[tuple[int, int]] = []
    while at < end:
        length = good_length(buffer, at, end, base)
        if length:
            good.append((at, at + length))
            at += length
            continue
        after = 0
        if believes_lengths and end - at >= HEADER_BYTES:
            claimed = _CRC_LEN.unpack_from(buffer, at)[1]
            is_likely = claimed >= HEADER_BYTES and not claimed & 7 and at + claimed <= end
            if is_likely and (at + claimed == end or good_length(buffer, at + claimed, end, base)):
                after = at + claimed
        if not after:
            after = find_record(buffer, at + 8, end, base)
        bad.append((at, after))
        at = after
    return good, bad
