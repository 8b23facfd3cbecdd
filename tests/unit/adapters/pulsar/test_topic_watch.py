"""Unit tests for WATCH_TOPIC_LIST: who hears of which topics, and when."""

import pytest

from penstock.adapters.pulsar import topic_watch as room
from penstock.adapters.pulsar.naming import parse_name, topics_hash
from penstock.model.names import topic_name
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

FULL = "persistent://public/default/"
PATTERN = FULL + "o.*"


def watch(client, pattern=PATTERN, watcher_id=1, **fields):
    fields = {"namespace": "public/default", **fields}
    answer = client.call(
        "WATCH_TOPIC_LIST", request_id=7, watcher_id=watcher_id, topics_pattern=pattern, **fields
    )
    assert answer.type == BaseCommand.WATCH_TOPIC_LIST_SUCCESS, answer
    return answer.watch_topic_list_success


def updates(client):
    found = client.commands()
    assert {each.type for each in found} <= {BaseCommand.WATCH_TOPIC_UPDATE}
    return [
        (list(each.watch_topic_update.new_topics), list(each.watch_topic_update.deleted_topics))
        for each in found
    ]


def test_the_answer_has_what_is_there_unless_the_client_knows_it(bench, client):
    bench.engine.create_topic(topic_name("orders"))
    bench.engine.create_topic(topic_name("news"))
    said = watch(client)

    assert (said.request_id, said.watcher_id) == (7, 1)
    assert list(said.topic) == [FULL + "orders"]
    assert said.topics_hash == topics_hash([FULL + "orders"])
    assert not watch(client, topics_hash=said.topics_hash).topic


def test_topics_are_told_when_they_are_durable(bench, client):
    watch(client)
    bench.engine.create_topic(topic_name("orders"))
    assert not client.connection.outgoing()

    assert updates(client) == [([FULL + "orders"], [])]
    bench.pass_time(room.PAUSE_MS)
    bench.engine.delete_topic(topic_name("orders"))
    assert updates(client) == [([], [FULL + "orders"])]


def test_a_topic_made_just_before_somebody_watches_is_in_the_answer(bench, client):
    bench.engine.create_topic(topic_name("orders"))
    client.say(
        "WATCH_TOPIC_LIST",
        request_id=1,
        watcher_id=1,
        namespace="public/default",
        topics_pattern=PATTERN,
    )
    (answer,) = client.commands()

    assert list(answer.watch_topic_list_success.topic) == [FULL + "orders"]


def test_who_watches_while_a_change_waits_to_be_told_hears_of_it(bench, client):
    watch(client)
    for name in ("o1", "o2"):
        bench.engine.create_topic(topic_name(name))
        bench.settle()
    assert updates(client) == [([FULL + "o1"], [])]
    assert list(watch(client, watcher_id=2).topic) == [FULL + "o1"]
    bench.pass_time(room.PAUSE_MS)

    assert updates(client) == [([FULL + "o2"], [])] * 2


def test_what_changes_close_together_is_told_together(bench, client):
    watch(client)
    for name in ("o1", "o2", "o3", "news"):
        bench.engine.create_topic(topic_name(name))
        bench.settle()
    bench.engine.delete_topic(topic_name("o2"))
    assert updates(client) == [([FULL + "o1"], [])]
    bench.pass_time(room.PAUSE_MS)

    assert updates(client) == [([FULL + "o3"], [])]


def test_partitions_are_topics_and_more_of_them_are_told(bench, client):
    watch(client)
    bench.broker.topics.create(parse_name(FULL + "orders"), 1)
    assert updates(client) == [([FULL + "orders-partition-0"], [])]
    bench.pass_time(room.PAUSE_MS)
    bench.broker.topics.grow(parse_name(FULL + "orders"), 2)

    assert updates(client) == [([FULL + "orders-partition-1"], [])]


def test_other_namespaces_and_topics_without_a_log_are_not_told(bench, client):
    watch(client)
    bench.broker.namespaces.create("public/other")
    bench.broker.topics.create(parse_name("persistent://public/other/orders"))
    bench.broker.topics.create(parse_name("non-persistent://public/default/orders"))
    bench.pass_time(room.PAUSE_MS)

    assert updates(client) == []


def test_a_closed_watcher_hears_nothing(bench, client):
    watch(client)
    answer = client.call("WATCH_TOPIC_LIST_CLOSE", request_id=8, watcher_id=1)
    assert answer.success.request_id == 8
    again = client.call("WATCH_TOPIC_LIST_CLOSE", request_id=9, watcher_id=1)
    assert again.success.request_id == 9
    bench.engine.create_topic(topic_name("orders"))
    bench.pass_time(room.PAUSE_MS)

    assert updates(client) == []
    assert not bench.broker.watches._watched


def test_watchers_end_with_their_connection(bench, client):
    watch(client)
    watch(client, watcher_id=2)
    client.vanish()

    assert not bench.broker.watches._watched


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("x" * 51, "Unable to create topic list watcher: Pattern longer than maximum: 50"),
        ("(a+)+b", "Unable to create topic list watcher: only text"),
    ],
)
def test_patterns_that_are_not_matched_here_are_refused(client, pattern, text):
    code, said = client.error(
        "WATCH_TOPIC_LIST",
        request_id=1,
        watcher_id=1,
        namespace="public/default",
        topics_pattern=pattern,
    )

    assert code is ServerError.NotAllowedError
    assert said.startswith(text)


def test_a_connection_has_so_many_watchers(client, monkeypatch):
    monkeypatch.setattr(room, "WATCHERS_MAX", 1)
    watch(client)
    watch(client)
    fields = {"namespace": "public/default", "topics_pattern": PATTERN}
    code, _ = client.error("WATCH_TOPIC_LIST", request_id=1, watcher_id=2, **fields)

    assert code is ServerError.NotAllowedError


def test_what_is_no_namespace_closes_the_connection(client):
    client.say(
        "WATCH_TOPIC_LIST", request_id=1, watcher_id=1, namespace="x", topics_pattern=PATTERN
    )

    assert client.is_closed


def test_transactions_are_refused(client):
    assert client.error("TC_CLIENT_CONNECT_REQUEST", request_id=1, tc_id=0) == (
        ServerError.NotAllowedError,
        "Transactions are not enabled.",
    )
