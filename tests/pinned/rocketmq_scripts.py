"""What scripted RocketMQ clients do; ``record.py`` makes a tape of each."""

from clients import rocketmq_client

from kit.rocketmq.bench import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    BenchConsumer,
    BenchProducer,
    Popper,
    position_of,
)
from penstock.wire.rocketmq.bodies import encode_body
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.stored import BatchItem, join_batch

GROUP = "readers"


def create_topic(client, topic, queues=2, **ext):
    wanted = {"topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues)}
    return client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**wanted, "perm": "6", **ext})


def create_group(client, **config):
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    return client.ask(code, body=encode_body({"groupName": GROUP, **config}))


def send_back(client, position, level=0, **ext):
    header = {"offset": str(position), "group": GROUP, "delayLevel": str(level), **ext}
    return client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)


def sending(bench):
    client = rocketmq_client(bench)
    create_topic(client, "orders", 4)
    for number in range(4):
        client.send("orders", b"%d" % number, queue=number, KEYS=f"k{number}", TAGS="red")
    client.send("made", b"by itself")
    client.send("orders", b"again", queue=99)
    client.send("bad topic!", b"x")
    client.send("orders", b"x", header={"batch": "true"})
    names = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0"}
    client.ask(RequestCode.SEND_MESSAGE_V2, {**names, "h": "0", "i": "", "j": "0"}, b"v2")
    batch = join_batch([BatchItem(body=b"%d" % number) for number in range(3)])
    header = {"producerGroup": "p", "topic": "orders", "queueId": "1", "batch": "true"}
    client.ask(RequestCode.SEND_BATCH_MESSAGE, header, batch)
    client.send("orders", b"later", DELAY="2")
    client.send("orders", b"timed", TIMER_DELAY_MS="1500")
    bench.pass_time(6_000)
    client.ask(RequestCode.PULL_MESSAGE, pull_header("orders", 0))
    client.ask(9999)


def pull_header(topic, queue, offset=0):
    return {
        "consumerGroup": GROUP, "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0",
    }  # fmt: skip


def pulling(bench):
    producer = rocketmq_client(bench, 1)
    consumer = rocketmq_client(bench, 2, BenchConsumer)
    create_topic(producer, "orders")
    for number in range(6):
        tag = ("red", "blue")[number % 2]
        producer.send("orders", b"m%d" % number, TAGS=tag, KEYS="all", n=str(number))
    consumer.heartbeat(GROUP, orders="*")
    consumer.query("orders")
    consumer.pull("orders")
    consumer.pull("orders", 3, commit=3)
    consumer.pull("orders", 0, subscription="blue")
    consumer.pull("orders", 0, subscription="n > 3", expressionType="SQL92")
    consumer.pull("orders", 99)
    consumer.pull("nowhere")
    consumer.start_pull("orders", 6, suspend_ms=5_000)
    producer.send("orders", b"wakes")
    consumer.start_pull("orders", 7, suspend_ms=5_000)
    bench.pass_time(6_000)
    consumer.commit("orders", 5)
    consumer.query("orders")
    consumer.query("orders", 1)
    consumer.ask(RequestCode.LOCK_BATCH_MQ, body=consumer.lock_body("orders", 0, 1))
    other = rocketmq_client(bench, 3, BenchConsumer)
    other.heartbeat(GROUP, orders="*")
    other.ask(RequestCode.LOCK_BATCH_MQ, body=other.lock_body("orders", 0, 1))
    consumer.ask(RequestCode.UNLOCK_BATCH_MQ, body=consumer.lock_body("orders", 0, 1))
    for code in (RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.GET_CONSUMER_CONNECTION_LIST):
        other.ask(code, {"consumerGroup": GROUP})
    leaving = {"clientID": consumer.client_id, "consumerGroup": GROUP}
    consumer.ask(RequestCode.UNREGISTER_CLIENT, leaving)
    other.session.closed("")


def popping(bench):
    producer = rocketmq_client(bench, 1)
    create_topic(producer, "orders")
    for number in range(8):
        producer.send("orders", b"m%d" % number, queue=number % 2)
    popper = rocketmq_client(bench, 2, Popper)
    first = popper.pop(messages=3).messages
    second = popper.pop(queue=1, messages=2).messages
    popper.ack(first[1])
    popper.ack_all([first[0], *second])
    popper.change(first[2], 5_000)
    popper.ack(first[1])
    bench.pass_time(61_000)
    for each in popper.pop().messages:
        popper.ack(each)
    popper.start_pop(poll_time=3_000)
    producer.send("orders", b"wakes")
    popper.start_pop(poll_time=3_000)
    bench.pass_time(4_000)
    popper.pop(order=True)
    header = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "maxMsgNums": "4"}
    popper.ask(RequestCode.PEEK_MESSAGE, header)


def retrying(bench):
    client = rocketmq_client(bench, 1, BenchConsumer)
    create_topic(client, "orders")
    create_group(client, retryMaxTimes=2)
    client.heartbeat(GROUP, orders="*")
    position = position_of(client.send("orders", b"hard", KEYS="k"))
    send_back(client, position)
    send_back(client, position, -1)
    send_back(client, 12345)
    bench.pass_time(11_000)
    client.pull(f"%RETRY%{GROUP}")
    client.pull(f"%DLQ%{GROUP}")


def transactions(bench):
    producer = rocketmq_client(bench, 1, BenchProducer)
    producer.join_producers()
    create_topic(producer, "orders")
    producer.end(producer.send_half(b"kept"), COMMIT)
    producer.end(producer.send_half(b"dropped"), ROLLBACK)
    asked = producer.send_half(b"asked about")
    producer.end(asked, UNKNOWN)
    bench.pass_time(30_000)
    producer.join_producers()
    bench.pass_time(40_000)
    producer.end(asked, COMMIT, fromTransactionCheck="true")
    producer.ask(RequestCode.PULL_MESSAGE, pull_header("orders", 0))


def asking(bench):
    client = rocketmq_client(bench, 1, BenchConsumer)
    create_topic(client, "orders", 2, attributes="+message.type=NORMAL")
    create_group(client)
    client.heartbeat(GROUP, orders="red || blue")
    answer = client.send("orders", b"one", KEYS="k1 k2", TAGS="red")
    bench.pass_time(1_000)
    client.send("orders", b"two", KEYS="k2", TAGS="blue")
    client.commit("orders", 1)
    topic, group = {"topic": "orders"}, {"consumerGroup": GROUP}
    place = {**topic, "queueId": "0"}
    now = str(bench.clock.wall_ms())
    for code, ext in (
        (RequestCode.GET_MAX_OFFSET, place),
        (RequestCode.GET_MIN_OFFSET, place),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, place),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**place, "timestamp": now}),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position_of(answer))}),
        (RequestCode.QUERY_MESSAGE, {**topic, "key": "k2", "maxNum": "9", "beginTimestamp": "0",
                                     "endTimestamp": now}),
        (RequestCode.GET_TOPIC_STATS_INFO, topic),
        (RequestCode.GET_CONSUME_STATS, {**group, **topic}),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
        (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP}),
        (RequestCode.GET_TOPIC_CONFIG, topic),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "producers"}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**topic, "group": GROUP, "timestamp": "0",
                                                     "isForce": "true"}),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP}),
        (RequestCode.GET_TOPIC_CONFIG, {"topic": "nowhere"}),
    ):  # fmt: skip
        client.ask(code, ext)
    body = {**topic, **group, "clientId": client.client_id, "strategyName": "AVG",
            "messageModel": "CLUSTERING"}  # fmt: skip
    client.ask(RequestCode.QUERY_ASSIGNMENT, body=encode_body(body))
    names = rocketmq_client(bench, 1, wire="n")
    for code, ext in (
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, topic),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"}),
        (RequestCode.GET_BROKER_CLUSTER_INFO, {}),
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
        (RequestCode.GET_KV_CONFIG, {"namespace": "n", "key": "k"}),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}),
    ):
        names.ask(code, ext)
    client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic)
    names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic)


SCRIPTS = {
    f"rocketmq-{each.__name__}": each
    for each in (sending, pulling, popping, retrying, transactions, asking)
}
