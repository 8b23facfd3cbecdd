"""Limits that resume at half: pending publishes (F9), in flight (F13), unsent (F14)."""

import pytest

from penstock.flow.budgets import PendingLimit, UnsentLimit
from penstock.flow.demand import UNLIMITED, InflightLimit


def test_pending_publishes_hold_at_the_limit_and_resume_at_half():
    pending = PendingLimit(10)
    assert not pending.add(9)
    assert pending.add()
    assert not pending.done(4)
    assert pending.is_held
    assert pending.done()
    assert not pending.is_held
    assert not pending.done()


def test_a_list_may_cross_the_pending_limit():
    pending = PendingLimit(10)
    pending.add(500)
    assert not pending.done(494)
    assert pending.done(1)


def test_no_pending_limit_never_holds():
    pending = PendingLimit(0)
    assert not pending.add(10**9)


def test_a_limit_of_one_resumes_at_none():
    pending = PendingLimit(1)
    assert pending.add()
    assert pending.done()


def test_in_flight_messages_block_at_the_limit_and_resume_at_half():
    limit = InflightLimit(10, 1000)
    assert not limit.add(9, 9)
    assert limit.available() == (1, 991)
    assert limit.add(1, 1)
    assert limit.available() == (0, 0)
    assert not limit.remove(4, 4)
    assert limit.is_blocked
    assert limit.remove(1, 1)
    assert limit.available()[0] == 5


def test_in_flight_bytes_block_alone_and_only_bytes_must_come_down():
    limit = InflightLimit(10, 1000)
    assert limit.add(9, 1000)
    assert not limit.remove(1, 100)
    # Eight messages are more than half of ten: they never blocked, so they do not matter.
    assert limit.remove(0, 400)
    assert limit.available() == (2, 500)


def test_both_must_come_down_when_both_were_reached():
    limit = InflightLimit(10, 1000)
    limit.add(10, 1000)
    assert not limit.remove(5, 0)
    assert limit.remove(0, 500)


def test_no_in_flight_limit_has_room_for_everything():
    limit = InflightLimit(0)
    assert not limit.add(10**9, 10**9)
    assert limit.available() == (UNLIMITED, UNLIMITED)
    assert not limit.remove(10**9, 10**9)


def test_new_in_flight_limits_count_at_once():
    limit = InflightLimit(10)
    limit.add(6)
    assert not limit.resize(5, 0)
    assert limit.is_blocked
    assert limit.resize(7, 0)
    assert not limit.is_blocked


@pytest.mark.parametrize(("messages", "size"), [(200, 0), (0, 1000), (500, 5000)])
def test_unsent_deliveries_hold_by_messages_or_bytes(messages, size):
    unsent = UnsentLimit(200, 1000)
    assert unsent.queued(messages, size)
    assert unsent.sent_all()
    assert not unsent.is_held


def test_unsent_resumes_when_both_figures_are_at_half():
    unsent = UnsentLimit(200, 1000)
    assert not unsent.queued(199, 999)
    assert unsent.queued(1, 1)
    assert not unsent.sent(99, 0)
    assert not unsent.sent(0, 500)
    assert unsent.sent(1, 0)
    assert not unsent.sent(1, 1)


def test_an_unsent_figure_without_a_ceiling_holds_nothing_back():
    unsent = UnsentLimit(4, 0)
    unsent.queued(4, 10**9)
    assert unsent.sent(2, 0)


@pytest.mark.parametrize(
    "give_too_much",
    [
        lambda: PendingLimit(3).done(),
        lambda: InflightLimit(3).remove(1, 0),
        lambda: InflightLimit(3).remove(0, 1),
        lambda: UnsentLimit(3, 3).sent(1, 0),
        lambda: UnsentLimit(3, 3).sent(0, 1),
    ],
)
def test_giving_back_more_than_was_taken_is_caught(give_too_much):
    with pytest.raises(AssertionError, match="more"):
        give_too_much()
