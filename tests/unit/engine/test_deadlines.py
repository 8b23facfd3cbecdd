"""One moment per subscription, however often it moves."""

import pytest

from penstock.engine.deadlines import STALE_DEADLINES_MAX, Deadlines


class Reader:
    """A subscription that only has a moment."""

    def __init__(self, subscription_id):
        self.subscription_id = subscription_id
        self.at_ms = None

    def next_deadline_ms(self):
        return self.at_ms


@pytest.fixture
def deadlines():
    return Deadlines()


def arm(deadlines, reader, at_ms):
    reader.at_ms = at_ms
    deadlines.arm(reader)


def test_those_whose_moment_has_come_are_told_once_and_earliest_first(deadlines):
    for number, at_ms in ((1, 30), (2, 10), (3, 40)):
        arm(deadlines, Reader(number), at_ms)
    assert deadlines.take_due(9) == []
    assert deadlines.take_due(30) == [2, 1]
    assert deadlines.take_due(30) == []
    assert deadlines.take_due(40) == [3]


def test_a_moment_that_moved_counts_where_it_is_now(deadlines):
    reader = Reader(1)
    arm(deadlines, reader, 10)
    arm(deadlines, reader, 20)
    assert deadlines.take_due(10) == []
    arm(deadlines, reader, 5)
    assert deadlines.heap[0][0] == 5
    assert deadlines.take_due(50) == [1]


def test_who_wants_nothing_any_more_or_is_gone_is_not_told(deadlines):
    idle, gone = Reader(1), Reader(2)
    arm(deadlines, idle, 10)
    arm(deadlines, gone, 10)
    arm(deadlines, idle, None)
    deadlines.disarm(gone)
    assert deadlines.take_due(50) == []


def test_moments_moved_again_and_again_do_not_pile_up(deadlines):
    reader = Reader(1)
    for at_ms in range(1000):
        arm(deadlines, reader, at_ms)
    assert len(deadlines.heap) <= STALE_DEADLINES_MAX + 3
    assert deadlines.take_due(1000) == [1]
