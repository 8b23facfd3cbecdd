"""What consumers pull of messages that were stored before they had a place."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.transactions import MAX_CHECKS_TOPIC
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.message_id import parse_offset_message_id
from penstock.wire.rocketmq.stored import decode_all

HOUR_MS = 3_600_000


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def client(bench):
    return bench.client()


def pulled(client, topic, offset=0, queue=0):
    ext = {
        "consumerGroup": "readers",
        "topic": topic,
        "queueId": str(queue),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "subscription": "*",
        "suspendTimeoutMillis": "0",
    }
    answer = client.ask(RequestCode.PULL_MESSAGE, ext)
    return decode_all(answer.body) if answer.code == 0 else []


def position_of(answer):
    return parse_offset_message_id(answer.ext["msgId"])[1]


def send_half(client, body, queue=0):
    return client.send("orders", body, queue=queue, TRAN_MSG="true", PGROUP="producers")


def commit(client, answer):
    position = str(position_of(answer))
    ext = {
        "producerGroup": "producers",
        "tranStateTableOffset": position,
        "commitLogOffset": position,
        "commitOrRollback": "8",
    }
    assert client.ask(RequestCode.END_TRANSACTION, ext).code == 0


def test_a_delayed_message_has_its_offset_from_its_release(bench, client):
    client.send("orders", b"0", queue=2)
    late = client.send("orders", b"late", queue=2, DELAY="1", TAGS="t")
    client.send("orders", b"1", queue=2)
    bench.advance(1_000)
    messages = pulled(client, "orders", queue=2)
    assert [each.body for each in messages] == [b"0", b"1", b"late"]
    assert [each.queue_offset for each in messages] == [0, 1, 2]
    assert {(each.topic, each.queue_id) for each in messages} == {("orders", 2)}
    assert messages[2].commit_log_offset == position_of(late)
    assert messages[2].offset_message_id == late.ext["msgId"]
    assert "DELAY" not in messages[2].property_map()


def test_a_committed_message_says_where_it_was_prepared(bench, client):
    client.send("orders", b"0")
    half = send_half(client, b"half")
    client.send("orders", b"1")
    commit(client, half)
    message = pulled(client, "orders")[-1]
    assert (message.body, message.queue_offset) == (b"half", 2)
    assert message.prepared_offset == message.commit_log_offset == position_of(half)
    assert message.sys_flag & 0xC == 0x8
    assert message.is_intact


def test_a_retry_of_a_committed_message_still_says_where_it_was_prepared(bench, client):
    half = send_half(client, b"half")
    commit(client, half)
    for _ in range(2):
        known = pulled(client, "%RETRY%readers") or pulled(client, "orders")
        ext = {"offset": str(known[-1].commit_log_offset), "group": "readers", "delayLevel": "1"}
        assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext).code == 0
        bench.advance(1_000)
    retries = pulled(client, "%RETRY%readers")
    assert [each.reconsume_times for each in retries] == [1, 2]
    assert {each.prepared_offset for each in retries} == {position_of(half)}
    assert {each.topic for each in retries} == {"%RETRY%readers"}


def test_a_half_message_that_was_given_up_is_shown_under_that_topic(bench, client):
    half = send_half(client, b"half", queue=3)
    bench.advance(HOUR_MS // 2)
    (message,) = pulled(client, MAX_CHECKS_TOPIC)
    assert (message.topic, message.queue_id, message.queue_offset) == (MAX_CHECKS_TOPIC, 0, 0)
    assert message.body == b"half"
    assert message.commit_log_offset == position_of(half)
    assert pulled(client, "orders", queue=3) == []


def test_a_held_pull_is_woken_by_a_release(bench, client):
    client.send("orders", b"late", DELAY="1")
    ext = {
        "consumerGroup": "readers",
        "topic": "orders",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "subscription": "*",
        "suspendTimeoutMillis": "15000",
    }
    opaque = client.write(RequestCode.PULL_MESSAGE, ext)
    bench.advance(999)
    assert [each for each in client._hear() if each.opaque == opaque] == []
    bench.advance(1)
    (answer,) = [each for each in client._hear() if each.opaque == opaque]
    assert [each.body for each in decode_all(answer.body)] == [b"late"]
