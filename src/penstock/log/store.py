"""The store: the one door to everything durable; engine and server know nothing behind it.

A turn calls ``append`` once with everything it has; that is one frame and one write. Nothing waits
there: ``take_sync_job`` gives the commit thread what is to be made durable, ``synced`` brings the
answer back, and only then ``durable_position`` moves (or, with durability ``interval`` and ``os``,
it moves with the write itself, D7).

* ``AppendFailed`` leaves offsets, indexes, positions and the hot tail as they were.
* After a failed sync the store takes nothing any more (P4): every append raises ``SyncFailed``.
* Everything the loop calls returns without waiting for the disk, except reads of cold records.

Not here: recovery (``recovery.py``), the thread (``server/turns.py``), cursors (``engine/``).
"""

import sys
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from penstock.log.catalog import CURSOR_KIND, Catalog, SnapshotRow, Snapshots, cursor_key, cursor_op
from penstock.log.commit import Commit, SyncJob
from penstock.log.delayed import DelayTracker, Due
from penstock.log.encode import Appending, Runs, StagedFrame, stage
from penstock.log.format import HEAD_BYTES, CursorState, encode_batch
from penstock.log.index import ENTRY_BYTES, QUEUE_KIND, PromisedEntries, QueueIndex, RunEntries
from penstock.log.reader import Located
from penstock.log.recovery import Recovered, StoreParts, recover
from penstock.log.retention import NOT_PINNED, NOTHING_NEEDED, Needs
from penstock.log.segment import Segment
from penstock.log.staging import (
    Block,
    Copied,
    StageCommit,
    StagedCopy,
    commit_record,
    lengths_of,
    placed,
)
from penstock.log.storage import Storage
from penstock.model.clock import Clock
from penstock.model.errors import AppendFailed, InvariantBroken
from penstock.model.ids import LogPosition
from penstock.model.record import Record
from penstock.settings.broker import StorageSettings

__all__ = [
    "Appending",
    "CursorState",
    "QueueIndex",
    "Recovered",
    "Store",
    "StoreCounters",
    "SyncJob",
]


DELAYED_STEPS: Final = 4
"""What it costs to note a delayed row, in index entries."""
ENTERED_AT_CLOSE: Final = 100_000
"""Promised entries made in one go when nobody waits for anything else any more."""


class StoreCounters(msgspec.Struct):
    """What the store did since it was opened; only ever grows."""

    frames: int = 0
    records: int = 0
    bytes_appended: int = 0
    append_failures: int = 0
    """Frames the disk did not take; nothing of them is stored."""
    syncs: int = 0
    """Commits that made log bytes durable."""
    cold_reads: int = 0
    """Records read from disk because the hot tail had them no more."""
    segments_removed: int = 0


class Store:
    """Everything durable of one broker."""

    def __init__(self, parts: StoreParts, settings: StorageSettings, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._writer = parts.writer
        self._reader = parts.reader
        self._indexes = parts.indexes
        self._retention = parts.retention
        self._side_files = parts.side_files
        self._snapshots = Snapshots(parts.snapshot_position, settings)
        self._hot = HotTail(
            bytes_max=settings.hot_tail_bytes_max, records_max=settings.hot_tail_records_max
        )
        self._commit = Commit(parts, self._snapshots, settings, clock)
        self._delays = DelayTracker(parts.delayed, parts.retention)
        self._index_ms = parts.index_ms
        self._content_end = self.end_position = parts.writer.end_position
        """Where the next frame goes."""
        self.durable_position: LogPosition = parts.writer.end_position
        """Everything below may be confirmed: synced, or just written where that is enough (D7)."""
        self.definitions: Final = parts.definitions
        self.delayed: Final = parts.delayed
        """Delayed records without an offset, for the timer wheel."""
        self.spill: Final = parts.spill
        """Where subscriptions put aside what memory does not hold."""
        self.keys: Final = parts.keys
        """Lookup by message key; whoever publishes feeds it."""
        self.sinks: Final = parts.sinks
        """The last batch of every sink."""
        self.stages: Final = parts.stages
        """Rows beside the log."""
        self._coming: deque[Copied] = deque()
        """Delayed rows of commits, not noted yet; bounded as the copy they come from."""
        self.epoch: Final = parts.writer.epoch
        self.counters: Final = StoreCounters()
        # Asked in every turn, and answered behind this door: no call only passes on.
        self.recent: Final = self._hot.run
        """The records at these positions if they are in memory and nothing lies between them."""
        self.take_sync_job: Final = self._commit.take
        """What the commit thread has to do now; None when nothing, or while one is out."""
        self.next_sync_ms: Final = self._commit.next_ms
        """Monotonic time from which ``take_sync_job`` has something; None = only after changes."""

    @classmethod
    def open(
        cls,
        storage: Storage,
        catalog: Catalog,
        settings: StorageSettings,
        clock: Clock,
        *,
        boot_id: str = "",
    ) -> tuple["Store", Recovered]:
        """Recover what is in ``storage``; an empty one is a new store.

        Raises ``LogCorrupt`` or ``FormatTooNew`` with a sentence that says what to do.
        """
        parts, recovered = recover(storage, catalog, settings, boot_id=boot_id)
        return cls(parts, settings, clock), recovered

    @property
    def unsynced_bytes(self) -> int:
        """Bytes appended and not durable yet."""
        return self.end_position - self.durable_position

    @property
    def is_failed(self) -> bool:
        """True after a failed sync: nothing is taken any more (P4)."""
        return self._commit.failure is not None

    @property
    def definitions_durable(self) -> int:
        """Changes up to this ``definitions.sequence`` are in the catalog for good."""
        return self._commit.definitions_durable

    @property
    def corrupt_records(self) -> int:
        """Reads that found a damaged record."""
        return self._reader.corrupt_records

    @property
    def gone_records(self) -> int:
        """Reads of records whose segment was removed."""
        return self._reader.gone_records

    @property
    def log_bytes(self) -> int:
        return self._parts.segments.size_bytes

    # Messages

    def append(self, batch: list[Appending], store_ms: int, runs: Runs = ()) -> LogPosition:
        """Write one frame of these records (``runs``: see ``Runs``); the end of the log behind it.

        Fills in offsets, positions and store time, stamps origins. Raises ``AppendFailed`` (or
        ``SyncFailed`` for good) and leaves everything as before when it is not written.
        """
        commit, writer = self._commit, self._writer
        if commit.failure is not None:
            commit.check()
        if not batch:
            return self.end_position
        index_ms = max(store_ms, self._index_ms)
        start = writer.end_position + HEAD_BYTES
        staged = StagedFrame(start, store_ms=store_ms, index_ms=index_ms)
        try:
            stage(batch, staged, runs)
            size, upto = staged.at - start, commit.synced_position
            base, end = writer.append(staged.parts, len(batch), durable_upto=upto, size=size)
        except Exception:
            staged.undo(batch)
            self.counters.append_failures += 1
            raise
        self._content_end = self.end_position = end
        if commit.counts_written:
            self.durable_position = end
        self._index_ms = index_ms
        touched, last = staged.touched, batch[-1].record.position
        self._indexes.take_in(touched, last, len(batch) * ENTRY_BYTES)
        self._retention.note(touched, index_ms)
        self._hot.add(staged.records, staged.positions, end - base)
        if staged.delayed_appends:
            self._delays.note(staged.delayed_appends)
        counters = self.counters
        counters.frames += 1
        counters.records += len(batch)
        counters.bytes_appended += end - base
        return end

    # Staged rows (D19)

    def copy_staged(self, copy: StagedCopy, blocks: Sequence[Block], store_ms: int) -> LogPosition:
        """Write one frame of staged rows that nobody sees yet; the end of the log behind it.

        Raises ``AppendFailed`` (or ``SyncFailed`` for good) when it is not written, and
        ``StageDamaged``. From then on nothing of it goes until ``drop_copy`` or the last
        ``enter_staged``.
        """
        self._commit.check()
        at = start = self._writer.end_position + HEAD_BYTES
        parts: list[bytes | bytearray] = []
        for block in blocks:
            parts.append(placed(block, at, store_ms))
            at += len(block.records)
        self._append_apart(parts, sum(block.rows for block in blocks), at - start, store_ms)
        at = start
        for block in blocks:
            copy.add(at, block)
            at += len(block.records)
        assert copy.position is not None
        self._retention.pinned = min(self._retention.pinned, copy.position)
        return self.end_position

    def drop_copy(self) -> None:
        """The copy under way will not be committed: it is dead space."""
        self._retention.pinned = NOT_PINNED

    def commit_staged(self, copy: StagedCopy, commit: StageCommit, store_ms: int) -> LogPosition:
        """Give the rows of a copy their offsets, all at once, and note the batch.

        Call it when the copy is durable: then the commit cannot survive what it commits. Entries,
        and notes of what is delayed, are made by ``enter_staged``.
        """
        self._commit.check()
        indexes = self._indexes.by_id
        index_ms = max(store_ms, self._index_ms)
        totals = copy.queue_rows()
        runs = copy.runs({queue_id: indexes[queue_id].staged_offset for queue_id in totals})
        record = commit_record(commit, runs)
        position = self._writer.end_position + HEAD_BYTES
        parts, (size,) = encode_batch((record,), ((),), position, store_ms)
        self._append_apart(parts, 1, size, store_ms)
        self._index_ms = index_ms
        for queue_id, entries in _promised(copy, indexes, index_ms).items():
            self._indexes.promise(indexes[queue_id], entries, position)
        self._retention.note([indexes[queue_id] for queue_id in totals], index_ms)
        for run in runs:
            if not run.flags:
                ends = ((run.queue_id, run.first_offset + run.rows),)
                self._retention.note_staged(run.position, ends)
        self._coming += [each for each in copy.copied if each.block.is_delayed]
        self.sinks.note(commit, store_ms)
        return self.end_position

    def enter_staged(self, rows_max: int) -> tuple[list[QueueIndex], list[Due]]:
        """Make about so many of the entries that commits of staged rows have promised.

        The queues that have all of theirs now, and what is delayed. Call it when the commit is
        durable; there is more while ``is_entering``.
        """
        made, whole = self._indexes.enter(rows_max)
        due: list[Due] = []
        while self._coming and made < rows_max:
            position, block, _ = self._coming.popleft()
            deliver = array("q", block.times)
            if sys.byteorder == "big":
                deliver.byteswap()
            for deliver_ms, length in zip(deliver, lengths_of(block.facts), strict=True):
                self._delays.delayed(deliver_ms, position, length)
                due.append((deliver_ms, position, length))
                position += length
            made += DELAYED_STEPS * block.rows
        if not self.is_entering:
            self._retention.pinned = NOT_PINNED
        return whole, due

    @property
    def is_entering(self) -> bool:
        """True while a commit of staged rows has promised what is not there yet."""
        return bool(self._indexes.promising or self._coming)

    def _append_apart(
        self, parts: Sequence[bytes | bytearray], records: int, size: int, store_ms: int
    ) -> None:
        """A frame beside those of ``append``."""
        try:
            base, end = self._writer.append(
                parts, records, durable_upto=self._commit.synced_position, size=size
            )
        except Exception:
            self.counters.append_failures += 1
            raise
        self._content_end = self.end_position = end
        if self._commit.counts_written:
            self.durable_position = end
        self._retention.note((), max(store_ms, self._index_ms))
        self.counters.frames += 1
        self.counters.records += records
        self.counters.bytes_appended += end - base

    def append_mark(self) -> LogPosition:
        """Write an empty frame that carries the synced mark (after an idle second, D1)."""
        self._commit.check()
        self.end_position = end = self._commit.append_mark()
        if self._commit.counts_written:
            self.durable_position = end
        return end

    @property
    def is_mark_due(self) -> bool:
        """True when all content is synced and no frame says so yet."""
        return self._commit.is_mark_due(self._content_end)

    def read(self, wanted: Sequence[tuple[int, int]]) -> list[Record | None]:
        """The records at these (position, length); None = gone or corrupt, which is counted."""
        found = self._hot.get_many(wanted)
        if not all(found):
            missing = [at for at, record in enumerate(found) if record is None]
            self.counters.cold_reads += len(missing)
            cold = self._reader.read_many([wanted[at] for at in missing])
            for at, record in zip(missing, cold, strict=True):
                found[at] = record
        return found

    def locate(self, position: int) -> Located | None:
        """The record around ``position``, and which of its messages that is (D4)."""
        return self._reader.locate(position)

    # Queues

    def queue(self, queue_id: int) -> QueueIndex:
        """The index of a queue; raises ``NotFound``."""
        return self._indexes.get(queue_id)

    def queues(self) -> list[QueueIndex]:
        """Every queue, by id after a restart."""
        return list(self._indexes.by_id.values())

    def create_queue(self, queue_id: int, incarnation: int) -> QueueIndex:
        """A new queue; durable with the next commit unless its id is transient (D6)."""
        return self._indexes.create(queue_id, incarnation)

    def drop_queue(self, queue_id: int) -> None:
        """Delete a queue with its index; its cursors are dropped one by one by their owner."""
        self._indexes.drop(queue_id)
        self._snapshots.discard(QUEUE_KIND, str(queue_id))

    def drop_cursor(self, subscription_id: int, queue_id: int) -> None:
        """A subscription has no business in a queue any more: forget its snapshot."""
        key = cursor_key(subscription_id, queue_id)
        self.definitions.note((CURSOR_KIND, key, None))
        self._snapshots.discard(CURSOR_KIND, key)

    # Commits

    def synced(self, job: SyncJob, error: Exception | None) -> None:
        """The job was run: positions advance, or the store is failed for good."""
        commit = self._commit
        commit.finished(job, error)
        if not commit.counts_written:
            self.durable_position = commit.synced_position
        self.counters.syncs = commit.syncs

    def is_snapshot_due(self, *, is_urgent: bool = False) -> bool:
        """True when ``offer_snapshot`` should be called (at most every second, and if needed).

        Urgent: one that only lets segments go is needed, too, and a small one does not wait longer.
        """
        if self.is_entering:
            return False
        if is_urgent:
            return self.end_position > self._snapshots.position and self._snapshots.is_due(
                self._clock.monotonic_ms(), self._indexes.dirty_count, None
            )
        return self._content_end > self._snapshots.position and self._snapshots.is_due(
            self._clock.monotonic_ms(), self._indexes.dirty_count, self._content_end
        )

    def offer_snapshot(self, position: LogPosition, cursors: Sequence[CursorState]) -> None:
        """Take a snapshot: ``cursors`` that changed since the last one, as of ``position``.

        Call it between turns: the state must be that of the log's end.
        """
        if position != self._writer.end_position or self._snapshots.is_pending or self.is_entering:
            raise InvariantBroken(
                f"snapshot offered for position {position}, the log ends at {self.end_position}"
                + (" and one is on its way" if self._snapshots.is_pending else "")
                + (" and entries are promised" if self.is_entering else "")
            )
        ops = self._parts.capture(SnapshotRow(int(position), self._index_ms))
        ops += map(cursor_op, cursors)
        self._snapshots.capture(
            position,
            ops,
            steps=self._side_files.steps_planned,
            now_ms=self._clock.monotonic_ms(),
        )

    @property
    def snapshot_position(self) -> LogPosition:
        """Recovery would begin to read the log here."""
        return self._snapshots.position

    def sweep(
        self, needs: Callable[[int], int | None], now_ms: int, shortage_bytes: int = 0
    ) -> Generator[int, None, list[Segment]]:
        """Remove segments nobody needs (D11, D12); the commit thread unlinks them.

        ``needs`` gives the lowest offset of a queue that is needed at the moment it is asked; None
        = everything it has. ``now_ms`` is wall time. ``shortage_bytes``: the disk is short of so
        much, what is kept if there is room goes. Yields how many queues it looked at; whoever lets
        turns pass meanwhile loses nothing that is needed, and may leave it at any point.
        """
        parts, covered = self._parts, self._snapshots.position
        lowest = lowest_needed(parts, needs)
        going = yield from parts.retention.sweep(lowest, now_ms, covered, shortage_bytes)
        removed = yield from parts.retention.let_go(going, lowest, parts.indexes.trim)
        forget(parts, removed)
        self._commit.remove([segment.path for segment in removed])
        self.counters.segments_removed += len(removed)
        is_short = shortage_bytes > parts.retention.leaving_bytes
        if is_short and (yield from parts.retention.is_last_idle(lowest)):
            with suppress(AppendFailed):  # not even room for a name: the next sweep tries again
                parts.writer.roll()
        return removed

    def close(self, cursors: Sequence[CursorState] = ()) -> None:
        """Stop cleanly: everything synced, a last snapshot, so that the next start reads nothing.

        Call it when no job is out. After a failed sync it only lets go of the files.
        """
        self.keys.seal()
        while self.is_entering:
            self.enter_staged(ENTERED_AT_CLOSE)
        if self._commit.drain() and not self._snapshots.is_pending:
            self.offer_snapshot(self._writer.end_position, cursors)
            if self._commit.drain() and not self._snapshots.is_pending:
                self._commit.write_clean()
        self.release()

    def release(self) -> None:
        """Let go of every file as a crash would: nothing more is written."""
        self._writer.close()
        self._reader.close()
        self._side_files.close()
        self._parts.catalog.close()


def _promised(
    copy: StagedCopy, indexes: Mapping[int, QueueIndex], store_ms: int
) -> dict[int, list[PromisedEntries]]:
    """The entries that the queues of a copy get."""
    promised: dict[int, list[PromisedEntries]] = {}
    ends: dict[int, tuple[int, int]] = {}
    for position, block, size in copy.copied:
        if block.is_delayed:
            continue
        index = indexes[block.queue_id]
        offset, before = ends.get(block.queue_id, (index.staged_offset, index.staged_bytes))
        end = ends[block.queue_id] = (offset + block.rows, before + size)
        promised.setdefault(block.queue_id, []).append(
            RunEntries(position, block.facts, end=end, store_ms=store_ms)
        )
    return promised


# ---- hot tail -----------------------------------------------------------------------------------
# The hot tail: the newest records as objects, so that live consumers never touch the disk.
#
# Two generations: records go into the young one; when it has half of the bounds it becomes the old
# one and the former old one is dropped whole. So evicting costs nothing, and the bounds (bytes and
# number) hold at any time.
#
# Live consumers of one busy queue read what was written, in that order: a stretch of records is
# then a slice, checked by its positions. Only readers of something else make the look-up by
# position, and only then is it filled.


class _Generation:
    """Records in the order of the log."""

    __slots__ = ("_by_position", "positions", "records")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.records: list[Record] = []
        self._by_position: dict[int, Record] = {}
        """Lags behind the lists until somebody asks."""

    def run(self, wanted: list[int]) -> list[Record]:
        """The records at the first of these positions, if they follow one another here."""
        if not wanted:
            return []
        start = bisect_left(self.positions, wanted[0])
        found = self.positions[start : start + len(wanted)]
        count = len(found)
        is_run = found == (wanted if count == len(wanted) else wanted[:count])
        return self.records[start : start + count] if is_run else []

    def by_position(self) -> dict[int, Record]:
        """All of them, to be looked up."""
        known = self._by_position
        done = len(known)
        if done < len(self.positions):
            known.update(zip(self.positions[done:], self.records[done:], strict=True))
        return known


class HotTail:
    """Newest records by position."""

    __slots__ = ("_bytes_half", "_old", "_records_half", "_young", "_young_bytes")

    def __init__(self, *, bytes_max: int, records_max: int) -> None:
        self._bytes_half = bytes_max // 2
        self._records_half = records_max // 2
        self._young = _Generation()
        self._old = _Generation()
        self._young_bytes = 0

    def add(self, records: list[Record], positions: list[int], size_bytes: int) -> None:
        """Keep records that were just appended there and take ``size_bytes`` in the log."""
        young, young_bytes = self._young, self._young_bytes + size_bytes
        if young_bytes > self._bytes_half or len(young.records) + len(records) > self._records_half:
            if size_bytes > self._bytes_half or len(records) > self._records_half:
                return  # one frame as large as the tail would only drive out everything else
            self._old, self._young = young, _Generation()
            young, young_bytes = self._young, size_bytes
        young.positions += positions
        young.records += records
        self._young_bytes = young_bytes

    def get(self, position: int) -> Record | None:
        """The record at ``position`` if it is still here."""
        return self.get_many([(position, 0)])[0]

    def run(self, positions: list[int]) -> list[Record] | None:
        """The records at these positions if they are here and nothing lies between them."""
        young = self._young
        if not positions:
            return []
        if young.positions and positions[0] >= young.positions[0]:
            start = bisect_left(young.positions, positions[0])
            end = start + len(positions)
            return young.records[start:end] if young.positions[start:end] == positions else None
        found = self._old.run(positions)
        found += young.run(positions[len(found) :])
        return found if len(found) == len(positions) else None

    def get_many(self, wanted: Sequence[tuple[int, int]]) -> list[Record | None]:
        """One answer for each (position, length)."""
        found = self.run([position for position, _ in wanted])
        if found is not None:
            return [*found]
        young, old = self._young.by_position().get, self._old.by_position().get
        return [young(position) or old(position) for position, _ in wanted]

    def __len__(self) -> int:
        return len(self._young.records) + len(self._old.records)


# ---- sweep --------------------------------------------------------------------------------------
# A sweep: segments nobody needs leave the store, and what pointed into them follows (D12).
#
# They are forgotten here, in the loop, so that no read starts on them any more; the commit thread
# unlinks the files. A crash in between leaves files that the next sweep finds dead again.


def lowest_needed(parts: StoreParts, needs: Callable[[int], int | None]) -> Needs:
    """``needs`` for every queue: one that nobody speaks for needs all it has, no queue nothing."""
    by_id = parts.indexes.by_id

    def lowest(queue_id: int) -> int:
        index = by_id.get(queue_id)
        if index is None:
            return NOTHING_NEEDED
        need = needs(queue_id)
        return index.min_offset if need is None else need

    return lowest


def forget(parts: StoreParts, removed: list[Segment]) -> None:
    """These segments go; every queue has let go of them."""
    segments, retention = parts.segments, parts.retention
    for segment in removed:
        if segment is segments.first:  # nothing stored before its end is left
            parts.keys.trim(retention.last_ms(segment))
        parts.reader.forget(segment)
        segments.discard(segment)
        retention.forget(segment)
