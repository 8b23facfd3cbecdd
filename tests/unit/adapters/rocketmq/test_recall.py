"""Recall: a timer message is dropped before its time, under the handle its sender was given."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.wire.rocketmq.codes import RequestCode

DAY_MS = 86_400_000


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def client(bench):
    return bench.client()


def recall(client, handle, topic="orders"):
    ext = {"producerGroup": "producers", "topic": topic, "recallHandle": handle}
    return client.ask(RequestCode.RECALL_MESSAGE, ext)


def handle_of(*parts):
    return urlsafe_b64encode(" ".join(parts).encode()).decode()


@pytest.mark.parametrize("wait_ms", [5_000, DAY_MS])
def test_a_timer_message_is_recalled(bench, client, wait_ms):
    kept = client.send("orders", b"kept", TIMER_DELAY_MS=str(wait_ms))
    sent = client.send("orders", b"recalled", TIMER_DELAY_MS=str(wait_ms))
    handle = sent.ext["recallHandle"]
    version, topic, broker, time, key = urlsafe_b64decode(handle).decode().split(" ")
    assert (version, topic, broker, key) == (
        "v1", "orders", "penstock", sent.ext["transactionId"]
    )  # fmt: skip
    assert int(time) % 1_000 == 1
    answer = recall(client, handle)
    assert (answer.code, answer.ext["msgId"], answer.remark) == (0, key, None)
    again = recall(client, handle.rstrip("="))
    assert (again.code, again.ext["msgId"]) == (0, key)
    assert "nothing waits" in again.remark
    bench.kill()
    bench.advance(wait_ms + 2_000)
    assert [each.body for each in bench.stored("orders")] == [b"kept"]
    assert kept.code == 0


def test_it_is_answered_once_it_is_durable(bench, client):
    handle = client.send("orders", TIMER_DELAY_MS="5000").ext["recallHandle"]
    client._hear().clear()
    client.write(RequestCode.RECALL_MESSAGE, {"topic": "orders", "recallHandle": handle})
    bench.engine.turn()
    assert client._hear() == []
    bench.settle()
    assert len(client._hear()) == 1


@pytest.mark.parametrize(
    "properties", [{}, {"DELAY": "3"}, {"TRAN_MSG": "true", "PGROUP": "producers"}]
)
def test_what_is_no_timer_message_has_no_handle(client, properties):
    assert "recallHandle" not in client.send("orders", **properties).ext


def test_what_waits_for_something_else_is_not_recalled(bench, client):
    sent = client.send("orders", b"level", DELAY="3")
    time = str(bench.clock.wall_ms() + 10_000)
    answer = recall(client, handle_of("v1", "orders", "penstock", time, sent.ext["transactionId"]))
    assert answer.code == 0
    bench.advance(11_000)
    assert len(bench.stored("orders")) == 1


@pytest.mark.parametrize(
    ("handle", "remark"),
    [
        ("", "recall handle is invalid"),
        ("%%%", "recall handle is invalid"),
        (handle_of("v2", "orders", "penstock", "1", "K"), "recall handle is invalid"),
        (handle_of("v1", "orders", "penstock", "1"), "recall handle is invalid"),
        (handle_of("v1", "bills", "penstock", "1", "K"), "recall failed, topic not match"),
        (
            handle_of("v1", "orders", "other", "1", "K"),
            "recall failed, broker service not available",
        ),
        (handle_of("v1", "orders", "penstock", "1", "K"), "recall failed, timestamp invalid"),
        (handle_of("v1", "orders", "penstock", "x", "K"), "recall failed, timestamp invalid"),
        (handle_of("v1", "orders", "penstock", "9" * 18, "K"), "recall failed, timestamp invalid"),
    ],
)
def test_a_handle_that_is_none_is_604(client, handle, remark):
    client.send("orders")
    answer = recall(client, handle)
    assert (answer.code, answer.remark) == (604, remark)


def test_a_topic_that_is_not_there_is_17(client):
    answer = recall(client, handle_of("v1", "orders", "penstock", "1", "K"))
    assert (answer.code, answer.remark) == (17, "recall failed, the topic[orders] not exist")
