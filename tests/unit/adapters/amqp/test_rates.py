"""Rates of figures between the last two samples."""

from typing import NamedTuple

import pytest

from penstock.adapters.amqp import rates as rates_module
from penstock.adapters.amqp.rates import Rates


class Some(NamedTuple):
    messages: int
    publish: int


def test_a_rate_is_what_was_added_between_the_last_two_samples_whoever_looks() -> None:
    rates = Rates()
    rates.sample("q", Some(0, 100), 0)
    assert rates.per_second("q") is None, "one sample says nothing"
    rates.sample("q", Some(0, 600), 2_000)
    for _ in range(3):
        assert rates.per_second("q") == {"messages": 0.0, "publish": 250.0}
    rates.sample("q", Some(0, 600), 12_000)
    assert rates.per_second("q") == {"messages": 0.0, "publish": 0.0}


def test_a_level_falls_and_a_counter_that_begins_anew_does_not() -> None:
    rates = Rates()
    rates.sample("q", Some(100, 100), 0)
    rates.sample("q", Some(50, 5), 1_000)
    assert rates.per_second("q") == {"messages": -50.0, "publish": 0.0}


def test_two_samples_at_one_moment_are_one() -> None:
    rates = Rates()
    rates.sample("q", Some(1, 1), 5)
    rates.sample("q", Some(2, 2), 5)
    assert rates.per_second("q") is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_module, "OBJECTS_MAX", 10)
    rates = Rates()
    for now_ms in (0, 1_000):
        for number in range(20):
            rates.sample(number, Some(0, now_ms), now_ms)
    assert len(rates._histories) == 10
    assert rates.per_second(15) is None


def test_what_a_sweep_does_not_meet_any_more_is_forgotten() -> None:
    rates = Rates()
    for now_ms, keys in ((0, "ab"), (5_000, "b"), (10_000, "b")):
        for key in keys:
            rates.sample(key, Some(0, now_ms), now_ms)
        rates.swept()
    assert set(rates._histories) == {"b"}


def test_details_have_rabbitmqs_shape() -> None:
    rates = Rates()
    assert rates.details("q", Some(1, 3), ("publish",)) == {
        "publish": 3,
        "publish_details": {"rate": 0.0},
    }
    rates.sample("q", Some(1, 3), 0)
    rates.sample("q", Some(1, 4), 3_000)
    assert rates.details("q", Some(1, 9), ("publish",)) == {
        "publish": 9,
        "publish_details": {"rate": 0.3},
    }
