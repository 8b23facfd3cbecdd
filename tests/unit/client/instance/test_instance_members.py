"""Members of an instance, asked all at once."""

import asyncio
import logging

import pytest

from penstock.client.errors import GroupTaken
from penstock.client.instance import InstanceMembers
from penstock.wire.rocketmq.bodies import ConsumerData


class Consumer:
    def __init__(self, group="g", topics=("t",), balanced=True):
        self.group, self._topics, self.balanced = group, set(topics), balanced
        self.calls = []

    def heartbeat(self):
        return ConsumerData(group_name=self.group)

    def topics(self):
        return self._topics

    def route_changed(self, topic):
        self.calls.append(("route", topic))

    async def rebalance(self):
        self.calls.append("rebalance")
        if isinstance(self.balanced, Exception):
            raise self.balanced
        return self.balanced

    async def persist_offsets(self):
        self.calls.append("persist")
        if isinstance(self.balanced, Exception):
            raise self.balanced


class Producer:
    def __init__(self, group="p", topics=("u",)):
        self.group, self._topics = group, set(topics)

    def topics(self):
        return self._topics


def test_a_second_consumer_of_a_group_is_refused():
    members = InstanceMembers("me")
    members.add_consumer(Consumer())
    with pytest.raises(GroupTaken, match=r"'g'.*client me.*instance_name"):
        members.add_consumer(Consumer())


def test_a_producer_group_is_gone_with_its_last_producer():
    members = InstanceMembers("me")
    first, second = Producer(), Producer()
    members.add_producer(first)
    members.add_producer(second)
    assert members.producer("p") is second
    assert not members.drop_producer(second)
    assert members.producer("p") is first
    assert members.drop_producer(first)
    assert not members.drop_producer(first)
    assert members.is_empty


def test_a_stranger_of_the_same_group_cannot_leave_for_a_member():
    members = InstanceMembers("me")
    members.add_consumer(Consumer())
    assert not members.drop_consumer(Consumer())
    assert members.consumer("g") is not None


def test_the_heartbeat_names_every_group_and_nobody_is_no_heartbeat():
    members = InstanceMembers("me")
    assert members.heartbeat() is None
    members.add_consumer(Consumer())
    members.add_producer(Producer())
    data = members.heartbeat()
    assert data.client_id == "me"
    assert [each.group_name for each in data.consumer_data_set] == ["g"]
    assert [each.group_name for each in data.producer_data_set] == ["p"]
    assert members.topics() == {"t", "u"}


def test_only_consumers_of_a_topic_hear_of_its_route():
    members = InstanceMembers("me")
    one, other = Consumer("g", ["t"]), Consumer("h", ["u"])
    members.add_consumer(one)
    members.add_consumer(other)
    assert members.route_changed("t")
    assert (one.calls, other.calls) == ([("route", "t")], [])
    assert not members.route_changed("x")


@pytest.mark.parametrize("outcome", [False, RuntimeError("x")])
def test_one_that_does_not_come_out_spoils_the_balance_but_keeps_nobody(outcome, caplog):
    members = InstanceMembers("me")
    bad, good = Consumer("g", balanced=outcome), Consumer("h")
    members.add_consumer(bad)
    members.add_consumer(good)
    with caplog.at_level(logging.CRITICAL):
        assert asyncio.run(members.rebalance()) is False
    assert good.calls == ["rebalance"]


def test_a_failed_store_of_offsets_keeps_nobody():
    members = InstanceMembers("me")
    bad, good = Consumer("g", balanced=RuntimeError("x")), Consumer("h")
    members.add_consumer(bad)
    members.add_consumer(good)
    asyncio.run(members.persist_offsets())
    assert good.calls == ["persist"]
