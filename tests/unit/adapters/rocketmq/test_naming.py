"""RocketMQ's spelling of names (D9)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.adapters.rocketmq.naming import (
    group_of,
    neutral_name,
    problem_with,
    retry_topic,
    wire_name,
)
from penstock.model.names import TopicName

PAIRS = [
    ("orders", "", "orders"),
    ("ns%orders", "ns", "orders"),
    ("orders%2Eeu", "", "orders.eu"),
    ("penstock%2Eflow", "", "penstock.flow"),
    ("t%2Fns%orders", "t/ns", "orders"),
    ("%RETRY%g", "", "%RETRY%g"),
    ("%RETRY%ns%g", "ns", "%RETRY%g"),
    ("%DLQ%g", "", "%DLQ%g"),
    ("50%25", "", "50%"),
    ("a|b-c_d", "", "a|b-c_d"),
    ("%C3%A4", "", "ä"),
]


@pytest.mark.parametrize(("wire", "space", "name"), PAIRS)
def test_names_are_spelt_and_read(wire, space, name):
    assert neutral_name(wire) == TopicName(space, name)
    assert wire_name(TopicName(space, name)) == wire


@pytest.mark.parametrize(
    ("wire", "space", "name"), [("ns%41b", "ns", "41b"), ("a%2eb", "a", "2eb")]
)
def test_a_percent_sign_is_an_escape_only_where_it_must_be_one(wire, space, name):
    assert neutral_name(wire) == TopicName(space, name)


@given(space=st.text(max_size=12), name=st.text(min_size=1, max_size=20))
def test_every_name_comes_back(space, name):
    try:
        (space + name).encode()
    except UnicodeEncodeError:
        return
    topic = TopicName(space, name)
    if name in ("%RETRY%", "%DLQ%"):
        return  # the prefix of no group
    assert neutral_name(wire_name(topic)) == topic


@given(st.text(max_size=40))
def test_any_text_is_some_name(text):
    assert neutral_name(text).name or not text


def test_groups_have_their_topics():
    assert retry_topic("g") == "%RETRY%g"
    assert group_of("%RETRY%g") == group_of("%DLQ%g") == "g"
    assert group_of("orders") is None


@pytest.mark.parametrize("topic", ["orders", "ns%orders", "%RETRY%" + "g" * 248, "A|b_-9"])
def test_good_names(topic):
    assert problem_with(topic) is None


@pytest.mark.parametrize("topic", ["", "  ", "a.b", "a\n", "%RETRY%" + "g" * 249, "x" * 128])
def test_bad_names_are_told_apart(topic):
    assert problem_with(topic).startswith("The specified topic")


def test_a_name_that_looks_like_an_escape_keeps_its_namespace():
    name = TopicName("ns", "2Efoo")
    assert wire_name(name) == "ns%%32Efoo"
    assert neutral_name("ns%%32Efoo") == name
    assert neutral_name("ns%2Efoo") == TopicName("", "ns.foo")
