"""The brake of a topic: soft caps the rate, hard holds at the bound; and its drain rate."""

import pytest

from penstock.flow.spark_brake import (
    BacklogBound,
    Backpressure,
    Brake,
    DrainRate,
    Lease,
    QueryBacklog,
)


def brake(mode, **bound):
    return Brake("orders", mode, BacklogBound(**bound), 0)


def behind(messages, size=0, age_ms=0, drain=100.0, query="etl"):
    return QueryBacklog(query, messages, size, age_ms, drain, drain * 100)


def passed(held, milliseconds):
    """Messages that get through in so long, offered one by one as fast as they may."""
    count = 0
    for now_ms in range(milliseconds):
        while held.judge(1, 1, now_ms) is None:
            held.admit(1, 1, now_ms)
            count += 1
    return count


def test_nothing_is_held_below_the_bound():
    for mode in Backpressure:
        held = brake(mode, messages_max=1000)
        held.look([behind(998)], 0)
        assert held.judge(1, 10, 0) is None


def test_hard_holds_exactly_at_the_bound():
    held = brake(Backpressure.HARD, messages_max=1000)
    held.look([behind(995)], 0)
    assert passed(held, 1) == 5
    why = held.judge(1, 10, 0)
    assert why.until_ms is None
    assert "query 'etl'" in why.culprit
    assert "1000 messages behind, bound 1000" in why.culprit


@pytest.mark.parametrize(
    ("bound", "now"),
    [
        ({"bytes_max": 1000}, behind(5, size=995)),
        ({"age_ms_max": 1000}, behind(5, age_ms=1000)),
    ],
)
def test_hard_holds_by_bytes_and_by_age(bound, now):
    held = brake(Backpressure.HARD, **bound)
    held.look([now], 0)
    assert held.judge(1, 10, 0) is not None


def test_an_empty_backlog_admits_a_message_larger_than_the_bound():
    held = brake(Backpressure.HARD, bytes_max=1000)
    held.look([behind(0)], 0)
    assert held.judge(1, 5000, 0) is None


def test_soft_caps_the_rate_at_eleven_tenths_of_what_is_drained():
    held = brake(Backpressure.SOFT, messages_max=1000)
    assert held.look([behind(1000, drain=1000.0)], 0)
    assert 1100 <= passed(held, 1000) <= 1100 + 111


def test_soft_caps_bytes_where_the_bound_is_one_of_bytes():
    held = brake(Backpressure.SOFT, bytes_max=1 << 20)
    held.look([behind(1000, size=1 << 20, drain=2000.0)], 0)
    size, sent = 1000, 0
    for now_ms in range(1000):
        while held.judge(1, size, now_ms) is None:
            held.admit(1, size, now_ms)
            sent += size
    # 200,000 bytes a second are drained: the messages alone would allow ten times as many.
    assert 220_000 <= sent <= 220_000 + 22_000 + size
    held.look([behind(1000, size=1 << 20, drain=0.0)], 1000)
    assert held.judge(1, size, 2000) is None


def test_soft_lets_go_below_nine_tenths_of_the_bound():
    held = brake(Backpressure.SOFT, messages_max=1000)
    held.look([behind(1000)], 0)
    assert not held.look([behind(950)], 0)
    assert held.is_on
    assert held.look([behind(899)], 0)
    assert not held.is_on


def test_soft_never_stops_publishers_for_a_query_that_drains_nothing():
    held = brake(Backpressure.SOFT, messages_max=10)
    held.look([behind(50, drain=0.0)], 0)
    assert passed(held, 1000) == 10


def test_without_queries_nobody_is_held():
    held = brake(Backpressure.HARD, messages_max=1)
    held.look([behind(5)], 0)
    assert held.look([], 1)
    assert held.judge(1, 1, 1) is None


def test_the_slowest_query_is_the_culprit():
    held = brake(Backpressure.HARD, messages_max=100)
    held.look([behind(90, query="quick"), behind(150, query="slow")], 0)
    assert held.query == "slow"


def test_a_drain_rate_counts_from_the_moment_a_batch_was_handed_out():
    drain = DrainRate()
    drain.gave(0, 0, 0)
    drain.gave(100, 1000, 5000)
    drain.took(100, 1000, 7000)
    assert drain.messages_per_s(7000) == 50
    assert drain.bytes_per_s(7000) == 500


def test_a_batch_that_takes_too_long_lowers_the_rate():
    drain = DrainRate()
    drain.gave(100, 100, 0)
    drain.took(100, 100, 1000)
    drain.gave(100, 100, 1000)
    assert drain.messages_per_s(2000) == 100
    assert drain.messages_per_s(11_000) == 10


def test_an_unknown_rate_is_zero():
    drain = DrainRate()
    drain.took(5, 5, 10)
    assert not drain.is_known
    assert drain.messages_per_s(10) == 0


# ---- lease --------------------------------------------------------------------------------------
# Leases: two bounds, told once, mended by a word.


def lease(**changes):
    return Lease(**{"ttl_ms": 1000, "bytes_max": 100, "now_ms": 0} | changes)


def test_a_lease_holds_within_its_time_and_its_bytes():
    held = lease()
    assert not held.judge(1000, 100)
    assert held.holds


def test_silence_beyond_its_time_breaks_it_once():
    held = lease()
    assert held.judge(1001, 0)
    assert not held.judge(2000, 0)
    assert (held.cause, held.is_broken, held.holds) == ("silence", True, False)
    assert "silent for 1 s" in held.text


def test_too_many_bytes_break_it():
    held = lease()
    assert held.judge(0, 101)
    assert held.cause == "bytes"


def test_a_word_renews_it():
    held = lease()
    held.hear(900, 0)
    assert not held.judge(1900, 0)


def test_a_word_mends_a_broken_lease_only_within_its_bytes():
    held = lease()
    held.judge(0, 500)
    assert not held.hear(10, 500)
    assert held.is_broken
    assert held.hear(20, 50)
    assert held.holds


def test_a_lease_given_back_is_not_broken():
    held = lease()
    held.release()
    assert not held.holds
    assert not held.is_broken
    assert not held.judge(10_000, 500)
