"""Topic names: what is allowed, how they are shown, which are internal."""

import pytest

from penstock.model.names import NAME_BYTES_MAX, TopicName, topic_name, topic_of_id


def test_a_name_in_the_default_space_is_shown_alone():
    assert str(topic_name("orders")) == "orders"


def test_a_name_in_another_space_is_shown_with_it():
    assert str(topic_name("orders", "tenant/ns")) == "tenant/ns/orders"


def test_the_same_name_in_two_spaces_is_two_topics():
    assert topic_name("orders", "a") != topic_name("orders", "b")


@pytest.mark.parametrize(
    "name", ["%RETRY%g", "%DLQ%g", "rmq_sys_TRACE", "amq.gen-x1", "penstock.flow"]
)
def test_names_of_internal_machinery_are_hidden(name):
    assert topic_name(name).is_hidden


@pytest.mark.parametrize("name", ["orders", "amq.direct", "retry", "my.penstock.flow"])
def test_other_names_are_not_hidden(name):
    assert not topic_name(name).is_hidden


@pytest.mark.parametrize(
    ("name", "space", "complaint"),
    [
        ("", "", "at least one character"),
        ("a\nb", "", "control character"),
        ("a", "b\0", "control character"),
        ("a\x7f", "", "control character"),
        ("x" * (NAME_BYTES_MAX + 1), "", "longer than 255 bytes"),
        ("ü" * 128, "", "longer than 255 bytes"),
        ("a", "y" * 256, "space is longer"),
    ],
)
def test_a_bad_name_is_refused_with_what_is_wrong(name, space, complaint):
    with pytest.raises(ValueError, match=complaint):
        topic_name(name, space)


def test_the_longest_name_is_allowed():
    assert topic_name("x" * NAME_BYTES_MAX) == TopicName("", "x" * NAME_BYTES_MAX)


@pytest.mark.parametrize(
    "name",
    [
        TopicName("", "orders"),
        TopicName("team", "a/b@c d"),
        TopicName("", "fleeting", "non-persistent"),
        TopicName("a@b", "%", "non-persistent"),
    ],
)
def test_a_topic_is_found_again_by_its_id(name):
    assert topic_of_id(name.id) == name
    assert topic_of_id(name.id_part) == name
