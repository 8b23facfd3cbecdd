"""Headers conditions and topic patterns, each against a naive model."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.adapters.amqp.topology.matching import (
    HeadersMatch,
    TopicTrie,
    class_of,
    to_queue,
    words_of,
)
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.table import Timestamp

values = st.sampled_from([1, 2, 1.0, True, "1", "a", None, b"a", Timestamp(1), [1], {"a": 1}])
tables = st.dictionaries(st.sampled_from(["a", "b", "x-a", "x-b"]), values, max_size=4)
manners = st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"])


def wanted(manner: str | None, arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    """The rules said once more."""
    results = []
    for name, value in arguments.items():
        if name.startswith("x-") and not (manner or "").endswith("-with-x"):
            continue
        same = name in headers and class_of(headers[name]) == class_of(value)
        results.append(name in headers if value is None else same and headers[name] == value)
    return any(results) if (manner or "all").startswith("any") else all(results)


@given(manners, tables, tables)
def test_bindings_match_as_the_naive_model_does(
    manner: str | None, arguments: dict[str, Any], headers: dict[str, Any]
) -> None:
    match = HeadersMatch(arguments if manner is None else {"x-match": manner, **arguments})
    assert match.matches(headers) is wanted(manner, arguments, headers)


def test_no_condition_is_met_by_all_and_by_nothing_when_any_is_asked() -> None:
    assert HeadersMatch({}).matches({})
    assert HeadersMatch({"x-match": "all", "x-a": 1}).matches({})
    assert not HeadersMatch({"x-match": "any"}).matches({"a": 1})


def test_an_integer_is_neither_text_nor_true() -> None:
    match = HeadersMatch({"a": 1})
    assert match.matches({"a": 1})
    assert not match.matches({"a": "1"})
    assert not match.matches({"a": True})
    assert not match.matches({"a": Timestamp(1)})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            "most",
            'Invalid x-match field value "most"; expected all, any, all-with-x, or any-with-x',
        ),
        (1, "Invalid x-match field type int (value 1); expected longstr"),
    ],
)
def test_an_unknown_manner_is_refused(value: object, text: str) -> None:
    with pytest.raises(AmqpError, match="PRECONDITION_FAILED") as problem:
        HeadersMatch({"x-match": value})
    assert text in str(problem.value)


# ---- topic trie ---------------------------------------------------------------------------------
# Topic patterns: the sheet's rules, a naive model, and what is left after removal.


words = st.lists(st.sampled_from(["a", "b", "", "stock"]), max_size=5).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=5).map(".".join)


def fits(pattern: list[str], key: list[str]) -> bool:
    """The rules said once more, recursively."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return fits(pattern[1:], key) or (bool(key) and fits(pattern, key[1:]))
    return bool(key) and pattern[0] in ("*", key[0]) and fits(pattern[1:], key[1:])


@pytest.mark.parametrize(
    ("pattern", "key", "is_match"),
    [
        ("stock.*.nyse", "stock.usd.nyse", True),
        ("stock.*.nyse", "stock.nyse", False),
        ("stock.#", "stock", True),
        ("stock.#", "stock.usd.nyse", True),
        ("#", "", True),
        ("", "", True),
        ("*", "", False),
        ("#.nyse", "nyse", True),
        ("#.*", "a", True),
        ("#.#.#", "a.b", True),
        ("a.*", "a.", True),
        ("*.a", ".a", True),
        ("a*", "ab", False),
    ],
)
def test_words_are_matched_as_rabbitmq_does(pattern: str, key: str, is_match: bool) -> None:
    trie = TopicTrie()
    trie.add(pattern, to_queue("q"))
    assert bool(trie.match(key)[0]) is is_match
    assert fits(words_of(pattern), words_of(key)) is is_match


@given(st.lists(patterns, max_size=8, unique=True), words)
def test_a_trie_finds_what_the_naive_model_finds(known: list[str], key: str) -> None:
    trie = TopicTrie()
    for pattern in known:
        trie.add(pattern, to_queue(pattern))
    found = {destination.name for destination in trie.match(key)[0]}
    assert found == {each for each in known if fits(words_of(each), words_of(key))}


@given(st.lists(patterns, min_size=1, max_size=8), st.data())
def test_removed_patterns_match_no_more_and_leave_nothing(
    known: list[str], data: st.DataObject
) -> None:
    trie = TopicTrie()
    for pattern in known:
        trie.add(pattern, to_queue("q"))
    for pattern in data.draw(st.permutations(known)):
        assert trie.match(pattern.replace("#", "a").replace("*", "a"))[0]
        trie.remove(pattern, to_queue("q"))
    assert trie.match("a.b")[0] == []
    assert trie._root.is_bare


def test_a_pattern_of_many_hashes_costs_no_more_than_nodes_times_words() -> None:
    trie = TopicTrie()
    trie.add(".".join(["#"] * 60 + ["end"]), to_queue("q"))
    found, looked = trie.match(".".join(["a"] * 60))
    assert found == []
    assert looked <= 62 * 61


def test_removing_what_is_not_there_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError):
        TopicTrie().remove("a.b", to_queue("q"))
