"""Commits: which bytes wait for the disk, and what an answer from it means (D6-D8, P4).

At most one job is out. With durability ``fsync`` every job syncs what was appended; with
``interval:MS`` the log is synced that often and with ``os`` only for snapshots, while what is
written counts as durable at once. The position in frame heads is always the one really synced: the
torn-tail rule of recovery builds on it.

A full disk under the catalog defers the job: only removals are done, which make room; nothing is
lost, it is tried again. Any other failure is final.

Not here: when to look for one (``server/turns.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.log.catalog import RUN_KEY, Catalog, Op, RunRow, Snapshots, meta_op
from penstock.log.recovery import StoreParts
from penstock.log.repair import note_failed_sync
from penstock.log.segment import LOG_DIR
from penstock.log.side_files import SideFiles, Step
from penstock.log.storage import Storage
from penstock.log.writer import UnsyncedSet
from penstock.model.clock import Clock
from penstock.model.errors import AppendFailed, SyncFailed
from penstock.model.ids import LogPosition
from penstock.settings.broker import StorageSettings

RETRY_MS: Final = 100
"""Pause after a commit that found the disk full."""
DRAIN_JOBS_MAX: Final = 100_000
"""A clean stop gives up after this many commits without an end."""


class Commit:
    """Everything between an append and its confirm."""

    def __init__(
        self, parts: StoreParts, snapshots: Snapshots, settings: StorageSettings, clock: Clock
    ) -> None:
        self._parts = parts
        self._writer = parts.writer
        self._snapshots = snapshots
        self._clock = clock
        mode, _, interval = settings.durability.partition(":")
        self.counts_written: Final = mode != "fsync"
        """What is written counts as durable at once."""
        self._interval_ms = int(interval) if interval else None
        self._job: SyncJob | None = None
        self._deferred: list[UnsyncedSet] = []
        self._retry_ms = 0
        self._steps_retry_ms = 0
        self._synced_ms = 0
        self._marked = 0
        self._is_closing = False
        self.synced_position: LogPosition = parts.writer.end_position
        """Everything below has really been synced."""
        # Recovery may have changed some, and committed that by itself.
        self.definitions_durable = parts.definitions.sequence - len(parts.definitions.ops)
        self.syncs = 0
        self.removals: list[str] = []
        """Segments to unlink with the next job."""
        self._stuck_removals: list[str] = []
        """Those that would not go; tried again with the next that go."""
        self.failure: Exception | None = None

    def check(self) -> None:
        """Raise when a sync has failed before."""
        if self.failure is not None:
            raise SyncFailed(f"the store stopped taking messages: {self.failure}")

    def take(self) -> SyncJob | None:
        """The next job, if there is anything to do and none is out."""
        if self._job is not None or self.failure is not None:
            return None
        if self._retry_ms and self._is_early(self._retry_ms):
            return None
        parts = self._parts
        files, definitions, synced = parts.side_files, parts.definitions, self.synced_position
        has_log = self._is_log_waiting() and (not self.counts_written or self._is_log_due())
        steps: list[Step] = []
        if files.steps_planned > files.steps_done and not self._is_early(self._steps_retry_ms):
            steps = files.steps()
        snapshot_ops = self._snapshots.take_ops(synced, files.steps_done)
        if not (has_log or steps or snapshot_ops or self.removals or definitions.ops):
            return None
        self._job = job = SyncJob(
            parts.storage,
            parts.catalog,
            files,
            synced=synced,
            sequence=definitions.sequence,
            definition_ops=definitions.take_ops(),
            snapshot_ops=snapshot_ops,
            steps=steps,
            removals=self.removals,
        )
        self.removals = []
        if has_log:
            taken = self._writer.take_unsynced()
            job.unsynced = self._deferred + ([taken] if taken is not None else [])
            self._deferred = []
            job.upto = self._writer.end_position
        return job

    def finished(self, job: SyncJob, error: Exception | None) -> None:
        assert job is self._job, "a job that is not out came back"
        self._job = None
        if error is not None:
            self.failure = error
            return
        if job.is_deferred:
            self._retry_ms = self._clock.monotonic_ms() + RETRY_MS
            self._deferred = job.unsynced
            self._parts.retention.left(job.removals[: job.removals_done])
            self.remove(job.removals[job.removals_done :])
            self._parts.definitions.put_back(job.definition_ops)
            if job.snapshot_ops:
                self._snapshots.deferred()
            return
        if job.steps:
            self._parts.side_files.done(job.steps_done)
            if job.steps_done < len(job.steps):
                self._steps_retry_ms = self._clock.monotonic_ms() + RETRY_MS
        if job.removals:
            self._parts.retention.left(job.removals[: job.removals_done])
            self._stuck_removals += job.removals[job.removals_done :]
        self.definitions_durable = job.sequence
        if job.snapshot_ops:
            self._snapshots.written()
            self._parts.side_files.snapshot_written()
        if job.upto is not None:
            self.synced_position = job.upto
            self.syncs += 1
            if self._interval_ms is not None:
                self._synced_ms = self._clock.monotonic_ms()

    def next_ms(self) -> int | None:
        """From when on ``take`` would give a job; None when nothing waits or one is out."""
        if self._job is not None or self.failure is not None:
            return None
        is_log_waiting = self._is_log_waiting()
        if is_log_waiting and not self.counts_written:
            return self._retry_ms
        times: list[int] = []
        files = self._parts.side_files
        if is_log_waiting:
            if self._wants_snapshot_sync() or self._are_only_handles_waiting():
                times.append(0)
            elif self._interval_ms is not None:
                times.append(self._synced_ms + self._interval_ms)
        if files.steps_planned > files.steps_done:
            times.append(self._steps_retry_ms)
        if (
            self.removals
            or self._parts.definitions.ops
            or self._snapshots.is_ready(self.synced_position, files.steps_done)
        ):
            times.append(0)
        return max(min(times), self._retry_ms) if times else None

    def remove(self, paths: Sequence[str]) -> None:
        """Segments nobody needs: unlinked by the next job, behind those that would not go."""
        self.removals = [*self._stuck_removals, *paths, *self.removals]
        self._stuck_removals = []

    def append_mark(self) -> LogPosition:
        """Write the empty frame that carries the synced mark."""
        self._marked = self.synced_position
        return self._writer.append_mark(durable_upto=self.synced_position)[1]

    def is_mark_due(self, content_end: int) -> bool:
        """True when all up to ``content_end`` is synced and no frame says so."""
        return self._marked < content_end <= self.synced_position and self.failure is None

    def drain(self) -> bool:
        """Run jobs here until nothing waits; False when that does not come to an end."""
        self._is_closing = True
        for _ in range(DRAIN_JOBS_MAX):
            job = self.take()
            if job is None:
                return self.failure is None and self.next_ms() is None
            try:
                job.run()
            except SyncFailed as problem:
                self.finished(job, problem)
                return False
            self.finished(job, None)
        return False

    def write_clean(self) -> None:
        """Say in the catalog that everything is in the snapshot."""
        run = self._parts.run
        row = RunRow(True, run.boot_id, run.durability, run.epoch)
        self._parts.catalog.apply([meta_op(RUN_KEY, row)])

    def _is_log_waiting(self) -> bool:
        is_behind = self._writer.end_position > self.synced_position
        return is_behind or bool(self._deferred) or self._writer.has_rolled

    def _are_only_handles_waiting(self) -> bool:
        """True when all is synced, but a segment rolled before its time is still open.

        The disk gets nothing back of a file that is unlinked while somebody has it open.
        """
        return self._writer.has_rolled and self._writer.end_position <= self.synced_position

    def _wants_snapshot_sync(self) -> bool:
        pending = self._snapshots.pending_position
        return pending is not None and pending > self.synced_position

    def _is_early(self, due_ms: int) -> bool:
        return self._clock.monotonic_ms() < due_ms

    def _is_log_due(self) -> bool:
        """Where written is durable enough: True when the log is to be synced all the same."""
        if self._is_closing or self._wants_snapshot_sync() or self._are_only_handles_waiting():
            return True
        interval_ms = self._interval_ms
        return interval_ms is not None and not self._is_early(self._synced_ms + interval_ms)


# ---- sync job -----------------------------------------------------------------------------------
# One commit cycle, as the commit thread runs it (D5, D6, D8).
#
# Order: the catalog transaction first, so that no durable record names an unknown queue; then side
# files, whose failure only delays the next snapshot; then the sync of the log; then removals, of
# which nothing depends. Any failure but a full disk is final (P4).


class SyncJob(msgspec.Struct, eq=False):
    """What one commit has to make durable; made by the store, run once, handed back to it."""

    storage: Storage
    catalog: Catalog
    side_files: SideFiles
    synced: LogPosition
    """The log was durable up to here before; what a failed sync leaves in doubt is above."""
    sequence: int
    """Definition changes up to this number are in it."""
    definition_ops: list[Op]
    snapshot_ops: list[Op]
    """Rows of a snapshot that may be written now."""
    steps: list[Step]
    removals: list[str]
    """Paths of segments nobody needs, in the order in which they must go."""
    unsynced: list[UnsyncedSet] = []
    steps_done: int = 0
    removals_done: int = 0
    """How many of them are gone for good."""
    upto: LogPosition | None = None
    """The log is durable up to here once ``run`` has returned; None = no log sync in it."""
    is_deferred: bool = False
    """The disk is too full for the catalog: nothing but removals was done, try again later."""

    def run(self) -> None:
        """Do all of it; raises ``SyncFailed``, and then nothing it covers counts as stored."""
        try:
            if self.definition_ops or self.snapshot_ops:
                self.catalog.apply(self.definition_ops + self.snapshot_ops)
        except AppendFailed:
            self.is_deferred = True
            if self.removals:  # an older snapshot covers them, and they are the room it waits for
                self._remove()
            return
        except Exception as problem:
            raise SyncFailed(f"the catalog transaction failed: {problem}; {_ADVICE}") from problem
        try:
            if self.steps:
                self.steps_done = self.side_files.run(self.steps)
            for unsynced in self.unsynced:
                unsynced.run()
        except OSError as problem:
            note_failed_sync(self.storage, self.synced)
            raise SyncFailed(f"a sync failed: {problem}; {_ADVICE}") from problem
        if self.removals:
            self._remove()

    def _remove(self) -> None:
        removed = 0
        for path in self.removals:
            try:
                self.storage.remove(path)
            except FileNotFoundError:
                pass
            except OSError:  # those behind it may not go before it
                break
            removed += 1
        try:
            self.storage.sync_dir(LOG_DIR)
        except OSError as problem:
            raise SyncFailed(f"a sync failed: {problem}; {_ADVICE}") from problem
        self.removals_done = removed


_ADVICE = "what was not confirmed may be lost; check the disk and start the broker again"
