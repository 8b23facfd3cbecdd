"""What the operators' tool asks of the broker as a whole."""

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench
from penstock.adapters.rocketmq import broker_admin
from penstock.model.names import topic_name
from penstock.wire.rocketmq.bodies import decode_body, standard_json
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def consumer(bench):
    return BenchConsumer.on(bench, "c1")


def body_of(answer):
    assert answer.code == 0, answer.remark
    return decode_body(standard_json(answer.body), dict)


def config_of(answer):
    assert answer.code == 0, answer.remark
    return dict(line.split("=", 1) for line in answer.body.decode().splitlines())


def test_how_the_broker_does(bench, consumer):
    bench.advance(3_661_000)
    producer = bench.client()
    producer.send("orders", b"1234")
    before_ms = bench.clock.wall_ms()
    consumer.pull("orders")
    table = body_of(consumer.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert (table["brokerVersionDesc"], table["brokerActive"]) == ("V5_3_3", "true")
    assert table["runtime"] == "[ 0 days, 1 hours, 1 minutes, 1 seconds ]"
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("1", "1")
    assert int(table["earliestMessageTimeStamp"]) == before_ms
    assert (table["sendThreadPoolQueueSize"], table["pullThreadPoolQueueSize"]) == ("0", "0")
    assert all(isinstance(value, str) for value in table.values())


def test_rates_are_those_since_the_question_before(bench, consumer):
    def rate():
        table = body_of(consumer.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        return table["putTps"]

    bench.advance(20_000)
    producer = bench.client()
    for _ in range(20):
        producer.send("orders")
    assert rate() == "1.00", "since the start"
    bench.advance(10_000)
    producer.send("orders")
    assert rate() == "0.10"
    producer.send("orders")
    bench.advance(5_000)
    assert rate() == "0.13", "a question right behind another one looks further back"


def test_the_oldest_message_is_not_looked_for_in_too_many_queues(bench, consumer, monkeypatch):
    monkeypatch.setattr(broker_admin, "OLDEST_QUEUES_MAX", 2)
    bench.client().send("orders")
    table = body_of(consumer.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert "earliestMessageTimeStamp" not in table


def test_how_much_a_topic_got(bench, consumer):
    producer = bench.client()
    producer.send("orders")
    bench.advance(120_000)
    producer.send("orders")
    ext = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"}
    found = body_of(consumer.ask(RequestCode.VIEW_BROKER_STATS_DATA, ext))
    assert [found[each]["sum"] for each in ("statsMinute", "statsHour", "statsDay")] == [1, 2, 2]
    assert found["statsMinute"]["tps"] == 1 / 60
    ext["statsName"] = "GROUP_GET_NUMS"
    answer = consumer.ask(RequestCode.VIEW_BROKER_STATS_DATA, ext)
    assert (answer.code, answer.remark) == (1, "The stats <GROUP_GET_NUMS> <orders> not exist")


def test_settings_are_read_under_both_names(bench, consumer):
    answer = consumer.ask(RequestCode.GET_BROKER_CONFIG)
    config = config_of(answer)
    assert (config["brokerName"], config["listenPort"]) == ("penstock", "10911")
    assert (config["fileReservedTime"], config["rocketmq.retention_ms"]) == ("72", "259200000")
    assert (config["autoCreateTopicEnable"], config["rocketmq.is_auto_creating"]) == (
        "true", "true"
    )  # fmt: skip
    assert "version" in answer.ext


def test_settings_are_not_changed_and_the_refusal_says_what_to_do(consumer):
    body = b"#comment\nmaxMessageSize=1\nlistenPort=2\n"
    answer = consumer.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, body)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "set maxMessageSize, listenPort on the command line" in answer.remark
    empty = consumer.ask(RequestCode.UPDATE_BROKER_CONFIG)
    assert "set them on" in empty.remark


def test_how_far_every_group_is(bench, consumer):
    producer = bench.client()
    for _ in range(5):
        producer.send("orders")
    consumer.heartbeat(orders="*")
    consumer.commit("orders", 2)
    body = body_of(consumer.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}))
    (stats,) = next(each[GROUP] for each in body["consumeStatsList"] if GROUP in each)
    rows = {decode_body(k.encode(), dict)["queueId"]: v for k, v in stats["offsetTable"].items()}
    assert (rows[0]["brokerOffset"], rows[0]["consumerOffset"]) == (5, 2)
    assert (body["totalDiff"], body["brokerAddr"]) == (3, "127.0.0.1:10911")
    ordered = body_of(consumer.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}))
    assert [each[GROUP] for each in ordered["consumeStatsList"] if GROUP in each] == [[]]


def test_more_than_fits_into_an_answer_is_refused_with_what_to_ask(bench, consumer, monkeypatch):
    monkeypatch.setattr(broker_admin, "ROWS_MAX", 1)
    bench.client().send("orders")
    consumer.heartbeat(orders="*")
    consumer.commit("orders", 0)
    for each in range(2):
        bench.client().join_producers(f"senders-{each}")
    stats = consumer.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    producers = consumer.ask(RequestCode.GET_ALL_PRODUCER_INFO)
    for answer, verb in ((stats, "consumerProgress"), (producers, "producerConnection")):
        assert answer.code == 1
        assert verb in answer.remark


def test_every_producer(bench, consumer):
    producer = bench.client()
    producer.join_producers("senders")
    seen_ms = bench.clock.wall_ms()
    bench.advance(5_000)
    data = body_of(consumer.ask(RequestCode.GET_ALL_PRODUCER_INFO))["data"]
    ((group, (row,)),) = data.items()
    assert (group, row["clientId"]) == ("senders", f"client-{producer.session.connection_id}")
    assert row["remoteIP"] == f"/{producer.session.peer}"
    assert (row["language"], row["version"], row["lastUpdateTimestamp"]) == ("JAVA", 479, seen_ms)


def test_who_reads_a_topic_and_what_a_group_reads(bench, consumer):
    bench.client().send("orders")
    consumer.heartbeat(orders="A")
    consumer.pull("orders", group="others")
    consumer.commit("orders", 1, group="others")
    ask = consumer.ask
    groups = body_of(ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "orders"}))
    assert groups == {"groupList": ["others", GROUP]}
    nobody = body_of(ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "nowhere"}))
    assert nobody == {"groupList": []}
    topics = body_of(ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "others"}))
    assert topics["topicList"] == ["orders"]
    ext = {"group": GROUP, "topic": "orders"}
    wanted = body_of(ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, ext))
    assert (wanted["group"], wanted["subscriptionData"]["subString"]) == (GROUP, "A")
    ext["group"] = "others"
    assert body_of(ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, ext))["subscriptionData"] is None


def test_topics_that_are_no_user_s(consumer):
    names = body_of(consumer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
    assert {"TBW102", "DefaultCluster", "penstock", "DefaultCluster_REPLY_TOPIC"} <= set(names)


def test_entries_of_a_queue(bench, consumer):
    producer = bench.client()
    for each in range(5):
        producer.send("orders", TAGS=f"T{each}")
    ext = {"topic": "orders", "queueId": "0", "index": "1", "count": "2"}
    body = body_of(consumer.ask(RequestCode.QUERY_CONSUME_QUEUE, ext))
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 5)
    first, second = body["queueData"]
    stored = bench.broker.topics.find("orders").topic.queues[0].index.entries(1, 2)
    assert [first["physicOffset"], second["physicOffset"]] == [each[0] for each in stored]
    assert first["tagsCode"] == stored[0][6]
    far = consumer.ask(RequestCode.QUERY_CONSUME_QUEUE, {**ext, "index": "9"})
    assert (body_of(far)["queueData"], far.remark) == ([], "Index 9 of 0@orders is not exist!")
    offline = consumer.ask(RequestCode.QUERY_CONSUME_QUEUE, {**ext, "consumerGroup": "g"})
    assert body_of(offline)["filterData"] == "g@orders is not online!"
    for wrong in ({"queueId": "99"}, {"topic": "nowhere"}, {"queueId": "-1"}):
        answer = consumer.ask(RequestCode.QUERY_CONSUME_QUEUE, {**ext, **wrong})
        assert (answer.code, answer.remark.endswith("is not exist!")) == (1, True)


def test_a_batch_of_another_protocol_is_shown_message_by_message(bench, consumer):
    topic = bench.engine.create_topic(topic_name("others"), queues=1)
    bench.publish(bench.channel(), topic, b"a", b"b", b"c")
    bench.settle()
    ext = {"topic": "others", "queueId": "0", "index": "1", "count": "10"}
    assert len(body_of(consumer.ask(RequestCode.QUERY_CONSUME_QUEUE, ext))["queueData"]) == 2


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
    ],
)
def test_there_is_nothing_to_clean(consumer, code):
    answer = consumer.ask(code)
    assert (answer.code, answer.remark.startswith("nothing to do")) == (0, True)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (18, "one request"),
        (907, "replicas"),
        (1005, "controller"),
        (3005, "users"),
        (902, "--join"),
    ],
)
def test_what_is_not_served_is_refused_with_a_reason(consumer, code, word):
    answer = consumer.ask(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark.startswith(f" request type {code} not supported: ")
    assert word in answer.remark
