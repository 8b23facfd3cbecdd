"""Numbers for tools."""

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench
from penstock.adapters.rocketmq import group_registry
from penstock.adapters.rocketmq.group_registry import OffsetRegistry
from penstock.wire.rocketmq.bodies import decode_body, standard_json
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def consumer(bench):
    return BenchConsumer.on(bench, "c1")


def table(answer):
    body = decode_body(standard_json(answer.body), dict)
    rows = {}
    for key, row in body["offsetTable"].items():
        queue = decode_body(key.encode(), dict)
        rows[queue["topic"], queue["queueId"]] = row
    return rows


def test_a_topic_s_queues(bench, consumer):
    producer = bench.client()
    for _ in range(3):
        bench.clock.advance(10)
        producer.send("orders")
    bench.broker.topics.find("orders").topic.queues[0].index.trim(1)
    rows = table(consumer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"}))
    last_ms = bench.clock.wall_ms()
    assert rows["orders", 0] == {"minOffset": 1, "maxOffset": 3, "lastUpdateTimestamp": last_ms}
    assert rows["orders", 1] == {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}


def test_the_rate_of_a_topic_is_that_of_the_last_minute(bench, consumer):
    producer = bench.client()
    producer.send("orders")
    bench.advance(60_001)
    for queue in (0, 0, 1):
        producer.send("orders", queue=queue)
    answer = consumer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})
    assert decode_body(standard_json(answer.body), dict)["topicPutTps"] == 3 / 60


def test_a_topic_that_is_not_there_is_17(consumer):
    answer = consumer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "nowhere"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("topic", [{"topic": "orders"}, {}, {"topic": ""}])
def test_how_far_a_group_is(bench, consumer, topic):
    producer = bench.client()
    for _ in range(5):
        bench.clock.advance(10)
        producer.send("orders")
    first_ms = bench.clock.wall_ms() - 40
    consumer.heartbeat()
    consumer.commit("orders", 2)
    ext = {"consumerGroup": GROUP, **topic}
    rows = table(consumer.ask(RequestCode.GET_CONSUME_STATS, ext))
    assert rows["orders", 0] == {
        "brokerOffset": 5,
        "consumerOffset": 2,
        "pullOffset": 2,
        "lastTimestamp": first_ms + 10,
    }
    assert rows["orders", 1]["consumerOffset"] == 0


def pull_offset(consumer):
    ext = {"consumerGroup": GROUP, "topic": "orders"}
    return table(consumer.ask(RequestCode.GET_CONSUME_STATS, ext))["orders", 0]["pullOffset"]


def test_what_a_group_has_read_and_not_committed_is_in_flight(bench, consumer):
    producer = bench.client()
    for _ in range(5):
        producer.send("orders")
    consumer.pull("orders", 0, maxMsgNums="3")
    assert pull_offset(consumer) == 3
    consumer.pull("orders", 3)
    consumer.commit("orders", 1)
    assert pull_offset(consumer) == 5


def test_what_was_read_before_a_reset_is_not_in_flight_any_more(bench, consumer):
    producer = bench.client()
    for _ in range(5):
        producer.send("orders")
    consumer.pull("orders", 0)
    queue = bench.broker.topics.find("orders").topic.queues[0]
    bench.broker.service(OffsetRegistry).reset(queue, GROUP, 2)
    assert pull_offset(consumer) == 2


def test_only_so_many_reading_positions_are_kept_and_the_oldest_goes(bench, consumer, monkeypatch):
    monkeypatch.setattr(group_registry, "PULLED_MAX", 1)
    producer = bench.client()
    for queue in (0, 0, 1):
        producer.send("orders", queue=queue)
    consumer.pull("orders", 0)
    consumer.pull("orders", 0, queue=1)
    assert pull_offset(consumer) == 0


def test_a_group_without_offsets_has_no_rows(consumer):
    answer = consumer.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "strangers"})
    assert answer.body == b'{"offsetTable":{},"consumeTps":0.0}'


def test_who_consumes(consumer):
    consumer.heartbeat(orders="A || B", version=3)
    answer = consumer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP})
    body = decode_body(answer.body, dict)
    (connection,) = body["connectionSet"]
    assert connection["clientId"] == "c1"
    assert connection["clientAddr"] == str(consumer.session.peer)
    assert (connection["language"], connection["version"]) == ("JAVA", 479)
    assert (body["consumeType"], body["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert body["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    subscription = body["subscriptionTable"]["orders"]
    assert (subscription["subString"], subscription["tagsSet"]) == ("A || B", ["A", "B"])
    assert (subscription["expressionType"], subscription["subVersion"]) == ("TAG", 3)


def test_nobody_consumes_is_206(consumer):
    ext = {"consumerGroup": "none"}
    answer = consumer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert answer.remark == "the consumer group[none] not online"


def test_who_produces(consumer):
    body = b'{"clientID":"p","producerDataSet":[{"groupName":"senders"}]}'
    consumer.ask(RequestCode.HEART_BEAT, body=body)
    ext = {"producerGroup": "senders"}
    answer = consumer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, ext)
    (connection,) = decode_body(answer.body, dict)["connectionSet"]
    assert connection["clientId"] == "p"


def test_nobody_produces_is_1(consumer):
    ext = {"producerGroup": "none"}
    answer = consumer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, ext)
    assert (answer.code, answer.remark) == (1, "the producer group[none] not exist")
