"""Thresholds of a push consumer seen from outside: which holds which queue since when."""

import logging
import threading

import pytest

from penstock.client import Message, Producer, PushConsumer

BODY = bytes(1000)


@pytest.fixture
def one_queue(cluster, unique):
    """A topic with one queue of 200 messages."""
    name = unique("full")
    cluster.create_topic(name, 1)
    with Producer(cluster.name_server, name) as producer:
        producer.send_batch([Message(name, BODY) for _ in range(200)])
    return name


class Stuck:
    """A listener that waits until it is let go."""

    def __init__(self):
        self.release, self.count = threading.Event(), 0

    def __call__(self, message):
        assert self.release.wait(30)
        self.count += 1


def consumer_of(cluster, group, topic, listener, **options):
    made = PushConsumer(
        cluster.name_server, group, listener, consume_from="first", instance_name=group,
        consume_threads=4, pull_batch=10, await_termination_ms=5_000, **options,
    )  # fmt: skip
    made.subscribe(topic)
    return made


@pytest.mark.parametrize(
    ("options", "threshold", "limit", "cached_max"),
    [
        ({"pull_threshold_messages": 50}, "messages", 50, 60),
        ({"pull_threshold_bytes": 45_000}, "bytes", 45_000, 55),
        ({"pull_threshold_span": 70}, "span", 70, 81),
        ({"topic_threshold_messages": 30}, "messages", 30, 40),
        ({"topic_threshold_bytes": 20_000}, "bytes", 20_000, 30),
    ],
)
def test_a_threshold_holds_a_queue_and_lets_it_go(
    *, cluster, one_queue, group, eventually, caplog, options, threshold, limit, cached_max
):
    caplog.set_level(logging.INFO, "penstock.client.consumer.statistics")
    listener = Stuck()
    with consumer_of(cluster, group, one_queue, listener, **options) as consumer:
        eventually(lambda: consumer.statistics().held, what="the queue is held")
        figures = consumer.statistics()
        (held,) = figures.held
        assert (held.queue.topic, held.threshold, held.limit) == (one_queue, threshold, limit)
        assert held.held_ms >= 0
        assert limit // 1000 <= figures.cached_messages <= cached_max
        assert figures.threshold_episodes[threshold] == 1
        listener.release.set()
        eventually(lambda: listener.count == 200, what="all are consumed")
        assert sum(consumer.statistics().threshold_episodes.values()) == 1
    begun, ended = caplog.records
    assert (begun.threshold, begun.limit, begun.group) == (threshold, limit, group)
    assert ended.lasted_ms >= 0


def test_a_topic_s_limit_is_divided_by_the_queues_owned(cluster, topic, group, eventually):
    """Four queues: a quarter each."""
    with Producer(cluster.name_server, group) as producer:
        for _ in range(40):
            producer.send_batch([Message(topic, BODY) for _ in range(10)])
    listener = Stuck()
    options = {"topic_threshold_messages": 80}
    with consumer_of(cluster, group, topic, listener, **options) as consumer:
        eventually(lambda: len(consumer.statistics().held) == 4, what="all queues are held")
        figures = consumer.statistics()
        assert {each.limit for each in figures.held} == {20}
        assert figures.cached_messages <= 4 * 30
        listener.release.set()
        eventually(lambda: listener.count == 400, what="all are consumed")
