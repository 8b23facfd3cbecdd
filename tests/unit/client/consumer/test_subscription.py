"""Subscriptions: tags, SQL92, versions, and the second look at tags."""

import pytest

from penstock.client.consumer.subscription import Subscriptions, subscription, wanted_of
from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef
from penstock.testing.client_parts import received_message
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.stored import StoredMessage


def tagged(tag):
    properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
    return ReceivedMessage(StoredMessage(topic="t", properties=properties), QueueRef("t", "b", 0))


@pytest.mark.parametrize("tags", ["a || b", ["a", "b"], "a||b"])
def test_tags_are_a_text_or_a_list(tags):
    made = subscription("t", tags=tags, version=1)
    assert made.data.tags_set == ["a", "b"]
    assert made.data.code_set == [97, 98]
    assert not made.is_sql


@pytest.mark.parametrize("tags", ["*", "", "  "])
def test_star_or_nothing_is_everything(tags):
    made = subscription("t", tags=tags, version=1)
    assert made.data.sub_string == "*"
    messages = [tagged("a"), tagged("")]
    assert made.matching(messages) is messages


def test_tags_are_compared_again_by_their_text_because_hashes_may_be_equal():
    made = subscription("t", tags="Aa", version=1)
    right, collision, none = tagged("Aa"), tagged("BB"), tagged("")
    assert made.matching([right, collision, none]) == [right]


def test_sql_is_left_to_the_broker():
    made = subscription("t", sql="price > 5", version=1)
    assert (made.data.expression_type, made.data.sub_string) == ("SQL92", "price > 5")
    messages = [tagged("whatever")]
    assert made.matching(messages) is messages


@pytest.mark.parametrize(
    ("topic", "how"), [("", {}), ("t", {"tags": "a", "sql": "x = 1"}), ("t", {"sql": " "})]
)
def test_what_makes_no_sense_is_refused(topic, how):
    with pytest.raises(ValueError, match="subscription"):
        subscription(topic, version=1, **how)


def test_a_later_version_is_higher_also_within_a_millisecond_and_when_the_clock_goes_back():
    clock = ManualClock()
    table = Subscriptions(clock.wall_ms)
    versions = [table.add("t").data.sub_version, table.add("t").data.sub_version]
    clock.jump_wall(-5000)
    table.renew("t")
    versions.append(table.get("t").data.sub_version)
    assert versions == sorted(set(versions))


def test_renewing_keeps_what_is_wanted():
    table = Subscriptions(ManualClock().wall_ms)
    table.add("t", tags="a")
    table.renew("t")
    table.renew("unknown")
    assert table.get("t").tags == {"a"}
    assert table.topics() == {"t"}


def test_removing_says_whether_it_was_there():
    table = Subscriptions(ManualClock().wall_ms)
    table.add("t")
    assert table.remove("t")
    assert not table.remove("t")
    assert "t" not in table


def test_filters_choose_one_after_the_other_and_a_broken_one_lets_all_through(caplog):
    messages = [received_message(QueueRef("t", "b", 0), offset) for offset in range(6)]
    everything = subscription("t", version=1)

    def even(each):
        return [message for message in each if message.offset % 2 == 0]

    def broken(each):
        raise ValueError

    def late(each):
        return [message for message in each if message.offset > 1]

    kept = wanted_of(messages, everything, [even, broken, late])
    assert [each.offset for each in kept] == [2, 4]
    assert len(caplog.records) == 1
