"""A stopped or copied directory tells its topics and rows without a broker."""

import os
import pickle
import stat

import pytest

from kit.bulk_data import STORE_MS, BulkData
from kit.stages import block_of
from kit.stages import rows as staged_rows
from penstock.bulk.offline import OfflineBulk
from penstock.bulk.tickets import BulkError
from penstock.log.staging import StageCommit, StagedCopy
from penstock.log.storage import DirectoryLock
from penstock.model.record import neutral_record
from penstock.settings.broker import StorageSettings


def put(data, queue, *bodies):
    for body in bodies:
        data.append((neutral_record(body), (queue,)))


def offsets(found):
    return [row["offset"] for row in found]


def test_topics_are_told_by_name_and_pattern(tmp_path):
    data = BulkData(tmp_path)
    data.topic("orders", 2)
    data.topic("returns")
    data.topic("penstock.hidden")
    data.topic("orders", space="eu")
    data.close()
    with OfflineBulk(tmp_path) as bulk:
        every = bulk.resolve()
        assert [topic.name for topic in every.topics] == ["eu/orders", "orders", "returns"]
        assert [queue.queue for queue in every.topics[1].queues] == [0, 1]
        assert [t.name for t in bulk.resolve(pattern=".*orders").topics] == ["eu/orders", "orders"]
        assert bulk.resolve(pattern="nothing").topics == []
        with pytest.raises(BulkError, match="did you mean 'orders'") as caught:
            bulk.resolve(["order"])
        assert caught.value.kind == "no-topic"
        with pytest.raises(BulkError, match="cannot be used"):
            bulk.resolve(pattern="(")


def test_what_the_index_has_not_yet_is_found_in_the_log(tmp_path, rows):
    data = BulkData(tmp_path, StorageSettings(index_file_entries_max=4))
    [queue] = data.topic("orders")
    put(data, queue, *(b"%d" % n for n in range(10)))
    data.snapshot()
    put(data, queue, b"10", b"11")
    data.commit()
    data.store.release()
    with OfflineBulk(tmp_path) as bulk:
        assert [row["body"] for row in rows(bulk)] == [b"%d" % n for n in range(12)]
        assert offsets(rows(bulk, start=3, end=11)) == list(range(3, 11))


def test_staged_rows_are_read_from_their_commit_on(tmp_path, rows):
    data = BulkData(tmp_path)
    [queue] = data.topic("orders")
    put(data, queue, b"0")
    copied = StagedCopy()
    block = block_of(queue.queue_id, staged_rows([b"1", b"2"]))
    data.store.copy_staged(copied, [block], data.store_ms)
    put(data, queue, b"3")
    data.snapshot()
    data.store.commit_staged(copied, StageCommit("out", "q", 0, 2, "", False), data.store_ms)
    put(data, queue, b"4")
    data.commit()
    data.store.release()
    with OfflineBulk(tmp_path) as bulk:
        assert [row["body"] for row in rows(bulk)] == [b"0", b"3", b"1", b"2", b"4"]


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_bad_index_file_is_made_again_from_the_log(tmp_path, rows, harm):
    data = BulkData(tmp_path)
    [queue] = data.topic("orders")
    put(data, queue, b"a", b"b", b"c")
    data.close()
    [path] = (tmp_path / "index").iterdir()
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b"\x01", b"\x02"))
    with OfflineBulk(tmp_path) as bulk:
        assert [row["body"] for row in rows(bulk)] == [b"a", b"b", b"c"]


def test_a_torn_end_of_the_log_is_left_out(tmp_path, rows):
    data = BulkData(tmp_path)
    [queue] = data.topic("orders")
    put(data, queue, b"a", b"b")
    data.commit()
    put(data, queue, b"c")
    data.store.release()
    [segment] = (tmp_path / "log").iterdir()
    size = segment.stat().st_size
    with segment.open("r+b") as file:
        file.truncate(size - 8)
    with OfflineBulk(tmp_path) as bulk:
        assert [row["body"] for row in rows(bulk)] == [b"a", b"b"]
    assert segment.stat().st_size == size - 8


def test_offsets_are_found_by_time(tmp_path):
    data = BulkData(tmp_path, StorageSettings(index_file_entries_max=4))
    [queue] = data.topic("orders")
    put(data, queue, *(b"%d" % n for n in range(10)))
    data.snapshot()
    put(data, queue, b"10")
    data.close()
    with OfflineBulk(tmp_path) as bulk:
        found = [bulk.by_time("orders", STORE_MS + n)["orders"][0] for n in (-5, 0, 3, 4, 10, 99)]
    assert found == [0, 0, 3, 4, 10, 11]


def test_the_directory_of_a_living_broker_is_refused(tmp_path, rows):
    data = BulkData(tmp_path)
    put(data, data.topic("orders")[0], b"a")
    data.close()
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    try:
        with (
            OfflineBulk(tmp_path) as bulk,
            pytest.raises(BulkError, match=f"process {os.getpid()}"),
        ):
            bulk.resolve()
    finally:
        lock.release()
    with OfflineBulk(tmp_path) as bulk:
        assert offsets(rows(bulk)) == [0]


def test_a_directory_of_something_else_is_refused(tmp_path):
    with OfflineBulk(tmp_path) as bulk, pytest.raises(BulkError, match="no data directory"):
        bulk.resolve()


def test_a_newer_format_is_refused(tmp_path):
    BulkData(tmp_path).close()
    (tmp_path / "format").write_text("penstock format 99\n")
    with OfflineBulk(tmp_path) as bulk, pytest.raises(BulkError, match="format is 99"):
        bulk.resolve()


def test_nothing_in_the_directory_is_changed(tmp_path, rows):
    data = BulkData(tmp_path)
    put(data, data.topic("orders")[0], b"a")
    data.commit()
    data.store.release()
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*")}
    os.chmod(tmp_path, stat.S_IRUSR | stat.S_IXUSR)
    try:
        with OfflineBulk(tmp_path) as bulk:
            assert offsets(rows(bulk)) == [0]
    finally:
        os.chmod(tmp_path, stat.S_IRWXU)
    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*")} == before


def test_a_pickled_copy_reads_the_same(tmp_path, rows):
    data = BulkData(tmp_path)
    put(data, data.topic("orders")[0], b"a")
    data.close()
    with OfflineBulk(tmp_path) as bulk, pickle.loads(pickle.dumps(bulk)) as copy:
        assert rows(bulk) == rows(copy)


def test_a_queue_that_is_not_there_is_a_bad_request(tmp_path, rows):
    data = BulkData(tmp_path)
    data.topic("orders")
    data.close()
    with OfflineBulk(tmp_path) as bulk, pytest.raises(BulkError, match="no 3"):
        rows(bulk, queue=3, end=1)
