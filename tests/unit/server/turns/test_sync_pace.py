"""The pace of syncs: apart at middling rates, and at once for those who wait for each of them."""

import pytest

from penstock.server.turns import (
    AT_ONCE_MAX,
    AT_ONCE_MIN,
    EXPECTED_MAX,
    EXPECTED_MIN,
    SLACK_US,
    SYNC_MEMORY,
    SYNC_TIMES,
    SyncPace,
)
from penstock.settings.broker import StorageSettings

DISTANCE_US = StorageSettings().commit_distance_us
LEAST = EXPECTED_MIN * 1001 / DISTANCE_US
MOST = EXPECTED_MAX * 999 / DISTANCE_US
"""Messages per millisecond between which syncs keep their distance."""


class Hand:
    def __init__(self, **settings):
        self.now_us = 1_000_000
        self.pace = SyncPace(StorageSettings(**settings), lambda: self.now_us * 1000)
        for _ in range(100):
            self.pace.ended(1)

    def wait(self, us):
        self.now_us += us

    def stream(self):
        """A sync, and messages that go on coming until the next one may begin."""
        self.pace.began()
        while self.pace.left_us(LEAST):
            self.wait(800)
            self.pace.brought()

    def in_vain(self):
        """A sync that waits for company while nobody comes."""
        self.wait(300)
        self.pace.brought()
        assert self.pace.left_us(LEAST)
        self.wait(DISTANCE_US)
        self.pace.began()

    def rest(self):
        """How many syncs begin at once."""
        for count in range(1000):
            self.wait(300)
            self.pace.brought()
            if self.pace.left_us(LEAST):
                return count
            self.pace.began()
        raise AssertionError("it is never tried again")


@pytest.fixture
def hand():
    hand = Hand()
    hand.pace.began()
    return hand


def test_a_sync_right_behind_another_waits_for_the_rest_of_the_distance(hand):
    hand.wait(500)
    assert hand.pace.left_us(LEAST) == DISTANCE_US - 500
    assert hand.pace.left_us(MOST) == DISTANCE_US - 500


@pytest.mark.parametrize("rate", [0.0, LEAST * 0.99, MOST * 1.01, 500.0])
def test_who_is_slow_is_not_kept_waiting_and_who_is_fast_needs_no_help(hand, rate):
    assert hand.pace.left_us(rate) == 0


def test_a_moment_before_its_time_a_sync_may_begin(hand):
    hand.wait(DISTANCE_US - SLACK_US)
    assert hand.pace.left_us(LEAST) == 0
    hand.wait(10 * DISTANCE_US)
    assert hand.pace.left_us(LEAST) == 0


def test_the_first_sync_of_a_process_does_not_wait():
    assert Hand().pace.left_us(LEAST) == 0


def test_a_stream_keeps_the_distance_for_good(hand):
    for _ in range(1000):
        hand.stream()
    hand.pace.began()
    assert hand.pace.left_us(LEAST)
    assert hand.pace.kept == 1000


def test_when_nobody_comes_while_a_sync_waits_syncs_begin_at_once_for_a_while(hand):
    """Clients that wait for their confirms before they go on: all of them wait for this sync."""
    hand.in_vain()
    assert hand.rest() == AT_ONCE_MIN
    hand.pace.began()
    assert hand.rest() == 2 * AT_ONCE_MIN


def test_company_makes_good_for_all_that_was_in_vain(hand):
    for _ in range(3):
        hand.in_vain()
        hand.rest()
        hand.pace.began()
        hand.rest()
        hand.pace.brought()
        hand.pace.began()
    hand.in_vain()
    assert hand.rest() == AT_ONCE_MIN


def test_clients_that_always_wait_for_us_are_hardly_ever_kept(hand):
    hand.in_vain()
    for _ in range(10):
        rest = hand.rest()
        hand.pace.began()
    assert rest == AT_ONCE_MAX


def test_a_sync_that_did_not_wait_says_nothing_of_who_comes(hand):
    for _ in range(10):
        hand.pace.brought()
        hand.wait(10 * DISTANCE_US)
        hand.pace.began()
    assert hand.pace.left_us(LEAST)


def test_the_distance_is_some_times_what_syncs_take(hand):
    for _ in range(100):
        hand.pace.ended(0.0005)
    assert hand.pace.left_us(LEAST) == pytest.approx(SYNC_TIMES * 500, abs=2)


def test_one_sync_that_hung_does_not_make_a_disk_slow(hand):
    for _ in range(100):
        hand.pace.ended(0.0001)
    hand.pace.ended(60)
    took_us = SYNC_MEMORY * 100 + (1 - SYNC_MEMORY) * DISTANCE_US
    assert hand.pace.left_us(LEAST) == pytest.approx(SYNC_TIMES * took_us, abs=2)
    assert hand.pace.left_us(LEAST) < DISTANCE_US


def test_without_a_distance_every_sync_begins_at_once():
    hand = Hand(commit_distance_us=0)
    hand.pace.began()
    assert hand.pace.left_us(LEAST) == 0
    assert hand.pace.left_us(0.0) == 0
