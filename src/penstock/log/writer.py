"""The writer: one frame, one write, at the end of the last segment (D1, D8).

``append`` puts a head before the given records and hands all of it to the system in one write. It
either succeeds as a whole or leaves the log as it was and raises ``AppendFailed``: a short write or
an error is answered by cutting the file back. If even that fails the end of the file is unknown,
and the writer refuses everything from then on (``is_poisoned``).

Nothing here is durable. ``take_unsynced`` gives the set of everything written since the last call:
the files with new bytes, also those that were full in between, and the directory when a segment
was created. Only when its ``run`` has returned is the log durable up to its ``upto``. ``run`` may
be called in another thread. At most one set should be out at a time; whoever runs without syncs
(durability ``os``) takes and runs one now and then, for the handles of full segments wait in it.

Not here: encoding of records (``encode.py``), when to sync and what follows (``store.py``).
"""

from collections.abc import Sequence

import msgspec

from penstock.log.format import FRAME_BYTES_MAX, HEAD_BYTES, encode_head
from penstock.log.segment import LOG_DIR, Segment, SegmentSet, make_log_dir, segment_path
from penstock.log.storage import File, Storage
from penstock.model.errors import AppendFailed, InvariantBroken
from penstock.model.ids import LogPosition


class UnsyncedSet(msgspec.Struct, eq=False):
    """What one sync has to cover; ``run`` makes it durable or raises."""

    storage: Storage
    upto: LogPosition
    """The log is durable up to here once ``run`` has returned."""
    files: list[File]
    """Every file with bytes that were not synced, oldest first; full ones included."""
    rolled: list[File]
    """Full segments among ``files``: nobody else writes to them, they are closed here."""
    has_new_names: bool

    def run(self) -> None:
        """Sync names and bytes; raises ``OSError``, and then nothing of it counts (P4)."""
        if self.has_new_names:
            self.storage.sync_dir(LOG_DIR)
        for file in self.files:
            file.sync()
        for file in self.rolled:
            file.close()


class LogWriter:
    """Appends frames behind ``end_position``; the one writer of the log."""

    def __init__(
        self,
        storage: Storage,
        segments: SegmentSet,
        *,
        end_position: int,
        segment_bytes_max: int,
        prev_head_crc: int = 0,
        epoch: int = 0,
    ) -> None:
        assert end_position % 8 == 0, f"log end {end_position} is not a multiple of 8"
        self._storage = storage
        self._segments = segments
        self._segment_bytes_max = segment_bytes_max
        self._active: Segment | None = None
        self._file: File | None = None
        self._is_active_unsynced = False
        self._rolled: list[File] = []
        self._has_new_names = False
        self.end_position = LogPosition(end_position)
        self.prev_head_crc = prev_head_crc
        self.epoch = epoch
        self.is_poisoned = False
        make_log_dir(storage)
        last = segments.last
        if last is not None and last.end == end_position:
            self._active, self._file = last, storage.open(last.path, create=False)

    @property
    def first_record_position(self) -> LogPosition:
        """Where the first record of the next frame will lie."""
        return LogPosition(self.end_position + HEAD_BYTES)

    def append(
        self,
        parts: Sequence[bytes | bytearray],
        records: int,
        *,
        durable_upto: int,
        size: int | None = None,
    ) -> tuple[LogPosition, LogPosition]:
        """Write one frame of these joined records; (position of its head, position behind it).

        ``size``: bytes of all parts, from whoever knows. Raises ``AppendFailed`` and changes
        nothing when the disk does not take it.
        """
        base = self.end_position
        frame_len = HEAD_BYTES + (sum(map(len, parts)) if size is None else size)
        if self.is_poisoned:
            raise AppendFailed(
                "the end of the last log segment is unknown since a failed write could not be "
                "undone; restart the broker"
            )
        if frame_len > FRAME_BYTES_MAX:
            raise AppendFailed(
                f"a frame of {frame_len} bytes is larger than {FRAME_BYTES_MAX}; "
                "send smaller batches"
            )
        head, head_crc = encode_head(
            frame_len,
            records,
            base,
            durable_upto=durable_upto,
            epoch=self.epoch,
            prev_head_crc=self.prev_head_crc,
        )
        frame = b"".join((head, *parts))
        if len(frame) != frame_len:
            raise InvariantBroken(f"a frame of {len(frame)} bytes was announced as {frame_len}")
        segment, file = self._active, self._file
        # An empty segment takes any frame: one larger than the limit gets its own.
        if (
            segment is None
            or file is None
            or (segment.size_bytes + frame_len > self._segment_bytes_max and segment.size_bytes)
        ):
            segment, file = self._roll()
        try:
            written = file.write(frame)
        except OSError as error:
            raise self._cut_back(file, segment, error.strerror or str(error)) from error
        if written != frame_len:
            reason = f"only {written} of {frame_len} bytes were taken (is the disk full?)"
            raise self._cut_back(file, segment, reason)
        segment.size_bytes += frame_len
        self._is_active_unsynced = True
        self.end_position = end = LogPosition(base + frame_len)
        self.prev_head_crc = head_crc
        return base, end

    def append_mark(self, *, durable_upto: int) -> tuple[LogPosition, LogPosition]:
        """Write an empty frame that only carries the synced mark."""
        return self.append((), 0, durable_upto=durable_upto)

    def roll(self) -> None:
        """Begin a new segment before the last one is full; raises ``AppendFailed``."""
        if self._active is not None and self._active.size_bytes and not self.is_poisoned:
            self._roll()

    @property
    def has_rolled(self) -> bool:
        """True while handles of full segments wait for a sync to close them."""
        return bool(self._rolled)

    def take_unsynced(self) -> UnsyncedSet | None:
        """Everything that needs a sync since the last call; None when nothing does."""
        rolled, has_new_names = self._rolled, self._has_new_names
        files = [*rolled]
        if self._is_active_unsynced and self._file is not None:
            files.append(self._file)
        if not files and not has_new_names:
            return None
        self._rolled, self._is_active_unsynced, self._has_new_names = [], False, False
        return UnsyncedSet(self._storage, self.end_position, files, rolled, has_new_names)

    def close(self) -> None:
        """Give the handles back; syncs nothing. Call it when no sync is running."""
        for file in (*self._rolled, self._file):
            if file is not None:
                file.close()
        self._rolled, self._file, self._active = [], None, None

    def _roll(self) -> tuple[Segment, File]:
        """A new segment for the next frame; the last one is full, or there is none."""
        file = self._file
        try:
            fresh = self._storage.open(segment_path(self.end_position), create=True)
        except OSError as error:
            raise AppendFailed(
                f"cannot create log segment {segment_path(self.end_position)}: {error.strerror}"
            ) from error
        if file is not None:
            # Also when it has nothing unsynced: a sync of it may be running in another thread, and
            # a handle is never closed under one. The next set syncs it once more and closes it.
            self._rolled.append(file)
        self._active = self._segments.add(self.end_position)
        self._file = fresh
        self._is_active_unsynced = False
        # The name becomes durable with the next sync, before any confirm that needs it.
        self._has_new_names = True
        return self._active, fresh

    def _cut_back(self, file: File, segment: Segment, reason: str) -> AppendFailed:
        """Leave the file as it was before a write that failed; what to raise."""
        try:
            file.truncate(segment.size_bytes)
        except OSError as error:
            self.is_poisoned = True
            return AppendFailed(
                f"log segment {segment.path}: {reason}, and cutting it back to "
                f"{segment.size_bytes} bytes failed: {error.strerror}; restart the broker"
            )
        return AppendFailed(f"log segment {segment.path}: {reason}; nothing was stored")
