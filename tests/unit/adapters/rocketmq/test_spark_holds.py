"""RocketMQ sends to a topic that a Spark query holds: paced, then busy; others go on (D23)."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.engine.topic import TopicPolicy
from penstock.model.names import topic_name
from penstock.model.queries import PollRequest
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode

HARD = TopicPolicy(spark_backpressure="hard", spark_backlog_messages_max=3)


class Bench(RocketmqBench):
    def poll(self, offset):
        start = {"orders": {0: offset}}
        order = PollRequest(subscription="etl", topics=["orders"], start=start)
        self.engine.queries.poll(order, None)


@pytest.fixture
def bench():
    made = Bench()
    client = made.client()
    for topic in ("orders", "other"):
        client.send(topic)
    made.engine.set_policy(topic_name("orders"), HARD)
    made.poll(0)
    made.advance(100)
    for _ in range(2):
        client.send("orders")
    return made


def write(client, topic):
    ext = {
        "producerGroup": "p", "topic": topic, "queueId": "0", "bornTimestamp": "1",
        "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "properties": "",
    }  # fmt: skip
    return client.write(RequestCode.SEND_MESSAGE, ext, b"body")


def answer(client, opaque):
    return next((each for each in client._hear() if each.opaque == opaque), None)


def test_a_send_above_the_bound_waits_and_is_then_answered_busy(bench):
    client = bench.client()
    held = write(client, "orders")
    bench.settle()
    assert answer(client, held) is None
    bench.advance(1000)
    busy = answer(client, held)
    assert busy.code == ResponseCode.SYSTEM_BUSY
    assert "Spark query 'etl' is 3 messages behind" in busy.remark
    assert len(bench.stored("orders")) == 3


def test_a_send_that_waits_is_stored_when_the_query_drains(bench):
    client = bench.client()
    held = write(client, "orders")
    bench.settle()
    bench.poll(2)
    bench.settle()
    assert answer(client, held).code == ResponseCode.SUCCESS
    assert len(bench.stored("orders")) == 4


def test_other_topics_of_the_same_connection_do_not_wait(bench):
    client = bench.client()
    held = write(client, "orders")
    assert client.send("other").code == ResponseCode.SUCCESS
    assert answer(client, held) is None


def test_the_channel_of_a_topic_goes_when_nobody_holds_it_any_more(bench):
    client = bench.client()
    write(client, "orders")
    bench.settle()
    assert len(client.session.engine_connection.channels) == 2
    bench.engine.queries.release("etl", is_final=True)
    bench.advance(100)
    client.send("orders")
    assert len(client.session.engine_connection.channels) == 1
    assert len(bench.stored("orders")) == 5
