"""Replaying scanned records into indexes, delays and segment uses: what the append did, once more.

The hot loop of recovery: a gigabyte of small messages is four million records. It mirrors
``intake.index_batch``, but trusts the offsets in the target lists instead of assigning them, and
holes (lost records, removed segments) stay holes.

Not here: finding records (``scan.py``), what to do with the result (``recovery.py``).
"""

from typing import Final

from penstock.log.cursors import (
    INDEX_DEFERRED,
    INDEX_EXPIRES,
    INDEX_RELEASED,
    INDEX_TRANSIENT,
    decode_release,
    decode_settlement,
)
from penstock.log.definitions import Definitions
from penstock.log.delay_notes import DelayNotes
from penstock.log.delayed_files import DelayedFiles
from penstock.log.entry import Targets
from penstock.log.index_files import ENTRY, ENTRY_BYTES
from penstock.log.index_set import IndexSet
from penstock.log.packing import UNINDEXED
from penstock.log.queue_index import QueueIndex
from penstock.log.retention import Retention
from penstock.log.salvage import ScannedRecord
from penstock.model.ids import is_transient_id
from penstock.model.record import RecordFlag, RecordKind
from penstock.model.settlement import Settlement

_MESSAGE: Final = int(RecordKind.MESSAGE)
_SETTLE: Final = int(RecordKind.SETTLE)
_RELEASE: Final = int(RecordKind.RELEASE)
_DELAYED: Final = int(RecordFlag.DELAYED)
_TRANSIENT: Final = int(RecordFlag.TRANSIENT)
_NO_QUEUE: Final = -1


class Replay:
    """Takes the records of one frame after the other."""

    def __init__(
        self,
        indexes: IndexSet,
        retention: Retention,
        delayed: DelayedFiles,
        definitions: Definitions,
        *,
        covered: int,
    ) -> None:
        self._indexes = indexes
        self._retention = retention
        self._delayed = delayed
        self._delays = DelayNotes(delayed, retention)
        delayed.is_counting = False
        self._definitions = definitions
        self._covered = covered
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
        elif kind != _MESSAGE:
            return
        elif flags & UNINDEXED:
            if flags & _DELAYED:
                self._delays.delayed(deliver_ms, position, length)
            return
        else:
            entry_flags = INDEX_TRANSIENT if flags & _TRANSIENT else 0
            entry_flags |= INDEX_DEFERRED if deliver_ms else 0
            entry_flags |= INDEX_EXPIRES if expire_ms else 0
        self._enter(targets, (position, length, messages, tag, entry_flags))

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
