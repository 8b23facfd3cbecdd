"""One commit cycle, as the commit thread runs it (D5, D6, D8).

Order: the catalog transaction first, so that no durable record names an unknown queue; then side
files, whose failure only delays the next snapshot; then the sync of the log; then removals, of
which nothing depends. Any failure but a full disk is final (P4).

Not here: who may take a job and what its end means (``store.py``).
"""

import msgspec

from penstock.log.catalog import Catalog, Op
from penstock.log.distrust import note_failed_sync
from penstock.log.segment import LOG_DIR
from penstock.log.side_files import SideFiles, Step
from penstock.log.storage import Storage
from penstock.log.writer import UnsyncedSet
from penstock.model.errors import AppendFailed, SyncFailed
from penstock.model.ids import LogPosition


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
    """The disk is too full for the catalog: nothing was done, try again later."""

    def run(self) -> None:
        """Do all of it; raises ``SyncFailed``, and then nothing it covers counts as stored."""
        try:
            if self.definition_ops or self.snapshot_ops:
                self.catalog.apply(self.definition_ops + self.snapshot_ops)
        except AppendFailed:
            self.is_deferred = True
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
