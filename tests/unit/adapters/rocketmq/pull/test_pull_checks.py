"""What a pull must pass, in RocketMQ's order, with its codes."""

import dataclasses

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench, bodies
from penstock.adapters.rocketmq.group_registry import GroupRegistry
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode


def bench_with(**changes):
    return RocketmqBench(Settings(rocketmq=dataclasses.replace(RocketmqSettings(), **changes)))


@pytest.fixture
def bench():
    bench = RocketmqBench()
    bench.topic("orders", queues=2)
    return bench


@pytest.fixture
def consumer(bench):
    return BenchConsumer.on(bench)


def configure(bench, **changes):
    config = SubscriptionGroupConfig(group_name=GROUP, **changes)
    assert bench.broker.service(GroupRegistry).put(config)


def set_perm(consumer, perm):
    ext = {"topic": "orders", "readQueueNums": "2", "writeQueueNums": "2", "perm": str(perm)}
    assert consumer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0


# One by one.


def test_a_broker_that_is_not_readable_is_16():
    bench = bench_with(is_readable=False)
    bench.topic("orders")
    answer = BenchConsumer.on(bench).pull("orders")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "pulling message is forbidden" in answer.remark


def test_an_unknown_group_is_made():
    bench = bench_with()
    bench.topic("orders")
    BenchConsumer.on(bench).pull("orders", group="never-seen")
    assert "never-seen" in bench.broker.service(GroupRegistry)


def test_an_unknown_group_is_26_when_groups_are_not_made():
    bench = bench_with(is_auto_creating_groups=False)
    bench.topic("orders")
    answer = BenchConsumer.on(bench).pull("orders")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert GROUP in answer.remark


@pytest.mark.parametrize("name", ["", "a b", "%RETRY%g", "g" * 249])
def test_a_group_that_cannot_be_is_26(consumer, name):
    answer = consumer.pull("orders", group=name)
    assert answer.code in (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.SYSTEM_ERROR)


def test_a_group_that_may_not_consume_is_16(bench, consumer):
    configure(bench, consume_enable=False)
    answer = consumer.pull("orders")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"subscription group no permission, {GROUP}"
    configure(bench, consume_enable=True)
    assert consumer.pull("orders").code == ResponseCode.PULL_NOT_FOUND


def test_an_unknown_topic_is_17(consumer):
    answer = consumer.pull("nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "topic[nowhere] not exist, apply first please!"


def test_a_topic_that_is_not_readable_is_16(consumer):
    set_perm(consumer, 2)
    answer = consumer.pull("orders")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the topic[orders] pulling message is forbidden"


@pytest.mark.parametrize("number", [-1, 2, 2**31 - 1])
def test_a_queue_id_out_of_range_is_29(consumer, number):
    answer = consumer.pull("orders", queue=number)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert f"queueId[{number}] is illegal, topic:[orders]" in answer.remark
    assert "topicConfig.readQueueNums:[2]" in answer.remark


def test_a_queue_id_out_of_range_was_1_before_5_3_2():
    bench = bench_with(invalid_parameter_code=1)
    bench.topic("orders")
    assert BenchConsumer.on(bench).pull("orders", queue=7).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("expression", ["a >", "a = NULL", "a > 'text'"])
def test_a_filter_that_cannot_be_built_is_23(consumer, expression):
    answer = consumer.pull("orders", subscription=expression, expressionType="SQL92")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark.startswith("parse the consumer's subscription failed")


def test_an_unknown_language_is_23(consumer):
    answer = consumer.pull("orders", subscription="x", expressionType="REGEX")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_no_registered_group_is_24(consumer):
    answer = consumer.pull("orders", subscription=None)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert answer.remark == "the consumer's group info not exist"


def test_a_group_that_everybody_left_is_24(bench, consumer):
    other = BenchConsumer.on(bench, "c2")
    other.heartbeat(orders="*")
    assert consumer.pull("orders", subscription=None).code == ResponseCode.PULL_NOT_FOUND
    other.close()
    answer = consumer.pull("orders", subscription=None)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_no_registered_subscription_is_24(consumer):
    consumer.heartbeat(other="*")
    answer = consumer.pull("orders", subscription=None)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert answer.remark == "the consumer's subscription not exist"


def test_broadcasting_that_is_not_allowed_is_16(bench, consumer):
    configure(bench, consume_broadcast_enable=False)
    consumer.heartbeat(model="BROADCASTING", orders="*")
    answer = consumer.pull("orders", subscription=None)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"the consumer group[{GROUP}] can not consume by broadcast way"
    consumer.heartbeat(model="CLUSTERING", orders="*")
    assert consumer.pull("orders", subscription=None).code == ResponseCode.PULL_NOT_FOUND


def test_a_subscription_older_than_the_pull_is_25(consumer):
    consumer.heartbeat(orders="*", version=5)
    assert consumer.pull("orders", subscription=None, subVersion=5).code == 19
    answer = consumer.pull("orders", subscription=None, subVersion=6)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    consumer.heartbeat(orders="*", version=6)
    assert consumer.pull("orders", subscription=None, subVersion=6).code == 19


def test_a_registered_expression_that_cannot_be_compiled_is_27(consumer):
    consumer.heartbeat(orders="a >", language="SQL92")
    answer = consumer.pull("orders", subscription=None)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "Your expression may be wrong!" in answer.remark


def test_sql92_that_is_turned_off_is_1():
    bench = bench_with(is_sql_allowed=False)
    bench.topic("orders")
    answer = BenchConsumer.on(bench).pull("orders", subscription="a = 1", expressionType="SQL92")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The broker does not support consumer to filter message by SQL92"


@pytest.mark.parametrize("field", ["queueId", "queueOffset", "maxMsgNums"])
def test_a_field_that_makes_no_sense_is_named(bench, consumer, field):
    answer = consumer.pull("orders", **{field: "many"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert field in answer.remark
    assert not consumer.session.wants_close


# In order.


def test_each_check_comes_before_the_next(bench, consumer):
    """Everything is wrong at once; mending one thing after the other shows the next code."""
    strict = bench_with(is_auto_creating_groups=False)
    consumer = BenchConsumer.on(strict)

    def pull(queue=9, subscription="a >", language="SQL92"):
        return consumer.pull(
            "orders", queue=queue, subscription=subscription, expressionType=language
        ).code

    assert pull() == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    configure(strict, consume_enable=False)
    assert pull() == ResponseCode.NO_PERMISSION
    configure(strict)
    assert pull() == ResponseCode.TOPIC_NOT_EXIST
    strict.topic("orders", queues=2)
    set_perm(consumer, 2)
    assert pull() == ResponseCode.NO_PERMISSION
    set_perm(consumer, 6)
    assert pull() == ResponseCode.INVALID_PARAMETER
    assert pull(queue=0) == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert pull(queue=0, subscription="a > 1") == ResponseCode.PULL_NOT_FOUND


# Filters.


def send_some(bench):
    producer = bench.client()
    producer.send("orders", b"a1", TAGS="A", price="5")
    producer.send("orders", b"b1", TAGS="B", price="50")
    producer.send("orders", b"none")
    producer.send("orders", b"a2", TAGS="A", price="70")


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("*", [b"a1", b"b1", b"none", b"a2"]),
        ("", [b"a1", b"b1", b"none", b"a2"]),
        ("A", [b"a1", b"a2"]),
        ("A || B", [b"a1", b"b1", b"a2"]),
        ("C||A", [b"a1", b"a2"]),
    ],
)
def test_tags_of_the_request(bench, consumer, expression, wanted):
    send_some(bench)
    assert bodies(consumer.pull("orders", subscription=expression)) == wanted


def test_tags_of_the_registered_subscription(bench, consumer):
    send_some(bench)
    consumer.heartbeat(orders="B")
    assert bodies(consumer.pull("orders", subscription=None)) == [b"b1"]


def test_sql92_of_the_request_and_of_the_registered_subscription(bench, consumer):
    send_some(bench)
    selector = "price > 10 AND TAGS = 'A'"
    answer = consumer.pull("orders", subscription=selector, expressionType="SQL92")
    assert bodies(answer) == [b"a2"]
    consumer.heartbeat(orders="price IS NULL", language="SQL92")
    assert bodies(consumer.pull("orders", subscription=None)) == [b"none"]


@pytest.mark.parametrize(("is_on", "wanted"), [(False, [b"a", b"b"]), (True, [b"a"])])
def test_messages_of_a_retry_topic_are_judged_by_their_origin_if_asked_for(is_on, wanted):
    bench = bench_with(is_filtering_retries=is_on)
    consumer, producer = BenchConsumer.on(bench), bench.client()
    consumer.heartbeat(orders="A", **{f"%RETRY%{GROUP}": "*"})
    for tag in ("A", "B"):
        producer.send(f"%RETRY%{GROUP}", tag.lower().encode(), TAGS=tag, RETRY_TOPIC="orders")
    assert bodies(consumer.pull(f"%RETRY%{GROUP}", subscription=None)) == wanted
