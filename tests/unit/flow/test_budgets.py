"""The pool of in-flight bytes (D22)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.budgets import BytesPool, SendWindow, UnsentLimit, UnsentPool


def test_shares_are_parts_of_the_pool_never_additions():
    pool = BytesPool(100)
    shares = [pool.share(f"c{n}", 60) for n in range(3)]
    assert pool.take(shares[0], 60)
    assert not pool.take(shares[0], 1)
    assert pool.take(shares[1], 40)
    assert not pool.take(shares[2], 1)
    assert (pool.used, pool.peak, pool.refusals) == (100, 100, 2)


def test_a_share_is_never_larger_than_the_pool():
    assert BytesPool(100).share("c", 1000).bytes_max == 100
    with pytest.raises(ValueError, match="at least 1"):
        BytesPool(0)


def test_an_empty_share_takes_one_piece_larger_than_itself():
    pool = BytesPool(100)
    share = pool.share("c", 10)
    assert pool.take(share, 50)
    assert not pool.take(share, 1)


def test_a_refused_owner_is_woken_when_its_own_share_has_room():
    pool = BytesPool(100)
    share, woken = pool.share("c", 10), []
    share.wake = lambda: woken.append("c")
    pool.take(share, 8)
    assert not pool.take(share, 5)
    pool.give(share, 2)
    assert woken == []
    pool.give(share, 2)
    assert woken == ["c"]
    assert pool.take(share, 5)
    pool.give(share, 5)
    assert woken == ["c"]


def test_owners_refused_by_the_pool_are_woken_in_the_order_they_asked():
    pool, woken = BytesPool(10), []
    rich = pool.share("rich", 10)
    pool.take(rich, 10)
    for name, size in (("first", 4), ("large", 8), ("small", 1)):
        share = pool.share(name, 10)
        share.wake = lambda name=name: woken.append(name)
        assert not pool.take(share, size)
    pool.give(rich, 4)
    # The large one is next: the small one behind it must not eat its room for ever.
    assert woken == ["first"]
    pool.give(rich, 6)
    assert woken == ["first", "large", "small"]


def test_a_full_share_does_not_stand_in_the_way_of_others():
    pool, woken = BytesPool(10), []
    stuck, other = pool.share("stuck", 5), pool.share("other", 5)
    rich = pool.share("rich", 10)
    other.wake = lambda: woken.append("other")
    pool.take(stuck, 5)
    pool.take(rich, 5)
    assert not pool.take(stuck, 5)
    assert not pool.take(other, 2)
    pool.give(rich, 2)
    assert woken == ["other"]


def test_more_than_the_whole_pool_is_refused_without_blocking_the_queue():
    pool, woken = BytesPool(10), []
    giant, other, rich = pool.share("g", 10), pool.share("o", 10), pool.share("r", 10)
    other.wake = lambda: woken.append("other")
    pool.take(rich, 10)
    assert not pool.take(giant, 11)
    assert not pool.take(other, 1)
    pool.give(rich, 10)
    assert woken == ["other"]


def test_a_dead_owner_gives_everything_back_and_is_not_woken():
    pool, woken = BytesPool(10), []
    dead, other = pool.share("dead", 10), pool.share("other", 10)
    dead.wake = lambda: woken.append("dead")
    other.wake = lambda: woken.append("other")
    pool.take(dead, 10)
    pool.take(dead, 1)
    pool.take(other, 3)
    pool.close(dead)
    assert (pool.used, woken) == (0, ["other"])
    with pytest.raises(AssertionError, match="more given back"):
        pool.give(other, 1)


# ---- unsent -------------------------------------------------------------------------------------
# What sockets have not taken: each connection by itself, and all of them together.


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


# ---- send window --------------------------------------------------------------------------------
# The send window of a producing client (F16).


def test_permits_are_had_up_to_the_number_and_the_next_one_waits():
    window = SendWindow(2, 1000)
    assert [window.take(1), window.take(1), window.take(1)] == [True, True, False]
    assert (window.messages, window.bytes) == (2, 2)


def test_permits_are_had_up_to_the_bytes():
    window = SendWindow(10, 100)
    assert window.take(60)
    assert not window.take(41)
    assert window.take(40)


def test_an_answer_hands_its_permit_to_the_first_who_waits():
    window = SendWindow(1, 100)
    window.take(5)
    window.wait("a", 5, 10)
    window.wait("b", 5, 20)
    assert window.give(5) == ["a"]
    assert (window.waiting, window.waits_since_ms, window.messages) == (1, 20, 1)


def test_nobody_overtakes_one_who_waits_for_bytes():
    window = SendWindow(10, 100)
    window.take(90)
    window.wait("large", 50, 0)
    assert not window.take(1)
    assert window.full == "bytes"


def test_one_answer_may_make_room_for_several():
    window = SendWindow(10, 100)
    window.take(100)
    for name in "abc":
        window.wait(name, 40, 0)
    assert window.give(100) == ["a", "b"]


def test_a_message_larger_than_the_window_goes_alone():
    window = SendWindow(10, 100)
    assert window.take(500)
    window.wait("next", 500, 0)
    assert window.give(500) == ["next"]


def test_one_who_leaves_lets_smaller_ones_behind_it_in():
    window = SendWindow(10, 100)
    window.take(60)
    window.wait("large", 80, 0)
    window.wait("small", 10, 0)
    assert window.forget(["large"]) == ["small"]
    assert window.forget(["nobody"]) == []


def test_full_names_the_number_when_that_is_reached():
    window = SendWindow(1, 100)
    assert window.full == ""
    window.take(1)
    window.wait("a", 1, 0)
    assert window.full == "messages"


def test_all_who_wait_are_forgotten_when_the_producer_stops():
    window = SendWindow(1, 100)
    window.take(1)
    window.wait("a", 1, 0)
    assert window.forget_all() == ["a"]
    assert (window.waiting, window.waits_since_ms) == (0, None)


def test_a_window_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        SendWindow(0, 1)


@given(
    st.lists(st.tuples(st.sampled_from(["send", "answer", "leave"]), st.integers(1, 150))),
    st.integers(1, 5),
)
def test_ceilings_hold_and_permits_are_handed_out_in_order(steps, messages_max):
    window = SendWindow(messages_max, 100)
    sizes, in_flight, waiting, admitted = {}, [], [], []

    def enter(names):
        for name in names:
            assert name == waiting.pop(0)
            in_flight.append(name)
            admitted.append(name)

    for number, (step, size) in enumerate(steps):
        if step == "send":
            sizes[number] = size
            if window.take(size):
                assert not waiting
                in_flight.append(number)
            else:
                window.wait(number, size, number)
                waiting.append(number)
        elif step == "answer" and in_flight:
            enter(window.give(sizes[in_flight.pop(size % len(in_flight))]))
        elif step == "leave" and waiting:
            gone = waiting.pop(size % len(waiting))
            enter(window.forget([gone]))
        assert window.messages == len(in_flight) <= messages_max
        assert window.bytes == sum(sizes[each] for each in in_flight)
        assert window.bytes <= 100 or len(in_flight) == 1
        # No lost wake-up: whoever waits first does not fit.
        if waiting:
            is_full = window.messages == messages_max
            assert in_flight
            assert is_full or window.bytes + sizes[waiting[0]] > 100
