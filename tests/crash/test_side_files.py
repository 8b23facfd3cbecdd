"""T6: any side file deleted, scrambled or cut short, one at a time, on a real disk.

Whatever is harmed, the start either gives back everything that was confirmed or refuses with one
sentence that says what to do. Nothing is lost silently.
"""

import shutil

import pytest

from penstock.log.catalog import CATALOG_NAME, SqliteCatalog
from penstock.log.encode import Appending
from penstock.log.format import CursorState, release_record, settlement_record
from penstock.log.storage import DirectoryLock, DiskStorage
from penstock.log.store import Store
from penstock.model.errors import LogCorrupt
from penstock.model.record import RecordFlag, neutral_record
from penstock.model.settlement import Cause, QueueSettlement, Settlement
from penstock.settings.broker import StorageSettings
from penstock.testing.clock import ManualClock

SETTINGS = StorageSettings(
    segment_bytes_max=64 * 1024, index_file_entries_max=50, hot_tail_records_max=10
)
ALWAYS = {"begin_ms": 0, "end_ms": 1 << 60, "count_max": 1000}
FAR_MS = 1 << 60


def open_store(directory):
    catalog = SqliteCatalog(directory / CATALOG_NAME)
    return Store.open(DiskStorage(directory), catalog, SETTINGS, ManualClock())


def commit(store):
    while (job := store.take_sync_job()) is not None:
        job.run()
        store.synced(job, None)


def settle(low_mark):
    settlement = Settlement(9, int(Cause.ACKED), [QueueSettlement(1, low_mark)])
    return Appending(settlement_record(settlement), ())


def delayed(number, queue):
    record = neutral_record(b"delayed %d" % number)
    record.reshape(flags=int(RecordFlag.DELAYED), deliver_ms=3_600_000 * (1 + number % 3) + number)
    return Appending(record, (queue,))


def fill(store, is_stopped):
    """Queues, batches, fan-out, delays, releases, settlements and keys; half behind a snapshot."""
    first, second = store.create_queue(1, 11), store.create_queue(2, 22)
    store.definitions.put("topic", "orders", b"{}")
    cursor = CursorState(9, 1, 0)
    for turn in range(40):
        batch = [Appending(neutral_record(b"%d/%d" % (turn, i)), (first,)) for i in range(10)]
        batch.append(Appending(neutral_record(b"both %d" % turn), (first, second)))
        batch.append(delayed(turn, second))
        batch.append(settle(turn))
        store.append(batch, 1000 + turn)
        for each in batch:
            store.keys.add(5, [b"key %d" % turn], each.record.position, 1000 + turn)
        if turn % 2:
            length = next(
                due[2]
                for due in store.delayed.pending(batch[-2].record.deliver_ms)
                if due[1] == batch[-2].record.position
            )
            release = Appending(release_record(batch[-2].record, length), (second,))
            store.append([release], 1000 + turn)
        commit(store)
        if turn == 25:
            store.keys.seal()
            store.offer_snapshot(store.end_position, [CursorState(9, 1, turn)])
            commit(store)
            assert store.snapshot_position > 0
            cursor = CursorState(9, 1, 39)
    store.close([cursor]) if is_stopped else store.release()


def contents(store, recovered):
    """Everything that was confirmed, as a reader sees it."""
    found = {}
    for queue_id in (1, 2):
        entries = store.queue(queue_id).entries(0, 10_000)
        records = store.read([(entry[0], entry[4]) for entry in entries])
        found[queue_id] = [
            (entry[1:], record.body if record is not None else None)
            for entry, record in zip(entries, records, strict=True)
        ]
    marks = [settlement.queues[0].low_mark for settlement in recovered.settlements]
    return {
        "messages": found,
        "next": [store.queue(queue_id).next_offset for queue_id in (1, 2)],
        "delayed": store.delayed.due(FAR_MS),
        "mark": max([recovered.cursors[9, 1].low_mark, *marks]),
        "topics": store.definitions.all("topic"),
        "incarnations": [store.queue(queue_id).incarnation for queue_id in (1, 2)],
    }


@pytest.fixture(scope="module", params=["stopped", "killed"])
def made(request, tmp_path_factory):
    """A data directory and what is in it."""
    directory = tmp_path_factory.mktemp(request.param)
    store, _ = open_store(directory)
    fill(store, request.param == "stopped")
    copy = directory.with_name(directory.name + "-read")
    shutil.copytree(directory, copy)
    store, recovered = open_store(copy)
    assert not recovered.is_rebuilt
    expected = contents(store, recovered)
    keys = store.keys.lookup(5, b"key 3", **ALWAYS)
    store.release()
    assert len(expected["messages"][1]) == 40 * 11
    assert len(expected["messages"][2]) == 40 + 20
    assert len(expected["delayed"]) == 20
    assert expected["mark"] == 39
    assert len(keys) == 13
    return directory, expected


@pytest.fixture
def harmed(made, tmp_path):
    """A copy to harm."""
    directory = tmp_path / "data"
    shutil.copytree(made[0], directory)
    return directory


def delete(path):
    path.unlink()


def scramble(path):
    path.write_bytes(bytes((byte * 7 + 13) & 0xFF for byte in path.read_bytes()))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def empty(path):
    path.write_bytes(b"")


HARMS = pytest.mark.parametrize("harm", [delete, scramble, flip, cut, empty])


def reopened(directory):
    store, recovered = open_store(directory)
    found = contents(store, recovered)
    # It is whole again: the next start has nothing to complain about.
    store.close([CursorState(9, 1, found["mark"])])
    store, again = open_store(directory)
    assert again.is_clean
    assert not again.is_rebuilt
    assert again.notes == []
    assert contents(store, again) == found
    return store, recovered, found


@pytest.mark.parametrize(
    ("harm", "number"), [(delete, 0), (delete, -1), (scramble, 3), (flip, 0), (cut, -1), (empty, 5)]
)
def test_a_harmed_index_file_is_made_again(made, harmed, harm, number):
    harm(sorted((harmed / "index").iterdir())[number])
    store, recovered, found = reopened(harmed)
    store.release()
    assert recovered.is_rebuilt
    assert "index/" in recovered.notes[0]
    assert found == made[1]


def test_a_lost_index_directory_is_made_again(made, harmed):
    shutil.rmtree(harmed / "index")
    store, recovered, found = reopened(harmed)
    store.release()
    assert recovered.is_rebuilt
    assert found == made[1]


@HARMS
def test_a_harmed_delay_file_is_made_again(made, harmed, harm):
    harm(sorted((harmed / "delayed").iterdir())[0])
    store, recovered, found = reopened(harmed)
    store.release()
    assert recovered.is_rebuilt
    assert found == made[1]


def test_a_lost_delay_directory_is_made_again(made, harmed):
    shutil.rmtree(harmed / "delayed")
    store, _, found = reopened(harmed)
    store.release()
    assert found == made[1]


@HARMS
def test_a_harmed_key_file_costs_lookups_and_nothing_else(made, harmed, harm):
    harm(sorted((harmed / "keys").iterdir())[0])
    store, recovered, found = reopened(harmed)
    assert not recovered.is_rebuilt
    assert "not found by their key" in recovered.notes[0]
    assert found == made[1]
    assert store.keys.lookup(5, b"key 3", **ALWAYS) == []
    store.keys.add(5, [b"key 3"], 77, 77)
    assert store.keys.lookup(5, b"key 3", **ALWAYS) == [77]
    store.release()


def test_foreign_files_beside_ours_do_no_harm(made, harmed):
    for directory in ("index", "delayed", "keys"):
        (harmed / directory / "foreign.file").write_bytes(b"what is this?")
    store, recovered, found = reopened(harmed)
    store.release()
    assert not recovered.is_rebuilt
    assert found == made[1]


@pytest.mark.parametrize("harm", [delete, scramble, empty])
def test_a_harmed_format_file_is_written_again(made, harmed, harm):
    harm(harmed / "format")
    store, _, found = reopened(harmed)
    store.release()
    assert found == made[1]
    assert (harmed / "format").read_text() == "penstock format 1\n"


@pytest.mark.parametrize("harm", [delete, scramble, empty])
def test_a_harmed_lock_file_keeps_nobody_out(made, harmed, harm):
    lock = DirectoryLock(harmed)
    lock.acquire()
    lock.release()
    harm(harmed / "lock")
    lock.acquire()
    store, _, found = reopened(harmed)
    store.release()
    lock.release()
    assert found == made[1]


@pytest.mark.parametrize("harm", [delete, scramble, empty])
def test_a_harmed_catalog_is_refused_with_advice_and_the_log_is_left_alone(harmed, harm):
    before = {path.name: path.read_bytes() for path in (harmed / "log").iterdir()}
    for extra in harmed.glob(f"{CATALOG_NAME}-*"):
        extra.unlink()
    harm(harmed / CATALOG_NAME)
    with pytest.raises(LogCorrupt, match="backup"):
        open_store(harmed)
    assert before == {path.name: path.read_bytes() for path in (harmed / "log").iterdir()}


def test_a_catalog_with_any_byte_flipped_is_refused_or_means_the_same(made, harmed):
    path = harmed / CATALOG_NAME
    content = path.read_bytes()
    refused = 0
    for place in range(0, len(content), max(1, len(content) // 100)):
        flipped = bytearray(content)
        flipped[place] ^= 0x40
        copy = harmed / "copy.db"
        copy.write_bytes(flipped)
        wal = harmed / f"{CATALOG_NAME}-wal"
        if wal.exists():
            shutil.copy(wal, harmed / "copy.db-wal")
        catalog = SqliteCatalog(copy)
        reference = SqliteCatalog(path)
        try:
            assert catalog.load() == reference.load()
        except LogCorrupt:
            refused += 1
        finally:
            catalog.close()
            reference.close()
    assert refused > 0
