"""Snapshots: from which position on recovery has to read the log (D5).

A snapshot at position P is a set of catalog rows (cursors, queues, side files, segments) that hold
exactly what the log says up to P. It is captured in the loop in one go, but written only when the
log is durable up to P and the side files it describes are on file. So rows never run ahead of the
log, whatever moment a crash picks.

``due`` is also true only when something happened since the last one, and the more queues changed
the longer it waits: writing 50,000 rows every second would be all the commit thread does. It waits
longer, too, while little was written: confirms stand behind a snapshot for some milliseconds, and a
few MiB are read again in no time.

Not here: what the rows hold (``queue_index.py``, ``retention.py``, ``side_files.py``).
"""

from typing import Final

import msgspec

from penstock.log.catalog import Op
from penstock.log.cursors import CursorState, encode_cursor
from penstock.model.ids import LogPosition
from penstock.settings.broker import StorageSettings

CURSOR_KIND: Final = "cursor"
META_KIND: Final = "meta"
SNAPSHOT_KEY: Final = "snapshot"
RUN_KEY: Final = "run"
DIRTY_QUEUES_PER_MS: Final = 2
PATIENCE: Final = 10
"""How many intervals a snapshot of little waits at most."""


class SnapshotRow(msgspec.Struct, frozen=True):
    """The meta row that makes a snapshot: where it stands."""

    position: int
    index_ms: int = 0
    """Largest store time of any index entry: entries never go back in time (D4)."""


class RunRow(msgspec.Struct, frozen=True):
    """The meta row about the process that has the directory, or had it last."""

    is_clean: bool
    boot_id: str
    durability: str
    epoch: int


class Snapshots:
    """The last durable snapshot and the one on its way."""

    def __init__(self, position: int, settings: StorageSettings) -> None:
        self.position = LogPosition(position)
        """Recovery would begin here."""
        self._interval_ms = settings.snapshot_interval_ms
        self._bytes_min = settings.snapshot_bytes_min
        self._taken_ms: int | None = None
        self._ops: list[Op] = []
        self._steps_needed = 0
        self._pending: LogPosition | None = None
        self._is_in_job = False
        self._discarded: set[tuple[str, str]] = set()

    def is_due(self, now_ms: int, dirty_queues: int, end: int) -> bool:
        """True when enough time has gone by for a log that ends there; ``now_ms`` is monotonic."""
        if self._pending is not None:
            return False
        if self._taken_ms is None:
            return True
        wait_ms = self._interval_ms + dirty_queues // DIRTY_QUEUES_PER_MS
        if end - self.position < self._bytes_min:
            wait_ms *= PATIENCE
        return now_ms - self._taken_ms >= wait_ms

    @property
    def is_pending(self) -> bool:
        """True from the capture until its rows are durable."""
        return self._pending is not None

    @property
    def pending_position(self) -> LogPosition | None:
        """Where the snapshot on its way stands."""
        return self._pending

    def capture(self, position: LogPosition, ops: list[Op], *, steps: int, now_ms: int) -> None:
        """Keep the rows of a snapshot until they may be written, after ``steps`` are done."""
        assert self._pending is None, "one snapshot at a time"
        self._pending = position
        self._ops = ops
        self._steps_needed = steps
        self._taken_ms = now_ms

    def is_ready(self, synced: int, steps_done: int) -> bool:
        """True when the rows may be written: the log is durable that far, the files are there."""
        return (
            self._pending is not None
            and not self._is_in_job
            and synced >= self._pending
            and steps_done >= self._steps_needed
        )

    def take_ops(self, synced: int, steps_done: int) -> list[Op]:
        """The rows if they may be written now, without those discarded since; else none."""
        if self._pending is None or not self.is_ready(synced, steps_done):
            return []
        self._is_in_job = True
        if self._discarded:
            self._ops = [op for op in self._ops if (op[0], op[1]) not in self._discarded]
        return self._ops

    def discard(self, kind: str, key: str) -> None:
        """A row of the snapshot on its way is about something that was deleted since."""
        if self._pending is not None:
            self._discarded.add((kind, key))

    def written(self) -> None:
        """The rows are durable."""
        assert self._pending is not None
        self.position, self._pending = self._pending, None
        self._ops = []
        self._discarded.clear()
        self._is_in_job = False

    def deferred(self) -> None:
        """The transaction did not take place: the same rows go into a later one."""
        self._is_in_job = False


def cursor_op(state: CursorState) -> Op:
    """The row of one cursor."""
    return (CURSOR_KIND, cursor_key(state.subscription_id, state.queue_id), encode_cursor(state))


def cursor_key(subscription_id: int, queue_id: int) -> str:
    """Key of a cursor row."""
    return f"{subscription_id}/{queue_id}"


def meta_op(key: str, row: SnapshotRow | RunRow) -> Op:
    """A meta row."""
    return (META_KIND, key, msgspec.json.encode(row))
