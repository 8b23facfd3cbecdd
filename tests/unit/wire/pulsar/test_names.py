"""What is a Pulsar topic's name, and what its parts are."""

import pytest

from penstock.model.names import topic_name
from penstock.wire.pulsar.names import InvalidTopicName, parse_topic_name


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("a/b/orders", "persistent://a/b/orders"),
        ("non-persistent://a/b/c", "non-persistent://a/b/c"),
        ("persistent://a/cluster/b/c", "persistent://a/cluster/b/c"),
        ("persistent://a/cluster/b/c/d", "persistent://a/cluster/b/c/d"),
    ],
)
def test_short_and_old_names_become_full_ones(text, full):
    assert str(parse_topic_name(text)) == full


@pytest.mark.parametrize(
    "text",
    [
        "", "a/b", "a/b/c/d", "a b", "x://a/b/c", "persistent://a/b/", "persistent://a//c",
        "persistent://a/b/c d", "persistent://a b/c/d", "persistent://", "://",
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused(text):
    with pytest.raises(InvalidTopicName, match="Invalid topic name"):
        parse_topic_name(text)


def test_a_partition_is_known_by_the_end_of_its_name():
    topic = parse_topic_name("orders")
    assert topic.partition == -1
    assert topic.of_partition(12).partition == 12
    assert topic.of_partition(12).whole == topic
    for other in ("orders-partition-x", "orders-partition-01", "-partition-1"):
        assert parse_topic_name(other).partition == -1
        assert parse_topic_name(other).whole == parse_topic_name(other)


def test_public_default_is_the_space_that_all_protocols_share():
    assert parse_topic_name("orders").topic_name == topic_name("orders")
    assert parse_topic_name("a/b/orders").topic_name == topic_name("orders", "a/b")
