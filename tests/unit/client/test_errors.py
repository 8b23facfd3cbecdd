"""Errors say what, which and what to do."""

import pytest

from penstock.client.errors import (
    Attempt,
    BrokerBusy,
    BrokerRefused,
    GroupTaken,
    NoRoute,
    SendFailed,
    StateError,
    TimedOut,
    name_of_code,
)
from penstock.model.errors import PenstockError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoRoute("orders"), ["'orders'", "create it"]),
        (TimedOut("a:1", 3000), ["a:1", "3000 ms"]),
        (BrokerRefused(2, "[OVERLOAD]", "a:1"), ["SYSTEM_BUSY (2)", "[OVERLOAD]", "a:1"]),
        (BrokerBusy("a", "disk is slow"), ["broker a", "disk is slow", "slow down"]),
        (GroupTaken("g", "consumer", "me"), ["'g'", "instance_name"]),
    ],
)
def test_the_text_names_what_matters(error, words):
    assert isinstance(error, PenstockError)
    assert all(word in str(error) for word in words)


def test_busy_is_a_failed_send_and_a_taken_group_a_wrong_state():
    assert issubclass(BrokerBusy, SendFailed)
    assert issubclass(GroupTaken, StateError)


def test_attempts_are_told_one_by_one():
    tried = [Attempt("a", 0, 5, TimedOut("a:1", 5)), Attempt("b", 1, 2, None, "FLUSH_DISK_TIMEOUT")]
    assert SendFailed("failed", tried).attempts == tried


def test_a_code_without_a_name_is_told_as_a_number():
    assert name_of_code(17) == "TOPIC_NOT_EXIST (17)"
    assert name_of_code(9999) == "code 9999"
