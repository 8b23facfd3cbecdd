"""Outcomes of a message consumed on an operator's order."""

import pytest

from penstock.client.consumer.direct_consume import direct_outcome, outcome_body
from penstock.client.consumer.results import ConsumeResult, Finished, Later, ResultKind, Suspend


def finished(answer=None, error=None):
    return Finished([], answer, error, ResultKind.SUCCESS, 12.7)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "CR_SUCCESS"),
        (ConsumeResult.SUCCESS, "CR_SUCCESS"),
        (ConsumeResult.LATER, "CR_LATER"),
        (Later(2), "CR_LATER"),
        (ConsumeResult.SUSPEND, "CR_LATER"),
        (Suspend(20), "CR_LATER"),
        (ConsumeResult.COMMIT, "CR_COMMIT"),
        (ConsumeResult.ROLLBACK, "CR_ROLLBACK"),
    ],
)
def test_answers_have_rocketmqs_names(answer, expected):
    assert direct_outcome(finished(answer), is_ordered=True).result == expected


def test_an_exception_is_told_with_its_text():
    outcome = direct_outcome(finished(error=KeyError("no such order")), is_ordered=False)
    assert outcome_body(outcome) == {
        "order": False,
        "autoCommit": True,
        "consumeResult": "CR_THROW_EXCEPTION",
        "remark": "KeyError: 'no such order'",
        "spentTimeMills": 12,
    }


def test_a_long_text_is_cut():
    outcome = direct_outcome(finished(error=ValueError("x" * 5_000)), is_ordered=False)
    assert len(outcome.remark) == 1_000
