"""Routes of a cluster at a broker that joined it: asked for once, renewed, bounded."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq import cluster_routes
from penstock.adapters.rocketmq.cluster_routes import (
    HOLD_MS_MAX,
    IDLE_MS_MAX,
    RENEW_MS,
    TOPIC_CHARS_MAX,
    ClusterRoutes,
)
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.bodies import QueueData, TopicConfig, TopicRouteData, encode_body
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Command


@pytest.fixture
def bench():
    return RocketmqBench(Settings(rocketmq=RocketmqSettings(join="h:1", broker_name="b")))


@pytest.fixture
def routes(bench):
    return bench.broker.service(ClusterRoutes)


def route(**queues):
    datas = [
        QueueData(broker_name=name, read_queue_nums=count, write_queue_nums=count)
        for name, count in queues.items()
    ]
    return TopicRouteData(queue_datas=datas)


def answer(**queues):
    return Command(0, body=encode_body(route(**queues)))


def ask(routes, topic="orders"):
    """What the question is told, in order: nothing while it is held."""
    told = []
    routes.fetch(topic, told.append)
    return told


def test_an_unknown_topic_is_wanted_at_once_and_the_question_held_until_it_is_known(routes):
    stirs = []
    routes.on_request = lambda: stirs.append(1)
    told = ask(routes)
    assert (told, stirs, routes.next_stale()) == ([], [1], "orders")
    routes.on_response("orders", answer(a=4))
    assert told == [route(a=4)]
    assert routes.next_stale() is None


def test_a_known_topic_is_told_at_once(routes):
    ask(routes)
    routes.on_response("orders", answer(a=4))
    assert ask(routes) == [route(a=4)]


def test_all_questions_about_a_topic_are_answered_by_one_answer(routes):
    told = [ask(routes) for _ in range(3)]
    routes.on_response("orders", answer(a=4))
    assert told == [[route(a=4)]] * 3


def test_a_known_route_is_renewed_every_30_seconds(bench, routes):
    ask(routes)
    routes.on_response("orders", answer(a=4))
    assert routes.next_refresh_ms() == bench.clock.monotonic_ms() + RENEW_MS
    bench.clock.advance(RENEW_MS - 1)
    assert routes.next_stale() is None
    bench.clock.advance(1)
    assert routes.next_stale() == "orders"
    routes.on_response("orders", answer(a=8))
    assert ask(routes) == [route(a=8)]


def test_who_waits_goes_before_what_is_to_be_renewed(bench, routes):
    ask(routes)
    routes.on_response("orders", answer(a=4))
    bench.clock.advance(RENEW_MS)
    ask(routes, "parcels")
    assert routes.next_stale() == "parcels"


def test_a_question_is_not_held_longer_than_clients_wait(bench, routes):
    told = ask(routes)
    bench.advance(HOLD_MS_MAX)
    assert told == [None]
    routes.on_response("orders", answer(a=4))
    assert told == [None]
    assert ask(routes) == [route(a=4)]


def test_a_name_server_that_does_not_answer_leaves_what_is_known(routes):
    ask(routes)
    routes.on_response("orders", answer(a=4))
    routes.on_response("orders", None)
    routes.on_response("orders", Command(ResponseCode.SYSTEM_ERROR))
    routes.on_response("orders", Command(0, body=b"[1]"))
    assert ask(routes) == [route(a=4)]


def test_a_topic_that_is_gone_is_unknown_and_asked_for_again(routes):
    ask(routes)
    routes.on_response("orders", answer(a=4))
    routes.on_response("orders", Command(ResponseCode.TOPIC_NOT_EXIST))
    told = ask(routes)
    assert (told, routes.next_stale()) == ([], "orders")


def test_a_topic_nobody_asks_about_is_forgotten(bench, routes):
    ask(routes)
    routes.on_response("orders", answer(a=4))
    bench.clock.advance(IDLE_MS_MAX)
    assert routes.next_stale() is None
    assert routes.next_refresh_ms() is None
    routes.on_response("orders", answer(a=4))
    assert ask(routes) == []


def test_after_a_registration_only_routes_that_show_this_broker_otherwise_are_wanted(bench, routes):
    for topic in ("orders", "parcels"):
        bench.broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=4))
        ask(routes, topic)
        routes.on_response(topic, answer(a=4, b=4))
    routes.on_registered()
    assert routes.next_stale() is None
    bench.broker.topics.put(TopicConfig(topic_name="parcels", read_queue_nums=6))
    routes.on_registered()
    assert routes.next_stale() == "parcels"


def test_the_topic_not_asked_about_for_longest_makes_room(routes, monkeypatch):
    monkeypatch.setattr(cluster_routes, "TOPICS_MAX", 2)
    for topic in ("one", "two"):
        ask(routes, topic)
        routes.on_response(topic, answer(a=1))
    ask(routes, "one")
    ask(routes, "three")
    routes.on_response("three", answer(a=1))
    assert ask(routes, "one") == ask(routes, "three") == [route(a=1)]
    assert ask(routes, "two") == []


def test_beyond_the_bounds_a_topic_is_unknown(routes, monkeypatch):
    assert ask(routes, "x" * (TOPIC_CHARS_MAX + 1)) == [None]
    monkeypatch.setattr(cluster_routes, "TOPICS_MAX", 1)
    assert ask(routes, "one") == []
    assert ask(routes, "two") == [None]
    monkeypatch.setattr(cluster_routes, "HELD_MAX", 1)
    assert ask(routes, "one") == [None]
