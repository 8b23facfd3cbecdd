"""Offsets of groups and of queues."""

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench
from penstock.adapters.rocketmq.group_registry import GroupRegistry
from penstock.adapters.rocketmq.offsets import BOOT_FIRST, NO_ZERO
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def consumer(bench):
    """A member of its group, as every client is before it commits."""
    consumer = BenchConsumer.on(bench)
    consumer.heartbeat()
    return consumer


def fill(bench, count, topic="orders", step_ms=0):
    producer = bench.client()
    for number in range(count):
        producer.send(topic, b"m%d" % number)
        bench.clock.advance(step_ms)


def queue_of(bench, topic="orders", number=0):
    return bench.broker.topics.find(topic).topic.queues[number]


def ask(client, code, topic="orders", queue=0, **others):
    return client.ask(code, {"topic": topic, "queueId": str(queue), **others})


# Query.


def test_a_stored_offset_is_answered(bench, consumer):
    fill(bench, 5)
    assert consumer.commit("orders", 3).code == 0
    assert consumer.query("orders").ext == {"offset": "3"}


def test_a_new_group_begins_at_0_while_the_first_message_is_there(bench, consumer):
    fill(bench, 5)
    assert consumer.query("orders").ext == {"offset": "0"}


def test_a_new_group_is_22_when_the_first_message_is_gone(bench, consumer):
    fill(bench, 5)
    queue_of(bench).index.trim(2)
    answer = consumer.query("orders")
    assert (answer.code, answer.remark) == (ResponseCode.QUERY_NOT_FOUND, BOOT_FIRST)


def test_a_stored_offset_is_answered_although_it_is_gone(bench, consumer):
    fill(bench, 5)
    consumer.commit("orders", 1)
    queue_of(bench).index.trim(4)
    assert consumer.query("orders").ext == {"offset": "1"}


def test_a_client_may_say_that_zero_is_not_wanted(bench, consumer):
    fill(bench, 5)
    answer = consumer.query("orders", setZeroIfNotFound="false")
    assert (answer.code, answer.remark) == (ResponseCode.QUERY_NOT_FOUND, NO_ZERO)
    assert consumer.query("orders", setZeroIfNotFound="true").ext == {"offset": "0"}


@pytest.mark.parametrize(("topic", "queue"), [("nowhere", 0), ("orders", 99), ("orders", -1)])
def test_a_queue_that_is_not_there_is_22(bench, consumer, topic, queue):
    fill(bench, 1)
    assert consumer.query(topic, queue).code == ResponseCode.QUERY_NOT_FOUND


def test_each_queue_and_each_group_has_its_own_offset(bench, consumer):
    fill(bench, 5)
    consumer.commit("orders", 3)
    assert consumer.query("orders", 1).ext == {"offset": "0"}
    assert consumer.query("orders", group="others").ext == {"offset": "0"}
    queue_of(bench, number=0).index.trim(1)
    assert consumer.query("orders", group="others").code == ResponseCode.QUERY_NOT_FOUND


# Update.


@pytest.mark.parametrize("before", [None, 2])
def test_minus_one_of_ali_ons_is_no_offset_and_replaces_none(bench, consumer, before):
    fill(bench, 5)
    if before is not None:
        consumer.commit("orders", before)
    assert consumer.commit("orders", -1).code == 0
    assert consumer.query("orders").ext == {"offset": str(before or 0)}


def test_a_lower_offset_is_obeyed_and_logged(bench, consumer, caplog):
    fill(bench, 5)
    consumer.commit("orders", 4)
    assert consumer.commit("orders", 1).code == 0
    assert consumer.query("orders").ext == {"offset": "1"}
    assert "update consumer offset less than store" in caplog.text


def test_an_offset_beyond_the_end_is_the_end(bench, consumer):
    fill(bench, 5)
    consumer.commit("orders", 2)
    consumer.commit("orders", 10**15)
    assert consumer.query("orders").ext == {"offset": "5"}
    fill(bench, 1)
    assert consumer.query("orders").ext == {"offset": "5"}


def test_a_oneway_update_is_stored_and_not_answered(bench, consumer):
    fill(bench, 5)
    ext = {"consumerGroup": GROUP, "topic": "orders", "queueId": "0", "commitOffset": "2"}
    opaque = consumer.write(RequestCode.UPDATE_CONSUMER_OFFSET, ext, is_oneway=True)
    bench.settle()
    assert consumer.answer_to(opaque) is None
    assert consumer.query("orders").ext == {"offset": "2"}


def test_updates_that_name_nothing_are_26_17_and_29(bench, consumer):
    fill(bench, 1)
    assert consumer.commit("nowhere", 1).code == ResponseCode.TOPIC_NOT_EXIST
    assert consumer.commit("orders", 1, 99).code == ResponseCode.INVALID_PARAMETER
    assert consumer.commit("orders", 1, -1).code == ResponseCode.INVALID_PARAMETER


def test_an_update_makes_no_group(bench, consumer):
    fill(bench, 1)
    known = len(bench.broker.service(GroupRegistry))
    for number in range(20):
        answer = consumer.commit("orders", 1, group=f"strangers-{number}")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark == f"Group strangers-{number} not exist!"
    assert len(bench.broker.service(GroupRegistry)) == known


def test_a_field_that_is_missing_is_named(consumer):
    answer = consumer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {"topic": "orders"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumerGroup" in answer.remark


# Queues.


def test_max_and_min_of_a_queue(bench, consumer):
    fill(bench, 5)
    queue_of(bench).index.trim(2)
    assert ask(consumer, RequestCode.GET_MAX_OFFSET).ext == {"offset": "5"}
    assert ask(consumer, RequestCode.GET_MIN_OFFSET).ext == {"offset": "2"}


def test_max_counts_what_is_durable(bench, consumer):
    fill(bench, 1)
    bench.client().write(
        10, {"producerGroup": "p", "topic": "orders", "queueId": "0", "properties": ""}, b"m1"
    )
    bench.turns()
    opaque = consumer.write(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})
    assert consumer.answer_to(opaque).ext == {"offset": "1"}


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    ],
)
def test_a_queue_that_is_not_there_is_empty_and_the_remark_says_so(consumer, code):
    answer = ask(consumer, code, topic="nowhere", timestamp="5")
    assert (answer.code, answer.ext) == (0, {"offset": "0"})
    assert "topic[nowhere] has no queue 0" in answer.remark


def test_offsets_by_time(bench, consumer):
    start = bench.clock.wall_ms()
    fill(bench, 5, step_ms=100)

    def search(ms, **others):
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return int(ask(consumer, code, timestamp=str(start + ms), **others).ext["offset"])

    assert [search(ms) for ms in (-1000, 0, 1, 100, 399, 400, 401, 10**9)] == [
        0, 0, 1, 1, 4, 4, 5, 5,
    ]  # fmt: skip
    upper = [search(ms, boundaryType="UPPER") for ms in (-1000, 0, 99, 100, 400, 10**9)]
    assert upper == [0, 0, 0, 1, 4, 4]


def test_the_age_of_the_oldest_message(bench, consumer):
    start = bench.clock.wall_ms()
    fill(bench, 3, step_ms=100)
    code = RequestCode.GET_EARLIEST_MSG_STORETIME
    assert ask(consumer, code).ext == {"timestamp": str(start)}
    queue_of(bench).index.trim(2)
    assert ask(consumer, code).ext == {"timestamp": str(start + 200)}
    queue_of(bench).index.trim(3)
    assert ask(consumer, code).ext == {"timestamp": "-1"}
    assert ask(consumer, code, topic="nowhere").ext == {"timestamp": "-1"}
