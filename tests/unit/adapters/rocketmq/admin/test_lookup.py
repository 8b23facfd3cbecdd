"""Messages by id and by key: the right ones, newest first, and nothing that is not there."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.admin import NOT_FOUND, QUERY_MAX
from penstock.engine.ports import Publication
from penstock.engine.topic import DirectRoute, FanoutRoute
from penstock.model.record import neutral_record
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.message_id import parse_offset_message_id
from penstock.wire.rocketmq.stored import decode_all, decode_stored


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def client(bench):
    return bench.client()


def position_of(answer):
    return parse_offset_message_id(answer.ext["msgId"])[1]


def view(client, position):
    return client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)})


def query(client, key, topic="orders", **ext):
    return client.ask(RequestCode.QUERY_MESSAGE, {"topic": topic, "key": key, **ext})


def found(answer):
    assert answer.code == 0
    return [message.body for message in decode_all(answer.body)]


# By id.


def test_a_message_is_found_by_its_id(bench, client):
    for number in range(5):
        answer = client.send("orders", b"%d" % number)
    message, end = decode_stored(view(client, position_of(answer)).body)
    assert message.body == b"4"
    assert message.offset_message_id == answer.ext["msgId"]
    assert end == len(view(client, position_of(answer)).body)


@pytest.mark.parametrize("shift", [1, 8, 100_000])
def test_a_position_that_is_no_message_is_not_found(client, shift):
    position = position_of(client.send("orders", b"body"))
    answer = view(client, position + shift)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(position + shift) in answer.remark


@pytest.mark.parametrize("offset", ["-1", "0", "9007199254740993"])
def test_odd_offsets_are_not_found(client, offset):
    assert view(client, offset).code == ResponseCode.SYSTEM_ERROR


def test_an_id_survives_a_restart(bench, client):
    position = position_of(client.send("orders", b"body"))
    bench.kill()
    assert decode_stored(view(bench.client(), position).body)[0].body == b"body"


def test_a_delayed_message_keeps_its_id(bench, client):
    position = position_of(client.send("orders", b"later", DELAY="1"))
    assert decode_stored(view(client, position).body)[0].body == b"later"
    bench.advance(1_000)
    (message,) = bench.stored("orders")
    assert message.commit_log_offset == position


def test_a_settlement_or_release_is_no_message(bench, client):
    answer = client.send("orders", b"later", DELAY="1")
    bench.advance(1_000)
    after = client.send("orders", b"next")
    for position in range(position_of(answer) + 1, position_of(after)):
        assert view(client, position).code == ResponseCode.SYSTEM_ERROR


def test_a_message_of_another_protocol_is_found_by_its_position(bench, client):
    topic = bench.topic("orders")
    channel = bench.channel()
    channel.publish([Publication(neutral_record(b"neutral"), route=DirectRoute(topic.queues[0]))])
    bench.settle()
    position = bench.outlet.events[0].confirmations[0].position
    message, _ = decode_stored(view(client, position).body)
    assert (message.topic, message.body) == ("orders", b"neutral")


def test_each_copy_of_a_message_of_another_protocol_has_a_position_of_its_own(bench, client):
    topics = [bench.topic("here"), bench.topic("there")]
    route = FanoutRoute(tuple(topic.queues[0] for topic in topics))
    bench.channel().publish([Publication(neutral_record(b"copied"), route=route)])
    bench.settle()
    position = bench.outlet.events[0].confirmations[0].position
    for number, name in enumerate(("here", "there")):
        message, _ = decode_stored(view(client, position + number).body)
        assert (message.topic, message.body) == (name, b"copied")
        assert message.commit_log_offset == position + number
    assert view(client, position + 2).code == ResponseCode.SYSTEM_ERROR


# By key.


def test_messages_are_found_by_each_of_their_keys_newest_first(bench, client):
    client.send("orders", b"1", KEYS="a b")
    bench.clock.advance(10)
    client.send("orders", b"2", KEYS="b")
    assert found(query(client, "a")) == [b"1"]
    assert found(query(client, "b")) == [b"2", b"1"]


def test_a_message_is_found_by_its_unique_key(client):
    answer = client.send("orders", b"1", UNIQ_KEY="U1")
    assert answer.ext["transactionId"] == "U1"
    assert found(query(client, "U1", _UNIQUE_KEY_QUERY="true", maxNum="1")) == [b"1"]


def test_the_key_that_the_broker_made_is_found_too(client):
    answer = client.send("orders", b"1")
    assert found(query(client, answer.ext["transactionId"])) == [b"1"]


def test_what_nobody_sent_is_not_found(client):
    client.send("orders", b"1", KEYS="a")
    answer = query(client, "nobody")
    assert (answer.code, answer.remark) == (ResponseCode.QUERY_NOT_FOUND, NOT_FOUND)


def test_an_unknown_topic_is_told(client):
    assert query(client, "a", topic="nowhere").code == ResponseCode.TOPIC_NOT_EXIST


def test_keys_are_of_one_topic(client):
    client.send("orders", b"1", KEYS="a")
    client.send("bills", b"2", KEYS="a")
    assert found(query(client, "a", topic="bills")) == [b"2"]


def test_sixty_four_are_the_most_and_thirty_two_by_unique_key(client):
    for number in range(QUERY_MAX + 8):
        client.send("orders", b"%d" % number, KEYS="a")
    newest = [b"%d" % number for number in range(QUERY_MAX + 7, 7, -1)]
    assert QUERY_MAX == 64
    assert found(query(client, "a", maxNum="65")) == newest
    assert found(query(client, "a", maxNum="3")) == newest[:3]
    assert found(query(client, "a", maxNum="1", _UNIQUE_KEY_QUERY="true")) == newest[:32]


def test_the_time_window_is_that_of_storing(bench, client):
    start_ms = bench.clock.wall_ms()
    for number in range(3):
        client.send("orders", b"%d" % number, KEYS="a")
        bench.clock.advance(1_000)
    ext = {"beginTimestamp": str(start_ms + 500), "endTimestamp": str(start_ms + 1_500)}
    assert found(query(client, "a", **ext)) == [b"1"]
    ext = {"beginTimestamp": str(start_ms + 2_500), "endTimestamp": str(start_ms + 9_500)}
    assert query(client, "a", **ext).code == ResponseCode.QUERY_NOT_FOUND


def test_the_answer_says_how_far_the_index_reaches(bench, client):
    client.send("orders", b"0", KEYS="a")
    bench.clock.advance(1_000)
    last = position_of(client.send("orders", b"1", KEYS="a"))
    ext = query(client, "a").ext
    assert ext["indexLastUpdatePhyoffset"] == str(last)
    assert ext["indexLastUpdateTimestamp"] == str(bench.clock.wall_ms())


def test_a_hash_that_lies_is_found_out(bench, client):
    answer = client.send("orders", b"1", KEYS="a")
    place = bench.broker.topics.find("orders")
    bench.engine.note_keys(place.topic, [b"liar"], position_of(answer))
    assert query(client, "liar").code == ResponseCode.QUERY_NOT_FOUND


def test_a_half_message_is_found_by_key_once_it_is_committed(bench, client):
    half = {"TRAN_MSG": "true", "PGROUP": "producers", "KEYS": "a"}
    kept = client.send("orders", b"kept", **half)
    lost = client.send("orders", b"lost", **half)
    assert query(client, "a").code == ResponseCode.QUERY_NOT_FOUND
    for answer, decision in ((kept, "8"), (lost, "12")):
        ext = {
            "producerGroup": "producers",
            "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": str(position_of(answer)),
            "commitOrRollback": decision,
        }
        assert client.ask(RequestCode.END_TRANSACTION, ext).code == 0
    assert found(query(client, "a")) == [b"kept"]
    assert found(query(client, kept.ext["transactionId"])) == [b"kept"]


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.VIEW_MESSAGE_BY_ID, {}),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "x"}),
        (RequestCode.QUERY_MESSAGE, {"topic": "orders"}),
        (RequestCode.QUERY_MESSAGE, {"topic": "orders", "key": "a", "maxNum": "many"}),
    ],
)
def test_a_bad_request_is_answered_and_the_connection_lives(client, code, ext):
    answer = client.ask(code, ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert client.send("orders", b"still here").code == 0
