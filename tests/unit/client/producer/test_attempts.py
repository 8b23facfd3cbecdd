"""When a send is tried again."""

import pytest

from penstock.client.errors import Attempt, BrokerBusy, BrokerRefused, SendFailed, Unreachable
from penstock.client.producer.attempts import RetryRule, Verdict, failure

RETRIED = (17, 14, 1, 16, 204, 205, 1500)
NOT_RETRIED = (2, 3, 13, 15, 26, 29, 215, 501)


def judge(code, *, tries=1, is_pinned=False, left_ms=1000, **options):
    rule = RetryRule(retries=options.pop("retries", 2), **options)
    return rule.judge(code, tries=tries, is_pinned=is_pinned, left_ms=left_ms)


@pytest.mark.parametrize("code", RETRIED)
def test_what_another_broker_may_answer_differently_is_tried_again(code):
    assert judge(code) is Verdict.AGAIN


@pytest.mark.parametrize("code", NOT_RETRIED)
def test_every_other_error_is_final(code):
    assert judge(code) is Verdict.FAILED


def test_no_answer_is_tried_again():
    assert judge(None) is Verdict.AGAIN


def test_busy_is_tried_again_only_when_asked_for():
    assert judge(2) is Verdict.FAILED
    assert judge(2, retry_on_busy=True) is Verdict.AGAIN


@pytest.mark.parametrize("code", [None, 1, 17])
def test_there_are_three_tries(code):
    assert [judge(code, tries=tries) for tries in (1, 2, 3)] == [
        Verdict.AGAIN,
        Verdict.AGAIN,
        Verdict.FAILED,
    ]


@pytest.mark.parametrize("code", [None, 1])
def test_no_try_begins_after_the_deadline(code):
    assert judge(code, left_ms=0) is Verdict.FAILED
    assert judge(code, left_ms=1) is Verdict.AGAIN


@pytest.mark.parametrize("code", [None, 1, 17])
def test_a_message_for_one_queue_is_tried_once(code):
    assert judge(code, is_pinned=True) is Verdict.FAILED


@pytest.mark.parametrize("code", [10, 11, 12])
def test_stored_with_a_delay_is_a_result(code):
    assert judge(code) is Verdict.STORED
    assert judge(code, retry_when_not_store_ok=True) is Verdict.AGAIN
    assert judge(code, retry_when_not_store_ok=True, tries=3) is Verdict.STORED
    assert judge(code, retry_when_not_store_ok=True, is_pinned=True) is Verdict.STORED


def test_success_is_the_end():
    assert judge(0, retry_when_not_store_ok=True) is Verdict.STORED


def test_a_failure_tells_every_try():
    tries = [
        Attempt("a", 0, 3, Unreachable("h:1", "refused")),
        Attempt("b", 2, 4, BrokerRefused(14, "disk full", "h:2")),
    ]
    error = failure("orders", tries, 3000)
    assert type(error) is SendFailed
    assert error.attempts == tries
    assert error.__cause__ is tries[1].error
    for part in ("'orders'", "2 tries", "3000 ms", "a after 3 ms", "SERVICE_NOT_AVAILABLE (14)"):
        assert part in str(error)


def test_busy_is_a_kind_of_its_own_with_reason_and_broker():
    error = failure("t", [Attempt("a", 0, 3, BrokerRefused(2, "[REJECTREQUEST]", "h:1"))], 3000)
    assert type(error) is BrokerBusy
    assert (error.broker, error.reason) == ("a", "[REJECTREQUEST]")


def test_a_send_that_was_never_tried_fails_with_words_too():
    assert "0 tries within 5 ms" in str(failure("t", (), 5))
