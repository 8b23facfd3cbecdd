"""Demand as prefetch (F10) and permits (F11)."""

from functools import partial

import pytest

from penstock.flow.demand import UNLIMITED, ChannelWindow, Demand, Permits, Unlimited, Window


class Woken:
    """Counts wake calls of a demand."""

    def __init__(self, demand: Demand):
        self.times = 0
        demand.wake = self

    def __call__(self):
        self.times += 1


@pytest.mark.parametrize("demand", [Unlimited(), Window(), Window(0, ChannelWindow())])
def test_without_a_limit_everything_is_taken(demand):
    demand.taken(10**6, 10**9)
    assert demand.available_messages() == UNLIMITED
    assert demand.available_bytes() == UNLIMITED
    demand.returned(10**6, 10**9)


def test_who_was_served_last_is_woken_last_when_the_channel_window_opens():
    channel = ChannelWindow(1)
    order = []
    windows = {name: Window(0, channel) for name in "abc"}
    for name, window in windows.items():
        window.wake = partial(order.append, name)
    for name in "ab":
        windows[name].taken(1)
        windows[name].returned(1)
    windows["c"].taken(1)
    for window in windows.values():
        assert window.available_messages() == 0
    windows["c"].returned(1)
    assert order == ["a", "b", "c"]
    order.clear()
    windows["a"].taken(1)
    for window in windows.values():
        assert window.available_messages() == 0
    windows["a"].returned(1)
    assert order == ["b", "c", "a"]


def test_a_window_counts_unsettled_messages():
    window = Window(3)
    woken = Woken(window)
    window.taken(2, 0)
    assert window.available_messages() == 1
    window.taken(5, 0)
    assert window.available_messages() == 0
    window.returned(4, 0)
    assert (window.available_messages(), woken.times) == (0, 0)
    window.returned(1, 0)
    assert (window.available_messages(), woken.times) == (1, 1)
    window.returned(1, 0)
    assert woken.times == 1


def test_consumers_of_a_channel_share_its_window_and_keep_their_own():
    channel = ChannelWindow(5)
    narrow, wide = Window(2, channel), Window(0, channel)
    assert (narrow.available_messages(), wide.available_messages()) == (2, 5)
    wide.taken(4, 0)
    assert (narrow.available_messages(), wide.available_messages()) == (1, 1)
    narrow.taken(1, 0)
    assert (narrow.available_messages(), wide.available_messages()) == (0, 0)


def test_a_settlement_of_one_consumer_wakes_the_others_that_found_the_channel_shut():
    channel = ChannelWindow(1)
    first, second = Window(0, channel), Window(0, channel)
    woken_first, woken_second = Woken(first), Woken(second)
    first.taken(1, 0)
    assert second.available_messages() == 0
    first.returned(1, 0)
    assert (woken_first.times, woken_second.times) == (0, 1)
    assert second.available_messages() == 1


def test_a_channel_window_set_later_counts_what_is_already_unsettled():
    channel = ChannelWindow()
    window = Window(0, channel)
    woken = Woken(window)
    window.taken(7, 0)
    channel.resize(5)
    assert window.available_messages() == 0
    channel.resize(8)
    assert (window.available_messages(), woken.times) == (1, 1)
    channel.resize(0)
    assert window.available_messages() == UNLIMITED


def test_a_window_resized_wider_wakes_its_consumer():
    window = Window(1)
    woken = Woken(window)
    window.taken(1, 0)
    window.resize(1)
    assert woken.times == 0
    window.resize(2)
    assert woken.times == 1


def test_a_cancelled_consumer_is_not_woken_but_its_unsettled_messages_still_count():
    channel = ChannelWindow(1)
    gone, other = Window(0, channel), Window(0, channel)
    gone.taken(1, 0)
    assert gone.available_messages() == 0
    woken = Woken(gone)
    gone.close()
    assert other.available_messages() == 0
    gone.returned(1, 0)
    assert other.available_messages() == 1
    assert woken.times == 0


def test_permits_add_up_and_a_batch_may_overdraw_them():
    permits = Permits()
    woken = Woken(permits)
    assert permits.available_messages() == 0
    permits.add(2)
    permits.add(3)
    permits.taken(100, 0)
    assert (permits.permits, permits.available_messages()) == (-95, 0)
    permits.add(95)
    assert (permits.available_messages(), woken.times) == (0, 1)
    permits.add(1)
    assert (permits.available_messages(), woken.times) == (1, 2)


def test_settling_grants_no_permits():
    permits = Permits(1)
    permits.taken(1, 0)
    permits.returned(1, 0)
    assert permits.available_messages() == 0


def test_permits_that_arrive_while_blocked_are_kept_aside():
    permits = Permits(10)
    woken = Woken(permits)
    permits.block()
    permits.add(5)
    assert (permits.available_messages(), permits.permits, permits.aside) == (0, 10, 5)
    permits.unblock()
    permits.unblock()
    assert (permits.available_messages(), permits.aside, woken.times) == (15, 0, 1)


def test_unblocking_without_any_permits_wakes_nobody():
    permits = Permits()
    woken = Woken(permits)
    permits.block()
    permits.unblock()
    assert woken.times == 0


def test_a_peer_cannot_grant_without_end():
    permits = Permits(permits_max=100)
    for _ in range(3):
        permits.add(90)
    assert permits.available_messages() == 100
    permits.block()
    for _ in range(3):
        permits.add(90)
    assert permits.aside == 100
    with pytest.raises(ValueError, match="at least 1"):
        permits.add(0)
