"""Rates of counters between two looks."""

from penstock.adapters.amqp.rates import COUNTERS_MAX, Rates


def test_a_rate_is_what_was_added_since_the_look_before() -> None:
    rates = Rates()
    assert rates.rate("q", 100, 0) == 0
    assert rates.rate("q", 600, 2_000) == 250
    assert rates.rate("q", 9_999, 2_500) == 250, "looked at twice within a step"
    assert rates.rate("q", 600, 12_000) == 0


def test_a_counter_that_begins_anew_has_no_negative_rate() -> None:
    rates = Rates()
    rates.rate("q", 100, 0)
    assert rates.rate("q", 5, 1_000) == 0


def test_memory_is_bounded() -> None:
    rates = Rates()
    for number in range(COUNTERS_MAX + 10):
        rates.rate(number, 1, 0)
    assert len(rates._looks) == COUNTERS_MAX


def test_details_have_rabbitmqs_shape() -> None:
    assert Rates().details("q", {"publish": 3}, 0) == {
        "publish": 3,
        "publish_details": {"rate": 0.0},
    }
