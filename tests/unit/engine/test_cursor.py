"""The cursor's corners; what it means in general is in tests/property/test_cursor_model.py."""

import pytest

from penstock.engine.cursor import Cursor, joined_ranges


def test_settling_in_order_only_raises_the_low_mark():
    cursor = Cursor()
    assert [cursor.settle(at, at + 1) for at in range(5)] == [1] * 5
    assert (cursor.low_mark, cursor.ranges) == (5, [])


def test_settling_the_hole_at_the_low_mark_absorbs_every_range_that_then_touches_it():
    cursor = Cursor()
    cursor.settle(1, 3)
    cursor.settle(3, 4)
    cursor.settle(6, 7)
    assert cursor.ranges == [(1, 4), (6, 7)]
    assert cursor.settle(0, 1) == 1
    assert (cursor.low_mark, cursor.ranges, cursor.settled_above) == (4, [(6, 7)], 1)


def test_settling_twice_counts_once():
    cursor = Cursor()
    cursor.settle(4, 8)
    assert cursor.settle(2, 10) == 4
    assert cursor.settle(2, 10) == 0
    assert cursor.settle_upto(12) == 4
    assert cursor.settle_upto(12) == 0


def test_a_cumulative_settlement_inside_a_range_goes_to_its_end():
    cursor = Cursor()
    cursor.settle(5, 9)
    assert cursor.settle_upto(6) == 5
    assert cursor.low_mark == 9


def test_seeking_back_forgets_what_was_settled_above():
    cursor = Cursor()
    cursor.settle(0, 3)
    cursor.settle(5, 9)
    cursor.seek(2)
    assert (cursor.low_mark, cursor.ranges, cursor.settled_above) == (2, [], 0)
    assert not cursor.is_settled(6)


@pytest.mark.parametrize("far", [0, 200])
def test_scattered_runs_settle_the_same_at_once_and_one_by_one(far):
    at_once, one_by_one = Cursor(), Cursor()
    # Many ranges in between make the cursor choose the other way.
    for cursor in (at_once, one_by_one):
        for at in range(100, 100 + far, 2):
            cursor.settle(at, at + 1)
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
