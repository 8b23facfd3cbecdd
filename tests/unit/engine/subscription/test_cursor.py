"""The cursor's corners; what it means in general is in tests/property/test_cursor_model.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.workbench import Workbench
from penstock.engine.host import DelayedBudget
from penstock.engine.subscription.cursor import (
    ALL_MESSAGES_MAX,
    EDGE_MESSAGES,
    RECORD_BYTES_MAX,
    RELEASED_MAX,
    OffsetSet,
    PendingSettlements,
    Redelivery,
    SettledOffsets,
    joined_ranges,
)
from penstock.flow.demand import Window
from penstock.model.record import neutral_record
from penstock.model.settlement import Cause, QueueSettlement


def test_settling_in_order_only_raises_the_low_mark():
    offsets = SettledOffsets()
    assert [offsets.settle(at, at + 1) for at in range(5)] == [1] * 5
    assert (offsets.low_mark, offsets.ranges) == (5, [])


def test_settling_the_hole_at_the_low_mark_absorbs_every_range_that_then_touches_it():
    offsets = SettledOffsets()
    offsets.settle(1, 3)
    offsets.settle(3, 4)
    offsets.settle(6, 7)
    assert offsets.ranges == [(1, 4), (6, 7)]
    assert offsets.settle(0, 1) == 1
    assert (offsets.low_mark, offsets.ranges, offsets.settled_above) == (4, [(6, 7)], 1)


def test_settling_twice_counts_once():
    offsets = SettledOffsets()
    offsets.settle(4, 8)
    assert offsets.settle(2, 10) == 4
    assert offsets.settle(2, 10) == 0
    assert offsets.settle_upto(12) == 4
    assert offsets.settle_upto(12) == 0


def test_a_cumulative_settlement_inside_a_range_goes_to_its_end():
    offsets = SettledOffsets()
    offsets.settle(5, 9)
    assert offsets.settle_upto(6) == 5
    assert offsets.low_mark == 9


def test_seeking_back_forgets_what_was_settled_above():
    offsets = SettledOffsets()
    offsets.settle(0, 3)
    offsets.settle(5, 9)
    offsets.seek(2)
    assert (offsets.low_mark, offsets.ranges, offsets.settled_above) == (2, [], 0)
    assert not offsets.is_settled(6)


@pytest.mark.parametrize("far", [0, 200])
def test_scattered_runs_settle_the_same_at_once_and_one_by_one(far):
    at_once, one_by_one = SettledOffsets(), SettledOffsets()
    # Many ranges in between make the cursor choose the other way.
    for offsets in (at_once, one_by_one):
        for at in range(100, 100 + far, 2):
            offsets.settle(at, at + 1)
    runs = [(0, 2), (4, 5), (90, 91), (401, 405)]
    total = sum(one_by_one.settle(*run) for run in runs)
    assert at_once.settle_runs(runs) == total
    assert (at_once.low_mark, at_once.ranges) == (one_by_one.low_mark, one_by_one.ranges)


def test_joined_ranges_are_sorted_and_do_not_touch():
    assert joined_ranges([(5, 6), (0, 2), (2, 3), (1, 2), (9, 12), (10, 11)]) == [
        (0, 3),
        (5, 6),
        (9, 12),
    ]
    assert joined_ranges([]) == []


# ---- notes --------------------------------------------------------------------------------------
# What is saved of a turn: as little as says it all.


def test_a_hundred_acks_in_order_are_just_a_higher_low_mark():
    unsaved = PendingSettlements(low_mark=0)
    for offset in range(100):
        unsaved.add_range(Cause.ACKED, offset, offset + 1)
    assert unsaved.take(7, low_mark=100) == [(Cause.ACKED, QueueSettlement(7, 100))]
    assert unsaved.is_empty
    assert unsaved.take(7, low_mark=100) == []


def test_scattered_acks_are_joined_and_what_the_low_mark_says_is_left_out():
    unsaved = PendingSettlements(low_mark=0)
    unsaved.add_ranges(Cause.ACKED, [(9, 10), (5, 6), (6, 8), (0, 2)])
    assert unsaved.take(7, low_mark=2) == [(Cause.ACKED, QueueSettlement(7, 2, [(5, 8), (9, 10)]))]


def test_each_cause_is_told_apart():
    unsaved = PendingSettlements(low_mark=0)
    unsaved.add_range(Cause.ACKED, 4, 5)
    unsaved.add_range(Cause.EXPIRED, 6, 7)
    assert unsaved.take(7, low_mark=0) == [
        (Cause.ACKED, QueueSettlement(7, -1, [(4, 5)])),
        (Cause.EXPIRED, QueueSettlement(7, -1, [(6, 7)])),
    ]


def test_counts_and_marks_are_saved_also_when_nothing_is_settled():
    unsaved = PendingSettlements(low_mark=3)
    unsaved.set_attempts(5, 1)
    unsaved.set_attempts(5, 2)
    unsaved.set_delivered_mark(1000)
    assert unsaved.take(7, low_mark=3) == [
        (Cause.DELIVERED, QueueSettlement(7, -1, [], 1000, [(5, 2)]))
    ]


def test_a_seek_forgets_what_was_noted_before_it_and_comes_first():
    unsaved = PendingSettlements(low_mark=0)
    unsaved.add_range(Cause.ACKED, 0, 9)
    unsaved.set_attempts(11, 1)
    unsaved.seek(4)
    unsaved.add_range(Cause.ACKED, 6, 7)
    assert unsaved.take(7, low_mark=4) == [
        (Cause.SOUGHT, QueueSettlement(7, 4)),
        (Cause.ACKED, QueueSettlement(7, -1, [(6, 7)])),
    ]


# ---- redelivery ---------------------------------------------------------------------------------
# What must be delivered again or later, in its original order.


def room(count_max):
    return DelayedBudget(count_max, lambda subscription: None)


def test_what_comes_back_is_served_in_its_original_order():
    redelivery = Redelivery(room(10))
    for offset in (7, 3, 5):
        redelivery.add(offset)
    assert redelivery.pop(2) == [3, 5]
    redelivery.add_all([3])
    assert redelivery.pop(9) == [3, 7]
    assert redelivery.is_empty


def test_a_delayed_entry_waits_for_its_moment():
    redelivery = Redelivery(room(10))
    redelivery.delay(4, due_ms=200, messages=3)
    redelivery.delay(2, due_ms=300, messages=1)
    assert redelivery.delayed_messages == 4
    assert redelivery.next_due_ms() == 200
    assert redelivery.release_due(199) == 0
    assert redelivery.release_due(250) == 1
    assert redelivery.ready == [4]
    assert redelivery.delayed_messages == 1


def test_of_very_many_that_are_due_at_once_some_become_ready_in_each_turn():
    redelivery = Redelivery(room(3 * RELEASED_MAX))
    for offset in range(2 * RELEASED_MAX + 1):
        redelivery.delay(offset, due_ms=200, messages=1)
    assert [redelivery.release_due(200) for _ in range(4)] == [RELEASED_MAX, RELEASED_MAX, 1, 0]
    assert redelivery.pop(3 * RELEASED_MAX) == list(range(2 * RELEASED_MAX + 1))


def test_a_delayed_entry_that_is_settled_before_never_ripens():
    redelivery = Redelivery(room(10))
    redelivery.delay(4, due_ms=200, messages=3)
    assert redelivery.cancel_delay(4)
    assert not redelivery.cancel_delay(4)
    assert redelivery.next_due_ms() is None
    assert redelivery.release_due(999) == 0
    assert redelivery.delayed_messages == 0


def test_it_is_full_at_its_bound():
    redelivery = Redelivery(room(2))
    redelivery.delay(1, 100, 1)
    assert not redelivery.is_full
    redelivery.delay(2, 100, 1)
    assert redelivery.is_full
    redelivery.release_due(100)
    assert not redelivery.is_full


def test_what_lies_below_the_low_mark_is_forgotten():
    redelivery = Redelivery(room(10))
    for offset in (1, 5, 9):
        redelivery.add(offset)
        redelivery.counts[offset] = 1
    redelivery.delay(2, 100, 1)
    redelivery.delay(6, 100, 1)
    redelivery.forget_below(5)
    assert (redelivery.ready, redelivery.counts) == ([5, 9], {5: 1, 9: 1})
    assert list(redelivery.delayed) == [6]


def test_an_earlier_moment_that_was_given_up_does_not_fire():
    redelivery = Redelivery(room(10))
    redelivery.delay(4, due_ms=100, messages=1)
    redelivery.cancel_delay(4)
    redelivery.delay(4, due_ms=300, messages=1)
    assert redelivery.release_due(200) == 0
    assert redelivery.next_due_ms() == 300


@given(st.lists(st.tuples(st.sampled_from("arb"), st.integers(0, 1200)), max_size=60))
def test_a_set_of_offsets_is_a_set(steps):
    offsets, model = OffsetSet(), set()
    for what, offset in steps:
        if what == "b":
            below = {each for each in model if each < offset}
            assert offsets.remove_below(offset) == len(below)
            model -= below
        elif what == "r":
            assert offsets.remove(offset) is (offset in model)
            model.discard(offset)
        elif offset not in model:
            offsets.add(offset)
            model.add(offset)
        assert (list(offsets), offsets.count) == (sorted(model), len(model))
        assert sorted(offsets.within(200, 700)) == sorted(at for at in model if 200 <= at < 700)
        for start, end in ((200, 700), (200, 201), (255, 257), (256, 512), (offset, offset + 300)):
            assert offsets.has_some(start, end) is any(start <= at < end for at in model)


# ---- body bytes ---------------------------------------------------------------------------------
# Body bytes for operators: exact for few messages and for even ones, and cheap for many.


@pytest.fixture
def bench():
    return Workbench()


def filled(bench, *bodies):
    topic = bench.topic()
    reader = bench.reader(topic)
    bench.publish(bench.channel(), topic, *bodies)
    bench.turns()
    return topic, reader


def test_bodies_count_and_nothing_around_them(bench):
    _, reader = filled(bench, neutral_record(b"12345", properties=b"a\x01b\x02"))
    assert reader.body_bytes() == (5, 0)


def test_what_is_in_flight_is_told_from_what_is_ready_and_the_settled_is_gone(bench):
    topic, reader = filled(bench, b"1", b"22", b"333", b"4444")
    reader.attach(bench.outlet, Window(2), name="c")
    bench.turns()
    assert reader.body_bytes() == (7, 3)
    reader.settle(topic.queues[0].queue_id, [1])
    bench.turns()
    assert reader.body_bytes() == (4, 4), "the window has room for the third"
    assert reader.body_bytes() == (4, 4), "a look changes nothing"


MANY = 10 * ALL_MESSAGES_MAX


@pytest.fixture
def reads(bench, monkeypatch):
    """Everything that is read of the log."""
    found = []
    read = bench.store.read
    monkeypatch.setattr(bench.store, "read", lambda wanted: found.extend(wanted) or read(wanted))
    return found


def test_many_of_one_size_are_exact_although_few_are_read(bench, reads):
    _, reader = filled(bench, *[b"x" * 10] * MANY)
    reader.attach(bench.outlet, Window(7), name="c")
    bench.turns()
    reads.clear()
    assert reader.body_bytes() == ((MANY - 7) * 10, 70)
    assert 0 < len(reads) <= 2 * EDGE_MESSAGES


def test_a_look_reads_nothing_when_nothing_came_or_went(bench, reads):
    topic, reader = filled(bench, *[b"x" * 10] * MANY)
    first = reader.body_bytes()
    reads.clear()
    assert reader.body_bytes() == first
    assert reads == []
    bench.publish(bench.channel(), topic, b"x" * 10)
    bench.turns()
    assert reader.body_bytes() == (first[0] + 10, 0)


def test_many_of_different_sizes_are_estimated(bench):
    bodies = [b"x" * (number % 5) for number in range(MANY)]
    _, reader = filled(bench, *bodies)
    ready, in_flight = reader.body_bytes()
    assert in_flight == 0
    assert abs(ready - sum(map(len, bodies))) < 0.5 * sum(map(len, bodies))


def test_large_records_are_not_read(bench, reads):
    size = 2 * RECORD_BYTES_MAX
    _, reader = filled(bench, *[b"x" * size] * 3)
    reads.clear()
    ready, _ = reader.body_bytes()
    assert reads == []
    assert 3 * size <= ready < 3 * size * 1.01


def test_holes_of_settled_messages_do_not_spoil_the_mean(bench):
    topic, reader = filled(bench, *[b"x" * 10] * MANY)
    reader.attach(bench.outlet, Window(1000), name="c")
    bench.turns()
    reader.settle(topic.queues[0].queue_id, list(range(1, MANY - 1)))
    assert reader.body_bytes() == (0, 20)


def test_a_queue_that_limits_bytes_counts_them_exactly(bench):
    bodies = [b"x" * (number % 7) for number in range(MANY)]
    _, reader = filled(bench, *bodies)
    reader.ready_body_bytes()
    assert reader.body_bytes() == (sum(map(len, bodies)), 0)
