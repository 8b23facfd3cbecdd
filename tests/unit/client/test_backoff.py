"""Waits after failures to connect."""

from penstock.client.backoff import Backoff


def test_the_wait_doubles_up_to_its_limit():
    backoff, waits = Backoff(), []
    for _ in range(7):
        backoff.failed(1000, "refused", least_ms=100, most_ms=3000)
        waits.append(backoff.until_ms - 1000)
    assert waits == [100, 200, 400, 800, 1600, 3000, 3000]


def test_only_the_first_failure_in_a_row_is_news():
    backoff = Backoff()
    assert backoff.failed(0, "refused", least_ms=1, most_ms=2)
    assert not backoff.failed(9, "refused", least_ms=1, most_ms=2)


def test_a_thousand_failures_do_not_overflow():
    backoff = Backoff()
    for _ in range(1000):
        backoff.failed(0, "refused", least_ms=100, most_ms=3000)
    assert backoff.until_ms == 3000
