"""A pattern is bounded before it is used: the broker has one thread."""

import time

import pytest

from penstock.engine.bulk.orders import QueryRefused
from penstock.engine.bulk.patterns import WAYS_MAX, topic_pattern, ways
from penstock.model.names import NAME_BYTES_MAX


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders", 1),
        (r"orders\.\*", 1),
        ("[a-z+*]", 1),
        ("[]*+]x", 1),
        ("orders|payments|refunds", 1),
        ("(eu|us)-(a|b|c)", 6),
        ("colou?r", 2),
        ("[0-9]{8}", 1),
        ("(eu|us){3}", 8),
        ("orders-.*", NAME_BYTES_MAX),
        ("orders-.*?", NAME_BYTES_MAX),
        (".*-eu-.*", NAME_BYTES_MAX**2),
        ("(?:orders)+", NAME_BYTES_MAX),
        ("(?P<region>eu|us)-[^.]+", 2 * NAME_BYTES_MAX),
    ],
)
def test_every_choice_of_a_pattern_counts(pattern, expected):
    assert ways(pattern) == expected
    assert topic_pattern(pattern).pattern == pattern


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|aa)+$", "(a?){40}a{40}", "a?" * 30 + "a" * 30, ".*.*.*.*x", "((a*)b?)*",
     "(?:(a|b)c){2,}", "(a|b){0}(a+)+b", "(.*a){12}", "(a|a)" * 30],
)  # fmt: skip
def test_a_pattern_that_would_take_too_long_is_refused_at_once(pattern):
    before = time.monotonic()
    with pytest.raises(QueryRefused, match="may take too long"):
        topic_pattern(pattern)
    assert time.monotonic() - before < 1
    assert ways(pattern) > WAYS_MAX


def test_the_worst_pattern_that_is_allowed_ends():
    assert topic_pattern(".*a.*a.*b").fullmatch("a" * 100) is None


@pytest.mark.parametrize("pattern", ["(", "x" * 1025])
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(QueryRefused):
        topic_pattern(pattern)
