"""What brokers ask of a running consumer: how it is, to consume one message, to go elsewhere."""

import json
import threading
import time

import pytest

from kit.rocketmq.clusters import penstock_cluster
from penstock.client import ConsumeResult, Message, Producer, PushConsumer
from penstock.client.requests import read_table
from penstock.testing.running import eventually
from penstock.wire.rocketmq.bodies import decode_body
from penstock.wire.rocketmq.codes import RequestCode


@pytest.fixture
def consume(group):
    """Make a running consumer of a topic; all are stopped at the end."""
    consumers = []

    def make(cluster, topic, listener, **options):
        consumer = PushConsumer(
            cluster.name_server, group, listener, consume_from="first", **options
        )
        consumer.subscribe(topic)
        consumer.start()
        consumers.append(consumer)
        return consumer

    yield make
    for consumer in consumers:
        consumer.stop()


def send(cluster, topic, *bodies):
    with Producer(cluster.name_server, "p") as producer:
        return [producer.send(Message(topic, body)) for body in bodies]


def member_of(cluster, group):
    with cluster.connect() as client:
        answer = client.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return json.loads(answer.body)["consumerIdList"][0] if answer.is_ok else None


def running_info(cluster, group, **more):
    ext = {"consumerGroup": group, "clientId": member_of(cluster, group), **more}
    with cluster.connect() as client:
        answer = client.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    assert answer.is_ok, answer
    info = decode_body(answer.body, dict)
    info["mqTable"] = read_table(info["mqTable"])
    return info


def consume_directly(cluster, group, message_id):
    ext = {"consumerGroup": group, "clientId": member_of(cluster, group), "msgId": message_id}
    with cluster.connect() as client:
        answer = client.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
    assert answer.is_ok, answer
    return json.loads(answer.body)


def test_running_info_tells_queues_subscriptions_and_rates(cluster, topic, group, consume):
    seen = []
    consume(cluster, topic, seen.append)
    send(cluster, topic, *[b"x"] * 8)
    eventually(lambda: len(seen) == 8)
    info = eventually(
        lambda: (told := running_info(cluster, group))["statusTable"].get(topic) and told
    )
    queues = {queue: row for queue, row in info["mqTable"].items() if queue.topic == topic}
    assert len(queues) == 4
    assert all(row["droped"] is False for row in queues.values())
    assert topic in {each["topic"] for each in info["subscriptionSet"]}
    assert info["statusTable"][topic]["pullTPS"] > 0
    assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
    assert abs(time.time() * 1000 - max(row["lastPullTimestamp"] for row in queues.values())) < 60e3
    assert "jstack" not in info


def test_running_info_says_which_threshold_holds_which_queue(cluster, unique, group, consume):
    topic = unique("topic")
    cluster.create_topic(topic, 1)
    go_on = threading.Event()
    consume(
        cluster, topic, lambda message: go_on.wait(30) and None,
        pull_threshold_messages=2, pull_batch=4,
    )  # fmt: skip
    try:
        send(cluster, topic, *[b"x"] * 8)
        held = eventually(
            lambda: (p := running_info(cluster, group)["properties"])["heldQueues"] == "1" and p
        )
        assert topic in held["held"]
        assert "(limit 2) since 20" in held["held"]
    finally:
        go_on.set()
    eventually(lambda: running_info(cluster, group)["properties"]["heldQueues"] == "0")


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_message_is_consumed_directly(cluster, topic, group, consume, is_ordered):
    seen = []

    def listener(message):
        seen.append(message.body)
        if len(seen) == 2:
            raise ValueError("the second time it fails")
        return ConsumeResult.COMMIT if is_ordered and len(seen) == 3 else None

    [sent] = send(cluster, topic, b"again")
    consume(cluster, topic, listener, is_ordered=is_ordered)
    eventually(lambda: seen == [b"again"])
    failed = consume_directly(cluster, group, sent.offset_message_id)
    assert failed["consumeResult"] == "CR_THROW_EXCEPTION"
    assert "the second time it fails" in failed["remark"]
    assert failed["order"] is is_ordered
    done = consume_directly(cluster, group, sent.offset_message_id)
    assert done["consumeResult"] == ("CR_COMMIT" if is_ordered else "CR_SUCCESS")
    assert seen == [b"again"] * 3


@pytest.fixture(scope="module")
def old_cluster():
    """A broker that leaves resets to its clients, as RocketMQ 4.x does."""
    with penstock_cluster("--set", "rocketmq.is_resetting_here=false") as cluster:
        yield cluster


def reset(cluster, topic, group, at_ms):
    ext = {"topic": topic, "group": group, "timestamp": str(at_ms), "isForce": "true"}
    with cluster.connect() as client:
        assert client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).is_ok


@pytest.mark.usefixtures("penstock_only")
@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_reset_by_an_old_broker_is_carried_out_by_the_client(
    old_cluster, unique, group, consume, is_ordered
):
    """Apache 5.3 resets by itself unless its configuration says otherwise."""
    topic = unique("topic")
    old_cluster.create_topic(topic, 2)
    seen = []
    consume(
        old_cluster, topic, lambda message: seen.append(message.body), is_ordered=is_ordered,
        rebalance_spacing_ms=50,
    )  # fmt: skip
    send(old_cluster, topic, b"1", b"2", b"3", b"4")
    eventually(lambda: len(seen) == 4)
    reset(old_cluster, topic, group, 0)
    eventually(lambda: len(seen) == 8, what="everything came again")
    assert sorted(seen[4:]) == [b"1", b"2", b"3", b"4"]


def test_a_reset_by_a_new_broker_reaches_the_consumer_with_its_next_pull(
    cluster, topic, group, consume
):
    seen = []
    consumer = consume(
        cluster, topic, lambda message: seen.append(message.body), rebalance_spacing_ms=50
    )
    send(cluster, topic, b"1", b"2", b"3", b"4")
    eventually(lambda: len(seen) == 4)
    consumer.commit()
    reset(cluster, topic, group, 0)
    send(cluster, topic, *[b"wake"] * 4)
    eventually(lambda: sum(each == b"1" for each in seen) == 2, what="the first came again")
