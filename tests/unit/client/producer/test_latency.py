"""The table of slow brokers."""

import pytest

from penstock.client.producer.latency import BROKERS_MAX, FaultTable, isolation_ms


@pytest.mark.parametrize(
    ("latency_ms", "isolated_ms"),
    [
        (0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 2000), (1799, 2000), (1800, 5000),
        (3000, 6000), (5000, 10_000), (14_999, 10_000), (15_000, 30_000), (99_999, 30_000),
    ],
)  # fmt: skip
def test_the_slower_a_broker_was_the_longer_it_is_avoided(latency_ms, isolated_ms):
    assert isolation_ms(latency_ms) == isolated_ms


def test_a_slow_broker_is_avoided_until_its_time_is_over():
    table = FaultTable()
    table.answered("a", 600, 1000)
    assert not table.is_available("a", 2999)
    assert table.is_available("a", 3000)
    assert table.isolated(1500) == {"a": 1500}
    assert table.isolated(3000) == {}


def test_a_failed_try_counts_as_ten_seconds():
    table = FaultTable()
    table.failed("a", 0)
    assert not table.is_available("a", 9999)
    assert table.is_available("a", 10_000)


def test_a_fast_answer_ends_the_isolation():
    table = FaultTable()
    table.failed("a", 0)
    table.answered("a", 10, 5)
    assert table.is_available("a", 6)


def test_when_all_are_avoided_the_one_that_is_free_first_is_the_least_bad():
    table = FaultTable()
    table.failed("a", 0)
    table.answered("b", 600, 0)
    assert table.least_bad(["a", "b"]) == "b"
    assert table.least_bad([]) is None


def test_names_a_name_server_makes_up_do_not_fill_the_memory():
    table = FaultTable()
    for number in range(BROKERS_MAX + 10):
        table.failed(f"b{number}", 0)
    assert len(table.isolated(0)) == BROKERS_MAX
    assert table.is_available("b0", 0)
