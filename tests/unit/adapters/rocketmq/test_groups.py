"""Administration of groups, and what it changes."""

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench
from penstock.adapters.rocketmq.group_registry import GROUP_CHARS_MAX, GROUP_KIND, GroupRegistry
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig, decode_body, encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def consumer(bench):
    return BenchConsumer.on(bench)


def put(client, **config):
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    return client.ask(code, body=encode_body(config))


def show(client, group=GROUP):
    return client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})


def test_the_defaults_are_rocketmqs(consumer):
    assert put(consumer, groupName=GROUP).code == 0
    assert decode_body(show(consumer).body, dict) == {
        "groupName": GROUP,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "consumeMessageOrderly": False,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
        "consumeTimeoutMinute": 15,
    }


def test_a_change_is_answered_when_it_is_durable_and_survives(bench, consumer):
    body = encode_body({"groupName": GROUP, "consumeEnable": False, "retryMaxTimes": 3})
    opaque = consumer.write(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    bench.turns()
    assert consumer.answer_to(opaque) is None
    bench.settle()
    assert consumer.answer_to(opaque).code == 0
    bench.kill()
    config = bench.broker.service(GroupRegistry).get(GROUP)
    assert (config.consume_enable, config.retry_max_times) == (False, 3)
    assert not bench.broker.switches.get(GROUP).is_consuming


def test_all_groups_are_listed(bench, consumer):
    put(consumer, groupName="a")
    bench.topic("orders")
    consumer.pull("orders", group="b")
    answer = consumer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    body = decode_body(answer.body, dict)
    assert sorted(body["subscriptionGroupTable"]) == ["a", "b"]
    assert body["dataVersion"]["counter"] == 2


def test_an_unknown_group_is_26(consumer):
    assert show(consumer).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def delete(client, **ext):
    return client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, **ext})


def test_deleting_a_group_leaves_its_offsets(bench, consumer):
    put(consumer, groupName=GROUP)
    producer = bench.client()
    for _ in range(3):
        producer.send("orders")
    consumer.commit("orders", 2)
    assert delete(consumer).code == 0
    assert show(consumer).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert consumer.query("orders").ext == {"offset": "2"}


def test_deleting_what_nobody_knows_is_answered_too(consumer):
    assert delete(consumer).code == 0


@pytest.mark.parametrize("word", ["cleanOffset", "removeOffset"])
def test_deleting_a_group_with_its_offsets(bench, consumer, word):
    producer = bench.client()
    for _ in range(3):
        producer.send("orders")
    consumer.commit("orders", 2)
    consumer.ask(RequestCode.LOCK_BATCH_MQ, body=consumer.lock_body("orders", 0))
    assert delete(consumer, **{word: "true"}).code == 0
    assert consumer.query("orders").ext == {"offset": "0"}
    assert not bench.broker.locks.holds_any(GROUP, bench.clock.monotonic_ms())


@pytest.mark.parametrize("name", ["", " ", "a b", "%DLQ%x", "g" * (GROUP_CHARS_MAX + 1)])
def test_a_name_that_cannot_be_is_29(consumer, name):
    answer = put(consumer, groupName=name)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark.startswith("The specified group")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"groupName":"g","retryMaxTimes":"many"}'])
def test_a_body_that_cannot_be_read_is_1(consumer, body):
    answer = consumer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("name", ["g\x1b]0;x\x07", "g\n2026 ERROR", "g\x7f"])
def test_a_heartbeat_with_a_control_character_in_a_group_is_refused_and_joins_nothing(
    bench, consumer, name
):
    answer = consumer.heartbeat(name, orders="*")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "has a control character; remove it" in answer.remark
    assert bench.broker.consumers.group(name) is None
    producing = {"clientID": "c1", "producerDataSet": [{"groupName": name}]}
    answer = consumer.ask(RequestCode.HEART_BEAT, body=encode_body(producing))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert bench.broker.producers.group(name) is None


def test_a_group_cannot_spell_a_control_character_as_an_escape(consumer):
    answer = put(consumer, groupName="g%1B")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "has a control character" in answer.remark


def test_groups_are_bounded(bench, consumer):
    book = bench.broker.service(GroupRegistry)
    book.groups_max = 2
    assert [put(consumer, groupName=name).code for name in "abc"] == [0, 0, 1]
    assert book.find("c") is None
    assert put(consumer, groupName="a", retryMaxTimes=2).code == 0


def test_a_row_that_cannot_be_read_does_not_stop_the_broker(bench, caplog):
    bench.engine.define(GROUP_KIND, "odd", b"no json")
    bench.broker.service(GroupRegistry).put(SubscriptionGroupConfig(group_name=GROUP))
    bench.settle()
    bench.kill()
    book = bench.broker.service(GroupRegistry)
    assert GROUP in book
    assert "odd" not in book
    assert "cannot be read" in caplog.text


def test_switches_are_back_on_when_a_group_is_deleted(bench):
    book = bench.broker.service(GroupRegistry)
    book.put(SubscriptionGroupConfig(group_name=GROUP, consume_enable=False))
    assert book.delete(GROUP)
    assert not book.delete(GROUP)
    assert bench.broker.switches.get(GROUP).is_consuming
