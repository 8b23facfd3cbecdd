"""Publisher confirms in as few words as possible (F4)."""

import pytest

from penstock.flow.confirms import ConfirmLedger, CumulativeAnswer, cumulative_acks
from penstock.model.errors import InvariantBroken


@pytest.mark.parametrize(
    ("tokens", "outstanding_min", "upto", "singles"),
    [
        ([], 1, None, []),
        ([1], 2, None, [1]),
        ([1, 2, 3], 4, 3, []),
        ([3, 1, 2], 10, 3, []),
        ([1, 2, 4, 5], 3, 2, [4, 5]),
        ([2, 3], 1, None, [2, 3]),
        ([1, 3], 2, None, [1, 3]),
    ],
)
def test_answers_are_cumulative_up_to_the_first_open_one(tokens, outstanding_min, upto, singles):
    assert cumulative_acks(tokens, outstanding_min) == CumulativeAnswer(upto, singles)


def test_tokens_are_consecutive():
    ledger = ConfirmLedger()
    assert [ledger.expect(3), ledger.expect(), ledger.expect(2)] == [1, 4, 5]
    assert (ledger.outstanding, ledger.outstanding_min) == (6, 1)


def test_a_whole_list_is_one_ack():
    ledger = ConfirmLedger()
    ledger.expect(100)
    acks, nacks = ledger.answer(list(range(1, 101)), [])
    assert (acks, nacks) == (CumulativeAnswer(100, []), CumulativeAnswer(None, []))
    assert (ledger.outstanding, ledger.outstanding_min) == (0, 101)


def test_what_lies_behind_an_open_publish_goes_out_singly_and_is_not_repeated():
    ledger = ConfirmLedger()
    ledger.expect(5)
    assert ledger.answer([2, 3, 5], []).acks == CumulativeAnswer(None, [2, 3, 5])
    assert (ledger.outstanding, ledger.outstanding_min) == (2, 1)
    assert ledger.answer([1, 4], []).acks == CumulativeAnswer(4, [])


def test_an_ack_never_covers_a_publish_refused_in_the_same_turn():
    ledger = ConfirmLedger()
    ledger.expect(6)
    acks, nacks = ledger.answer([1, 2, 5, 6], [3, 4])
    assert acks == CumulativeAnswer(2, [5, 6])
    assert nacks == CumulativeAnswer(4, [])


@pytest.mark.parametrize("tokens", [[0], [4], [1, 1, 4], [1]])
def test_answering_what_is_not_open_is_our_own_mistake(tokens):
    ledger = ConfirmLedger()
    ledger.expect(3)
    ledger.answer([1], [])
    with pytest.raises(InvariantBroken, match=r"open are 2\.\.3"):
        ledger.answer(tokens, [])


def test_the_next_ones_in_a_row_are_answered_by_one_step_and_nothing_else_is():
    ledger = ConfirmLedger()
    ledger.expect(6)
    assert not ledger.answer_next(2, 3), "1 is open"
    assert ledger.answer_next(1, 2)
    ledger.answer([4], [])
    assert not ledger.answer_next(3, 3), "4 is answered ahead of it"
    assert not ledger.answer_next(3, 7), "7 was never published"
    assert ledger.outstanding_min == 3
