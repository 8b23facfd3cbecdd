"""A store on a simulated disk that can be stopped, killed and cut off from power."""

import pytest

from penstock.log.encode import Appending
from penstock.log.format import CursorState
from penstock.log.store import Store
from penstock.model.record import neutral_record
from penstock.settings.broker import StorageSettings
from penstock.testing.broker import MemoryCatalog
from penstock.testing.clock import ManualClock
from penstock.testing.storage import SimulatedStorage

KIB = 1024


class StoreBox:
    """One store after another on the same disk."""

    def __init__(self, **settings):
        self.settings = StorageSettings(**settings)
        self.clock = ManualClock()
        self.storage = SimulatedStorage(1)
        self.catalog = MemoryCatalog()
        self.boot_id = "boot 1"
        self.open()

    def open(self):
        self.store, self.recovered = Store.open(
            self.storage, self.catalog, self.settings, self.clock, boot_id=self.boot_id
        )
        return self.store

    def queue(self, queue_id=1):
        return self.store.create_queue(queue_id, 1000 + queue_id)

    def append(self, *bodies, queues=None, tag=b"", **facts):
        """One frame of neutral records to all ``queues`` (or the only queue there is)."""
        queues = tuple(queues if queues is not None else self.store.queues()[:1])
        batch = []
        for body in bodies:
            record = neutral_record(body, tag=tag)
            record.reshape(**facts)
            batch.append(Appending(record, queues))
        self.store.append(batch, self.clock.wall_ms())
        return batch

    def append_records(self, *pairs):
        """One frame of (record, queues) pairs."""
        batch = [Appending(record, tuple(queues)) for record, queues in pairs]
        self.store.append(batch, self.clock.wall_ms())
        return batch

    def commit(self):
        """Run jobs until there is none."""
        count = 0
        while (job := self.store.take_sync_job()) is not None:
            job.run()
            self.store.synced(job, None)
            count += 1
        return count

    def snapshot(self, *cursors):
        """A snapshot, written."""
        self.store.offer_snapshot(self.store.end_position, cursors)
        self.commit()
        assert self.store.snapshot_position == self.store.end_position

    def stop(self, *cursors):
        self.store.close(cursors)
        self.storage, self.catalog = self.storage.kill(), self.catalog.kill()
        return self.open()

    def kill(self):
        self.storage, self.catalog = self.storage.kill(), self.catalog.kill()
        return self.open()

    def power_cut(self):
        self.storage, self.catalog = self.storage.crash(), self.catalog.crash()
        return self.open()

    def bodies(self, queue_id=1, from_offset=0):
        """offset -> body of everything that can be read."""
        entries = self.store.queue(queue_id).entries(from_offset, 1_000_000)
        records = self.store.read([(entry[0], entry[4]) for entry in entries])
        return {
            entry[1]: None if record is None else record.body
            for entry, record in zip(entries, records, strict=True)
        }

    def cursor(self, queue_id=1, low_mark=0, **more):
        return CursorState(7, queue_id, low_mark, **more)


@pytest.fixture(scope="session")
def make_box():
    return StoreBox


@pytest.fixture
def box():
    return StoreBox()
