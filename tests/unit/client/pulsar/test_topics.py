"""Names of topics and subscriptions."""

import pytest

from penstock.client.pulsar.errors import InvalidUse
from penstock.client.pulsar.topics import check_subscription, parse_topic


@pytest.mark.parametrize(
    "text", ["", " ", "a b", "x://a/b/c", "a/b", "persistent://a/b/", 3, "\udc80"]
)
def test_what_is_no_name_is_refused(text):
    with pytest.raises(InvalidUse):
        parse_topic(text)


def test_the_index_of_a_partition_comes_from_its_name():
    topic = parse_topic("orders")
    assert topic.partition == -1
    assert topic.of_partition(12).partition == 12
    assert topic.of_partition(12).whole == topic
    assert parse_topic("orders-partition-x").partition == -1


def test_names_that_pulsar_keeps_are_refused_and_near_ones_are_not():
    check_subscription("pulsar.dedupx")
    for name in ("pulsar.dedup", "pulsar.repl", "pulsar.replx", "", "\udc80"):
        with pytest.raises(InvalidUse):
            check_subscription(name)
