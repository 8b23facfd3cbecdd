"""Refusals: values that can be compared and cannot be changed."""

import pytest

from penstock.model.refusal import Refusal, RefusalKind


def test_two_refusals_of_the_same_kind_culprit_and_text_are_equal():
    first, second = (Refusal(RefusalKind.BUSY, "send", "waited 201 ms") for _ in range(2))
    assert first == second


def test_a_refusal_cannot_be_changed():
    refusal = Refusal(RefusalKind.QUOTA, "orders", "full")
    with pytest.raises(AttributeError):
        refusal.text = "not full"
