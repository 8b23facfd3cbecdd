"""Sends: what is checked in which order, what is stored, what the answer says (sheet 1.6)."""

import msgspec
import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.naming import FORBIDDEN_TOPICS, neutral_name
from penstock.model.names import TopicName
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command
from penstock.wire.rocketmq.frames import decode, encode
from penstock.wire.rocketmq.message_id import encode_host, offset_message_id
from penstock.wire.rocketmq.properties import format_properties, parse_properties
from penstock.wire.rocketmq.stored import BatchItem, join_batch

V2 = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "5", "h": "7"}


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def client(bench):
    return bench.client()


def with_settings(**values):
    return RocketmqBench(Settings(rocketmq=RocketmqSettings(**values)))


def stored_anything(bench, topic="orders"):
    return any(bench.stored(topic, number) for number in range(4))


def test_the_three_headers_store_the_same_message(bench, client):
    long = {"producerGroup": "g", "topic": "orders", "queueId": "1", "properties": "a\x01b\x02"}
    letters = V2 | {"e": "1", "i": "a\x01b\x02", "g": "0", "h": "0"}
    assert client.ask(RequestCode.SEND_MESSAGE_V2, letters, b"x").code == 0
    assert client.ask(RequestCode.SEND_MESSAGE, long, b"x").code == 0
    frame = encode(Command(310, letters, b"x", 99, serialization=1))
    client.session.receive(frame)
    bench.settle()
    (answer,) = [decode(each) for each in client.session.outgoing()]
    assert (answer.code, answer.opaque, answer.serialization) == (0, 99, 1)
    stored = bench.stored("orders", 1)
    assert [(each.body, each.queue_id, each.queue_offset) for each in stored] == [
        (b"x", 1, 0),
        (b"x", 1, 1),
        (b"x", 1, 2),
    ]
    assert all(each.property_map()["a"] == "b" for each in stored)


def test_the_answer_says_where_the_message_is_stored(bench, client):
    client.send("orders", queue=2)
    answer = client.send("orders", queue=2, UNIQ_KEY="K1")
    message = bench.stored("orders", 2)[1]
    assert answer.ext == {
        "msgId": offset_message_id(encode_host("127.0.0.1", 10911), message.commit_log_offset),
        "queueId": "2",
        "queueOffset": "1",
        "transactionId": "K1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert message.offset_message_id == answer.ext["msgId"]


def test_a_send_is_answered_only_after_the_sync(bench, client):
    client.write(RequestCode.SEND_MESSAGE_V2, V2, b"x")
    bench.turns()
    assert client.session.outgoing() == []
    bench.sync()
    assert len(client.session.outgoing()) == 1


def test_flag_born_time_and_hosts_are_stored_as_they_came(bench, client):
    client.ask(RequestCode.SEND_MESSAGE_V2, V2 | {"f": "1", "j": "3"}, b"x")
    (message,) = bench.stored("orders")
    assert (message.flag, message.sys_flag, message.born_ms) == (7, 1, 5)
    assert message.reconsume_times == 3
    assert message.born_host == encode_host("127.0.0.1", 50_001)
    assert message.store_host == encode_host("127.0.0.1", 10911)


def test_the_broker_adds_the_cluster_and_a_unique_key_if_there_is_none(bench, client):
    answer = client.send("orders", TAGS="a")
    client.send("orders", UNIQ_KEY="mine")
    first, second = [parse_properties(each.properties) for each in bench.stored("orders")]
    assert first["CLUSTER"] == second["CLUSTER"] == "DefaultCluster"
    assert first["UNIQ_KEY"] == answer.ext["transactionId"]
    assert len(first["UNIQ_KEY"]) == 32
    assert (first["TAGS"], second["UNIQ_KEY"]) == ("a", "mine")


def test_what_the_trace_of_consumers_needs_is_stored_with_the_message(bench, client):
    client.send("orders", MSG_REGION="mars")
    (message,) = bench.stored("orders")
    properties = parse_properties(message.properties)
    assert (properties["MSG_REGION"], properties["TRACE_ON"]) == ("DefaultRegion", "true")


def test_the_receipt_of_a_message_that_is_sent_on_is_left_out(bench, client):
    client.send("orders", POP_CK="0 1 2 3 0 b 0 0", POP_CK_OFFSET="7", mine="x")
    (message,) = bench.stored("orders")
    properties = parse_properties(message.properties)
    assert "POP_CK" not in properties
    assert (properties["POP_CK_OFFSET"], properties["mine"]) == ("7", "x")


def test_properties_without_a_separator_at_the_end_stay_whole(bench, client):
    client.ask(RequestCode.SEND_MESSAGE_V2, V2 | {"i": "a\x01b"}, b"x")
    (message,) = bench.stored("orders")
    assert message.property_map()["a"] == "b"
    assert message.property_map()["CLUSTER"] == "DefaultCluster"


@pytest.mark.parametrize("name", ["a%1B%5D0", "%RETRY%a%0A", "vhost%0A%orders", "a%7F"])
def test_a_new_topic_cannot_spell_a_control_character_as_an_escape(bench, client, name):
    answer = client.send(name)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "has a control character; remove it" in answer.remark
    assert bench.engine.topic(neutral_name(name)) is None


def test_what_had_such_a_name_before_is_sent_to_and_read_from(bench, client):
    bench.engine.create_topic(TopicName("", "a\x7f"))
    assert client.send("a%7F").code == 0


def test_a_negative_queue_id_lets_the_broker_pick(bench, client):
    for _ in range(60):
        answer = client.send("orders", queue=-1)
        assert 0 <= int(answer.ext["queueId"]) < 4
    assert all(bench.stored("orders", number) for number in range(4))


@pytest.mark.parametrize("queue", [4, 5, 1 << 30])
def test_a_queue_id_out_of_range_is_29_and_names_it(bench, client, queue):
    client.send("orders")
    answer = client.send("orders", queue=queue)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark.startswith(f"request queueId[{queue}] is illegal, ")
    assert len(bench.stored("orders")) == 1
    assert client.send("orders").code == 0


def test_older_brokers_said_1_for_bad_parameters():
    client = with_settings(invalid_parameter_code=1).client()
    assert client.send("orders", queue=9).code == 1
    assert client.send("a.b").code == 1


@pytest.mark.parametrize("topic", ["a.b", "a b", "ä", "x" * 128, " ", "a/b"])
def test_a_bad_topic_name_is_29(bench, client, topic):
    answer = client.send(topic)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark.startswith("The specified topic")
    assert bench.engine.topics() == []


def test_127_characters_will_do_and_255_for_the_topics_of_groups(client):
    assert client.send("x" * 127).code == 0
    assert client.send("%DLQ%" + "g" * 250).code == 0
    assert client.send("%DLQ%" + "g" * 251).code == 29


@pytest.mark.parametrize("topic", sorted(FORBIDDEN_TOPICS))
def test_system_topics_take_no_sends(bench, client, topic):
    answer = client.send(topic)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"Sending message to topic[{topic}] is forbidden."
    assert bench.engine.topics() == []


@pytest.mark.parametrize("topic", sorted(FORBIDDEN_TOPICS))
def test_system_topics_that_the_broker_made_itself_take_no_sends_either(bench, client, topic):
    bench.broker.topics.ensure(topic)
    answer = client.send(topic)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == f"Sending message to topic[{topic}] is forbidden."
    assert bench.stored(topic) == []


@pytest.mark.parametrize(("asked", "made"), [(1, 1), (4, 4), (8, 8), (9, 8), (0, 1), (-3, 1)])
def test_an_unknown_topic_is_made_with_at_most_the_queues_of_tbw102(bench, client, asked, made):
    client.send("orders", header={"defaultTopicQueueNums": str(asked)})
    config = bench.broker.topics.find("orders").config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (made, made, 6)
    assert len(bench.broker.topics.find("orders").topic.queues) == made


def test_without_auto_creation_an_unknown_topic_is_17():
    bench = with_settings(is_auto_creating=False)
    answer = bench.client().send("orders")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark.startswith("topic[orders] not exist, apply first please!")
    assert bench.engine.topics() == []


@pytest.mark.parametrize("model", ["", "nothing", "plain"])
def test_only_a_model_that_lets_itself_be_inherited_makes_topics(bench, client, model):
    client.send("plain")
    assert client.send("orders", header={"defaultTopic": model}).code == 17


def test_retry_and_dead_letter_topics_are_made_with_one_queue(bench, client):
    client.send("%RETRY%g", header={"defaultTopicQueueNums": "8", "reconsumeTimes": "1"})
    client.send("%DLQ%g", header={"defaultTopicQueueNums": "8"})
    assert bench.broker.topics.find("%RETRY%g").queues == 1
    assert bench.broker.topics.find("%DLQ%g").queues == 1


def test_messages_of_an_auto_made_topic_stay_for_72_hours(bench, client):
    client.send("orders")
    assert bench.broker.topics.find("orders").topic.policy.retention_ms == 72 * 3_600_000


def test_a_topic_without_write_permission_is_16(bench, client):
    client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "orders", "perm": "4"})
    answer = client.send("orders")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "orders" in answer.remark
    assert not stored_anything(bench)


def test_a_body_over_the_limit_is_13_with_the_numbers(bench, client):
    answer = client.send("orders", b"x" * (4 * 1024 * 1024 + 1))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "4194304B" in answer.remark
    assert "4194305B" in answer.remark
    assert not stored_anything(bench)
    assert client.send("orders", b"x" * 4 * 1024 * 1024).code == 0


def test_properties_up_to_the_limit_are_stored_however_long_json_makes_them(bench, client):
    pairs = "".join(f"k{number:04}\x01v\x02" for number in range(4_000))
    assert len(pairs) < 32_767 < 64 * 1024 < len(msgspec.json.encode(pairs))
    answer = client.ask(RequestCode.SEND_MESSAGE_V2, V2 | {"i": pairs}, b"x")
    assert answer.code == 0
    (message,) = bench.stored("orders")
    assert message.properties.startswith(pairs.encode())


def test_properties_over_the_limit_are_13(bench, client):
    answer = client.ask(RequestCode.SEND_MESSAGE_V2, V2 | {"i": "a\x01" + "b" * 32_766}, b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    # It would fit by itself, but not with what the broker adds.
    answer = client.ask(RequestCode.SEND_MESSAGE_V2, V2 | {"i": "a\x01" + "b" * 32_760}, b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert not stored_anything(bench)
    assert client.send("orders").code == 0


@pytest.mark.parametrize(
    ("field", "value"), [("e", "zero"), ("g", "yesterday"), ("f", "99999999999"), ("m", "maybe")]
)
def test_a_field_of_the_wrong_type_is_1_and_named(bench, client, field, value):
    answer = client.ask(RequestCode.SEND_MESSAGE_V2, V2 | {field: value}, b"x")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"`$.{field}`" in answer.remark or f"{field}" in answer.remark
    assert not stored_anything(bench)
    assert client.send("orders").code == 0


def test_a_missing_topic_or_queue_is_1(client):
    for field in ("b", "e"):
        ext = {name: value for name, value in V2.items() if name != field}
        assert client.ask(RequestCode.SEND_MESSAGE_V2, ext).code == ResponseCode.SYSTEM_ERROR


def test_numbers_booleans_and_nulls_of_ali_ons_are_read(bench, client):
    header = (
        b'{"code":310,"language":"JAVA","version":121,"opaque":5,"flag":0,"remark":null,'
        b'"extFields":{"a":"g","b":"orders","c":"TBW102","d":4,"e":0,"f":0,"g":17,"h":0,'
        b'"i":"","j":0,"k":false,"n":null,"AccessKey":"x","OnsChannel":"ALIYUN"}}'
    )
    size = len(header)
    frame = (4 + size + 1).to_bytes(4, "big") + size.to_bytes(4, "big") + header + b"x"
    client.session.receive(frame)
    bench.settle()
    (answer,) = [decode(each) for each in client.session.outgoing()]
    assert (answer.code, answer.opaque) == (0, 5)
    assert bench.stored("orders")[0].born_ms == 17


def test_a_oneway_send_is_stored_and_never_answered(bench, client):
    for ext in (V2, V2 | {"e": "77"}, V2 | {"b": "a.b"}, V2 | {"e": "x"}):
        frame = encode(Command(310, ext, b"x", 1, FLAG_ONEWAY))
        client.session.receive(frame)
    bench.settle()
    assert client.session.outgoing() == []
    assert len(bench.stored("orders")) == 1


def test_an_unknown_code_is_3(client):
    answer = client.ask(4711)
    assert (answer.code, answer.remark) == (3, " request type 4711 not supported")


def test_sends_of_one_read_keep_their_order_around_a_batch(bench, client):
    batch = join_batch([BatchItem(b"1"), BatchItem(b"2")])
    frames = [
        encode(Command(310, V2, b"0", 1)),
        encode(Command(320, V2 | {"m": "true"}, batch, 2)),
        encode(Command(310, V2, b"3", 3)),
    ]
    client.session.receive(b"".join(frames))
    bench.settle()
    assert [each.body for each in bench.stored("orders")] == [b"0", b"1", b"2", b"3"]


def test_frames_may_be_cut_anywhere(bench, client):
    data = encode(Command(310, V2, b"x" * 50, 1))
    for at in range(len(data)):
        client.session.receive(data[at : at + 1])
    bench.settle()
    assert len(bench.stored("orders")) == 1


# Batches.


def send_batch(client, *items, **ext):
    return client.ask(RequestCode.SEND_BATCH_MESSAGE, V2 | ext, join_batch(items))


def test_a_batch_is_stored_as_separate_messages_and_answered_once(bench, client):
    client.send("orders")
    properties = format_properties({"UNIQ_KEY": "U1", "TAGS": "t"})
    answer = send_batch(client, BatchItem(b"a", properties, 3), BatchItem(b"bb"), BatchItem(b""))
    stored = bench.stored("orders")[1:]
    assert [(each.body, each.flag) for each in stored] == [(b"a", 3), (b"bb", 0), (b"", 0)]
    assert answer.ext["msgId"].split(",") == [each.offset_message_id for each in stored]
    assert (answer.ext["queueOffset"], answer.ext["queueId"]) == ("1", "0")
    assert answer.ext["transactionId"] == "U1"
    assert len({each.property_map()["UNIQ_KEY"] for each in stored}) == 3


def test_a_batch_in_long_names_is_read_too(client):
    ext = {"producerGroup": "g", "topic": "orders", "queueId": "0", "defaultTopic": "TBW102"}
    answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, ext, join_batch([BatchItem(b"a")]))
    assert answer.code == 0


@pytest.mark.parametrize("body", [b"", b"\x00\x00", join_batch([BatchItem(b"abc")])[:-1]])
def test_a_broken_batch_is_13_and_nothing_is_stored(bench, client, body):
    answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, V2, body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert not stored_anything(bench)


def test_a_batch_for_a_retry_topic_is_13(client):
    assert send_batch(client, BatchItem(b"a"), b="%RETRY%g").code == 13


def test_a_batch_cannot_be_delayed(bench, client):
    late = BatchItem(b"b", format_properties({"DELAY": "3"}))
    assert send_batch(client, BatchItem(b"a"), late).code == 13
    assert not stored_anything(bench)
