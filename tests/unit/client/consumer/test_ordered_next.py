"""What follows from an ordered listener's answer."""

import pytest

from penstock.client.consumer.ordered_next import Next, judge, suspend_ms
from penstock.client.consumer.results import ConsumeResult, Finished, Later, ResultKind, Suspend


def finished(answer=None, error=None):
    return Finished([], answer, error, ResultKind.SUCCESS, 1.0)


@pytest.mark.parametrize(
    ("answer", "automatic", "manual"),
    [
        (None, Next.COMMIT, Next.KEEP),
        (ConsumeResult.SUCCESS, Next.COMMIT, Next.KEEP),
        (ConsumeResult.COMMIT, Next.COMMIT, Next.COMMIT),
        (ConsumeResult.SUSPEND, Next.AGAIN, Next.AGAIN),
        (ConsumeResult.LATER, Next.AGAIN, Next.AGAIN),
        (Suspend(5), Next.AGAIN, Next.AGAIN),
        (Later(3), Next.AGAIN, Next.AGAIN),
        (ConsumeResult.ROLLBACK, Next.AGAIN, Next.ROLL_BACK),
    ],
)
def test_every_answer_has_its_row(answer, automatic, manual):
    assert judge(finished(answer), True) is automatic
    assert judge(finished(answer), False) is manual


def test_who_raises_sees_the_messages_again():
    for is_auto_commit in (True, False):
        assert judge(finished(error=KeyError("x")), is_auto_commit) is Next.AGAIN


@pytest.mark.parametrize(
    ("answer", "default_ms", "expected"),
    [
        (ConsumeResult.SUSPEND, 1_000, 1_000),
        (Suspend(), 1_000, 1_000),
        (Suspend(250), 1_000, 250),
        (Suspend(1), 1_000, 10),
        (Suspend(60_000), 1_000, 30_000),
        (None, 5, 10),
    ],
)
def test_a_suspension_is_what_the_listener_said_within_bounds(answer, default_ms, expected):
    assert suspend_ms(finished(answer), default_ms) == expected
