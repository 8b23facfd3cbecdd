"""Headers exchanges: all, any, with x, presence, classes of values; against a naive model."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.adapters.amqp.headers_match import HeadersMatch, class_of
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
