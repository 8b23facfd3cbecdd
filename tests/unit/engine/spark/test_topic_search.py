"""Topics by name and by pattern: whatever the pattern is, what it may cost is known before."""

import pytest

from penstock.engine.spark.query import QueryRefused
from penstock.engine.spark.topic_search import (
    GROUPS_DEEP_MAX,
    WAYS_MAX,
    WAYS_PER_STEP,
    search_topics,
    topic_named,
    topic_pattern,
    ways,
)
from penstock.model.names import NAME_BYTES_MAX, TopicName


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
        ("(ab){3}", 24),
        ("(eu|us){3}", 8 * 24),
        ("orders-.*", NAME_BYTES_MAX),
        ("orders-.*?", NAME_BYTES_MAX),
        (".*-eu-.*", NAME_BYTES_MAX**2),
        ("(?:orders)+", NAME_BYTES_MAX),
        ("(?P<region>eu|us)-[^.]+", 2 * NAME_BYTES_MAX),
    ],
)
def test_every_choice_of_a_pattern_counts(pattern, expected):
    assert ways(pattern) == expected
    assert topic_pattern(pattern).text == pattern


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|aa)+$", "(a?){40}a{40}", "a?" * 30 + "a" * 30, ".*.*.*.*x",
     ".*a.*a.*a!", "((a*)b?)*", "(?:(a|b)c){2,}", "(a|b){0}(a+)+b", "(.*a){12}", "(a|a)" * 30,
     "(?:(?:){255}){255}x", "(?:(?:){255,}){255,}x", "(" * 21 + ")" * 21],
)  # fmt: skip
def test_a_pattern_that_would_take_too_long_is_refused_at_once(pattern):
    with pytest.raises(QueryRefused, match="may take too long"):
        topic_pattern(pattern)
    assert ways(pattern) > WAYS_MAX


def test_the_worst_pattern_that_is_allowed_ends():
    assert not topic_pattern(".*a.*b").matches("a" * 511)


@pytest.mark.parametrize(
    "pattern",
    ["(", "x" * 1025, "a{99999999999}", "a{256}", "a{0,99999999999999999999}", "(?P<a>.)(?P<a>.)"],
)
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(QueryRefused):
        topic_pattern(pattern)


def test_a_step_of_a_pattern_is_so_many_ways_in_a_name_of_that_length():
    pattern = topic_pattern(".*-eu-.*")
    assert [pattern.steps(length) for length in (1, 20, 255, 511)] == [
        1, 1, 1 + 255**2 // WAYS_PER_STEP, 1 + 511**2 // WAYS_PER_STEP,
    ]  # fmt: skip
    assert pattern.matches("a-eu-b")
    assert not pattern.matches("a-us-b")


def test_groups_within_groups_are_bounded():
    deep = "(" * GROUPS_DEEP_MAX + "a" + ")" * GROUPS_DEEP_MAX
    assert topic_pattern(deep).matches("a")


class Kept:
    is_deleted = False
    queues = (0,)

    def __init__(self, name):
        self.name = name


@pytest.fixture
def known():
    names = [TopicName("", "orders"), TopicName("eu/west", "a/b"), TopicName("", "pay/ments")]
    return {name: Kept(name) for name in names}


@pytest.mark.parametrize("name", ["orders", "eu/west/a/b", "pay/ments"])
def test_a_name_with_slashes_is_found_wherever_it_is_cut(known, name):
    assert str(topic_named(known, name).name) == name
    assert topic_named(known, name + "/x") is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("order", "'orders'"),
        ("ordrs", "'orders'"),
        ("pay/mints", "'pay/ments'"),
        ("x", "topics list"),
    ],
)
def test_the_nearest_name_begins_and_ends_alike(known, name, hint):
    with pytest.raises(QueryRefused, match=hint):
        list(search_topics(known, [name], None, 10))


def test_every_name_that_is_looked_at_is_a_step(known):
    assert list(search_topics(known, None, "orders", 10)) == [1, 1, 1]
    assert list(search_topics(known, ["orders", "pay/ments"], None, 10)) == [1, 2]
    with pytest.raises(QueryRefused, match="at most 511 characters"):
        list(search_topics(known, ["/" * 512], None, 10))


def test_optional_topics_are_found_when_they_are_there_hidden_ones_too(known):
    def found(*args, **more):
        search = search_topics(known, *args, 10, **more)
        while True:
            try:
                next(search)
            except StopIteration as end:
                return [str(each.name) for each in end.value]

    assert found(["orders"], None, optional=["penstock.retry.x"]) == ["orders"]
    assert found(["orders"], None, optional=["pay/ments", "orders"]) == ["orders", "pay/ments"]
    assert found(None, "order.*", optional=["pay/ments", "nosuch"]) == ["orders", "pay/ments"]
    with pytest.raises(QueryRefused, match="at most 511 characters"):
        found(["orders"], None, optional=["/" * 512])
