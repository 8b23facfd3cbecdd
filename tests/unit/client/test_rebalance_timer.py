"""When queues are divided: interval, notices, spacing, and again while it fails."""

from penstock.client.rebalance_timer import RebalanceTimer


def timer(now_ms=0):
    return RebalanceTimer(now_ms, interval_ms=20_000, spacing_ms=1_000)


def divide(each, now_ms, *, is_balanced=True):
    each.begin()
    each.ended(now_ms, is_balanced=is_balanced)


def test_without_notices_it_is_due_every_interval():
    each = timer()
    assert each.due_ms == 20_000
    divide(each, 20_100)
    assert each.due_ms == 40_100


def test_a_first_notice_is_obeyed_at_once():
    assert timer().notice(500) == 500


def test_notices_soon_after_a_division_wait_for_the_spacing():
    each = timer()
    divide(each, 5_000)
    assert each.notice(5_100) == 6_000
    assert each.notice(5_900) == 6_000
    assert each.notice(6_500) == 6_000


def test_a_notice_long_after_a_division_is_obeyed_at_once():
    each = timer()
    divide(each, 5_000)
    assert each.notice(9_000) == 9_000


def test_an_unbalanced_division_is_repeated_soon():
    each = timer()
    divide(each, 5_000, is_balanced=False)
    assert each.due_ms == 6_000


def test_a_notice_during_a_division_is_not_forgotten():
    each = timer()
    each.begin()
    each.notice(5_050)
    each.ended(5_100, is_balanced=True)
    assert each.due_ms == 6_100
