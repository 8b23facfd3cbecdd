"""The pace: turns keep their distance while messages come fast enough for company."""

import pytest

from penstock.server.pace import COMPANY_MIN, PACE_US, Pace

ENOUGH = COMPANY_MIN * 1000 / PACE_US
"""Messages per millisecond that are just worth waiting for."""


class Hand:
    def __init__(self):
        self.now_us = 1_000_000
        self.pace = Pace(lambda: self.now_us * 1000)


@pytest.fixture
def hand():
    return Hand()


def test_a_turn_right_behind_another_waits_for_the_rest_of_the_pace(hand):
    hand.pace.turned()
    hand.now_us += 600
    assert hand.pace.wait_us(ENOUGH) == PACE_US - 600
    assert hand.pace.left_us == PACE_US - 600


def test_fewer_messages_than_are_worth_it_never_wait(hand):
    hand.pace.turned()
    assert hand.pace.wait_us(ENOUGH * 0.99) == 0
    assert hand.pace.wait_us(0) == 0


@pytest.mark.parametrize("late_us", [0, 1, 10_000])
def test_a_turn_later_than_the_pace_runs_at_once(hand, late_us):
    hand.pace.turned()
    hand.now_us += PACE_US + late_us
    assert hand.pace.wait_us(100.0) == 0
    assert hand.pace.left_us == -late_us


def test_the_first_turn_of_a_process_does_not_wait(hand):
    assert hand.pace.wait_us(100.0) == 0


def test_one_client_that_waits_for_each_answer_is_never_paced(hand):
    hand.pace.turned()
    assert hand.pace.wait_us(1.0) == 0, "a sync and two wake-ups take a millisecond"
