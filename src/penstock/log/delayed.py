"""Delayed records that have no offset yet, by the hour they are due in (D14).

``delayed/<hour>-<number>.due`` is an append-only list of 24 byte notes: ``deliver_ms i64,
position u64, length u32, kind u32`` (1 = delayed, 2 = released or cancelled). What is pending in an
hour is what was delayed and not released. Only hours that someone asks about are read; the timer
wheel asks for the next ten minutes at a time through ``due``.

* Everything below ``horizon_ms`` has been given out by ``due``: whoever appends a record that is
  due before it must arm it directly.
* A file goes when nothing in it is pending any more, and is written anew when most of it is over:
  records that wait for a decision and not for a time all lie in one far hour.

Like every side file it is made again from the log when it is lost (``recovery.py``).

``DelayedSpill`` is the same for what single subscriptions put aside, by monotonic hour and only for
the life of a process.

Not here: the wheel and the release itself (``engine/delay.py``).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final

from penstock.log.encode import DelayedAppend
from penstock.log.format import Release
from penstock.log.retention import Retention
from penstock.log.side_files import SideFiles
from penstock.model.record import RecordFlag

DELAYED_DIRECTORY: Final = "delayed"
HOUR_MS: Final = 3_600_000
NOTE: Final = Struct("<qQII")
READ_BYTES: Final = NOTE.size * 65536
FLUSH_BYTES: Final = 64 * 1024
"""Notes of all hours kept in memory before they are handed over for writing."""
COMPACT_BYTES: Final = 4 * 1024 * 1024
"""A file below this is not worth writing anew."""
COMPACT_SHARE: Final = 8
"""A file is written anew when it holds this many times the notes that are pending."""

_PLACE_BYTES: Final = 16
"""Time and position, with which a note begins."""
_DELAYED: Final = 1
_RELEASED: Final = 2

Due = tuple[int, int, int]
"""(deliver_ms, position, length)"""


class Hour:
    """The notes of one hour: those on file, and those that are not there yet."""

    __slots__ = ("buffer", "live", "number", "path", "planned_bytes", "written_bytes")

    def __init__(self, number: int, path: str, *, written_bytes: int = 0) -> None:
        self.number: Final = number
        self.path = path
        self.written_bytes = written_bytes
        self.buffer = bytearray()
        """Notes not on file; the first ``planned_bytes`` are on their way there."""
        self.planned_bytes = 0
        self.live: int | None = None
        """How many are pending; None until someone has read what was there before."""

    @property
    def is_on_file(self) -> bool:
        """True when there is, or will soon be, a file."""
        return self.written_bytes > 0 or self.planned_bytes > 0


class DelayedFiles:
    """Pending delayed records by the hour they are due in."""

    def __init__(self, files: SideFiles) -> None:
        self._files = files
        self._hours: dict[int, Hour] = {}
        self._by_path: dict[str, Hour] = {}
        self._files_begun = 0
        self._unplanned_bytes = 0
        self.is_counting = True
        """False in recovery, where releases are met of records whose segment is gone."""
        self.horizon_ms = 0
        """Everything due before this was given out."""

    def add(self, deliver_ms: int, position: int, length: int) -> None:
        """A delayed record was appended."""
        hour = self._note(deliver_ms, position, length, _DELAYED)
        if hour.live is not None:
            hour.live += 1

    def remove(self, deliver_ms: int, position: int) -> None:
        """It was released or cancelled."""
        hour = self._note(deliver_ms, position, 0, _RELEASED)
        if hour.live is not None:
            hour.live -= 1
            self._drop_if_over(hour)

    def due(self, upto_ms: int) -> list[Due]:
        """Pending records due before ``upto_ms`` and not given out yet, earliest first."""
        found: list[Due] = []
        if upto_ms <= self.horizon_ms:
            return found
        for hour in [*self._hours.values()]:
            begin_ms = hour.number * HOUR_MS
            if begin_ms < upto_ms and begin_ms + HOUR_MS > self.horizon_ms:
                pending = self._pending(hour)
                found += [due for due in pending if self.horizon_ms <= due[0] < upto_ms]
                self._drop_if_over(hour)
        self.horizon_ms = upto_ms
        found.sort()
        return found

    def pending(self, deliver_ms: int) -> list[Due]:
        """What is pending in the hour of that time; it counts as neither due nor given out."""
        hour = self._hours.get(deliver_ms // HOUR_MS)
        return self._pending(hour) if hour is not None else []

    def is_pending(self, deliver_ms: int, position: int) -> bool:
        """Whether the record there, due then, was neither released nor cancelled.

        The notes are searched as bytes: an hour may have a million of them.
        """
        hour = self._hours.get(deliver_ms // HOUR_MS)
        if hour is None:
            return False
        begin = NOTE.pack(deliver_ms, position, 0, 0)[:_PLACE_BYTES]
        over = NOTE.pack(deliver_ms, position, 0, _RELEASED)
        is_noted = False
        on_file = hour.written_bytes
        for at in range(0, on_file, READ_BYTES):
            notes = self._files.read(hour.path, at, min(READ_BYTES, on_file - at))
            if _has(notes, over):
                return False
            is_noted = is_noted or _has(notes, begin)
        return (is_noted or _has(hour.buffer, begin)) and not _has(hour.buffer, over)

    def plan_flush(self) -> None:
        """Hand every note that is not on file to the commit thread."""
        for hour in self._hours.values():
            self._compact_if_stale(hour)
            if hour.planned_bytes < len(hour.buffer):
                self._files.append(hour.path, bytes(hour.buffer[hour.planned_bytes :]), self)
                hour.planned_bytes = len(hour.buffer)
        self._unplanned_bytes = 0

    def written(self, path: str, size: int) -> None:
        hour = self._by_path.get(path)
        if hour is not None:  # else the file is about to go
            hour.written_bytes += size
            del hour.buffer[:size]
            hour.planned_bytes -= size

    def restore(self, paths: Sequence[str]) -> None:
        """Go on from files that were checked against their rows."""
        for path in paths:
            number, _, begun = path.rpartition("/")[2].removesuffix(".due").partition("-")
            hour = Hour(int(number), path, written_bytes=self._files.planned_size(path))
            self._hours[hour.number] = self._by_path[path] = hour
            self._files_begun = max(self._files_begun, int(begun))

    @property
    def hours(self) -> int:
        return len(self._hours)

    def _note(self, deliver_ms: int, position: int, length: int, kind: int) -> Hour:
        number = deliver_ms // HOUR_MS
        hour = self._hours.get(number)
        if hour is None:
            path = self._new_path(number)
            hour = self._hours[number] = self._by_path[path] = Hour(number, path)
            hour.live = 0 if self.is_counting else None
        hour.buffer += NOTE.pack(deliver_ms, position, length, kind)
        self._unplanned_bytes += NOTE.size
        if self._unplanned_bytes >= FLUSH_BYTES:
            self.plan_flush()
        return hour

    def _new_path(self, number: int) -> str:
        # Never the name of a file that went: it stays until a snapshot says that it is gone.
        self._files_begun += 1
        return f"{DELAYED_DIRECTORY}/{number:010d}-{self._files_begun:010d}.due"

    def _pending(self, hour: Hour) -> list[Due]:
        pending: dict[int, Due] = {}
        on_file = hour.written_bytes
        for at in range(0, on_file, READ_BYTES):
            _apply(self._files.read(hour.path, at, min(READ_BYTES, on_file - at)), pending)
        _apply(bytes(hour.buffer), pending)
        hour.live = len(pending)
        return list(pending.values())

    def _drop_if_over(self, hour: Hour) -> None:
        if hour.live == 0:
            del self._hours[hour.number], self._by_path[hour.path]
            if hour.is_on_file:
                self._files.remove(hour.path)

    def _compact_if_stale(self, hour: Hour) -> None:
        """Write the pending notes of a file anew when they are the least part of it."""
        on_file = hour.written_bytes
        if hour.live is None or hour.planned_bytes or on_file < COMPACT_BYTES:
            return
        if on_file > hour.live * NOTE.size * COMPACT_SHARE:
            notes = [NOTE.pack(*due, _DELAYED) for due in self._pending(hour)]
            self._files.remove(hour.path)
            del self._by_path[hour.path]
            hour.path = self._new_path(hour.number)
            self._by_path[hour.path] = hour
            hour.buffer, hour.written_bytes = bytearray(b"".join(notes)), 0


def _has(notes: bytes | bytearray, wanted: bytes) -> bool:
    """Whether some note begins with these bytes."""
    at = notes.find(wanted)
    while at % NOTE.size and at >= 0:
        at = notes.find(wanted, at + 1)
    return at >= 0


def _apply(notes: bytes, pending: dict[int, Due]) -> None:
    for deliver_ms, position, length, kind in NOTE.iter_unpack(notes):
        if kind == _DELAYED:
            pending[position] = (deliver_ms, position, length)
        else:
            pending.pop(position, None)


# ---- delay tracker ------------------------------------------------------------------------------
# What a delayed or release record changes besides indexes, in the append and in recovery alike.
#
# A delayed record is noted under its hour and pins its segment; a release (or cancel, with no
# targets) ends both, and its entries keep the original's segment as long as they are needed.


_IS_DELAYED: Final = int(RecordFlag.DELAYED)


class DelayTracker:
    """Keeps hour files and segment uses in step."""

    __slots__ = ("_delayed", "_retention")

    def __init__(self, delayed: DelayedFiles, retention: Retention) -> None:
        self._delayed = delayed
        self._retention = retention

    def note(self, delayed_appends: Iterable[DelayedAppend]) -> None:
        """Delayed and release records were appended."""
        for appending, length, release in delayed_appends:
            record = appending.record
            if release is not None:
                ends = [
                    (index.queue_id, offset + record.messages)
                    for index, offset in zip(appending.queues, appending.first_offsets, strict=True)
                ]
                self.released(record.deliver_ms, release, record.position, ends)
            elif record.flags & _IS_DELAYED:
                self.delayed(record.deliver_ms, record.position, length)

    def delayed(self, deliver_ms: int, position: int, length: int) -> None:
        """A record that gets its offsets later was stored."""
        self._delayed.add(deliver_ms, position, length)
        self._retention.note_delayed(position, 1)

    def released(
        self, deliver_ms: int, release: Release, position: int, ends: Iterable[tuple[int, int]]
    ) -> None:
        """It got offsets up to these (queue_id, end offset)s, or none and never will.

        ``position`` is that of the release record.
        """
        self._delayed.remove(deliver_ms, release.position)
        self._retention.note_released(release.position, position, ends)


# ---- spill --------------------------------------------------------------------------------------
# What single subscriptions put aside until its time, beyond what memory holds.


SPILL_DIRECTORY: Final = "spill"
SPILL_NOTE: Final = Struct("<qIQI")
SPILL_READ_BYTES: Final = SPILL_NOTE.size * 65536
SPILL_UNWRITTEN_MAX: Final = 4 * 1024 * 1024
"""Bytes of notes that may wait for a disk that takes none."""
SPILL_COMPACT_NOTES: Final = 65536
"""A file with fewer is not worth writing anew."""

SpillNote = tuple[int, int, int, int]
"""(due by monotonic time, number of who put it aside, first offset, messages); sorted like that."""


class SpillHour:
    """The notes of one hour, and whose they are."""

    __slots__ = ("buffer", "counts", "dead", "number", "path", "planned_bytes", "written_bytes")

    def __init__(self, number: int, path: str) -> None:
        self.number: Final = number
        self.path = path
        self.written_bytes = 0
        self.buffer = bytearray()
        """Notes not on file; the first ``planned_bytes`` are on their way there."""
        self.planned_bytes = 0
        self.counts: dict[int, int] = {}
        """How many notes each owner has here."""
        self.dead = 0
        """Notes of owners that are forgotten."""

    @property
    def notes(self) -> int:
        return (self.written_bytes + len(self.buffer)) // SPILL_NOTE.size


class DelayedSpill:
    """(due, owner, offset) of delayed messages by hour, for the life of this process.

    Nothing of it must survive: after a restart a cursor reads from its low mark on and puts aside
    anew what is not due. So the files have no rows and no syncs, are unlinked at open, and their
    times are monotonic, which no step of the clock moves.

    A note says when, never whether: its owner knows what is still aside. So nothing is written when
    a message is settled, and a note may be read twice. A file goes when its hour is over or its
    owners are forgotten, and is written anew when half of it is forgotten owners'.

    Bounds: ``notes_max`` notes on disk, ``FLUSH_BYTES`` of them in memory before they are handed
    over and ``SPILL_UNWRITTEN_MAX`` until they are written; beyond that ``has_room`` is False.
    """

    def __init__(self, files: SideFiles, notes_max: int = 0) -> None:
        self._files = files
        self._hours: dict[int, SpillHour] = {}
        self._by_path: dict[str, SpillHour] = {}
        self._files_begun = 0
        self._unplanned_bytes = 0
        self._unwritten_bytes = 0
        self.notes = 0
        self.notes_max = notes_max
        self.on_room: Callable[[], None] | None = None
        """Called when there may be room again."""

    @property
    def has_room(self) -> bool:
        return self.notes < self.notes_max and self._unwritten_bytes < SPILL_UNWRITTEN_MAX

    def add(self, note: SpillNote) -> None:
        number = note[0] // HOUR_MS
        hour = self._hours.get(number)
        if hour is None:
            hour = self._hours[number] = SpillHour(number, "")
            self._begin_file(hour)
        hour.buffer += SPILL_NOTE.pack(*note)
        hour.counts[note[1]] = hour.counts.get(note[1], 0) + 1
        self.notes += 1
        self._unplanned_bytes += SPILL_NOTE.size
        self._unwritten_bytes += SPILL_NOTE.size
        if self._unplanned_bytes >= FLUSH_BYTES:
            self._plan_flush()

    def take(
        self, start: SpillNote, end_ms: int, count_max: int
    ) -> tuple[list[SpillNote], SpillNote | None]:
        """The first notes from ``start`` on that are due before ``end_ms``, and the next, if any.

        Those of forgotten owners are among them.
        """
        found: list[SpillNote] = []
        start_ms = start[0]
        for hour in self._hours.values():
            begin_ms = hour.number * HOUR_MS
            if begin_ms < end_ms and begin_ms + HOUR_MS > start_ms:
                for notes in self._read(hour):
                    found += [each for each in notes if start_ms <= each[0] < end_ms]
        found.sort()
        # Of those due in the very millisecond of ``start`` some come before it.
        begin = bisect_left(found, start)
        end = begin + count_max
        return found[begin:end], found[end] if end < len(found) else None

    def end_hours(self, now_ms: int) -> None:
        """What was due in the hours before this one is nobody's any more."""
        for hour in [*self._hours.values()]:
            if (hour.number + 1) * HOUR_MS <= now_ms:
                self._drop(hour)

    def forget(self, owner: int) -> None:
        """Nothing that this one put aside is asked for again."""
        for hour in [*self._hours.values()]:
            count = hour.counts.pop(owner, 0)
            hour.dead += count
            if not hour.counts:
                self._drop(hour)
            elif count and 2 * hour.dead >= hour.notes >= SPILL_COMPACT_NOTES:
                self._compact(hour)

    def written(self, path: str, size: int) -> None:
        self._unwritten_bytes -= size
        hour = self._by_path.get(path)
        if hour is not None:  # else the file is about to go
            hour.written_bytes += size
            del hour.buffer[:size]
            hour.planned_bytes -= size
        self._tell_room()

    def _plan_flush(self) -> None:
        for hour in self._hours.values():
            if hour.planned_bytes < len(hour.buffer):
                data = bytes(hour.buffer[hour.planned_bytes :])
                self._files.append(hour.path, data, self, is_kept=False)
                hour.planned_bytes = len(hour.buffer)
        self._unplanned_bytes = 0

    def _begin_file(self, hour: SpillHour) -> None:
        self._files_begun += 1
        hour.path = f"{SPILL_DIRECTORY}/{hour.number:010d}-{self._files_begun:010d}.due"
        self._by_path[hour.path] = hour

    def _read(self, hour: SpillHour) -> Iterable[Iterable[SpillNote]]:
        on_file = hour.written_bytes
        for at in range(0, on_file, SPILL_READ_BYTES):
            notes = self._files.read(hour.path, at, min(SPILL_READ_BYTES, on_file - at))
            yield SPILL_NOTE.iter_unpack(notes)
        yield SPILL_NOTE.iter_unpack(bytes(hour.buffer))

    def _drop(self, hour: SpillHour) -> None:
        del self._hours[hour.number]
        self._end_file(hour)
        self.notes -= hour.notes
        self._tell_room()

    def _end_file(self, hour: SpillHour) -> None:
        del self._by_path[hour.path]
        unplanned = len(hour.buffer) - hour.planned_bytes
        self._unplanned_bytes -= unplanned
        self._unwritten_bytes -= unplanned
        if hour.written_bytes or hour.planned_bytes:
            self._files.discard(hour.path)

    def _compact(self, hour: SpillHour) -> None:
        alive = [
            SPILL_NOTE.pack(*note)
            for notes in self._read(hour)
            for note in notes
            if note[1] in hour.counts
        ]
        self._end_file(hour)
        self._begin_file(hour)
        hour.buffer, hour.written_bytes = bytearray(b"".join(alive)), 0
        hour.planned_bytes = 0
        self.notes -= hour.dead
        hour.dead = 0
        self._unplanned_bytes += len(hour.buffer)
        self._unwritten_bytes += len(hour.buffer)
        self._plan_flush()
        self._tell_room()

    def _tell_room(self) -> None:
        if self.on_room is not None and self.has_room:
            self.on_room()
