"""Recovery: from what lies on disk to a store that goes on as if nothing had happened (D5, A4).

Steps: format, what a failed sync left in doubt (``repair.py``), catalog, side files (each cut
back to the last snapshot and checked), then the log from the snapshot's position on: it gives back
the index entries, delays and segment uses made since, and the settlements the engine replays. If
any index or delay file is missing or damaged, all of them are thrown away and made again from the
whole log.

* Records for queues the catalog does not know (deleted, transient, or never committed) are left
  out; their ids are never handed out again.
* Offsets are never handed out twice: a queue goes on at its row or behind what the log says,
  whichever is later.
* Staged rows count from their commit on (D19), whose runs say where they lie.
* Nothing is believed that the log does not say, except what the snapshot says about before it.

Not here: torn tails and damage (``scan.py``), cursors (the engine replays ``settlements``).
"""

from typing import Final

import msgspec

from penstock.log.catalog import (
    CURSOR_KIND,
    META_KIND,
    RUN_KEY,
    SNAPSHOT_KEY,
    Catalog,
    Definitions,
    Op,
    RowKey,
    RunRow,
    SnapshotRow,
    meta_op,
)
from penstock.log.delayed import (
    DELAYED_DIRECTORY,
    SPILL_DIRECTORY,
    DelayedFiles,
    DelayedSpill,
    DelayTracker,
)
from penstock.log.encode import UNINDEXED
from penstock.log.format import (
    INDEX_DEFERRED,
    INDEX_EXPIRES,
    INDEX_RELEASED,
    INDEX_TRANSIENT,
    CursorState,
    Targets,
    check_format,
    decode_cursor,
    decode_release,
    decode_settlement,
)
from penstock.log.index import (
    ENTRY,
    ENTRY_BYTES,
    INDEX_DIRECTORY,
    QUEUE_KIND,
    IndexFlag,
    IndexSet,
    QueueIndex,
    QueueState,
    queue_of,
)
from penstock.log.key_index import KEYS_DIRECTORY, KeyIndex
from penstock.log.reader import LogReader, ScannedRecord
from penstock.log.repair import note_failed_sync, rewrite_unsynced
from penstock.log.retention import SEGMENT_KIND, Retention, SegmentRow
from penstock.log.scan import LogScan, ScanReport
from penstock.log.segment import LOG_DIR, SegmentSet
from penstock.log.side_files import FILE_KIND, SideFiles
from penstock.log.staging import (
    Run,
    SinkTable,
    StageCommit,
    StageFiles,
    decode_commit,
    staged_records,
)
from penstock.log.storage import Storage
from penstock.log.writer import LogWriter
from penstock.model.errors import LogCorrupt
from penstock.model.ids import LogPosition, QueueId, QueueOffset, is_transient_id
from penstock.model.record import RecordFlag, RecordKind
from penstock.model.settlement import Settlement
from penstock.settings.broker import StorageSettings

COMMIT_ROWS_MAX: Final = 65_536
"""Entries of one commit of staged rows that are kept before they go into their indexes."""
TRANSIENT_SCAN_ENTRIES: Final = 4096
"""Index entries looked at in one go when transient messages are dropped."""


class Recovered(msgspec.Struct):
    """What the engine needs to know about the past."""

    cursors: dict[tuple[int, int], CursorState] = msgspec.field(default_factory=dict)
    """(subscription_id, queue_id) -> state as of the snapshot."""
    settlements: list[Settlement] = msgspec.field(default_factory=list)
    """Settle records since the snapshot, in the order of the log: apply them to the cursors."""
    transient: list[tuple[int, list[tuple[int, int]]]] = msgspec.field(default_factory=list)
    """(queue_id, [start, end) ranges) of transient messages that this restart drops (D6): settle
    them in every subscription. They keep their offsets, so nothing else moves."""
    start_position: LogPosition = LogPosition(0)
    """End of the log at open; transient entries below it are dropped ones."""
    epoch: int = 0
    """Changes when bytes that counted as durable may have been lost (D7)."""
    is_new: bool = False
    """The directory was empty."""
    is_clean: bool = True
    """The last process stopped in order: nothing had to be replayed."""
    is_rebuilt: bool = False
    """Indexes were made again from the whole log."""
    report: ScanReport = msgspec.field(default_factory=ScanReport)
    notes: list[str] = msgspec.field(default_factory=list)
    """One sentence for each thing a person should know, for the log."""


class StoreParts:
    """The parts of an open store, wired together."""

    def __init__(
        self,
        storage: Storage,
        catalog: Catalog,
        settings: StorageSettings,
        rows: dict[RowKey, bytes],
    ) -> None:
        self.storage: Final = storage
        self.catalog: Final = catalog
        self.segments: Final = SegmentSet.load(storage)
        self.definitions: Final = Definitions(rows)
        self.side_files: Final = SideFiles(storage)
        self.indexes: Final = IndexSet(
            self.side_files,
            self.definitions,
            entries_max=settings.index_file_entries_max,
            tail_bytes_max=settings.index_tail_bytes_max,
        )
        self.retention: Final = Retention(
            self.segments,
            keep_ms=settings.settled_keep_ms,
            keep_bytes_max=settings.settled_keep_bytes_max,
        )
        self.delayed: Final = DelayedFiles(self.side_files)
        self.spill: Final = DelayedSpill(self.side_files)
        self.keys: Final = KeyIndex(self.side_files)
        self.sinks: Final = SinkTable(rows)
        self.stages: Final = StageFiles(storage, self.side_files)
        self.reader: Final = LogReader(storage, self.segments)
        self.writer: LogWriter
        self.run: RunRow
        self.snapshot_position = 0
        self.index_ms = 0

    def capture(self, row: SnapshotRow) -> list[Op]:
        """Everything a snapshot has to say but cursors; hands all tails over for writing."""
        self.delayed.plan_flush()
        ops = self.indexes.capture() + self.retention.capture() + self.sinks.capture()
        # After the tails were handed over: the rows describe the files with them.
        ops += self.side_files.take_rows()
        ops.append(meta_op(SNAPSHOT_KEY, row))
        return ops


def recover(
    storage: Storage, catalog: Catalog, settings: StorageSettings, *, boot_id: str
) -> tuple[StoreParts, Recovered]:
    """Open what is there; see the module's text."""
    for directory in (LOG_DIR, INDEX_DIRECTORY, DELAYED_DIRECTORY, KEYS_DIRECTORY):
        if not storage.exists(directory):
            storage.make_dir(directory)
            storage.sync_dir("")
    notes = [check_format(storage), rewrite_unsynced(storage)]
    rows = catalog.load()
    parts = StoreParts(storage, catalog, settings, rows)
    recovered = Recovered(notes=[note for note in notes if note])
    last_run = _last_run(rows, parts, recovered)
    body = rows.get((META_KIND, SNAPSHOT_KEY))
    snapshot = msgspec.json.decode(body, type=SnapshotRow) if body else SnapshotRow(0)
    parts.snapshot_position, parts.index_ms = snapshot.position, snapshot.index_ms
    recovered.is_rebuilt = not _restore_side_files(parts, rows, recovered)
    _read_log(parts, recovered)
    report = recovered.report
    # Were the log shorter than the snapshot says, positions would be handed out twice.
    end = max(report.end_position, snapshot.position)
    recovered.epoch = max(last_run.epoch, report.epoch)
    if _may_have_lost(last_run, boot_id):
        recovered.epoch += 1
        recovered.notes.append(
            f"the machine was restarted while durability was {last_run.durability}: the newest"
            " messages may be lost"
        )
    parts.writer = LogWriter(
        storage,
        parts.segments,
        end_position=end,
        segment_bytes_max=settings.segment_bytes_max,
        prev_head_crc=report.last_head_crc,
        epoch=recovered.epoch,
    )
    parts.run = RunRow(False, boot_id, settings.durability, recovered.epoch)
    recovered.start_position = LogPosition(end)
    recovered.notes += report.sentences()
    stale = _restore_cursors(parts, rows, recovered)
    recovered.transient = _transient_ranges(parts, recovered)
    catalog.apply([meta_op(RUN_KEY, parts.run), *parts.definitions.take_ops(), *stale])
    return parts, recovered


def _last_run(rows: dict[RowKey, bytes], parts: StoreParts, recovered: Recovered) -> RunRow:
    """The run row; a log without one has lost its catalog."""
    body = rows.get((META_KIND, RUN_KEY))
    if body is None:
        if parts.segments.size_bytes:
            raise LogCorrupt(
                f"catalog.db is missing or empty although {LOG_DIR}/ holds"
                f" {parts.segments.size_bytes} bytes: without it nobody knows which queues the"
                " messages belong to; put back catalog.db from a backup, or move the directory"
                " away and start with an empty one"
            )
        recovered.is_new = True
        return RunRow(True, "", "fsync", 0)
    run = msgspec.json.decode(body, type=RunRow)
    recovered.is_clean = run.is_clean
    return run


def _may_have_lost(run: RunRow, boot_id: str) -> bool:
    """True when bytes that counted as durable were only in the memory of a dead kernel (D7)."""
    return not run.is_clean and run.durability != "fsync" and run.boot_id != boot_id


def _restore_side_files(parts: StoreParts, rows: dict[RowKey, bytes], recovered: Recovered) -> bool:
    """Go on from checked index and delay files; False when they must be made again."""
    files = parts.side_files
    for (kind, key), body in rows.items():
        if kind == QUEUE_KIND:
            state = msgspec.json.decode(body, type=QueueState)
            parts.indexes.make(int(key), state.incarnation)
    known: list[tuple[str, bytes]] = []
    for (kind, path), body in sorted(rows.items()):
        if kind != FILE_KIND:
            continue
        if path.startswith(INDEX_DIRECTORY) and queue_of(path) not in parts.indexes.by_id:
            files.forget_row(path)  # the queue was deleted since the snapshot
        else:
            known.append((path, body))
    damaged = files.restore(known)
    lost_keys = [path for path in damaged if path.startswith(KEYS_DIRECTORY)]
    lost = [path for path in damaged if not path.startswith(KEYS_DIRECTORY)]
    for path in lost_keys:
        recovered.notes.append(
            f"{path} is missing or damaged: some messages are not found by their key"
        )
    for directory in (INDEX_DIRECTORY, DELAYED_DIRECTORY, KEYS_DIRECTORY, SPILL_DIRECTORY):
        files.clear(directory)
    parts.keys.restore(files.paths(f"{KEYS_DIRECTORY}/"))
    by_queue: dict[int, list[str]] = {}
    for path in files.paths(f"{INDEX_DIRECTORY}/"):
        by_queue.setdefault(queue_of(path), []).append(path)
    for index in parts.indexes.by_id.values():
        body = rows[QUEUE_KIND, str(index.queue_id)]
        state = msgspec.json.decode(body, type=QueueState)
        index.restore(state, by_queue.get(index.queue_id, ()))
    segment_rows = {
        int(key): msgspec.json.decode(body, type=SegmentRow)
        for (kind, key), body in rows.items()
        if kind == SEGMENT_KIND
    }
    is_whole = parts.retention.restore(
        segment_rows, parts.indexes.by_id.values(), parts.snapshot_position
    )
    if not lost and is_whole:
        parts.delayed.restore(files.paths(f"{DELAYED_DIRECTORY}/"))
        return True
    what = ", ".join(lost[:3]) + (" and others" if len(lost) > 3 else "")
    recovered.notes.append(
        f"{what or 'the use of segments'} is missing or damaged: indexes are made anew from the log"
    )
    return False


def _read_log(parts: StoreParts, recovered: Recovered) -> None:
    """Replay the log from the snapshot, or all of it when indexes must be made again."""
    covered = parts.snapshot_position
    replay = Replay(parts, covered=covered)
    if recovered.is_rebuilt:
        parts.side_files.drop(f"{INDEX_DIRECTORY}/")
        parts.side_files.drop(f"{DELAYED_DIRECTORY}/")
        parts.retention.clear()
        replay.begin_rebuild()
    else:
        replay.index_ms = parts.index_ms
    scan = LogScan(
        parts.storage,
        parts.segments,
        from_position=0 if recovered.is_rebuilt else covered,
        known_mark=covered,
    )
    for batch in scan.batches():
        replay.synced = scan.report.durable_mark
        replay.take(batch)
        if parts.side_files.waiting:
            parts.side_files.run_all()
    try:
        recovered.report = scan.finish()
    except OSError:
        note_failed_sync(parts.storage, covered)
        raise
    replay.end()
    parts.reader.close()  # what it has open may have been put in order under another handle
    parts.side_files.run_all()
    parts.index_ms = max(replay.index_ms, parts.index_ms)
    recovered.settlements = replay.settlements


def _restore_cursors(
    parts: StoreParts, rows: dict[RowKey, bytes], recovered: Recovered
) -> list[Op]:
    """Fill in the cursors; operations that delete those of queues that are gone."""
    stale: list[Op] = []
    for (kind, key), body in rows.items():
        if kind == CURSOR_KIND:
            state = decode_cursor(body)
            if state.queue_id in parts.indexes.by_id:
                recovered.cursors[state.subscription_id, state.queue_id] = state
            else:
                stale.append((kind, key, None))
    return stale


def _transient_ranges(
    parts: StoreParts, recovered: Recovered
) -> list[tuple[int, list[tuple[int, int]]]]:
    """Ranges of transient messages per queue, from the lowest mark of any of its cursors on."""
    lowest: dict[int, int] = {}
    for (_, queue_id), state in recovered.cursors.items():
        lowest[queue_id] = min(state.low_mark, lowest.get(queue_id, state.low_mark))
    found: list[tuple[int, list[tuple[int, int]]]] = []
    for index in parts.indexes.by_id.values():
        if index.transient_from < 0:
            continue
        offset = max(index.transient_from, lowest.get(index.queue_id, 0))
        ranges: list[tuple[int, int]] = []
        while entries := index.entries(offset, TRANSIENT_SCAN_ENTRIES):
            for _, first, _, _, _, messages, _, flags in entries:
                if not flags & IndexFlag.TRANSIENT:
                    continue
                if ranges and ranges[-1][1] == first:
                    ranges[-1] = (ranges[-1][0], first + messages)
                else:
                    ranges.append((first, first + messages))
            offset = entries[-1][1] + entries[-1][5]
        if ranges:
            found.append((index.queue_id, ranges))
    return found


# ---- replay -------------------------------------------------------------------------------------
# Replaying scanned records into indexes, delays and segment uses: what the append did, once more.
#
# The hot loop of recovery: a gigabyte of small messages is four million records. It mirrors
# ``encode.stage``, but trusts the offsets in the target lists instead of assigning them, and
# holes (lost records, removed segments) stay holes.


_MESSAGE: Final = int(RecordKind.MESSAGE)
_SETTLE: Final = int(RecordKind.SETTLE)
_RELEASE: Final = int(RecordKind.RELEASE)
_STAGE_COMMIT: Final = int(RecordKind.STAGE_COMMIT)
_DELAYED: Final = int(RecordFlag.DELAYED)
_TRANSIENT: Final = int(RecordFlag.TRANSIENT)
_NO_QUEUE: Final = -1


class Replay:
    """Takes the records of one frame after the other."""

    def __init__(self, parts: StoreParts, *, covered: int) -> None:
        self._indexes = parts.indexes
        self._retention = parts.retention
        self._delayed = parts.delayed
        self._delays = DelayTracker(parts.delayed, parts.retention)
        parts.delayed.is_counting = False
        self._definitions = parts.definitions
        self._sinks = parts.sinks
        self._reader = parts.reader
        self._covered = covered
        self.synced = covered
        """Everything below was synced, as far as the scan has found out."""
        self._floors: dict[int, int] = {}
        self._touched: dict[QueueIndex, None] = {}
        self.index_ms = 0
        self.settlements: list[Settlement] = []
        """Of the records at or behind ``covered``: what lies before is in the snapshot."""

    def begin_rebuild(self) -> None:
        """Empty every index; offsets handed out before are remembered."""
        for index in self._indexes.by_id.values():
            self._floors[index.queue_id] = index.next_offset
            index.empty()

    def take(self, batch: list[ScannedRecord]) -> None:
        """Make again what the append of this frame made."""
        if not batch:
            return
        pack = ENTRY.pack
        index_ms = self.index_ms
        # Offset and bytes of the queue at hand are kept here and written back when it changes.
        index: QueueIndex | None = None
        current = _NO_QUEUE
        expected = bytes_before = 0
        for scanned in batch:
            # fmt: off
            (
                position, length, kind, flags, messages, store_ms, expire_ms, deliver_ms, tag,
                targets, _,
            ) = scanned
            # fmt: on
            if store_ms > index_ms:
                self.index_ms = index_ms = store_ms
            if kind != _MESSAGE or flags or expire_ms or deliver_ms or len(targets) != 1:
                if index is not None:
                    index.staged_offset, index.staged_bytes = expected, bytes_before
                index, current = None, _NO_QUEUE
                self._take_special(scanned)
                continue
            queue_id, offset = targets[0]
            if queue_id != current:
                if index is not None:
                    index.staged_offset, index.staged_bytes = expected, bytes_before
                index, current = self._touch(queue_id), queue_id
                if index is not None:
                    expected, bytes_before = index.staged_offset, index.staged_bytes
                    add = index.staged.append
            if index is None or offset < expected:
                continue
            add(pack(position, offset, bytes_before, index_ms, length, messages, tag, 0))
            expected = offset + messages
            bytes_before += length
        if index is not None:
            index.staged_offset, index.staged_bytes = expected, bytes_before
        self._take_in(batch)

    def _take_in(self, batch: list[ScannedRecord]) -> None:
        """The end of a frame: its entries become part of the indexes."""
        touched = [index for index in self._touched if index.staged]
        self._touched.clear()
        last = batch[-1][0]
        self._indexes.take_in(touched, last, len(batch) * ENTRY_BYTES)
        self._retention.note_at(last, touched, self.index_ms)

    def end(self) -> None:
        """Nothing more comes: offsets go on where the snapshot or the log says, if later."""
        self._delayed.is_counting = True
        for queue_id, floor in self._floors.items():
            self._indexes.by_id[queue_id].lift(floor)

    def _take_special(self, scanned: ScannedRecord) -> None:
        # fmt: off
        (
            position, length, kind, flags, messages, _, expire_ms, deliver_ms, tag, targets,
            payload,
        ) = scanned
        # fmt: on
        if kind == _SETTLE:
            if position >= self._covered:
                settlement = decode_settlement(payload)
                self._definitions.lift_id("subscription", settlement.subscription_id)
                self.settlements.append(settlement)
                self._note_floors(settlement)
            return
        if kind == _RELEASE:
            release = decode_release(payload)
            ends = [(queue_id, offset + messages) for queue_id, offset in targets]
            self._delays.released(deliver_ms, release, position, ends)
            position, length = release.position, release.length
            tag, entry_flags = release.tag_hash, release.flags | INDEX_RELEASED
        elif kind == _STAGE_COMMIT:
            self._take_commit(decode_commit(payload), scanned)
            return
        elif kind != _MESSAGE:
            return
        elif flags & UNINDEXED:
            if flags & UNINDEXED == _DELAYED:
                self._delays.delayed(deliver_ms, position, length)
            return
        else:
            entry_flags = INDEX_TRANSIENT if flags & _TRANSIENT else 0
            entry_flags |= INDEX_DEFERRED if deliver_ms else 0
            entry_flags |= INDEX_EXPIRES if expire_ms else 0
        self._enter(targets, (position, length, messages, tag, entry_flags))

    def _take_commit(self, commit: StageCommit, scanned: ScannedRecord) -> None:
        """Staged rows get their offsets; they lie before their commit, and are read again."""
        for run in commit.runs():
            is_sure = run.position < self.synced
            if not is_sure and len(staged_records(self._reader, run)) < run.rows:
                # The commit outlived its rows, which no sync had covered: it never happened.
                return
        rows = 0
        for run in commit.runs():
            self._take_run(run)
            rows += run.rows
            if rows >= COMMIT_ROWS_MAX:
                self._take_in([scanned])
                rows = 0
        if scanned[0] >= self._covered:
            self._sinks.note(commit, scanned[5])

    def _take_run(self, run: Run) -> None:
        records = staged_records(self._reader, run)
        if run.flags:
            for _, (position, length, *_, deliver_ms, _, _, _) in records:
                self._delays.delayed(deliver_ms, position, length)
            return
        for number, row in records:
            flags = INDEX_EXPIRES if row[6] else 0
            target = ((QueueId(run.queue_id), QueueOffset(run.first_offset + number)),)
            self._enter(target, (row[0], row[1], row[4], row[8], flags))
        end = run.first_offset + run.rows
        if run.queue_id in self._indexes.by_id:
            # Damaged rows keep their offsets, as a hole.
            self._floors[run.queue_id] = max(end, self._floors.get(run.queue_id, 0))
        self._retention.note_staged(run.position, ((run.queue_id, end),))

    def _enter(self, targets: Targets, facts: tuple[int, int, int, int, int]) -> None:
        position, length, messages, tag, flags = facts
        for queue_id, offset in targets:
            index = self._touch(queue_id)
            if index is None or offset < index.staged_offset:
                continue
            if flags & INDEX_TRANSIENT and index.transient_from < 0:
                index.transient_from = offset
            before = index.staged_bytes
            index.staged.append(
                ENTRY.pack(position, offset, before, self.index_ms, length, messages, tag, flags)
            )
            index.staged_bytes = before + length
            index.staged_offset = offset + messages

    def _note_floors(self, settlement: Settlement) -> None:
        """Offsets that were settled were given out, though a power cut may have lost the records.

        Given out once more they would be settled before anybody saw them.
        """
        for part in settlement.queues:
            end = max([part.low_mark, *(end for _, end in part.ranges)])
            if part.queue_id in self._indexes.by_id:
                self._floors[part.queue_id] = max(end, self._floors.get(part.queue_id, 0))

    def _touch(self, queue_id: int) -> QueueIndex | None:
        """The index that gets an entry; None when the queue is not (or not any more) known."""
        index = self._indexes.by_id.get(queue_id)
        if index is None:
            if not is_transient_id(queue_id):
                self._definitions.lift_id("queue", queue_id)
        elif not index.staged:
            self._touched[index] = None
        return index
