"""P4 beyond the process: bytes whose sync failed are not called durable by the next one."""

import pytest

from penstock.log.encode import Appending
from penstock.log.repair import MARKER_NAME, note_failed_sync
from penstock.log.store import Store
from penstock.model.errors import SyncFailed
from penstock.model.record import neutral_record
from penstock.settings.broker import StorageSettings
from penstock.testing.broker import MemoryCatalog
from penstock.testing.clock import ManualClock
from penstock.testing.storage import ANY, Fault, FaultKind, SimulatedStorage

SETTINGS = StorageSettings(segment_bytes_max=64 * 1024)


class House:
    """A store on a disk that fails."""

    def __init__(self, seed=1):
        self.clock = ManualClock()
        self.storage, self.catalog = SimulatedStorage(seed), MemoryCatalog()
        self.open()
        self.store.create_queue(1, 1001)
        self.commit()

    def open(self):
        self.store, self.recovered = Store.open(self.storage, self.catalog, SETTINGS, self.clock)

    def append(self, *bodies):
        queue = self.store.queue(1)
        batch = [Appending(neutral_record(body), (queue,)) for body in bodies]
        self.store.append(batch, self.clock.wall_ms())

    def commit(self):
        while (job := self.store.take_sync_job()) is not None:
            error = None
            try:
                job.run()
            except SyncFailed as problem:
                error = problem
            self.store.synced(job, error)

    def fail(self):
        self.storage.plan.fail_next("sync", FaultKind.EIO)
        self.commit()
        assert self.store.is_failed

    def kill(self):
        self.storage, self.catalog = self.storage.kill(), self.catalog.kill()
        self.open()

    def cut_power(self):
        self.storage, self.catalog = self.storage.crash(), self.catalog.crash()
        self.open()

    def bodies(self):
        entries = self.store.queue(1).entries(0, 1000)
        records = self.store.read([(entry[0], entry[4]) for entry in entries])
        return [None if record is None else record.body for record in records]


@pytest.mark.parametrize("seed", range(12))
def test_what_a_restart_shows_after_a_failed_sync_survives_a_power_cut(seed):
    house = House(seed)
    house.append(b"confirmed")
    house.commit()
    house.append(b"doubtful")
    house.fail()
    house.kill()
    assert house.bodies() == [b"confirmed", b"doubtful"], "the page cache still has it"
    house.append(b"later")
    house.commit()
    house.cut_power()
    assert house.bodies() == [b"confirmed", b"doubtful", b"later"]


def test_every_segment_above_the_synced_mark_is_written_anew_and_no_other():
    house = House()
    for _ in range(3):
        house.append(bytes(40_000))
        house.commit()
    for _ in range(3):
        house.append(bytes(40_000))
    house.fail()
    house.kill()
    assert "a sync had failed: 3 log segments were written anew" in house.recovered.notes
    assert len(house.bodies()) == 6
    assert not house.storage.exists(MARKER_NAME)
    assert house.storage.list("log") == sorted(house.storage.list("log"))
    assert not any(name.endswith(".new") for name in house.storage.list("log"))
    house.kill()
    assert not any("sync" in note for note in house.recovered.notes)


def test_a_start_that_cannot_write_it_anew_is_refused_and_tried_again():
    house = House()
    house.append(b"a")
    house.fail()
    house.storage, house.catalog = house.storage.kill(), house.catalog.kill()
    house.storage.plan.fail_next("sync", FaultKind.EIO)
    with pytest.raises(SyncFailed, match="cannot be written anew"):
        house.open()
    house.kill()
    assert house.bodies() == [b"a"]
    house.cut_power()
    assert house.bodies() == [b"a"]


@pytest.mark.parametrize("seed", range(6))
def test_a_sync_that_fails_while_starting_is_remembered_as_well(seed):
    house = House(seed)
    house.append(b"a")
    house.commit()
    house.append(b"b")
    house.storage, house.catalog = house.storage.kill(), house.catalog.kill()
    house.storage.plan.fail_next("sync", FaultKind.EIO)
    with pytest.raises(OSError, match="planned"):
        house.open()
    house.kill()
    assert house.bodies() == [b"a", b"b"]
    house.cut_power()
    assert house.bodies() == [b"a", b"b"]


def test_a_crash_in_the_middle_of_it_finds_the_same_work_again():
    for nth in range(1, 40):
        house = House(nth)
        house.append(b"a")
        house.commit()
        house.append(b"b")
        house.fail()
        house.storage, house.catalog = house.storage.kill(), house.catalog.kill()
        house.storage.plan.faults.append(Fault(ANY, house.storage.plan.total + nth, FaultKind.EIO))
        try:
            house.open()
        except (SyncFailed, OSError):
            house.kill()
        house.storage.plan.clear()
        assert house.bodies() == [b"a", b"b"], nth
        house.cut_power()
        assert house.bodies() == [b"a", b"b"], nth


def test_a_disk_that_does_not_take_the_marker_does_not_make_it_worse():
    storage = SimulatedStorage(1)
    storage.plan.fail_next("open", FaultKind.EIO)
    note_failed_sync(storage, 7)
    assert not storage.exists(MARKER_NAME)


def test_a_marker_that_cannot_be_read_means_everything():
    house = House()
    house.append(b"a")
    house.commit()
    file = house.storage.open(MARKER_NAME, create=True)
    file.write(b"12 ")
    house.kill()
    assert any("1 log segments were written anew" in note for note in house.recovered.notes)
    assert house.bodies() == [b"a"]
