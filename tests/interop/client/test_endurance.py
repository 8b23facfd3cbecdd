"""What holds when something is slow, or dead: bounded caches, flat memory, time-outs that end."""

import os
import signal
import threading
import time

import pytest

from penstock.client import ClientError, Message, Producer, PushConsumer
from penstock.client.consumer import process_queue

MIB = 1 << 20
BODY = os.urandom(4096)


def resident_bytes():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def fill(cluster, topic, messages):
    with Producer(cluster.name_server, f"fill-{topic}") as producer:
        batch = [Message(topic, BODY) for _ in range(200)]
        for _ in range(messages // len(batch)):
            producer.send_batch(batch)


def slow_consumer(cluster, group, listener, **options):
    return PushConsumer(
        cluster.name_server, group, listener, consume_from="first", instance_name=group,
        pull_threshold_messages=300, pull_threshold_bytes=MIB, pull_threshold_span=400, **options,
    )  # fmt: skip


def test_a_slow_listener_keeps_the_cache_in_its_limits_and_memory_flat(
    cluster, topic, group, is_long
):
    """A backlog of 40 MiB, or 400 MiB with --long, and a cache of at most 4 MiB."""
    seconds, messages = (60, 100_000) if is_long else (2.5, 10_000)
    fill(cluster, topic, messages)
    never = threading.Event()
    consumed = []

    def listener(message):
        never.wait(0.020)  # twenty threads: at most 1,000 a second
        consumed.append(len(message.body))

    consumer = slow_consumer(cluster, group, listener)
    consumer.subscribe(topic)
    peaks = {"messages": 0, "bytes": 0, "span": 0}
    sizes = []
    with consumer:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            never.wait(0.02)
            for each in consumer.statistics().queues:
                peaks["messages"] = max(peaks["messages"], each.cached_messages)
                peaks["bytes"] = max(peaks["bytes"], each.cached_bytes)
                peaks["span"] = max(peaks["span"], each.span)
            sizes.append(resident_bytes())
        episodes = consumer.statistics().threshold_episodes
    assert 0 < len(consumed) < messages, "the listener was not slower than the backlog is long"
    # A pull answers with at most 32 messages, and an answer is never cut.
    assert peaks["messages"] <= 300 + 32
    assert 0 < peaks["bytes"] <= MIB + 32 * len(BODY)
    assert peaks["span"] <= 400 + 32
    assert sum(episodes.values()) >= 1
    third = len(sizes) // 3
    growth = max(sizes[2 * third :]) - max(sizes[:third])
    assert growth < 8 * MIB, f"resident memory grew by {growth / MIB:.1f} MiB"


def test_a_throttled_queue_is_never_dropped_as_idle(cluster, topic, group, eventually, monkeypatch):
    """The idle limit is made shorter than the listener hangs; a dropped queue would come again."""
    monkeypatch.setattr(process_queue, "PULL_IDLE_MS_MAX", 400)
    fill(cluster, topic, 2000)
    is_free = threading.Event()
    seen = []

    def listener(message):
        is_free.wait(30)
        seen.append((message.queue, message.offset))

    consumer = slow_consumer(cluster, group, listener, rebalance_interval_ms=100)
    consumer.subscribe(topic)
    with consumer:
        eventually(lambda: len(consumer.statistics().held) == 4)
        before = {each.queue: each.next_offset for each in consumer.statistics().queues}
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            figures = consumer.statistics()
            assert len(figures.held) == 4
            assert max(each.pulled_ms_ago for each in figures.queues if each.span) < 400
            is_free.wait(0.05)
        after = {each.queue: each.next_offset for each in consumer.statistics().queues}
        assert {queue: after[queue] for queue in before} == before
        is_free.set()
        eventually(lambda: len(seen) == 2000)
    assert len(set(seen)) == 2000


@pytest.mark.parametrize("end", ["killed", "hanging"])
def test_a_dead_broker_is_left_within_its_time_outs(own_cluster, unique, end):
    """Neither a send nor the good-bye of producer and consumer waits longer than it may."""
    topic = unique()
    own_cluster.create_topic(topic, 2)
    consumer = PushConsumer(
        own_cluster.name_server, unique(), lambda message: None, stop_timeout_ms=500,
        request_timeout_ms=500,
    )  # fmt: skip
    consumer.subscribe(topic)
    producer = Producer(
        own_cluster.name_server, unique(), send_timeout_ms=800, stop_timeout_ms=500,
        request_timeout_ms=500,
    )  # fmt: skip
    producer.start()
    consumer.start()
    producer.send(Message(topic, b"alive"), timeout_ms=5000)
    if end == "killed":
        own_cluster.kill()
    else:
        os.kill(own_cluster.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(ClientError):
            producer.send(Message(topic, b"dead"))
        assert time.monotonic() - began < 0.8 + 0.7
        began = time.monotonic()
        consumer.stop()
        producer.stop()
        # Stored offsets, good-byes to the broker: each bounded, and a busy machine on top.
        assert time.monotonic() - began < 5
    finally:
        if end == "hanging":
            os.kill(own_cluster.pid, signal.SIGCONT)


def test_a_broker_that_comes_back_is_used_again_by_both(own_cluster, unique, eventually):
    topic = unique()
    own_cluster.create_topic(topic, 2)
    seen = []
    consumer = PushConsumer(
        own_cluster.name_server, unique(), lambda message: seen.append(message.body),
        consume_from="first", poll_name_server_interval_ms=500, heartbeat_interval_ms=500,
        reconnect_wait_max_ms=300, pull_error_wait_ms=200,
    )  # fmt: skip
    consumer.subscribe(topic)
    producer = Producer(
        own_cluster.name_server, unique(), poll_name_server_interval_ms=500,
        reconnect_wait_max_ms=300,
    )  # fmt: skip
    with consumer, producer:
        producer.send(Message(topic, b"before"), timeout_ms=10_000)
        eventually(lambda: b"before" in seen)
        own_cluster.kill()
        with pytest.raises(ClientError):
            producer.send(Message(topic, b"meanwhile"), timeout_ms=300)
        own_cluster.start()

        def is_sent():
            try:
                return producer.send(Message(topic, b"after"), timeout_ms=1000).is_ok
            except ClientError:
                return False

        eventually(is_sent, 30)
        eventually(lambda: b"after" in seen, 30)
