"""Commits: what a job holds, in which order it works, and what its end means."""

import pytest

from penstock.log.writer import UnsyncedSet
from penstock.model.errors import SyncFailed
from penstock.testing.storage import FaultKind


def run(box):
    job = box.store.take_sync_job()
    job.run()
    box.store.synced(job, None)
    return job


def test_the_durable_position_moves_when_the_sync_has_returned(box):
    box.queue()
    box.append(b"x")
    end = box.store.end_position
    assert (box.store.durable_position, box.store.unsynced_bytes) == (0, end)
    job = box.store.take_sync_job()
    box.append(b"y")
    job.run()
    assert box.store.durable_position == 0
    box.store.synced(job, None)
    assert box.store.durable_position == end
    assert box.store.unsynced_bytes > 0
    box.commit()
    assert box.store.unsynced_bytes == 0
    assert box.store.counters.syncs == 2


def test_one_job_is_out_at_a_time_and_none_when_nothing_waits(box):
    box.commit()
    assert box.store.take_sync_job() is None
    assert box.store.next_sync_ms() is None
    box.queue()
    box.append(b"x")
    assert box.store.next_sync_ms() == 0
    job = box.store.take_sync_job()
    assert box.store.take_sync_job() is None
    assert box.store.next_sync_ms() is None
    job.run()
    box.store.synced(job, None)
    assert box.store.take_sync_job() is None


def test_definitions_are_durable_before_the_log_that_names_them(box, monkeypatch):
    box.queue()
    box.append(b"x")
    number = box.store.definitions.put("topic", "orders", b"{}")
    job = box.store.take_sync_job()
    seen = []
    monkeypatch.setattr(box.catalog, "apply", lambda ops: seen.append("catalog"))
    monkeypatch.setattr(UnsyncedSet, "run", lambda self: seen.append("log"))
    job.run()
    assert seen == ["catalog", "log"]
    assert box.store.definitions_durable < number
    box.store.synced(job, None)
    assert box.store.definitions_durable >= number


@pytest.mark.parametrize("where", ["catalog", "log"])
def test_after_a_failed_sync_nothing_is_taken_any_more(box, where):
    box.queue()
    box.append(b"x")
    box.commit()
    durable = box.store.durable_position
    box.append(b"y")
    box.store.definitions.put("topic", "orders", b"{}")
    job = box.store.take_sync_job()
    if where == "log":
        box.storage.plan.fail_next("sync", FaultKind.EIO)
    else:
        box.catalog.failures = 1
    with pytest.raises(SyncFailed, match="start the broker again") as failure:
        job.run()
    box.store.synced(job, failure.value)
    assert box.store.is_failed
    assert box.store.durable_position == durable
    assert box.store.take_sync_job() is None
    with pytest.raises(SyncFailed, match="stopped taking messages"):
        box.append(b"z")
    with pytest.raises(SyncFailed):
        box.store.append_mark()
    assert list(box.bodies().values()) == [b"x", b"y"]
    box.store.close()


def test_a_full_disk_under_the_catalog_defers_everything_and_loses_nothing(box):
    box.queue()
    box.append(b"x")
    number = box.store.definitions.put("topic", "orders", b"{}")
    box.catalog.is_full = True
    job = run(box)
    assert job.is_deferred
    assert (box.store.durable_position, box.store.definitions_durable) == (0, 0)
    assert box.store.take_sync_job() is None
    assert box.store.next_sync_ms() > box.clock.monotonic_ms()
    box.append(b"y")
    box.clock.advance(100)
    box.catalog.is_full = False
    box.commit()
    assert box.store.durable_position == box.store.end_position
    assert box.store.definitions_durable >= number
    box.power_cut()
    assert box.bodies() == {0: b"x", 1: b"y"}
    assert box.store.definitions.get("topic", "orders") == b"{}"


def test_a_side_file_that_cannot_be_written_delays_the_snapshot_and_nothing_else(box):
    box.queue()
    box.append(b"x")
    box.commit()
    box.store.offer_snapshot(box.store.end_position, [])
    box.storage.plan.fail_next("write", FaultKind.ENOSPC)
    run(box)
    box.append(b"y")
    run(box)
    assert box.store.durable_position == box.store.end_position
    assert box.store.snapshot_position == 0
    assert box.store.next_sync_ms() > box.clock.monotonic_ms()
    box.clock.advance(100)
    box.commit()
    assert box.store.snapshot_position > 0


def test_a_snapshot_is_written_one_commit_after_the_log_it_covers(box):
    box.queue()
    box.append(b"x")
    box.store.offer_snapshot(box.store.end_position, [])
    job = run(box)
    assert job.snapshot_ops == []
    assert box.store.snapshot_position == 0
    box.append(b"y")
    while box.store.snapshot_position == 0:
        run(box)
    assert box.store.snapshot_position < box.store.end_position


def test_with_os_written_is_durable_and_the_log_is_synced_for_snapshots_only(make_box):
    box = make_box(durability="os")
    box.queue()
    box.append(b"x")
    assert box.store.durable_position == box.store.end_position
    assert box.store.unsynced_bytes == 0
    box.commit()
    box.append(b"y")
    box.clock.advance(10**6)
    assert box.store.take_sync_job() is None
    assert box.store.next_sync_ms() is None
    box.snapshot()
    assert box.store.counters.syncs == 1
    box.append(b"z")
    assert box.store.unsynced_bytes == 0
    box.store.append_mark()
    assert box.store.durable_position == box.store.end_position


def test_with_an_interval_written_is_durable_and_the_log_is_synced_that_often(make_box):
    box = make_box(durability="interval:50")
    box.clock.advance(1000)
    box.queue()
    box.append(b"x")
    assert box.store.durable_position == box.store.end_position
    box.commit()
    assert box.store.counters.syncs == 1
    box.append(b"y")
    assert box.store.take_sync_job() is None
    assert box.store.next_sync_ms() == box.clock.monotonic_ms() + 50
    box.clock.advance(50)
    job = box.store.take_sync_job()
    box.append(b"z")
    job.run()
    box.store.synced(job, None)
    assert box.store.counters.syncs == 2
    assert box.store.durable_position == box.store.end_position


def test_the_mark_is_due_once_after_everything_was_synced(box):
    assert not box.store.is_mark_due
    box.queue()
    box.append(b"x")
    assert not box.store.is_mark_due
    box.commit()
    assert box.store.is_mark_due
    box.store.append_mark()
    assert not box.store.is_mark_due
    box.commit()
    assert not box.store.is_mark_due


def test_a_clean_stop_syncs_everything_and_the_next_start_reads_nothing(box):
    box.queue()
    box.append(b"x")
    box.store.keys.add(1, [b"k"], 5, 5)
    box.stop(box.cursor(low_mark=1))
    assert box.recovered.is_clean
    assert box.recovered.report.records == 0
    assert box.recovered.cursors[7, 1].low_mark == 1
    assert box.bodies() == {0: b"x"}
    assert box.store.keys.lookup(1, b"k", begin_ms=0, end_ms=9, count_max=1) == [5]
