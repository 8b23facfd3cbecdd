"""Two declarations of one queue: when they are the same, and what is said when not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.adapters.amqp.topology.queue import (
    are_equal,
    check_equivalent_arguments,
    check_flag,
    type_word,
)
from penstock.wire.amqp.codes import AmqpError, ReplyCode

Q = "queue 'q' in vhost '/'"
NAMES = ("x-max-length", "x-overflow", "x-queue-type", "x-message-ttl")


def difference(current, received):
    try:
        check_equivalent_arguments(Q, current, received, NAMES)
    except AmqpError as problem:
        return str(problem).removeprefix(f"{ReplyCode.PRECONDITION_FAILED.name} - ")
    return ""


def test_a_flag_that_differs_is_worded_as_rabbitmq_does():
    with pytest.raises(AmqpError) as caught:
        check_flag(Q, "durable", False, True)
    assert caught.value.reply_text == (
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': "
        "received 'true' but current is 'false'"
    )
    check_flag(Q, "durable", True, True)


def test_values_that_differ_are_shown_bare():
    text = difference({"x-max-length": 5}, {"x-max-length": 6})
    assert text == f"inequivalent arg 'x-max-length' for {Q}: received '6' but current is '5'"


def test_a_value_without_counterpart_is_shown_with_its_type():
    assert difference({}, {"x-max-length": 5}) == (
        f"inequivalent arg 'x-max-length' for {Q}: "
        "received the value '5' of type 'signedint' but current is none"
    )
    assert difference({"x-overflow": "drop-head"}, {}) == (
        f"inequivalent arg 'x-overflow' for {Q}: "
        "received none but current is the value 'drop-head' of type 'longstr'"
    )


def test_unknown_arguments_are_not_compared():
    assert difference({"x-foo": 1}, {"x-foo": 2, "x-bar": 3}) == ""


def test_classic_need_not_be_said():
    assert difference({}, {"x-queue-type": "classic"}) == ""
    assert difference({"x-queue-type": "classic"}, {}) == ""
    assert "x-queue-type" in difference({}, {"x-queue-type": "quorum"})
    assert "x-queue-type" in difference({"x-queue-type": "quorum"}, {})


def test_a_number_is_not_the_text_of_it_nor_a_bool():
    assert not are_equal(1, "1")
    assert not are_equal(1, True)
    assert not are_equal(1, 1.0)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (1, "signedint"),
        (1 << 31, "long"),
        (True, "bool"),
        ("x", "longstr"),
        (b"x", "binary"),
        (0.5, "double"),
        ({}, "table"),
        ([], "array"),
        (None, "void"),
    ],
)
def test_types_have_rabbitmqs_names(value, word):
    assert type_word(value) == word


VALUES = st.one_of(st.integers(0, 3), st.sampled_from(["a", "b", "classic"]), st.booleans())
TABLES = st.dictionaries(st.sampled_from([*NAMES, "x-foo"]), VALUES)


def model(table):
    """What counts of a table, in a form that Python compares."""
    counted = {name: (type(value), value) for name, value in table.items() if name in NAMES}
    if table.get("x-queue-type") == "classic":
        del counted["x-queue-type"]
    return counted


@given(TABLES, TABLES)
def test_equivalent_are_exactly_those_that_say_the_same(current, received):
    is_same = model(current) == model(received)
    assert (difference(current, received) == "") is is_same
    assert (difference(received, current) == "") is is_same
