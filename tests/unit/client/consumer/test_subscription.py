"""Subscriptions: tags, SQL92, versions, and the second look at tags."""

import asyncio
from datetime import UTC, datetime

import pytest

from kit.client.parts import received_message
from penstock.client.consumer.subscription import (
    ConsumeFrom,
    Subscriptions,
    first_offset,
    subscription,
    timestamp_ms,
    wanted_of,
)
from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef
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


# ---- consume from -------------------------------------------------------------------------------
# Where a group begins, by everything that decides it.


NORMAL = QueueRef("orders", "b", 0)
RETRY = QueueRef("%RETRY%g", "b", 0)
AT_MS = 1_700_000_000_000


class Broker:
    """Answers 77 for the end and 33 for a time."""

    async def max_offset(self, queue):
        return 77

    async def search_offset(self, queue, at_ms):
        assert at_ms == AT_MS
        return 33


def begin(queue, stored, where):
    return asyncio.run(first_offset(queue, stored, where, AT_MS, Broker()))


@pytest.mark.parametrize("where", list(ConsumeFrom))
@pytest.mark.parametrize("queue", [NORMAL, RETRY])
def test_a_stored_offset_wins_whatever_consume_from_says(where, queue):
    assert begin(queue, 5, where) == 5
    assert begin(queue, 0, where) == 0


@pytest.mark.parametrize(
    ("where", "queue", "offset"),
    [
        (ConsumeFrom.FIRST, NORMAL, 0),
        (ConsumeFrom.FIRST, RETRY, 0),
        (ConsumeFrom.LAST, NORMAL, 77),
        (ConsumeFrom.LAST, RETRY, 0),
        (ConsumeFrom.TIMESTAMP, NORMAL, 33),
        (ConsumeFrom.TIMESTAMP, RETRY, 77),
    ],
)
@pytest.mark.parametrize("nothing", [None, -1])
def test_without_a_stored_offset_consume_from_decides(where, queue, offset, nothing):
    assert begin(queue, nothing, where) == offset


@pytest.mark.parametrize("where", list(ConsumeFrom))
def test_any_other_negative_offset_leaves_the_queue_for_later(where):
    assert begin(NORMAL, -2, where) is None


def test_a_time_may_be_given_as_text_datetime_or_milliseconds():
    moment = datetime(2024, 1, 31, 23, 59, 59, tzinfo=UTC)
    assert timestamp_ms(moment, 0) == 1_706_745_599_000
    assert timestamp_ms(1234, 0) == 1234
    local = datetime(2024, 1, 31, 23, 59, 59)
    assert timestamp_ms("20240131235959", 0) == int(local.timestamp() * 1000)
    assert timestamp_ms(None, AT_MS) == AT_MS - 1_800_000
    with pytest.raises(ValueError, match="not like 20240131235959"):
        timestamp_ms("yesterday", 0)


def test_every_choice_has_its_name_for_the_heartbeat():
    assert [each.wire.value for each in ConsumeFrom] == [
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ]
