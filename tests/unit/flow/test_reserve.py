"""The last places are for those who have made few."""

import pytest

from penstock.adapters.contract import Peer
from penstock.flow.reserve import MAKERS_MAX, NEWCOMER_MAKES_MAX, Reserve


def filled(reserve, maker, places_max):
    """How many places one maker gets of an empty table."""
    used = 0
    while used < places_max and reserve.refusal(maker, used, places_max) is None:
        reserve.made(maker)
        used += 1
    return used


def test_one_maker_fills_all_but_the_reserve_and_another_still_finds_a_place():
    reserve = Reserve(10)
    assert filled(reserve, "10.0.0.7", 1000) == 900
    problem = reserve.refusal("10.0.0.7", 900, 1000)
    assert "the last 100 are for clients that made fewer than 32" in problem
    assert "10.0.0.7 made 900" in problem
    assert reserve.refusal("10.0.0.8", 900, 1000) is None


def test_a_newcomer_takes_no_more_of_the_reserve_than_newcomers_may():
    reserve = Reserve(10)
    for used in range(900, 900 + NEWCOMER_MAKES_MAX):
        assert reserve.refusal("b", used, 1000) is None
        reserve.made("b")
    assert reserve.refusal("b", 900 + NEWCOMER_MAKES_MAX, 1000) is not None


@pytest.mark.parametrize(("percent", "places_max"), [(0, 1000), (10, 9)])
def test_without_a_reserve_one_maker_may_fill_everything(percent, places_max):
    assert filled(Reserve(percent), "a", places_max) == places_max


def test_the_broker_itself_and_operators_use_every_place():
    assert filled(Reserve(10), "", 1000) == 1000


def test_makers_that_are_remembered_are_bounded():
    reserve = Reserve(10)
    for number in range(MAKERS_MAX + 5):
        reserve.made(str(number), NEWCOMER_MAKES_MAX)
    assert reserve.refusal("4", 990, 1000) is None
    assert reserve.refusal("5", 990, 1000) is not None


def test_a_maker_is_an_address_or_on_this_machine_a_connection():
    assert Peer("10.0.0.7", 4711, "10.0.0.1", 5672).maker == "10.0.0.7"
    assert Peer("127.0.0.1", 4711, "127.0.0.1", 5672).maker == "127.0.0.1:4711"
    assert Peer("::1", 4711, "::1", 5672).maker == "[::1]:4711"
