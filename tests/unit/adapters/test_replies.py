"""The order of a channel's answers."""

import pytest

from penstock.adapters.replies import SLOT_BYTES, HandOverCount, ReplyQueue
from penstock.flow.budgets import UnsentLimit


class Bench:
    def __init__(self):
        self.sent = []
        self.changes = 0
        self.line = ReplyQueue(self.sent.append, self._changed)

    def _changed(self):
        self.changes += 1


@pytest.fixture
def bench():
    return Bench()


def test_without_a_place_everything_leaves_at_once(bench):
    bench.line.send(b"a")
    assert bench.sent == [b"a"]
    assert not bench.line.is_waiting


def test_what_is_said_behind_a_place_waits_for_it(bench):
    place = bench.line.reserve()
    bench.line.send(b"later")
    assert bench.line.is_waiting
    assert bench.line.held_bytes == SLOT_BYTES + 5
    place.fill(b"first")
    assert bench.sent == [b"first", b"later"]
    assert bench.line.held_bytes == 0
    assert bench.changes == 2


def test_places_leave_in_their_order_whoever_is_filled_first(bench):
    first, second = bench.line.reserve(), bench.line.reserve()
    second.fill(b"2")
    assert bench.sent == []
    first.fill(b"1")
    assert bench.sent == [b"1", b"2"]


def test_a_place_may_stay_empty_and_is_filled_once(bench):
    place = bench.line.reserve()
    bench.line.send(b"next")
    place.fill(b"")
    place.fill(b"again")
    assert bench.sent == [b"next"]


def test_deliveries_behind_a_place_are_known_until_all_have_left(bench):
    bench.line.note_deliveries(5, 50)
    assert bench.line.deliveries == 0
    first, second = bench.line.reserve(), bench.line.reserve()
    bench.line.note_deliveries(2, 30)
    first.fill(b"1")
    assert (bench.line.deliveries, bench.line.delivery_bytes) == (2, 30)
    second.fill(b"2")
    assert (bench.line.deliveries, bench.line.delivery_bytes) == (0, 0)


def test_a_line_that_was_cleared_sends_nothing_more(bench):
    place = bench.line.reserve()
    bench.line.send(b"late")
    bench.line.clear()
    place.fill(b"gone")
    assert bench.sent == []
    assert bench.line.held_bytes == 0


# ---- handed over --------------------------------------------------------------------------------
# What a socket has taken of the deliveries.


def test_only_what_was_handed_over_is_taken():
    unsent = UnsentLimit(10, 1000)
    handed = HandOverCount(unsent)
    unsent.queued(3, 30)
    handed.count([])
    unsent.queued(2, 20)
    assert not handed.taken()
    assert (unsent.messages, unsent.bytes) == (2, 20)
    assert not handed.taken()
    assert unsent.messages == 2


def test_what_waits_in_a_line_is_not_handed_over():
    unsent = UnsentLimit(10, 1000)
    handed = HandOverCount(unsent)
    line = ReplyQueue(lambda data: None, lambda: None)
    line.reserve()
    unsent.queued(5, 50)
    line.note_deliveries(2, 20)
    handed.count([line])
    handed.taken()
    assert (unsent.messages, unsent.bytes) == (2, 20)


def test_deliveries_go_on_when_half_of_the_limit_is_free():
    unsent = UnsentLimit(4, 1000)
    handed = HandOverCount(unsent)
    assert unsent.queued(4, 40)
    handed.count([])
    assert handed.taken()
    assert not unsent.is_held
