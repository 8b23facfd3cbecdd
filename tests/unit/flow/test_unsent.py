"""What sockets have not taken: each connection by itself, and all of them together."""

import pytest

from penstock.flow.unsent import UnsentLimit, UnsentPool


class Waiter:
    def __init__(self):
        self.woken = 0

    def wake(self):
        self.woken += 1


def test_all_limits_draw_on_one_pool():
    pool = UnsentPool(1000)
    one, two = UnsentLimit(0, 0, pool), UnsentLimit(0, 0, pool)
    one.queued(1, 600)
    assert not pool.is_short
    two.queued(1, 400)
    assert pool.is_short
    one.sent(1, 600)
    assert (pool.bytes, pool.is_short) == (400, False)


def test_a_pool_is_short_down_to_half_and_then_wakes_those_who_wait():
    pool, waiter, gone = UnsentPool(1000), Waiter(), Waiter()
    pool.add(1200)
    pool.wait(waiter)
    pool.wait(gone)
    pool.forget(gone)
    pool.give(600)
    assert (pool.is_short, waiter.woken) == (True, 0)
    pool.give(100)
    assert (pool.is_short, waiter.woken, gone.woken) == (False, 1, 0)
    pool.add(900)
    pool.give(900)
    assert waiter.woken == 1


def test_while_the_pool_is_short_an_empty_socket_lets_deliveries_go_on():
    pool = UnsentPool(1000)
    pool.add(5000)
    limit = UnsentLimit(200, 0, pool)
    limit.queued(2, 20)
    assert not limit.sent(1, 10)
    assert limit.sent(1, 10)


def test_a_connection_that_dies_gives_back_what_its_socket_did_not_take():
    pool = UnsentPool(1000)
    limit = UnsentLimit(0, 0, pool)
    limit.queued(3, 300)
    limit.close()
    assert pool.bytes == 0
    limit.close()
    limit.sent_all()
    assert pool.bytes == 0


def test_giving_back_more_than_was_unsent_is_caught():
    with pytest.raises(AssertionError, match="more"):
        UnsentPool(10).give(1)
