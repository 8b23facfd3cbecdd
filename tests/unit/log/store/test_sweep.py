"""Retention as the store does it: what goes, what stays, what a reader sees of it."""

import pytest

from penstock.testing.storage import FaultKind

KIB = 1024


@pytest.fixture
def swept(make_box):
    """Two queues; each append fills most of a segment; nothing is kept for its own sake."""
    box = make_box(segment_bytes_max=64 * KIB, settled_keep_ms=0, hot_tail_records_max=2)
    box.queue(1)
    box.queue(2)
    return box


def fill(box, *queue_ids):
    for queue_id in queue_ids:
        box.append(bytes(40_000), queues=[box.store.queue(queue_id)])
        box.clock.advance(10)
    box.commit()


def sweep(box, **needs):
    """Sweep with needs given as q1=5, and let the commit thread unlink."""
    before = box.store.counters.segments_removed
    lowest = {int(name[1:]): offset for name, offset in needs.items()}
    list(box.store.sweep(lowest.get, box.clock.wall_ms()))
    box.commit()
    return box.store.counters.segments_removed - before


def test_settled_segments_leave_the_disk_with_the_next_commit(swept):
    fill(swept, 1, 1, 1, 1)
    swept.snapshot()
    assert len(swept.storage.list("log")) == 4
    assert sweep(swept, q1=2, q2=0) == 2
    assert len(swept.storage.list("log")) == 2
    assert swept.store.queue(1).min_offset == 2
    assert sorted(swept.bodies(1)) == [2, 3]
    assert swept.store.counters.segments_removed == 2
    assert sweep(swept, q1=2, q2=0) == 0


def test_a_segment_that_cannot_be_unlinked_is_tried_again_before_others_go(swept):
    fill(swept, 1, 1, 1, 1)
    swept.snapshot()
    swept.storage.plan.fail_next("remove", FaultKind.EIO)
    assert sweep(swept, q1=2, q2=0) == 2
    assert len(swept.storage.list("log")) == 4, "the second may not go before the first"
    assert sweep(swept, q1=3, q2=0) == 1
    assert len(swept.storage.list("log")) == 1


def test_a_queue_nobody_speaks_for_needs_everything(swept):
    fill(swept, 1, 1, 1)
    swept.snapshot()
    assert sweep(swept, q2=0) == 0
    assert sweep(swept) == 0
    swept.store.drop_queue(1)
    assert sweep(swept) == 2


def test_nothing_goes_before_a_snapshot_covers_it(swept):
    fill(swept, 1, 1, 1)
    assert sweep(swept, q1=3) == 0
    swept.snapshot()
    assert sweep(swept, q1=3) == 2


def test_a_stuck_queue_pins_its_own_segment_and_no_other(swept):
    fill(swept, 2, 1, 1, 1)
    swept.snapshot()
    assert sweep(swept, q1=3, q2=0) == 2
    assert sorted(swept.bodies(1)) == [2]
    assert list(swept.bodies(2).values()) == [bytes(40_000)]
    swept.snapshot()
    swept.kill()
    assert not swept.recovered.is_rebuilt
    assert list(swept.bodies(2).values()) == [bytes(40_000)]


def test_a_read_of_what_is_gone_gives_none_and_is_counted_apart_from_damage(swept):
    fill(swept, 1, 1, 1, 1)
    swept.snapshot()
    entries = swept.store.queue(1).entries(0, 9)
    sweep(swept, q1=2)
    found = swept.store.read([(entry[0], entry[4]) for entry in entries])
    assert [record is None for record in found] == [True, True, False, False]
    assert (swept.store.gone_records, swept.store.corrupt_records) == (2, 0)


def test_keys_of_messages_that_are_gone_go_with_them(swept):
    for _ in range(4):
        (appending,) = swept.append(bytes(40_000), queues=[swept.store.queue(1)])
        swept.store.keys.add(1, [b"k"], appending.record.position, swept.clock.wall_ms())
        swept.store.keys.seal()
        swept.clock.advance(10)
    swept.commit()
    swept.snapshot()
    sweep(swept, q1=3)
    found = swept.store.keys.lookup(1, b"k", begin_ms=0, end_ms=1 << 60, count_max=9)
    positions = [entry[0] for entry in swept.store.queue(1).entries(2, 9)]
    assert set(positions) <= set(found)
    assert len(found) == 2
