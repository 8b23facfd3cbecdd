"""What a start finds after a clean stop, a killed process and a power cut."""

import pytest

from penstock.log.format import release_record, settlement_record
from penstock.log.index import IndexFlag
from penstock.model.errors import FormatTooNew, LogCorrupt, NotFound
from penstock.model.ids import TRANSIENT_ID_MIN
from penstock.model.record import RecordFlag, neutral_record
from penstock.model.settlement import Cause, QueueSettlement, Settlement

KIB = 1024
DELAYED = int(RecordFlag.DELAYED)
TRANSIENT = int(RecordFlag.TRANSIENT)
FAR_MS = 1 << 60


def settle(box, low_mark, subscription_id=7):
    settlement = Settlement(subscription_id, int(Cause.ACKED), [QueueSettlement(1, low_mark)])
    box.append_records((settlement_record(settlement), ()))
    return settlement


def delay(box, body=b"later", deliver_ms=5000):
    record = neutral_record(body)
    record.reshape(flags=DELAYED, deliver_ms=deliver_ms)
    box.append_records((record, box.store.queues()[:1]))
    return record


def release(box, record, queues=None):
    """Release a record, or cancel it with no queues."""
    length = next(due[2] for due in box.store.delayed.pending(record.deliver_ms))
    queues = box.store.queues()[:1] if queues is None else queues
    return box.append_records((release_record(record, length), queues))[0]


def rebuild(box):
    """A start after which every index was made again."""
    for name in box.storage.list("index"):
        box.storage.remove(f"index/{name}")
    box.kill()
    assert box.recovered.is_rebuilt


def test_a_new_directory_is_new_and_clean(box):
    assert box.recovered.is_new
    assert box.recovered.is_clean
    assert box.recovered.notes == []
    box.kill()
    assert not box.recovered.is_new
    assert not box.recovered.is_clean


def test_appends_after_the_snapshot_are_found_in_the_log(box):
    box.queue()
    box.append(b"0", b"1")
    box.commit()
    box.snapshot()
    box.append(b"2", messages=5)
    box.append(b"3")
    box.commit()
    box.power_cut()
    assert box.recovered.report.records == 2
    assert box.bodies() == {0: b"0", 1: b"1", 2: b"2", 7: b"3"}
    (appending,) = box.append(b"4")
    assert appending.first_offsets == (8,)


def test_index_entries_of_records_that_were_lost_are_gone(box):
    queue = box.queue()
    box.append(b"0")
    box.commit()
    box.snapshot()
    for _ in range(100):
        box.append(b"lost")
    queue.plan_flush()
    job = box.store.take_sync_job()
    job.side_files.run(job.steps)
    box.storage = box.storage.crash()
    box.catalog = box.catalog.crash()
    box.open()
    (appending,) = box.append(b"new")
    offset = appending.first_offsets[0]
    assert box.bodies()[offset] == b"new"
    assert all(body == b"lost" for o, body in box.bodies().items() if 0 < o < offset)


def test_settlements_after_the_snapshot_are_replayed_in_order(box):
    box.queue()
    box.append(b"0")
    settle(box, 1)
    box.commit()
    box.snapshot(box.cursor(low_mark=1, ranges=[(3, 4)]))
    after = [settle(box, 2), settle(box, 3)]
    box.commit()
    box.kill()
    assert box.recovered.cursors == {(7, 1): box.cursor(low_mark=1, ranges=[(3, 4)])}
    assert box.recovered.settlements == after
    rebuild(box)
    assert box.recovered.settlements == after


def test_records_of_unknown_queues_are_left_out_and_their_ids_never_used_again(box):
    box.queue(1)
    box.append(b"known")
    box.commit()
    queue = box.queue(500)
    box.append(b"unknown", queues=[queue])
    # The sync of the log overtakes the transaction that makes the queue: a crash in between.
    job = box.store.take_sync_job()
    job.definition_ops = []
    job.run()
    box.kill()
    assert box.bodies() == {0: b"known"}
    with pytest.raises(NotFound):
        box.store.queue(500)
    assert box.store.definitions.new_id("queue") > 500
    settle(box, 1, subscription_id=900)
    box.commit()
    box.kill()
    assert box.store.definitions.new_id("subscription") > 900


def test_transient_queues_and_their_records_are_forgotten(box):
    box.queue(1)
    transient = box.queue(TRANSIENT_ID_MIN)
    box.append(b"both", queues=[box.store.queue(1), transient])
    box.append(b"transient", queues=[transient])
    box.stop()
    assert [index.queue_id for index in box.store.queues()] == [1]
    assert box.bodies() == {0: b"both"}
    assert box.storage.list("index") == ["0000000001-00000000000000000000.idx"]


@pytest.mark.parametrize("how", ["stop", "kill", "rebuild"])
def test_transient_messages_in_durable_queues_are_named_and_keep_their_offsets(box, how):
    box.queue()
    box.append(b"0")
    box.append(b"1", b"2", flags=TRANSIENT)
    box.append(b"3")
    box.append(b"4", flags=TRANSIENT)
    box.commit()
    if how == "rebuild":
        box.snapshot()
        rebuild(box)
    else:
        getattr(box, how)()
    assert box.recovered.transient == [(1, [(1, 3), (4, 5)])]
    for entry in box.store.queue(1).entries(0, 9):
        is_dropped = entry[0] < box.recovered.start_position and entry[7] & IndexFlag.TRANSIENT
        assert bool(is_dropped) == (entry[1] in (1, 2, 4))
    (appending,) = box.append(b"5", flags=TRANSIENT)
    assert appending.first_offsets == (5,)
    assert appending.record.position >= box.recovered.start_position


def test_transient_messages_below_every_cursor_are_not_named_again(box):
    box.queue()
    box.append(b"0", b"1", b"2", flags=TRANSIENT)
    box.stop(box.cursor(low_mark=2))
    assert box.recovered.transient == [(1, [(2, 3)])]
    box.stop(box.cursor(low_mark=3))
    assert box.recovered.transient == []


@pytest.mark.parametrize("how", ["stop", "kill", "power_cut", "rebuild"])
@pytest.mark.parametrize("has_snapshot", [False, True])
def test_delayed_records_are_pending_until_released_or_cancelled(box, how, has_snapshot):
    queue = box.queue()
    box.append(b"0")
    released, cancelled, kept = delay(box, b"a"), delay(box, b"b"), delay(box, b"c")
    if has_snapshot:
        box.commit()
        box.snapshot()
    release(box, cancelled, ())
    assert release(box, released).first_offsets == (1,)
    box.append(b"2")
    box.commit()
    assert queue.next_offset == 3
    if how == "rebuild":
        box.snapshot()
        rebuild(box)
    else:
        getattr(box, how)()
    assert box.bodies() == {0: b"0", 1: b"a", 2: b"2"}
    assert box.store.queue(1).entries(1, 1)[0][7] == IndexFlag.RELEASED
    (due,) = box.store.delayed.due(FAR_MS)
    assert due[:2] == (5000, kept.position)
    assert [record.body for record in box.store.read([due[1:]])] == [b"c"]


def test_a_release_that_did_not_survive_leaves_the_record_pending(box):
    box.queue()
    record = delay(box)
    box.commit()
    box.snapshot()
    release(box, record)
    box.storage.plan.clear()
    before = box.store.durable_position
    box.power_cut()
    if box.recovered.report.end_position == before:  # the disk kept nothing that was not synced
        assert [due[1] for due in box.store.delayed.due(FAR_MS)] == [record.position]
        assert box.bodies() == {}


@pytest.mark.parametrize("how", ["stop", "kill", "rebuild"])
def test_offsets_go_on_after_everything_was_removed(make_box, how):
    box = make_box(segment_bytes_max=64 * KIB, settled_keep_ms=0)
    box.queue()
    for _ in range(5):
        box.append(bytes(40_000))
    box.commit()
    box.snapshot()
    box.clock.advance(1000)
    list(box.store.sweep({1: 5}.get, box.clock.wall_ms()))
    assert box.store.counters.segments_removed == 4
    box.commit()
    box.snapshot()
    rebuild(box) if how == "rebuild" else getattr(box, how)()
    (appending,) = box.append(b"next")
    assert appending.first_offsets == (5,)
    assert sorted(box.bodies()) == [4, 5]
    assert box.store.queue(1).min_offset == 4


def test_definitions_survive(box):
    box.store.definitions.put("topic", "orders", b'{"queues": 1}')
    box.commit()
    box.power_cut()
    assert box.store.definitions.all("topic") == {"orders": b'{"queues": 1}'}


def test_a_dropped_queue_does_not_come_back_with_a_snapshot_taken_before(box):
    box.queue(1)
    box.queue(2)
    box.append(b"x", queues=box.store.queues())
    box.store.offer_snapshot(box.store.end_position, [box.cursor(1), box.cursor(2)])
    box.store.drop_queue(1)
    box.store.drop_cursor(7, 1)
    box.commit()
    box.kill()
    assert [index.queue_id for index in box.store.queues()] == [2]
    assert list(box.recovered.cursors) == [(7, 2)]
    assert not box.recovered.is_rebuilt
    box.append(b"y")
    box.stop()
    assert box.bodies(2) == {0: b"x", 1: b"y"}
    assert box.storage.list("index") == ["0000000002-00000000000000000000.idx"]


def test_cursors_of_a_queue_that_is_gone_are_left_out_for_good(box):
    box.queue(1)
    box.append(b"x")
    box.commit()
    box.snapshot(box.cursor(1))
    box.store.drop_queue(1)
    box.commit()
    box.kill()
    assert box.recovered.cursors == {}
    assert ("cursor", "7/1") not in box.catalog.rows


def test_a_log_without_a_catalog_is_refused_with_advice(box):
    box.queue()
    box.append(b"x")
    box.stop()
    box.catalog.rows.clear()
    with pytest.raises(LogCorrupt, match=r"catalog.db is missing or empty .* from a backup"):
        box.kill()


def test_a_newer_format_is_refused(box):
    file = box.storage.open("format", create=False)
    file.truncate(0)
    file.write(b"penstock format 2\n")
    with pytest.raises(FormatTooNew):
        box.kill()


@pytest.mark.parametrize(
    ("durability", "stop", "boot_id", "epoch"),
    [
        ("fsync", "kill", "boot 2", 0),
        ("os", "kill", "boot 1", 0),
        ("os", "stop", "boot 2", 0),
        ("os", "kill", "boot 2", 1),
        ("interval:50", "kill", "boot 2", 1),
    ],
)
def test_the_epoch_changes_when_written_bytes_may_be_lost(
    make_box, durability, stop, boot_id, epoch
):
    box = make_box(durability=durability)
    box.queue()
    box.append(b"x")
    box.commit()
    box.boot_id = boot_id
    getattr(box, stop)()
    assert box.recovered.epoch == box.store.epoch == epoch
    assert bool(box.recovered.notes) == bool(epoch)
    box.append(b"y")
    box.stop()
    assert box.store.epoch == epoch


def test_positions_are_not_handed_out_twice_when_the_end_of_the_log_is_missing(box):
    box.queue()
    box.append(b"0")
    box.commit()
    box.snapshot()
    end = box.store.end_position
    (name,) = box.storage.list("log")
    box.storage.open(f"log/{name}", create=False).truncate(0)
    box.kill()
    assert box.store.end_position >= end
    (appending,) = box.append(b"1")
    assert appending.first_offsets == (1,)
    box.commit()
    box.kill()
    assert box.bodies() == {0: None, 1: b"1"}
