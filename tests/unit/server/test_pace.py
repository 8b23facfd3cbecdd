"""The pace: turns keep their distance while messages come fast enough for company."""

import pytest

from penstock.server.pace import COMPANY_MIN, PACE_MAX_US, TIMES, Pace

ENOUGH = COMPANY_MIN * 1000 / PACE_MAX_US
"""Messages per millisecond that are just worth waiting for the longest pace."""


class Hand:
    def __init__(self):
        self.now_us = 1_000_000
        self.pace = Pace(lambda: self.now_us * 1000)

    def turn(self, took_us):
        self.pace.turned()
        self.now_us += took_us
        self.pace.ended()

    def learn(self, took_us):
        for _ in range(100):
            self.turn(took_us)


@pytest.fixture
def hand():
    return Hand()


def test_until_turns_are_known_nobody_waits(hand):
    hand.pace.turned()
    assert hand.pace.wait_us(100.0) == 0


def test_turns_as_long_as_the_longest_pace_keep_it(hand):
    hand.learn(PACE_MAX_US)
    hand.pace.turned()
    hand.now_us += 600
    assert hand.pace.wait_us(ENOUGH) == PACE_MAX_US - 600
    assert hand.pace.left_us == PACE_MAX_US - 600


def test_the_loop_rests_in_proportion_to_its_work(hand):
    hand.learn(300)
    assert hand.pace.wait_us(100.0) == pytest.approx(TIMES * 300 - 300, abs=1)


def test_turns_that_get_longer_get_further_apart_up_to_the_longest_pace(hand):
    hand.learn(100)
    short = hand.pace.left_us
    hand.learn(200)
    assert hand.pace.left_us > short
    hand.learn(50_000)
    hand.pace.turned()
    assert hand.pace.left_us == PACE_MAX_US


def test_one_turn_that_hung_is_soon_forgotten(hand):
    hand.learn(200)
    hand.turn(50_000)
    hand.pace.turned()
    assert hand.pace.left_us < TIMES * 200 * 1.5


def test_fewer_messages_than_are_worth_it_never_wait(hand):
    hand.learn(PACE_MAX_US)
    hand.pace.turned()
    assert hand.pace.wait_us(ENOUGH * 0.99) == 0
    assert hand.pace.wait_us(0) == 0


def test_a_short_pace_needs_a_higher_rate_to_be_worth_it(hand):
    hand.learn(100)
    hand.pace.turned()
    assert hand.pace.wait_us(ENOUGH) == 0
    assert hand.pace.wait_us(ENOUGH * PACE_MAX_US / (TIMES * 100) * 1.1) > 0


@pytest.mark.parametrize("late_us", [0, 1, 10_000])
def test_a_turn_later_than_the_pace_runs_at_once(hand, late_us):
    hand.learn(PACE_MAX_US)
    hand.pace.turned()
    hand.now_us += PACE_MAX_US + late_us
    assert hand.pace.wait_us(100.0) == 0
    assert hand.pace.left_us == -late_us


def test_the_first_turn_of_a_process_does_not_wait(hand):
    assert hand.pace.wait_us(100.0) == 0


@pytest.mark.parametrize("turn_us", [50, 300, 600])
def test_one_client_that_waits_for_each_answer_is_never_paced(hand, turn_us):
    hand.learn(turn_us)
    hand.turn(turn_us)
    hand.now_us += 200  # a quick sync; then the confirm is made, goes out, and the next one comes
    hand.now_us += turn_us // 6
    assert hand.pace.wait_us(100.0) == 0
