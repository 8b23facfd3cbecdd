import pytest

from penstock.log.snapshot import Snapshots
from penstock.settings.broker import StorageSettings


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
