"""The recovery scan: every good record from a position on, and the truth about the rest.

A scan walks frames in order and gives one list of records for each. A frame is good when its head
and all its records are. What is not falls into one of three classes, by the synced mark, which is
the largest ``durable_upto`` of any good head (D1):

* below the mark: **damage** (P7). Good records are given, damaged stretches reported with file and
  byte, and the scan goes on behind them; nothing is changed on disk.
* above the mark, nothing whole behind it: a **torn tail**, the write that the crash cut short.
* above the mark with whole frames behind it: a **torn frame**. It was never confirmed and is
  dropped as a unit (a frame is atomic), while the whole ones behind it stay.

``finish`` makes it so on disk: cuts the tail, drops torn frames (``repair.py``) and syncs what was
found above the mark, so that all that was given is durable from then on. A scan that is not
finished changes nothing and may run beside a living broker (``penstock log check``).

Memory: one window of 4 MiB or one frame, whichever is larger; one segment's rest after damage.

Not here: what the records mean (``store.py``), reading single records (``reader.py``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple

import msgspec

from penstock.log.format import HEAD_BYTES, FrameHead, Targets, parse_head
from penstock.log.reader import LogReader, ScannedRecord, read_frame, salvage
from penstock.log.repair import cut_tail, drop_frames, forget_old_cuts, remove_leftovers
from penstock.log.segment import LOG_DIR, Segment, SegmentSet, walk_heads
from penstock.log.storage import File, Storage
from penstock.model.errors import InvariantBroken
from penstock.model.record import Record, RecordFlag, RecordKind, Wire

WINDOW_BYTES: Final = 4 * 1024 * 1024
_NOWHERE: Final = -1


class LogScan:
    """One pass over the log; see the module's text."""

    def __init__(
        self,
        storage: Storage,
        segments: SegmentSet,
        *,
        from_position: int = 0,
        known_mark: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Begin at the frame at ``from_position``; ``known_mark`` is known to be durable.

        ``progress`` is called with the number of bytes read so far, about once per window.
        """
        self._storage = storage
        self._segments = segments
        self._progress = progress
        self._known_mark = max(known_mark, from_position)
        self._last_whole = _NOWHERE
        self._is_surveyed = False
        self._is_complete = False
        self._previous_crc: int | None = None
        self._tail: tuple[Segment, int] | None = None
        self._torn: dict[Segment, list[tuple[int, int]]] = {}
        self.report = ScanReport(from_position=from_position, durable_mark=self._known_mark)

    def batches(self) -> Iterator[list[ScannedRecord]]:
        """The good records of one frame after the other, in the order of the log."""
        report = self.report
        expected = _NOWHERE
        for segment in self._segments.at_or_after(report.from_position):
            if expected not in (_NOWHERE, segment.base):
                report.add_gap(expected, segment.base)
                self._previous_crc = None
            try:
                file = self._storage.open(segment.path, create=False)
            except FileNotFoundError:  # removed by a running broker since it was listed
                continue
            report.segments += 1
            try:
                at = max(0, report.from_position - segment.base)
                yield from self._segment(file, segment, at)
            finally:
                file.close()
            expected = segment.end
            if self._tail is not None:
                break
        self._conclude()

    def records(self) -> Iterator[ScannedRecord]:
        """The same, record by record; for those who are in no hurry."""
        for batch in self.batches():
            yield from batch

    def finish(self) -> ScanReport:
        """Put the log in order after a whole pass; the report says where to go on."""
        report, storage, segments = self.report, self._storage, self._segments
        if not self._is_complete:
            raise InvariantBroken("a log scan can be finished only after all of it has been read")
        remove_leftovers(storage)
        for segment, spans in self._torn.items():
            report.kept_as += drop_frames(storage, segment, spans, durable_upto=report.durable_mark)
        if self._tail is not None:
            segment, at = self._tail
            keeps_name = report.end_position >= segment.base
            report.kept_as += cut_tail(storage, segments, segment, at, keeps_name=keeps_name)
        if report.kept_as:
            forget_old_cuts(storage, report.kept_as)
        self._sync_above_mark()
        return report

    def _segment(self, file: File, segment: Segment, at: int) -> Iterator[list[ScannedRecord]]:
        """The frames of one segment from byte ``at`` on."""
        report, base, size = self.report, segment.base, segment.size_bytes
        end = at
        start, buffer = at, b""
        while at < size:
            if at + HEAD_BYTES > start + len(buffer) < size:
                start, buffer = at, self._window(file, segment, at, WINDOW_BYTES)
            head = parse_head(buffer, at - start, base + at)
            batch = None
            if head is not None:
                end = at + head.frame_len
                if start + len(buffer) < end <= size:
                    start, buffer = (
                        at,
                        self._window(file, segment, at, max(WINDOW_BYTES, head.frame_len)),
                    )
                batch = _whole_frame(buffer, at - start, head)
            if head is None or batch is None:
                at = yield from self._damaged(file, segment, at, head)
                continue
            self._note_head(head)
            report.frames += 1
            report.records += len(batch)
            at = end
            if batch:
                yield batch

    def _window(self, file: File, segment: Segment, at: int, size: int) -> bytes:
        data = file.read(at, min(size, segment.size_bytes - at))
        self.report.bytes_read += len(data)
        if self._progress is not None:
            self._progress(self.report.bytes_read)
        return data

    def _note_head(self, head: FrameHead) -> None:
        """Take mark, epoch and chain from a good head."""
        report = self.report
        report.durable_mark = max(report.durable_mark, head.durable_upto)
        report.epoch = max(report.epoch, head.epoch)
        previous = self._previous_crc
        if previous is not None and head.prev_head_crc not in (0, previous):
            report.chain_breaks += 1
        # The frame behind a void one continues the chain of what was there before.
        self._previous_crc = None if head.is_void else head.head_crc
        report.last_head_crc = head.head_crc

    def _damaged(
        self, file: File, segment: Segment, at: int, head: FrameHead | None
    ) -> Generator[list[ScannedRecord], None, int]:
        """Judge the bad frame at byte ``at``; returns the byte to go on at."""
        report, position, size = self.report, segment.base + at, segment.size_bytes
        self._survey(position)
        if head is not None:
            end = min(at + head.frame_len, size)
        else:
            following = next(walk_heads(file, segment, at + 8), None)
            end = size if following is None else following.base_position - segment.base
        self._previous_crc = None
        if position < report.durable_mark:
            batch = self._salvaged(file.read(at, end - at), segment, at, head)
            if batch:
                yield batch
            return end
        if position > self._last_whole:
            behind = sum(s.size_bytes for s in self._segments if s.base > segment.base)
            self._tail = (segment, at)
            report.torn_tail = Damage(segment.path, at, position, size - at + behind, "tail")
            return size
        self._torn.setdefault(segment, []).append((at, end))
        report.dropped.append(Damage(segment.path, at, position, end - at, "frame"))
        return end

    def _survey(self, position: int) -> None:
        """Once, at the first bad frame: the final mark, and where the last whole frame is.

        Marks never decrease, so the last good head of all has the largest: looking from the end,
        one segment is usually enough.
        """
        if self._is_surveyed:
            return
        self._is_surveyed = True
        report = self.report
        for segment in reversed(self._segments.at_or_after(position)):
            try:
                file = self._storage.open(segment.path, create=False)
            except FileNotFoundError:
                continue
            try:
                places = array("Q")
                for head in walk_heads(file, segment, max(0, position - segment.base)):
                    places.append(head.base_position - segment.base)
                    report.durable_mark = max(report.durable_mark, head.durable_upto)
                for place in reversed(places):
                    if _is_whole(file, segment, place):
                        self._last_whole = segment.base + place
                        return
            finally:
                file.close()

    def _salvaged(
        self, data: bytes, segment: Segment, at: int, head: FrameHead | None
    ) -> list[ScannedRecord]:
        """The good records of a damaged frame; the rest is reported."""
        report, position = self.report, segment.base + at

        def damaged(start: int, end: int, what: str) -> None:
            report.add_damage(Damage(segment.path, at + start, position + start, end - start, what))

        expected = None
        if head is None:
            damaged(0, min(HEAD_BYTES, len(data)), "frame head")
        else:
            self._note_head(head)
            expected = head.records
        good, bad = salvage(data, HEAD_BYTES, len(data), position, expected)
        for start, end in bad:
            damaged(start, end, "record")
        if head is not None and (len(data) < head.frame_len or not bad):
            damaged(len(data), head.frame_len, "end of a frame: missing bytes")
        batch: list[ScannedRecord] = []
        for start, end in good:
            batch += read_frame(data, start, end, position) or ()
        report.frames += 1
        report.records += len(batch)
        report.records_lost += len(bad) if expected is None else max(0, expected - len(good))
        return batch

    def _conclude(self) -> None:
        """The end of the log as this scan sees it."""
        report = self.report
        self._tail = _widened(self._tail, list(self._segments), report.durable_mark)
        end = report.from_position
        if self._tail is not None:
            end = self._end_before_tail(*self._tail)
        elif self._segments.last is not None:
            end = self._segments.last.end
        if end < report.durable_mark:
            report.missing_tail = (end, report.durable_mark)
        # Positions that were durable once are never given to other bytes.
        report.end_position = (max(end, report.durable_mark) + 7) & -8
        self._is_complete = True

    def _end_before_tail(self, segment: Segment, at: int) -> int:
        """Where the log will end once the tail is cut.

        If all of a segment goes, what is missing before it goes with it, unless it was durable or
        removed: then the segment stays, empty, and its name says which positions were given away.
        """
        earlier = [s for s in self._segments if s.base < segment.base]
        if at or not earlier or earlier[-1].end < self.report.durable_mark:
            return segment.base + at
        gaps = self.report.gaps
        while gaps and gaps[-1][1] <= segment.base and gaps[-1][0] >= earlier[-1].end:
            gaps.pop()
        return earlier[-1].end

    def _sync_above_mark(self) -> None:
        """What a killed process wrote is in the page cache only: make it as good as it looks."""
        for segment in self._segments.at_or_after(self.report.durable_mark):
            file = self._storage.open(segment.path, create=False)
            try:
                file.sync()
            finally:
                file.close()
        if len(self._segments):
            self._storage.sync_dir(LOG_DIR)


def _whole_frame(buffer: bytes, at: int, head: FrameHead) -> list[ScannedRecord] | None:
    """The records of a frame if all of it is good, else None."""
    if at + head.frame_len > len(buffer):
        return None
    if head.is_void:
        return []
    records = read_frame(buffer, at + HEAD_BYTES, at + head.frame_len, head.base_position - at)
    return None if records is None or len(records) != head.records else records


def _is_whole(file: File, segment: Segment, at: int) -> bool:
    head = parse_head(file.read(at, HEAD_BYTES), 0, segment.base + at)
    if head is None or at + head.frame_len > segment.size_bytes:
        return False
    return _whole_frame(file.read(at, head.frame_len), 0, head) is not None


def _widened(
    tail: tuple[Segment, int] | None, segments: list[Segment], mark: int
) -> tuple[Segment, int] | None:
    """Empty segments at the end, behind bytes that never reached the disk, are tail as well."""
    first = len(segments)
    if tail is not None:
        if tail[1]:
            return tail
        first = segments.index(tail[0])
    at = first - 1
    while at > 0 and segments[at].size_bytes == 0:
        if mark <= segments[at - 1].end < segments[at].base:
            first = at
        at -= 1
    return (segments[first], 0) if first < len(segments) else None


# ---- scan report --------------------------------------------------------------------------------
# What a scan of the log found, in numbers and in sentences for the person who must know (P7).


DAMAGES_KEPT_MAX: Final = 1000
"""Damaged stretches and gaps described one by one; beyond that they are only counted."""


class Damage(NamedTuple):
    """One stretch of the log that cannot be read."""

    path: str
    """File, relative to the data directory."""
    offset: int
    """Byte in that file."""
    position: int
    """Log position of that byte."""
    length: int
    what: str
    """"frame head", "record" ..."""

    def __str__(self) -> str:
        return f"{self.path} byte {self.offset}: damaged {self.what} ({self.length} bytes)"


class ScanReport(msgspec.Struct):
    """Counters and findings of one scan; complete once the scan has been finished."""

    from_position: int = 0
    end_position: int = 0
    """Where the next frame goes; known after ``LogScan.finish`` or a whole walk."""
    durable_mark: int = 0
    """Everything below was synced for certain."""
    last_head_crc: int = 0
    """``head_crc`` of the last frame, for the chain to go on; 0 when none was read."""
    epoch: int = 0
    """Largest epoch seen."""
    segments: int = 0
    frames: int = 0
    records: int = 0
    bytes_read: int = 0
    records_lost: int = 0
    """Records known or believed to have been in damaged stretches."""
    damage_count: int = 0
    damages: list[Damage] = msgspec.field(default_factory=list)
    gaps: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """[from, to) positions between segments that are in no file: removed, or lost."""
    missing_tail: tuple[int, int] | None = None
    """[end of the log, synced mark) when bytes known to be synced are not there."""
    chain_breaks: int = 0
    """Frames that do not follow the frame before them."""
    torn_tail: Damage | None = None
    """Bytes of an unfinished write at the end: cut, and kept aside, by ``LogScan.finish``."""
    dropped: list[Damage] = msgspec.field(default_factory=list)
    """Frames torn before they were durable with whole ones behind them: dropped as units."""
    kept_as: list[str] = msgspec.field(default_factory=list)
    """Files into which cut and dropped bytes were put."""

    @property
    def is_damaged(self) -> bool:
        """True when something that was synced cannot be read; a torn tail is not damage."""
        return bool(self.damage_count or self.chain_breaks or self.missing_tail)

    def add_damage(self, damage: Damage) -> None:
        """Count one damaged stretch and describe it if there is room."""
        self.damage_count += 1
        if len(self.damages) < DAMAGES_KEPT_MAX:
            self.damages.append(damage)

    def add_gap(self, start: int, end: int) -> None:
        """Note positions that no segment holds."""
        if len(self.gaps) < DAMAGES_KEPT_MAX:
            self.gaps.append((start, end))

    def sentences(self) -> list[str]:
        """The findings, one sentence each, worst first; empty when all is well."""
        lines = [str(damage) for damage in self.damages]
        if self.damage_count > len(self.damages):
            lines.append(f"and {self.damage_count - len(self.damages)} more damaged stretches")
        if self.missing_tail is not None:
            start, end = self.missing_tail
            lines.append(
                f"the log ends at position {start} although everything up to {end} was synced; "
                f"{end - start} bytes are missing"
            )
        if self.chain_breaks:
            lines.append(f"{self.chain_breaks} frames do not follow the frame before them")
        lines += [f"no segment holds positions {start} to {end}" for start, end in self.gaps]
        for damage in self.dropped:
            lines.append(
                f"{damage.path} byte {damage.offset}: {damage.length} bytes of unfinished writes, "
                "dropped; none of it was known to be synced"
            )
        if self.torn_tail is not None:
            lines.append(
                f"{self.torn_tail.path} byte {self.torn_tail.offset}: the log ends in an "
                f"unfinished write of {self.torn_tail.length} bytes"
                + (f", cut and kept in {', '.join(self.kept_as)}" if self.kept_as else "")
            )
        return lines


# ---- inspect ------------------------------------------------------------------------------------
# Looking into a log without touching it: for ``penstock log check`` and ``penstock log dump``.
#
# Nothing here writes, locks or cuts, so it may run on a copy, on a read-only mount or beside a
# living broker. Beside one, an unfinished write at the end is usually just the write of this
# moment.


class SeenRecord(msgspec.Struct, frozen=True):
    """One record as a person wants to see it."""

    position: int
    length: int
    kind: str
    wire: str
    flags: list[str]
    messages: int
    priority: int
    store_ms: int
    born_ms: int
    expire_ms: int
    deliver_ms: int
    targets: list[tuple[int, int]]
    """(queue, offset of its first message there)."""
    key: str
    tag: str
    body_bytes: int
    body: bytes
    """The payload; for records that are not messages all origin bytes."""


def log_bytes(storage: Storage) -> int:
    """How much there is to walk."""
    return SegmentSet.load(storage).size_bytes


def check(storage: Storage, *, progress: Callable[[int], None] | None = None) -> ScanReport:
    """Walk every frame and record; the report says what is wrong, if anything."""
    scan = LogScan(storage, SegmentSet.load(storage), progress=progress)
    for _ in scan.batches():
        pass
    return scan.report


class Dump:
    """Records from a position on; ``report`` tells what was met on the way."""

    def __init__(self, storage: Storage, *, from_position: int = 0) -> None:
        segments = SegmentSet.load(storage)
        first = segments.find(from_position)
        # A scan begins at a frame, and the only frame whose place is known is a segment's first.
        start = from_position if first is None else first.base
        self._from_position = from_position
        self._reader = LogReader(storage, segments)
        self._scan = LogScan(storage, segments, from_position=start)

    @property
    def report(self) -> ScanReport:
        """Findings so far; complete when ``records`` has been read to its end."""
        return self._scan.report

    def records(self) -> Iterator[SeenRecord]:
        """Every good record that ends behind the given position."""
        try:
            for position, length, *_, targets, _ in self._scan.records():
                if position + length <= self._from_position:
                    continue
                record = self._reader.read(position, length)
                if record is not None:
                    yield _seen(record, length, targets)
        finally:
            self._reader.close()


def _seen(record: Record, length: int, targets: Targets) -> SeenRecord:
    is_message = record.kind == RecordKind.MESSAGE
    return SeenRecord(
        position=record.position,
        length=length,
        kind=_name(RecordKind, record.kind),
        wire=_name(Wire, record.wire),
        flags=[
            flag.name.lower()
            for flag in RecordFlag
            if record.flags & flag and flag.name is not None
        ],
        messages=record.messages,
        priority=record.shape.priority,
        store_ms=record.store_ms,
        born_ms=record.born_ms,
        expire_ms=record.expire_ms,
        deliver_ms=record.deliver_ms,
        targets=[(queue_id, offset) for queue_id, offset in targets],
        key=record.key.decode("utf-8", "backslashreplace"),
        tag=record.tag.decode("utf-8", "backslashreplace"),
        body_bytes=record.shape.body_len,
        body=record.body if is_message else record.origin,
    )


def _name(meanings: type[RecordKind] | type[Wire], value: int) -> str:
    """The word for a number; the number itself when it has none."""
    try:
        return meanings(value).name.lower()
    except ValueError:
        return str(value)
