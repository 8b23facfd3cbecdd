"""Delayed records that have no offset yet, by the hour they are due in (D14).

``delayed/<hour>.due`` is an append-only list of 24 byte notes: ``deliver_ms i64, position u64,
length u32, kind u32`` (1 = delayed, 2 = released or cancelled). What is pending in an hour is what
was delayed and not released. Only hours that someone asks about are read; the timer wheel asks for
the next ten minutes at a time through ``due``.

* Everything below ``horizon_ms`` has been given out by ``due``: whoever appends a record that is
  due before it must arm it directly.
* A file goes when nothing in it is pending any more, and is written anew when most of it is over:
  records that wait for a decision and not for a time all lie in one far hour.

Like every side file it is made again from the log when it is lost (``recovery.py``).

Not here: the wheel and the release itself (``engine/delay.py``).
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from penstock.log.side_files import SideFiles

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

_DELAYED: Final = 1
_RELEASED: Final = 2

Due = tuple[int, int, int]
"""(deliver_ms, position, length)"""


class DelayedFiles:
    """Notes by hour: those on file, those not written yet, and how many are pending."""

    def __init__(self, files: SideFiles) -> None:
        self._files = files
        self._buffers: dict[int, bytearray] = {}
        self._planned: dict[int, int] = {}
        self._written: dict[int, int] = {}
        # hour -> how many are pending; absent for hours on file that nobody has read yet.
        self._live: dict[int, int] = {}
        self._unplanned_bytes = 0
        self.horizon_ms = 0
        """Everything due before this was given out."""

    def add(self, deliver_ms: int, position: int, length: int) -> None:
        """A delayed record was appended."""
        self._note(deliver_ms, position, length, _DELAYED)

    def remove(self, deliver_ms: int, position: int) -> None:
        """It was released or cancelled."""
        self._note(deliver_ms, position, 0, _RELEASED)
        self._drop_if_over(deliver_ms // HOUR_MS)

    def due(self, upto_ms: int) -> list[Due]:
        """Pending records due before ``upto_ms`` and not given out yet, earliest first."""
        found: list[Due] = []
        if upto_ms <= self.horizon_ms:
            return found
        for hour in self._hours():
            if (hour + 1) * HOUR_MS <= self.horizon_ms or hour * HOUR_MS >= upto_ms:
                continue
            pending = self._pending(hour)
            found += [due for due in pending if self.horizon_ms <= due[0] < upto_ms]
            self._drop_if_over(hour)
        self.horizon_ms = upto_ms
        found.sort()
        return found

    def pending(self, deliver_ms: int) -> list[Due]:
        """What is pending in the hour of that time; it counts as neither due nor given out."""
        return self._pending(deliver_ms // HOUR_MS)

    def plan_flush(self) -> None:
        """Hand every note that is not on file to the commit thread."""
        for hour in [*self._buffers]:
            self._compact_if_stale(hour)
            buffer, planned = self._buffers[hour], self._planned[hour]
            if planned < len(buffer):
                self._files.append(_path(hour), bytes(buffer[planned:]), self)
                self._planned[hour] = len(buffer)
        self._unplanned_bytes = 0

    def written(self, path: str, size: int) -> None:
        """Notes are on file now."""
        hour = _hour_of(path)
        self._written[hour] = self._written.get(hour, 0) + size
        buffer = self._buffers.get(hour)
        if buffer is None:  # the hour went in the meantime
            return
        del buffer[:size]
        self._planned[hour] -= size
        if not buffer:
            del self._buffers[hour], self._planned[hour]

    def restore(self, paths: Sequence[str]) -> None:
        """Go on from files that were checked against their rows."""
        for path in paths:
            self._written[_hour_of(path)] = self._files.planned_size(path)

    @property
    def hours(self) -> int:
        """Hours with notes."""
        return len(self._hours())

    def _note(self, deliver_ms: int, position: int, length: int, kind: int) -> None:
        hour = deliver_ms // HOUR_MS
        buffer = self._buffers.get(hour)
        if buffer is None:
            if hour not in self._written:
                self._live[hour] = 0
            buffer = self._buffers[hour] = bytearray()
            self._planned[hour] = 0
        buffer += NOTE.pack(deliver_ms, position, length, kind)
        if hour in self._live:
            self._live[hour] += 1 if kind == _DELAYED else -1
        self._unplanned_bytes += NOTE.size
        if self._unplanned_bytes >= FLUSH_BYTES:
            self.plan_flush()

    def _hours(self) -> list[int]:
        return sorted(self._written.keys() | self._buffers.keys())

    def _pending(self, hour: int) -> list[Due]:
        pending: dict[int, Due] = {}
        on_file = self._written.get(hour, 0)
        for at in range(0, on_file, READ_BYTES):
            _apply(self._files.read(_path(hour), at, min(READ_BYTES, on_file - at)), pending)
        _apply(bytes(self._buffers.get(hour, b"")), pending)
        self._live[hour] = len(pending)
        return list(pending.values())

    def _drop_if_over(self, hour: int) -> None:
        if self._live.get(hour, 1) > 0:
            return
        is_on_file = hour in self._written or self._planned.get(hour, 0) > 0
        for by_hour in (self._live, self._buffers, self._planned, self._written):
            by_hour.pop(hour, None)
        if is_on_file:
            self._files.remove(_path(hour))

    def _compact_if_stale(self, hour: int) -> None:
        """Write the pending notes of a file anew when they are the least part of it."""
        on_file = self._written.get(hour, 0)
        live = self._live.get(hour)
        if live is None or self._planned[hour] or on_file < COMPACT_BYTES:
            return
        if on_file > live * NOTE.size * COMPACT_SHARE:
            pending = self._pending(hour)
            self._files.remove(_path(hour))
            del self._written[hour]
            self._buffers[hour] = bytearray(
                b"".join([NOTE.pack(*due, _DELAYED) for due in pending])
            )


def _apply(notes: bytes, pending: dict[int, Due]) -> None:
    for deliver_ms, position, length, kind in NOTE.iter_unpack(notes):
        if kind == _DELAYED:
            pending[position] = (deliver_ms, position, length)
        else:
            pending.pop(position, None)


def _path(hour: int) -> str:
    return f"{DELAYED_DIRECTORY}/{hour:010d}.due"


def _hour_of(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(".due"))
