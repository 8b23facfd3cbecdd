"""What a producer does when brokers are busy, slow, silent or gone.

Brokers that misbehave on demand are scripted; killing and starting again is done to a real one.
"""

import asyncio
import time

import pytest

from kit.rocketmq.scripted_brokers import scripted_brokers
from penstock.client import (
    BrokerBusy,
    Message,
    NoRoute,
    Producer,
    SendFailed,
    StateError,
    TimedOut,
    Unreachable,
    WouldBlock,
)

BUSY = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"


@pytest.fixture
def brokers():
    with scripted_brokers("a", "b") as cluster:
        yield cluster


def busy(command):
    return 2, BUSY


def silent(command):
    return None


def full(command):
    return 14, "service not available now. disk full"


def sends(cluster):
    return {name: len(broker.sends) for name, broker in cluster.brokers.items()}


def test_busy_surfaces_at_once_with_reason_and_broker(brokers):
    for broker in brokers.brokers.values():
        broker.script = busy
    with Producer(brokers.name_server) as producer:
        with pytest.raises(BrokerBusy) as caught:
            producer.send(Message("t", b"x"))
        assert caught.value.reason == BUSY
        assert caught.value.broker in ("a", "b")
        assert producer.statistics().busy == 1
    assert sum(sends(brokers).values()) == 1


def test_busy_is_taken_to_another_broker_on_request(brokers):
    brokers.brokers["a"].script = busy
    with Producer(brokers.name_server, retry_on_busy=True) as producer:
        results = [producer.send(Message("t", b"x")) for _ in range(4)]
    assert {each.queue.broker for each in results} == {"b"}


def test_a_refused_message_goes_to_another_broker_with_the_same_key(brokers):
    brokers.brokers["a"].script = full
    with Producer(brokers.name_server) as producer:
        for _ in range(4):
            assert producer.send(Message("t", b"x")).queue.broker == "b"
        assert producer.statistics().retried == len(brokers.brokers["a"].sends) > 0
    refused = brokers.brokers["a"].sends[0].ext["i"]
    assert refused in [each.ext["i"] for each in brokers.brokers["b"].sends]


def test_when_all_refuse_every_try_is_told(brokers):
    for broker in brokers.brokers.values():
        broker.script = full
    with Producer(brokers.name_server) as producer, pytest.raises(SendFailed) as caught:
        producer.send(Message("t", b"x"))
    names = [each.broker for each in caught.value.attempts]
    assert len(names) == 3
    assert names[0] != names[1] != names[2]
    assert "disk full" in str(caught.value)


def test_a_silent_broker_costs_one_limited_try(brokers):
    brokers.brokers["a"].script = silent
    with Producer(brokers.name_server, try_timeout_ms=100) as producer:
        started = time.monotonic()
        results = [producer.send(Message("t", b"x")) for _ in range(2)]
    assert {each.queue.broker for each in results} == {"b"}
    assert time.monotonic() - started < 2


def test_silence_everywhere_ends_with_the_deadline(brokers):
    for broker in brokers.brokers.values():
        broker.script = silent
    with Producer(brokers.name_server, stop_timeout_ms=100) as producer:
        started = time.monotonic()
        with pytest.raises(SendFailed) as caught:
            producer.send(Message("t", b"x"), timeout_ms=200)
        assert 0.15 < time.monotonic() - started < 2
    assert isinstance(caught.value.__cause__, TimedOut)


def test_a_slow_broker_is_avoided_with_the_fault_table(brokers):
    brokers.brokers["a"].script = silent
    options = {"try_timeout_ms": 100, "send_latency_fault": True}
    with Producer(brokers.name_server, **options) as producer:
        for _ in range(8):
            producer.send(Message("t", b"x"))
        assert producer.statistics().isolated.keys() <= {"a"}
    assert len(brokers.brokers["a"].sends) <= 1


def test_a_full_window_blocks_the_caller_of_the_callback_form(brokers, eventually):
    for broker in brokers.brokers.values():
        broker.script = silent
    outcomes = []
    options = {"in_flight_messages_max": 1, "stop_timeout_ms": 100, "retries": 0}
    with Producer(brokers.name_server, **options) as producer:
        producer.send_callback(Message("t", b"1"), outcomes.append, timeout_ms=400)
        started = time.monotonic()
        producer.send_callback(Message("t", b"2"), outcomes.append, timeout_ms=100)
        assert time.monotonic() - started >= 0.09
        eventually(lambda: len(outcomes) == 2, what="two callbacks")
    assert [type(each) for each in outcomes] == [WouldBlock, SendFailed]


def test_a_full_window_lets_an_awaited_send_wait_within_its_deadline(brokers):
    for broker in brokers.brokers.values():
        broker.script = silent

    async def send():
        options = {"in_flight_messages_max": 1, "stop_timeout_ms": 0, "retries": 0}
        async with Producer(brokers.name_server, **options) as producer:
            first = producer.send_async(Message("t", b"1"), timeout_ms=500)
            with pytest.raises(WouldBlock):
                await producer.send_async(Message("t", b"2"), timeout_ms=100)
            cancelled = producer.send_async(Message("t", b"3"), timeout_ms=60_000)
            cancelled.cancel()
            with pytest.raises(SendFailed):
                await first
            assert producer.statistics().waiting == 0

    asyncio.run(send())


def test_sends_that_wait_for_a_permit_hear_that_the_producer_stops(brokers):
    for broker in brokers.brokers.values():
        broker.script = silent

    async def send():
        options = {"in_flight_messages_max": 1, "stop_timeout_ms": 50, "retries": 0}
        async with Producer(brokers.name_server, **options) as producer:
            first = producer.send_async(Message("t", b"1"), timeout_ms=1000)
            second = producer.send_async(Message("t", b"2"))
        with pytest.raises(StateError):
            await second
        with pytest.raises(SendFailed):
            await first

    asyncio.run(send())


def test_a_name_server_that_is_not_there_is_named():
    with (
        Producer("127.0.0.1:1") as producer,
        pytest.raises((Unreachable, NoRoute), match=r"127\.0\.0\.1:1"),
    ):
        producer.send(Message("t", b"x"))


def test_a_killed_broker_fails_sends_at_once_and_is_found_again(own_cluster, group, eventually):
    own_cluster.create_topic("orders", 4)
    options = {"reconnect_wait_min_ms": 50, "reconnect_wait_max_ms": 200}
    with Producer(own_cluster.name_server, group, **options) as producer:
        assert producer.send(Message("orders", b"before")).is_ok
        own_cluster.kill()
        started = time.monotonic()
        with pytest.raises(SendFailed) as caught:
            producer.send(Message("orders", b"meanwhile"))
        assert time.monotonic() - started < 3
        assert isinstance(caught.value.__cause__, Unreachable)
        own_cluster.start()

        def is_back():
            try:
                return producer.send(Message("orders", b"after")).is_ok
            except SendFailed:
                return False

        eventually(is_back, 30, "sends work again")
