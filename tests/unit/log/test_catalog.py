import threading

import pytest

from penstock.log.catalog import ID_BLOCK, Definitions, Snapshots, SqliteCatalog
from penstock.model.errors import AppendFailed, LogCorrupt
from penstock.model.ids import TRANSIENT_ID_MIN
from penstock.settings.broker import StorageSettings


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalog.db"


def test_rows_are_found_again_by_the_next_process(path):
    catalog = SqliteCatalog(path)
    assert catalog.load() == {}
    catalog.apply([("topic", "a", b"1"), ("topic", "b", b"2"), ("queue", "a", b"3")])
    catalog.apply([("topic", "a", None), ("topic", "b", b"22")])
    catalog.close()
    again = SqliteCatalog(path)
    assert again.load() == {("topic", "b"): b"22", ("queue", "a"): b"3"}
    again.close()


def test_a_commit_is_durable_without_a_close(path):
    catalog = SqliteCatalog(path)
    catalog.apply([("topic", "a", b"1")])
    again = SqliteCatalog(path)
    assert again.load() == {("topic", "a"): b"1"}
    again.close()
    catalog.close()


def test_it_runs_with_a_sync_for_each_transaction(path):
    catalog = SqliteCatalog(path)
    catalog.load()
    assert catalog._connect().execute("PRAGMA synchronous").fetchone() == (2,)
    assert catalog._connect().execute("PRAGMA journal_mode").fetchone() == ("wal",)
    catalog.close()


def test_a_transaction_is_all_or_nothing(path):
    catalog = SqliteCatalog(path)
    catalog.apply([("topic", "a", b"1")])
    with pytest.raises(UnicodeEncodeError):
        catalog.apply([("topic", "b", b"2"), ("topic", "\ud800", b"3")])
    assert catalog.load() == {("topic", "a"): b"1"}
    catalog.apply([("topic", "c", b"4")])
    assert len(catalog.load()) == 2
    catalog.close()


def test_another_thread_may_apply(path):
    catalog = SqliteCatalog(path)
    catalog.load()
    thread = threading.Thread(target=catalog.apply, args=([("topic", "a", b"1")],))
    thread.start()
    thread.join()
    assert catalog.load() == {("topic", "a"): b"1"}
    catalog.close()


def test_a_full_disk_is_told_from_other_failures(path):
    catalog = SqliteCatalog(path)
    catalog.load()
    catalog._connect().execute("PRAGMA max_page_count = 4")
    with pytest.raises(AppendFailed, match="no room"):
        catalog.apply([("topic", "a", bytes(100_000))])
    assert catalog.load() == {}
    catalog.close()


def test_a_scrambled_file_is_refused_with_advice(path):
    catalog = SqliteCatalog(path)
    catalog.apply([("topic", str(i), bytes(100)) for i in range(100)])
    catalog.close()
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(LogCorrupt, match="backup"):
        SqliteCatalog(path).load()


def test_a_flipped_bit_inside_a_row_is_refused(path):
    catalog = SqliteCatalog(path)
    catalog.apply([("topic", "a", b"the body of the row")])
    catalog.close()
    content = path.read_bytes()
    assert content.count(b"the body of the row") == 1
    path.write_bytes(content.replace(b"the body of the row", b"the bodY of the row"))
    with pytest.raises(LogCorrupt, match="row topic a fails its checksum"):
        SqliteCatalog(path).load()


# ---- definitions --------------------------------------------------------------------------------


def after_restart(definitions, rows):
    """What a new process finds when the operations so far were applied."""
    for kind, key, body in definitions.take_ops():
        if body is None:
            rows.pop((kind, key), None)
        else:
            rows[kind, key] = body
    return Definitions(rows)


def test_rows_are_kept_by_kind_and_key():
    definitions = Definitions({})
    definitions.put("topic", "a", b"1")
    definitions.put("user", "a", b"2")
    again = after_restart(definitions, {})
    assert again.get("topic", "a") == b"1"
    assert again.all("user") == {"a": b"2"}
    assert again.all("nothing") == {}


def test_a_deleted_row_is_gone_after_a_restart():
    rows = {}
    definitions = Definitions({})
    definitions.put("topic", "a", b"1")
    definitions = after_restart(definitions, rows)
    definitions.delete("topic", "a")
    assert definitions.get("topic", "a") is None
    assert after_restart(definitions, rows).all("topic") == {}


def test_deleting_what_is_not_there_wants_no_transaction():
    definitions = Definitions({})
    definitions.delete("topic", "a")
    assert not definitions.ops


def test_every_change_has_a_later_number():
    definitions = Definitions({})
    first = definitions.put("topic", "a", b"1")
    assert definitions.put("topic", "a", b"2") > first
    assert definitions.sequence == first + 1


def test_operations_of_a_failed_transaction_come_first_in_the_next():
    definitions = Definitions({})
    definitions.put("topic", "a", b"1")
    failed = definitions.take_ops()
    definitions.put("topic", "b", b"2")
    definitions.put_back(failed)
    assert [key for _, key, _ in definitions.take_ops()] == ["a", "b"]


def test_ids_are_never_handed_out_twice_even_if_the_last_were_not_noted():
    rows = {}
    definitions = Definitions({})
    seen = {definitions.new_id("queue") for _ in range(10)}
    again = after_restart(definitions, rows)
    # A crash: what this process does after its first reservation never reaches the catalog.
    used = {again.new_id("queue") for _ in range(ID_BLOCK // 4)}
    final = Definitions(rows)
    assert not seen & used
    assert final.new_id("queue") not in seen


def test_an_id_met_in_the_log_is_never_handed_out():
    definitions = Definitions({})
    definitions.lift_id("queue", 5000)
    assert definitions.new_id("queue") == 5001
    assert after_restart(definitions, {}).new_id("queue") > 5001


def test_transient_ids_are_apart_and_leave_no_trace():
    definitions = Definitions({})
    assert definitions.new_transient_id("queue") == TRANSIENT_ID_MIN
    assert definitions.new_transient_id("queue") == TRANSIENT_ID_MIN + 1
    assert not definitions.ops


# ---- snapshot -----------------------------------------------------------------------------------


@pytest.fixture
def snapshots():
    return Snapshots(0, StorageSettings(snapshot_bytes_min=0))


def capture(snapshots, *, now_ms=5000):
    snapshots.capture(100, [("queue", "1", b"a"), ("cursor", "7/1", b"b")], steps=3, now_ms=now_ms)


def test_rows_wait_for_the_log_and_for_the_files(snapshots):
    capture(snapshots)
    assert snapshots.take_ops(99, 3) == []
    assert snapshots.take_ops(100, 2) == []
    assert len(snapshots.take_ops(100, 3)) == 2
    assert snapshots.position == 0
    snapshots.written()
    assert snapshots.position == 100


def test_rows_are_taken_once_unless_their_transaction_was_deferred(snapshots):
    capture(snapshots)
    assert len(snapshots.take_ops(100, 3)) == 2
    assert snapshots.take_ops(100, 3) == []
    snapshots.deferred()
    assert len(snapshots.take_ops(100, 3)) == 2


def test_rows_of_things_deleted_in_the_meantime_are_left_out(snapshots):
    capture(snapshots)
    snapshots.discard("queue", "1")
    assert snapshots.take_ops(100, 3) == [("cursor", "7/1", b"b")]
    snapshots.written()
    capture(snapshots)
    assert len(snapshots.take_ops(100, 3)) == 2


def test_the_next_is_due_after_the_interval_and_later_when_many_queues_changed(snapshots):
    assert snapshots.is_due(0, 0, 200)
    capture(snapshots)
    assert not snapshots.is_due(9000, 0, 200)
    snapshots.take_ops(100, 3)
    snapshots.written()
    assert not snapshots.is_due(5999, 0, 200)
    assert snapshots.is_due(6000, 0, 200)
    assert not snapshots.is_due(6000, 50_000, 200)
    assert snapshots.is_due(6000 + 25_000, 50_000, 200)


@pytest.mark.parametrize(
    ("end", "after_ms", "is_due"),
    [
        pytest.param(5_100, 999, False, id="enough was written, too early"),
        pytest.param(5_100, 1_000, True, id="enough was written"),
        pytest.param(5_099, 1_000, False, id="little was written"),
        pytest.param(5_099, 9_999, False, id="little was written, still early"),
        pytest.param(101, 10_000, True, id="little was written, long ago"),
    ],
)
def test_a_snapshot_of_little_waits_longer(end, after_ms, is_due):
    snapshots = Snapshots(0, StorageSettings(snapshot_bytes_min=5_000))
    assert snapshots.is_due(5_000, 0, 1), "the first one is taken at once"
    capture(snapshots, now_ms=5_000)
    snapshots.take_ops(100, 3)
    snapshots.written()
    assert snapshots.is_due(5_000 + after_ms, 0, end) is is_due
