import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.encode import Appending
from penstock.log.index import IndexFlag
from penstock.log.store import HotTail
from penstock.model.errors import AppendFailed, InvariantBroken, NotFound
from penstock.model.record import Record, RecordFlag, neutral_record
from penstock.testing.storage import FaultKind

KIB = 1024


def test_what_is_appended_can_be_read_from_the_hot_tail_and_from_disk(make_box):
    box = make_box(hot_tail_records_max=8)
    box.queue()
    for number in range(10):
        box.append(b"%d" % number)
    assert box.store.read([]) == []
    assert list(box.bodies().values()) == [b"%d" % number for number in range(10)]
    assert box.store.counters.cold_reads > 0
    assert box.store.counters.records == 10


def test_one_record_for_many_queues_is_stored_once(box):
    queues = [box.queue(number) for number in (1, 2, 3)]
    before = box.store.end_position
    box.append(b"x" * 10_000, queues=queues)
    assert box.store.end_position - before < 11_000
    assert [box.bodies(number) for number in (1, 2, 3)] == [{0: b"x" * 10_000}] * 3


def test_a_batch_takes_as_many_offsets_as_it_has_messages(box):
    queue = box.queue()
    box.append(b"batch", messages=10)
    (appending,) = box.append(b"single")
    assert appending.first_offsets == (10,)
    assert queue.next_offset == 11


def test_a_frame_the_disk_refuses_changes_nothing(box):
    queue = box.queue()
    box.append(b"first")
    end, bodies = box.store.end_position, box.bodies()
    for kind in (FaultKind.ENOSPC, FaultKind.SHORT, FaultKind.EIO):
        box.storage.plan.fail_next("write", kind)
        with pytest.raises(AppendFailed):
            box.append(b"second", b"third")
        assert (box.store.end_position, box.bodies()) == (end, bodies)
        assert (queue.next_offset, queue.end_bytes, queue.staged_offset) == (1, 72 + 40, 1)
    assert box.store.counters.append_failures == 3
    (appending,) = box.append(b"fourth")
    assert appending.first_offsets == (1,)
    assert box.bodies() == {0: b"first", 1: b"fourth"}


def test_the_store_time_of_entries_never_goes_back(box):
    queue = box.queue()
    box.append(b"first")
    box.clock.jump_wall(-3_600_000)
    (appending,) = box.append(b"second")
    times = [entry[3] for entry in queue.entries(0, 10)]
    assert times[0] == times[1]
    assert appending.record.store_ms == box.clock.wall_ms()


def test_offset_position_and_time_are_stamped_where_the_protocol_wants_them(box):
    box.queue()
    box.append(b"first")
    record = neutral_record(bytes(24))
    record.reshape(stamp_offset_at=0, stamp_position_at=8, stamp_store_ms_at=16)
    box.append_records((record, box.store.queues()))
    expected = b"".join(number.to_bytes(8) for number in (1, record.position, box.clock.wall_ms()))
    assert record.origin == expected
    box.commit()
    box.kill()
    assert box.bodies()[1] == expected


def test_a_record_is_located_from_any_position_inside_it(box):
    box.queue()
    (appending,) = box.append(b"batch", messages=10)
    found = box.store.locate(appending.record.position + 3)
    assert (found.record.body, found.number) == (b"batch", 3)


def test_a_damaged_record_is_none_and_counted(make_box):
    box = make_box(hot_tail_records_max=2)
    box.queue()
    box.append(b"good")
    box.append(b"hurt")
    for _ in range(3):
        box.append(b"good")
    file = box.storage.open("log/" + box.storage.list("log")[0], create=False)
    content = file.read(0, file.size())
    file.truncate(0)
    file.write(content.replace(b"hurt", b"HURT"))
    assert list(box.bodies().values()) == [b"good", None, b"good", b"good", b"good"]
    assert box.store.corrupt_records == 1
    assert box.store.gone_records == 0


def test_entries_say_what_dispatch_must_know(box):
    queue = box.queue()
    box.append(b"", flags=int(RecordFlag.TRANSIENT))
    box.append(b"", expire_ms=5)
    box.append(b"", deliver_ms=5)
    box.append(b"", tag=b"red")
    assert [entry[7] for entry in queue.entries(0, 9)] == [
        IndexFlag.TRANSIENT,
        IndexFlag.EXPIRES,
        IndexFlag.DEFERRED,
        0,
    ]
    assert queue.entries(3, 1)[0][6] != 0


def test_a_dropped_queue_is_gone(box):
    box.queue()
    box.store.drop_queue(1)
    with pytest.raises(NotFound):
        box.store.queue(1)


def test_a_snapshot_is_only_taken_between_turns(box):
    box.queue()
    box.append(b"x")
    with pytest.raises(InvariantBroken, match="snapshot offered"):
        box.store.offer_snapshot(0, [])


def test_a_snapshot_is_due_only_when_something_happened(box):
    assert not box.store.is_snapshot_due()
    box.queue()
    box.append(b"x")
    assert box.store.is_snapshot_due()
    box.commit()
    box.snapshot()
    box.clock.advance(10_000)
    assert not box.store.is_snapshot_due()
    box.store.append_mark()
    assert not box.store.is_snapshot_due()
    box.append(b"y")
    assert box.store.is_snapshot_due()


def test_an_empty_list_is_no_frame(box):
    assert box.store.append([], 5) == box.store.end_position == 0
    assert box.store.take_sync_job() is None


def test_memory_does_not_grow_with_the_backlog(make_box):
    box = make_box(hot_tail_records_max=100)
    queue = box.queue()
    for _ in range(200):
        batch = [Appending(neutral_record(b"x"), (queue,)) for _ in range(100)]
        box.store.append(batch, 1)
        box.commit()
    assert queue.next_offset == 20_000
    assert queue.tail_bytes <= 4096 * 48 + 100 * 48
    assert len(box.store._hot) <= 100


# ---- hot tail -----------------------------------------------------------------------------------


def records(start, count):
    return [Record(b"", position=position) for position in range(start, start + count)]


def keep(tail, kept, size_bytes):
    tail.add(kept, [record.position for record in kept], size_bytes)


def test_the_newest_records_are_found_and_unknown_ones_are_not():
    tail = HotTail(bytes_max=1000, records_max=100)
    kept = records(0, 3)
    keep(tail, kept, 30)
    assert tail.get_many([(0, 10), (2, 10), (9, 10)]) == [kept[0], kept[2], None]
    assert tail.get(1) is kept[1]


def test_a_frame_larger_than_half_the_tail_is_not_kept_and_drives_nothing_out():
    tail = HotTail(bytes_max=1000, records_max=100)
    keep(tail, records(0, 3), 30)
    keep(tail, records(100, 1), 501)
    keep(tail, records(200, 51), 51)
    assert (tail.get(100), tail.get(200)) == (None, None)
    assert tail.get(0) is not None


def test_a_stretch_as_it_was_written_is_found_across_both_generations():
    tail = HotTail(bytes_max=1000, records_max=20)
    kept = records(0, 8) + records(10, 8)
    keep(tail, kept[:8], 8)
    keep(tail, kept[8:], 8)
    positions = [record.position for record in kept]
    assert tail.run(positions) == kept
    assert tail.run(positions[3:12]) == kept[3:12]
    assert tail.run(positions[12:]) == kept[12:]
    assert tail.run([]) == []
    for other in (positions[::2], [*positions, 18], [8, *positions[8:]], [*positions[:3], 99]):
        assert tail.run(other) is None


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 300))))
def test_the_bounds_hold_and_the_last_frame_that_fits_is_always_there(frames):
    tail = HotTail(bytes_max=400, records_max=40)
    sizes = {}
    position = 0
    for count, size_bytes in frames:
        keep(tail, records(position, count), size_bytes)
        for each in range(position, position + count):
            sizes[each] = size_bytes / count
        fits = size_bytes <= 200
        assert (tail.get(position) is not None) == fits
        position += count
        there = [each for each in sizes if tail.get(each) is not None]
        assert len(there) == len(tail) <= 40
        assert sum(sizes[each] for each in there) <= 400.001
