"""Delays, retries, transactions and look-ups over real sockets, and over kill -9."""

import time

import pytest

from penstock.cli.remoting import RemotingClient
from penstock.testing.running import BrokerProcess
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Serialization
from penstock.wire.rocketmq.headers import (
    CheckTransactionHeader,
    EndTransactionHeader,
    QueryMessageHeader,
    SendBackHeader,
    ViewMessageHeader,
    parse,
)
from penstock.wire.rocketmq.message_id import parse_offset_message_id
from penstock.wire.rocketmq.stored import decode_stored

COMMIT, ROLLBACK = 8, 12
HALF = {"TRAN_MSG": "true", "PGROUP": "test-producers"}


def position_of(answer):
    return parse_offset_message_id(answer.ext["msgId"])[1]


def end(answer, decision):
    return EndTransactionHeader(
        producer_group="test-producers",
        tran_state_table_offset=answer.number("queueOffset"),
        commit_log_offset=position_of(answer),
        commit_or_rollback=decision,
    )


def held(client, topic, offset=0):
    """The next messages of queue 0, waited for."""
    answer = client.pull(topic, offset=offset, hold_ms=10_000)
    assert answer.is_ok, answer
    return answer.messages


def test_a_delayed_message_comes_when_it_is_due(client):
    begun = time.time()
    client.send("delayed", b"later", properties={"DELAY": "1"})
    (message,) = held(client, "delayed")
    assert message.body == b"later"
    assert 0.95 < time.time() - begun < 5


def test_a_timer_comes_at_its_second(client):
    wanted_ms = int(time.time() * 1000) + 1_200
    client.send("timed", b"later", properties={"__STARTDELIVERTIME": str(wanted_ms)})
    (message,) = held(client, "timed")
    assert message.body == b"later"
    assert wanted_ms <= int(time.time() * 1000) + 50


def test_a_timer_beyond_three_days_is_refused(client):
    answer = client.send("timed", b"x", properties={"TIMER_DELAY_SEC": str(4 * 86_400)})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "259200000ms" in answer.remark


def test_a_message_that_failed_comes_back_and_then_dies(client):
    sent = client.send("failing", b"body", keys="k")
    (message,) = held(client, "failing")
    back = SendBackHeader(offset=message.commit_log_offset, group="failures", delay_level=1)
    assert client.request(RequestCode.CONSUMER_SEND_MSG_BACK, back).is_ok
    (retry,) = held(client, "%RETRY%failures")
    assert retry.reconsume_times == 1
    assert retry.property_map()["RETRY_TOPIC"] == "failing"
    assert retry.property_map()["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]
    again = SendBackHeader(offset=retry.commit_log_offset, group="failures", max_reconsume_times=1)
    assert client.request(RequestCode.CONSUMER_SEND_MSG_BACK, again).is_ok
    (dead,) = held(client, "%DLQ%failures")
    assert (dead.body, dead.reconsume_times) == (b"body", 2)
    assert dead.property_map()["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]


@pytest.mark.parametrize("serialization", list(Serialization))
def test_a_transaction_is_committed_or_rolled_back(connect, serialization):
    topic = f"transactions-{serialization.name}"
    client = connect(serialization=serialization)
    kept = client.send(topic, b"kept", properties=HALF)
    lost = client.send(topic, b"lost", properties=HALF)
    client.send(topic, b"plain")
    assert [each.body for each in held(client, topic)] == [b"plain"]
    client.oneway(RequestCode.END_TRANSACTION, end(lost, ROLLBACK))
    assert client.request(RequestCode.END_TRANSACTION, end(kept, COMMIT)).is_ok
    (message,) = held(client, topic, 1)
    assert (message.body, message.queue_offset) == (b"kept", 1)
    assert message.prepared_offset == position_of(kept)


def test_a_producer_is_asked_about_what_it_left_open(client, connect):
    other = connect()
    other.heartbeat(producers=("test-producers",))
    sent = client.send("asked", b"half", properties={**HALF, "CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})
    client.close()
    push = other.wait_push(RequestCode.CHECK_TRANSACTION_STATE)
    check = parse(CheckTransactionHeader, push)
    assert check.commit_log_offset == position_of(sent)
    assert check.offset_msg_id == sent.ext["msgId"]
    message, _ = decode_stored(push.body)
    assert (message.topic, message.body) == ("asked", b"half")
    answer = EndTransactionHeader(
        producer_group="test-producers",
        tran_state_table_offset=check.tran_state_table_offset,
        commit_log_offset=check.commit_log_offset,
        commit_or_rollback=COMMIT,
        from_transaction_check=True,
    )
    other.oneway(RequestCode.END_TRANSACTION, answer)
    assert [each.body for each in held(other, "asked")] == [b"half"]


def test_messages_are_found_by_id_and_key(client):
    sent = client.send("found", b"body", keys="a b")
    viewed = client.request(
        RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=position_of(sent))
    )
    assert [each.offset_message_id for each in viewed.messages] == [sent.ext["msgId"]]
    for key in ("a", "b", sent.ext["transactionId"]):
        found = client.request(
            RequestCode.QUERY_MESSAGE, QueryMessageHeader(topic="found", key=key)
        )
        assert [each.body for each in found.messages] == [b"body"]


def test_what_waits_survives_kill_nine_and_comes_once(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        with RemotingClient(*broker.address("rocketmq_broker")) as client:
            client.send("t", b"delayed", properties={"TIMER_DELAY_MS": "3000"})
            kept = client.send("t", b"kept", properties=HALF)
            lost = client.send("t", b"lost", properties=HALF)
            undecided = client.send("t", b"open", properties=HALF)
            client.request(RequestCode.END_TRANSACTION, end(lost, ROLLBACK))
            plain = client.send("t", b"plain")
            back = SendBackHeader(offset=position_of(plain), group="g", delay_level=1)
            assert client.request(RequestCode.CONSUMER_SEND_MSG_BACK, back).is_ok
        broker.kill()
        broker.start()
        with RemotingClient(*broker.address("rocketmq_broker")) as client:
            assert held(client, "t")[0].body == b"plain"
            assert client.request(RequestCode.END_TRANSACTION, end(kept, COMMIT)).is_ok
            assert not client.request(RequestCode.END_TRANSACTION, end(lost, COMMIT)).is_ok
            held(client, "t", 2)
            # Which of the two is first depends on how long the start took.
            assert {each.body for each in held(client, "t", 1)} == {b"kept", b"delayed"}
            assert [each.body for each in held(client, "%RETRY%g")] == [b"plain"]
        broker.kill()
        broker.start()
        with RemotingClient(*broker.address("rocketmq_broker")) as client:
            assert client.request(RequestCode.END_TRANSACTION, end(undecided, COMMIT)).is_ok
            held(client, "t", 3)
            bodies = [each.body for each in held(client, "t")]
            assert bodies[::3] == [b"plain", b"open"]
            assert sorted(bodies[1:3]) == [b"delayed", b"kept"]
            assert len(held(client, "%RETRY%g")) == 1
