"""Sending and pulling over real sockets: every form of both, and long polls that are woken."""

import time

import pytest

from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Language, Serialization
from penstock.wire.rocketmq.headers import PullFlag
from penstock.wire.rocketmq.stored import BatchItem, join_batch


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_what_was_sent_is_pulled_in_either_form(connect, serialization, code):
    client = connect(serialization=serialization)
    topic = f"forms-{serialization.name}-{int(code)}"
    client.create_topic(topic, 2)
    sent = client.send(topic, b"hello", queue_id=1, tags="new", keys="k1 k2", code=code)
    assert (sent.code, sent.ext["queueId"], sent.ext["queueOffset"]) == (0, "1", "0")
    pulled = client.pull(topic, 1)
    (message,) = pulled.messages
    assert (message.body, message.topic, message.queue_id) == (b"hello", topic, 1)
    assert message.property_map()["TAGS"] == "new"
    assert message.offset_message_id == sent.ext["msgId"]
    assert pulled.number("nextBeginOffset") == 1


def test_a_topic_comes_to_be_with_its_first_send_and_is_then_in_the_route(connect):
    client, names = connect(), connect("rocketmq")
    assert names.route("made-by-send") is None
    assert client.send("made-by-send", b"x").is_ok
    route = names.route("made-by-send")
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 4
    host, _, port = route.broker_datas[0].broker_addrs["0"].rpartition(":")
    assert client.pull("made-by-send").messages
    assert (host, int(port)) == client._socket.getpeername()


def test_a_oneway_send_is_stored_and_not_answered(client):
    client.create_topic("oneway", 1)
    opaque = client.start_send("oneway", b"x", flag=FLAG_ONEWAY)
    held = client.start_pull("oneway", hold_ms=5000)
    assert [each.body for each in client.wait(held).messages] == [b"x"]
    assert not client.has_answer(opaque)


def test_a_batch_is_stored_as_single_messages(client):
    client.create_topic("batch", 1)
    body = join_batch([BatchItem(body=b"%d" % n) for n in range(3)])
    sent = client.send("batch", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    assert sent.is_ok
    assert len(sent.ext["msgId"].split(",")) == 3
    messages = client.pull("batch").messages
    assert [(each.body, each.queue_offset) for each in messages] == [
        (b"0", 0), (b"1", 1), (b"2", 2),
    ]  # fmt: skip


def test_many_sends_in_flight_keep_their_order(client):
    client.create_topic("in-flight", 1)
    started = [client.start_send("in-flight", b"%d" % n) for n in range(500)]
    assert [client.wait(opaque).number("queueOffset") for opaque in started] == list(range(500))
    bodies, offset = [], 0
    while offset < 500:
        answer = client.pull("in-flight", 0, offset)
        bodies += [int(each.body) for each in answer.messages]
        assert len(answer.messages) <= 32
        offset = answer.number("nextBeginOffset")
    assert bodies == list(range(500))


def test_a_held_pull_is_answered_by_the_send_that_it_waits_for(connect):
    reader, sender = connect(), connect()
    sender.create_topic("held", 1)
    held = reader.start_pull("held", hold_ms=10_000)
    assert not reader.has_answer(held, 0.2)
    began = time.monotonic()
    sender.send("held", b"now")
    assert [each.body for each in reader.wait(held).messages] == [b"now"]
    assert time.monotonic() - began < 2


def test_a_held_pull_waits_for_a_message_that_its_filter_lets_through(connect):
    reader, sender = connect(), connect()
    sender.create_topic("held-filter", 1)
    held = reader.start_pull("held-filter", hold_ms=10_000, subscription="wanted")
    sender.send("held-filter", b"no", tags="other")
    assert not reader.has_answer(held, 0.2)
    sender.send("held-filter", b"yes", tags="wanted")
    assert [each.body for each in reader.wait(held).messages] == [b"yes"]


def test_a_held_pull_ends_with_nothing_when_its_time_is_over(client):
    client.create_topic("held-in-vain", 1)
    began = time.monotonic()
    answer = client.pull("held-in-vain", hold_ms=300)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert 0.25 < time.monotonic() - began < 5


def test_a_thousand_held_pulls_of_one_client_are_all_woken(connect):
    reader, sender = connect(), connect()
    sender.create_topic("crowd", 1)
    held = [reader.start_pull("crowd", hold_ms=20_000) for _ in range(1000)]
    sender.send("crowd", b"x")
    assert all(len(reader.wait(opaque).messages) == 1 for opaque in held)


def test_an_sql_filter_sees_properties(client):
    client.create_topic("sql", 1)
    for price in (5, 15, 25):
        client.send("sql", b"%d" % price, properties={"price": str(price)})
    answer = client.pull("sql", subscription="price > 10", expression_type="SQL92")
    assert [each.body for each in answer.messages] == [b"15", b"25"]
    broken = client.pull("sql", subscription="price >", expression_type="SQL92")
    assert broken.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert client.pull("sql").is_ok


def test_a_pull_below_or_beyond_the_queue_is_corrected(client):
    client.create_topic("corrected", 1)
    client.send("corrected", b"x")
    beyond = client.pull("corrected", 0, 100)
    assert (beyond.code, beyond.number("nextBeginOffset")) == (ResponseCode.PULL_OFFSET_MOVED, 1)
    at_end = client.pull("corrected", 0, 1)
    assert at_end.code == ResponseCode.PULL_NOT_FOUND


def test_offsets_are_committed_asked_and_carried_by_pulls(client):
    client.create_topic("offsets", 1)
    for _ in range(3):
        client.send("offsets", b"x")
    place = {"topic": "offsets", "queueId": "0", "consumerGroup": "offset-readers"}
    client.create_group("offset-readers")
    client.request(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": "2"})
    assert client.request(RequestCode.QUERY_CONSUMER_OFFSET, place).number("offset") == 2
    flags = int(PullFlag.COMMIT_OFFSET | PullFlag.SUBSCRIPTION)
    client.pull("offsets", 0, 2, sys_flag=flags, commit_offset=3, consumer_group="offset-readers")
    assert client.request(RequestCode.QUERY_CONSUMER_OFFSET, place).number("offset") == 3
    assert client.offset(RequestCode.GET_MAX_OFFSET, "offsets").number("offset") == 3
    assert client.offset(RequestCode.GET_MIN_OFFSET, "offsets").number("offset") == 0


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (lambda c: c.send("bad name!", b"x"), ResponseCode.INVALID_PARAMETER, "illegal"),
        (lambda c: c.send("SCHEDULE_TOPIC_" + "X" * 4, b"x"), ResponseCode.NO_PERMISSION, "forbid"),
        (lambda c: c.send("there", b"x", queue_id=99), ResponseCode.INVALID_PARAMETER, "queueId"),
        (lambda c: c.send("there", b"x" * (5 << 20)), ResponseCode.MESSAGE_ILLEGAL, ""),
        (
            lambda c: c.send("gone", b"x", default_topic="none"),
            ResponseCode.TOPIC_NOT_EXIST,
            "gone",
        ),
        (lambda c: c.pull("gone-too"), ResponseCode.TOPIC_NOT_EXIST, "gone-too"),
        (lambda c: c.pull("there", 99), ResponseCode.INVALID_PARAMETER, "queueId"),
        (lambda c: c.request(12345), ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "12345"),
        (
            lambda c: c.request(RequestCode.PULL_MESSAGE, {"topic": "there", "queueId": "nine"}),
            ResponseCode.SYSTEM_ERROR,
            "",
        ),
    ],
)
def test_bad_input_gets_rocketmqs_code_and_the_connection_lives(client, request_, code, words):
    client.create_topic("there", 1)
    answer = request_(client)
    assert (answer.code, words in answer.remark, bool(answer.remark)) == (code, True, True)
    assert client.offset(RequestCode.GET_MAX_OFFSET, "there").number("offset") == 0


def test_an_old_cpp_client_is_understood(connect):
    client = connect(language=Language.CPP, version=63)
    assert client.send("cpp", b"x", code=RequestCode.SEND_MESSAGE).is_ok
    assert client.pull("cpp").messages
