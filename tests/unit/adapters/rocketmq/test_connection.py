"""A connection: what is served, what is answered, what ends it."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.client_log import FOLD_LINES_MAX, FOLD_MS
from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.factory import BrokerFactory, RocketmqStartup
from penstock.adapters.rocketmq.requests import class_of
from penstock.flow.fast_fail import REQUEST_CLASSES
from penstock.model.errors import InvariantBroken
from penstock.settings.load import Settings
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, FLAG_RESPONSE, Command
from penstock.wire.rocketmq.frames import decode, encode

MANY = {f"k{number}": "v" for number in range(257)}


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def client(bench):
    return bench.client()


def heard(client):
    return [decode(each) for each in client.session.outgoing()]


@pytest.mark.parametrize("serialization", [0, 1])
def test_an_answer_comes_in_the_serialization_of_its_request(client, serialization):
    client.session.receive(encode(Command(4711, opaque=9, serialization=serialization)))
    (answer,) = heard(client)
    assert (answer.code, answer.opaque, answer.serialization) == (3, 9, serialization)


def test_an_unknown_oneway_request_is_not_answered(client):
    client.session.receive(encode(Command(4711, opaque=9, flag=FLAG_ONEWAY)))
    assert heard(client) == []


def test_an_answer_to_nothing_is_ignored(client):
    client.session.receive(encode(Command(0, opaque=77, flag=FLAG_RESPONSE)))
    assert heard(client) == []
    assert not client.session.wants_close


def test_a_header_whose_opaque_can_be_read_is_answered_and_the_connection_lives(client):
    client.session.receive(encode(Command(310, MANY, opaque=8)))
    (answer,) = heard(client)
    assert (answer.code, answer.opaque) == (1, 8)
    assert "ext fields" in answer.remark
    assert not client.session.wants_close
    assert client.send("orders").code == 0


def test_a_header_above_the_bound_is_13_and_the_connection_lives(client):
    for serialization in (0, 1):
        ext = {"b": "orders", "e": "0", "i": "a\x01" + "b" * 300_000}
        client.session.receive(encode(Command(310, ext, opaque=8, serialization=serialization)))
        (answer,) = heard(client)
        assert (answer.code, answer.opaque, answer.serialization) == (13, 8, serialization)
        assert "properties may have 32767 bytes" in answer.remark
    assert not client.session.wants_close
    assert client.send("orders").code == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\x00",
        b"\x7f\x00\x00\x00",
        (1 << 24 | 8).to_bytes(4, "big"),
        b"\x00\x00\x00\x08\x09\x00\x00\x00abcd",
        b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{",
        b"\x00\x00\x00\x06\x00\x00\x00\x7fxx",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_frame_ends_the_connection_and_nothing_else(bench, client, data):
    client.session.receive(data)
    assert client.session.wants_close
    assert bench.client().send("orders").code == 0


def test_sends_before_a_broken_frame_are_stored_and_answered(bench, client):
    ext = {"a": "g", "b": "orders", "c": "TBW102", "e": "0"}
    client.session.receive(encode(Command(310, ext, b"x", 1)) + b"\xff\xff\xff\xff")
    bench.settle()
    assert [each.opaque for each in heard(client)] == [1]
    assert len(bench.stored("orders")) == 1


def test_120_s_of_silence_close_a_connection(bench, client):
    session = client.session
    assert session.next_deadline_ms() == bench.clock.monotonic_ms() + 120_000
    bench.clock.advance(119_999)
    session.due(bench.clock.monotonic_ms())
    assert not session.wants_close
    client.send("orders")
    bench.clock.advance(119_999)
    session.due(bench.clock.monotonic_ms())
    assert not session.wants_close
    bench.clock.advance(1)
    session.due(bench.clock.monotonic_ms())
    assert session.wants_close


def test_a_question_of_ours_gets_its_answer_once(client):
    answers = []
    session = client.session
    session.push(Command(307), answers.append)
    (asked,) = heard(client)
    reply = encode(Command(0, {"x": "y"}, opaque=asked.opaque, flag=FLAG_RESPONSE))
    session.receive(reply + reply)
    assert [each.ext for each in answers] == [{"x": "y"}]


def test_questions_of_a_connection_that_ends_are_answered_with_none(client):
    answers = []
    client.session.push(Command(307), answers.append)
    client.session.closed("test")
    client.session.closed("again")
    assert answers == [None]


def test_unanswered_questions_are_bounded(client):
    given_up = []
    for _ in range(1001):
        client.session.push(Command(307), given_up.append)
    assert given_up == [None]


def test_what_a_gone_client_sent_is_stored_and_nobody_is_told(bench, client):
    ext = {"a": "g", "b": "orders", "c": "TBW102", "e": "0"}
    client.session.receive(encode(Command(310, ext, b"x", 1)))
    client.session.closed("test")
    bench.settle()
    assert client.session.outgoing() == []
    assert len(bench.stored("orders")) == 1
    assert bench.broker.connections == {}


def test_every_request_has_a_class_that_exists():
    known = {each.name for each in REQUEST_CLASSES}
    assert {class_of(code) for code in RequestCode} <= known
    assert class_of(RequestCode.CONSUMER_SEND_MSG_BACK) == "send"
    assert class_of(RequestCode.PULL_MESSAGE) == "pull"
    assert class_of(RequestCode.HEART_BEAT) == "heartbeat"
    assert class_of(RequestCode.END_TRANSACTION) == "end-transaction"
    assert class_of(RequestCode.ACK_MESSAGE) == "ack"
    assert class_of(4711) == "admin"


def test_the_store_host_is_the_one_first_written(bench):
    first = bench.broker.store_host
    startup = RocketmqStartup(Settings())
    startup.open(bench.engine, bench.clock, {"rocketmq_broker": "127.0.0.1:4242"})
    assert startup.broker.broker_port == 4242
    assert startup.broker.store_host == first


def test_nobody_is_served_before_the_house_is_open(bench):
    factory = BrokerFactory(RocketmqStartup(Settings()))
    peer = Peer("127.0.0.1", 1, "127.0.0.1", 2)
    with pytest.raises(InvariantBroken):
        factory.make(1, peer, bench.engine, bench.clock, lambda: None)


def test_services_are_made_once(bench):
    assert bench.broker.service(dict_of) is bench.broker.service(dict_of)


def dict_of(_owner):
    return {"made": True}


def test_many_frames_that_cannot_be_read_are_a_few_lines_and_a_number(bench, caplog):
    for _ in range(FOLD_LINES_MAX + 40):
        client = bench.client()
        client.session.receive(b"\x7f\xff\xff\xff" + bytes(8))
        assert client.session.wants_close
    assert len(caplog.records) == FOLD_LINES_MAX
    assert "announced" in caplog.records[0].reason
    bench.advance(FOLD_MS)
    assert caplog.records[-1].count == 40
