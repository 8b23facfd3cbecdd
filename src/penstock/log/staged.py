"""A frame on its way into the log: what goes in, its bytes, and what follows when they are written.

Everything in it is tentative (``QueueIndex.staged``, ``staged_offset``, ``staged_bytes``):
``IndexSet.take_in`` makes it real once the frame is written, ``Staged.undo`` takes it back when it
is not. In between nothing of a queue has changed that a reader could see.

Not here: who fills it (``intake.py``), the frame and the file (``writer.py``).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.log.cursors import INDEX_TRANSIENT, Release
from penstock.log.queue_index import QueueIndex
from penstock.model.ids import LogPosition
from penstock.model.record import Record

NO_POSITION: Final = LogPosition(-1)
NO_OFFSET: Final = -1

Runs = Sequence[tuple[int, int]]
"""Stretches [start, end) of a batch, in order, whose records share one shape object, one size and
their queues: they are staged by columns (``run.py``)."""


class Appending(msgspec.Struct, gc=False):
    """One record on its way into the log."""

    record: Record
    queues: tuple[QueueIndex, ...] = ()
    """Target queues, each at most once; none for settle records and cancelled delays."""
    first_offset: int = NO_OFFSET
    """Offset of the first message in the first target, filled in by the append."""
    other_offsets: tuple[int, ...] = ()
    """The same for the other targets."""

    @property
    def first_offsets(self) -> tuple[int, ...]:
        """One for each target, empty before the append."""
        return () if self.first_offset == NO_OFFSET else (self.first_offset, *self.other_offsets)


class Special(NamedTuple):
    """A delayed or release record of a frame: it concerns more than indexes."""

    appending: Appending
    length: int
    release: Release | None


class Staged(msgspec.Struct, eq=False):
    """A frame on its way."""

    at: Any  # LogPosition(at) would be a call for each record
    """Where the next record goes."""
    store_ms: int
    index_ms: int
    """Store time of index entries, which never goes back."""
    parts: list[bytes | bytearray] = []
    """Pieces of the records, to be joined."""
    records: list[Record] = []
    positions: list[int] = []
    """Where each of them lies."""
    touched: list[QueueIndex] = []
    """Queues that get entries, each once."""
    special: list[Special] = []

    def touch(self, index: QueueIndex, flags: int) -> tuple[int, int]:
        """A queue is about to get entries with these flags: from which offset and bytes on."""
        if not index.staged:
            self.touched.append(index)
        if flags & INDEX_TRANSIENT and index.transient_from < 0:
            index.transient_from = index.staged_offset
        return index.staged_offset, index.staged_bytes

    def undo(self, batch: Iterable[Appending]) -> None:
        """The frame is not written: no offset was given to anybody."""
        for index in self.touched:
            index.undo_staged()
        for appending in batch:
            appending.first_offset, appending.other_offsets = NO_OFFSET, ()
            appending.record.position = NO_POSITION
