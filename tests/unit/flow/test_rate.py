"""Rate limits and backlog quotas (F8)."""

import pytest

from penstock.flow.demand import UNLIMITED
from penstock.flow.quota import BacklogQuota, QuotaDecision, QuotaPolicy
from penstock.flow.rate import DispatchLimit, DispatchRate, RateLimit, TokenBucket


def test_a_bucket_gives_its_burst_at_once_and_then_its_rate():
    bucket = TokenBucket(100, 20)
    assert bucket.take(20, 0)
    assert not bucket.take(1, 9)
    assert bucket.take(1, 10)
    assert bucket.available(110) == 10


def test_no_rate_is_no_limit():
    bucket = TokenBucket(0)
    bucket.charge(10**9, 0)
    assert bucket.take(10**9, 0)
    assert (bucket.wait_ms(10**9, 0), bucket.available(0)) == (0, UNLIMITED)


def test_a_charge_may_go_into_debt_and_the_wait_pays_it_back():
    bucket = TokenBucket(1000, 100)
    bucket.charge(600, 0)
    assert bucket.available(0) == 0
    assert bucket.wait_ms(0, 0) == 500
    assert bucket.wait_ms(1, 0) == 501
    assert not bucket.take(1, 500)
    assert bucket.take(1, 501)


def test_a_piece_larger_than_the_burst_passes_a_full_bucket():
    bucket = TokenBucket(10, 5)
    assert bucket.take(50, 0)
    assert bucket.wait_ms(1, 0) == 4600
    assert not bucket.take(50, 4600)
    assert bucket.take(50, 5000)


def test_tokens_do_not_pile_up_beyond_the_burst_and_time_going_back_gives_none():
    bucket = TokenBucket(10, 5)
    bucket.take(5, 1000)
    assert not bucket.take(1, 0)
    assert bucket.available(10**9) == 5


def test_a_new_rate_keeps_the_debt_and_starts_full_from_no_limit():
    bucket = TokenBucket(10, 10)
    bucket.charge(30, 0)
    bucket.resize(100, 100, 0)
    assert bucket.wait_ms(0, 0) == 200
    free = TokenBucket(0)
    free.resize(10, 3, 50)
    assert free.available(50) == 3


def test_negative_figures_are_refused():
    with pytest.raises(ValueError, match="negative"):
        TokenBucket(-1)


def test_messages_and_bytes_must_both_allow_it():
    limit = RateLimit(messages_per_s=10, bytes_per_s=1000)
    assert limit.is_set
    limit.charge(1, 5000, 0)
    assert limit.available_messages(0) == 0
    assert limit.wait_ms(0) == 4001
    limit.charge(0, 0, 4001)
    assert (limit.available_messages(4001), limit.available_bytes(4001)) == (10, 1)
    assert limit.wait_ms(4001) == 0
    assert not RateLimit().is_set


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        (QuotaPolicy.HOLD, QuotaDecision.HOLD),
        (QuotaPolicy.EXCEPTION, QuotaDecision.REFUSE),
        (QuotaPolicy.EVICT, QuotaDecision.EVICT),
    ],
)
@pytest.mark.parametrize(
    ("backlog_bytes", "age_ms", "is_passed"),
    [(0, 0, False), (99, 9, False), (100, 0, True), (0, 10, True), (500, 500, True)],
)
def test_a_quota_judges_by_bytes_or_age(policy, verdict, backlog_bytes, age_ms, is_passed):
    quota = BacklogQuota(100, 10, policy)
    assert quota.judge(backlog_bytes, age_ms) is (verdict if is_passed else QuotaDecision.ADMIT)


def test_an_unset_quota_admits_everything():
    quota = BacklogQuota()
    assert not quota.is_set
    assert quota.judge(1 << 60, 1 << 60) is QuotaDecision.ADMIT


def test_age_may_have_another_consequence_and_the_harder_one_counts():
    quota = BacklogQuota(100, 10, QuotaPolicy.HOLD, QuotaPolicy.EXCEPTION)
    assert quota.judge(100, 0) is QuotaDecision.HOLD
    assert quota.judge(0, 10) is QuotaDecision.REFUSE
    assert quota.judge(100, 10) is QuotaDecision.REFUSE
    mild = BacklogQuota(100, 10, QuotaPolicy.HOLD, QuotaPolicy.EVICT)
    assert mild.judge(100, 10) is QuotaDecision.HOLD
    assert mild.judge(0, 10) is QuotaDecision.EVICT
    assert "(evict)" in mild.explain("t", 0, 10)
    assert "(hold)" in mild.explain("t", 100, 10)


def test_a_quota_explains_itself_and_evicts_to_ninety_percent():
    quota = BacklogQuota(1000, 200, QuotaPolicy.EVICT)
    assert quota.is_set
    assert (quota.evict_to_bytes, quota.evict_to_age_ms) == (900, 180)
    assert quota.explain("orders", 1000) == (
        "backlog of topic 'orders' holds 1000 bytes, quota 1000 (evict)"
    )
    assert "300 ms old, quota 200 ms" in quota.explain("orders", 10, 300)


def test_a_bucket_may_have_another_period_and_another_one_later():
    bucket = TokenBucket(3, period_ms=60_000)
    assert bucket.take(3, 0)
    assert bucket.wait_ms(1, 0) == 20_000
    assert bucket.available(40_000) == 2
    bucket.resize(10, 0, 40_000, period_ms=1_000)
    assert bucket.available(40_000) == 2
    assert bucket.available(40_100) == 3


@pytest.mark.parametrize(
    "wrong", [{"messages": -1}, {"size_bytes": -1}, {"period_ms": 0}, {"period_ms": 1 << 40}]
)
def test_a_dispatch_rate_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="dispatch rate"):
        DispatchRate(**wrong)


def test_who_waits_for_a_dispatch_rate_stands_in_line():
    limit = DispatchLimit(DispatchRate(messages=10), 0)
    limit.spend(10, 10, 0, 0)
    for who in "abc":
        assert limit.share(who, 0) == (0, 0)
        limit.stand_in_line(who, was_served=False)
    assert [limit.share(who, 100)[0] for who in "abc"] == [1, 0, 0]
    limit.spend(1, 1, 0, 100)
    limit.stand_in_line("a", was_served=True)
    assert [limit.share(who, 200)[0] for who in "abc"] == [0, 1, 0]
    assert [limit.share(who, 800)[0] for who in "abc"] == [2, 2, 2]
    limit.leave_line("b")
    limit.leave_line("c")
    assert limit.share("a", 800)[0] == 7
    assert limit.wait_ms(800) == 0


def test_a_batch_is_one_where_entries_are_counted():
    by_entry = DispatchLimit(DispatchRate(messages=10, counts_entries=True), 0)
    by_entry.spend(1, 100, 0, 0)
    assert by_entry.share("a", 0)[0] == 9
    by_message = DispatchLimit(DispatchRate(messages=10), 0)
    by_message.spend(1, 100, 0, 0)
    assert by_message.share("a", 0) == (0, 0)
    assert by_message.wait_ms(0) == 9_100
