"""Unit tests for look-ups, partitions and lists of topics."""

import pytest

from penstock.adapters.pulsar.naming import NamePattern, parse_name, topics_hash
from penstock.model.names import topic_name
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.protocol_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)

FULL = "persistent://public/default/"


def test_a_lookup_names_the_address_that_was_dialled(client):
    found = client.call("LOOKUP", topic=FULL + "t", request_id=7).lookup_topic_response

    assert found.request_id == 7
    assert found.response == CommandLookupTopicResponse.Connect
    assert found.authoritative
    assert found.proxy_through_service_url
    assert found.brokerServiceUrl == "pulsar://127.0.0.1:6650"


def test_an_unknown_listener_fails_in_the_words_that_clients_know(client):
    found = client.call(
        "LOOKUP", topic=FULL + "t", request_id=1, advertised_listener_name="test"
    ).lookup_topic_response

    assert found.response == CommandLookupTopicResponse.Failed
    assert found.error == ServerError.ServiceNotReady
    assert found.message == "the broker do not have test listener"


@pytest.mark.parametrize("topic", ["persistent://tenant/ns/t", "persistent://public/other/t"])
def test_unknown_tenants_and_namespaces_are_not_found(client, topic):
    found = client.call("PARTITIONED_METADATA", topic=topic, request_id=1)
    answer = found.partition_metadata_response
    assert answer.response == CommandPartitionedTopicMetadataResponse.Failed
    assert (answer.error, answer.message) == (ServerError.TopicNotFound, "Namespace not found")
    looked = client.call("LOOKUP", topic=topic, request_id=2).lookup_topic_response
    assert (looked.error, looked.message) == (ServerError.TopicNotFound, "Namespace not found")


@pytest.mark.parametrize("topic", ["per://x", FULL, FULL + "a b"])
def test_a_name_that_is_none(client, topic):
    looked = client.call("LOOKUP", topic=topic, request_id=2).lookup_topic_response

    assert looked.error == ServerError.InvalidTopicName
    assert looked.message.startswith("Invalid topic name: ")


def partitions(client, topic, **fields):
    answer = client.call("PARTITIONED_METADATA", topic=topic, request_id=1, **fields)
    return answer.partition_metadata_response


def test_a_topic_that_is_not_there_has_no_partitions_unless_nobody_may_make_it(bench, client):
    assert partitions(client, FULL + "t").partitions == 0
    missing = partitions(client, FULL + "t", metadata_auto_creation_enabled=False)
    assert (missing.error, missing.message) == (ServerError.TopicNotFound, "")
    assert bench.engine.topics() == []


def test_partitions_are_the_queues_of_a_topic_whoever_made_it(bench, client):
    bench.engine.create_topic(topic_name("rocket"), queues=4)
    bench.broker.topics.create(parse_name(FULL + "one"), 1)
    bench.engine.create_topic(topic_name("plain"))

    assert partitions(client, FULL + "rocket").partitions == 4
    assert partitions(client, FULL + "rocket-partition-3").partitions == 0
    assert partitions(client, FULL + "one").partitions == 1
    assert partitions(client, FULL + "plain").partitions == 0


def test_a_partitioned_topic_is_one_after_a_restart_too(bench):
    bench.broker.topics.create(parse_name(FULL + "one"), 1)
    bench.settle()
    bench.kill()

    assert bench.broker.topics.partitions(parse_name(FULL + "one")) == 1
    bench.broker.topics.delete(parse_name(FULL + "one"))
    bench.settle()
    bench.kill()
    assert bench.broker.topics.partitions(parse_name(FULL + "one")) is None


def listed(client, **fields):
    answer = client.call(
        "GET_TOPICS_OF_NAMESPACE", request_id=3, namespace="public/default", **fields
    )
    return answer.get_topics_of_namespace_response


def test_topics_of_a_namespace_by_mode(bench, client):
    bench.engine.create_topic(topic_name("b"), queues=2)
    bench.engine.create_topic(topic_name("a"))
    bench.engine.create_topic(topic_name("else", "vhost"))
    bench.engine.create_topic(topic_name("%RETRY%g"))
    bench.engine.non_persistent.create(topic_name("n", domain="non-persistent"))
    logged = [FULL + "a", FULL + "b-partition-0", FULL + "b-partition-1"]
    unlogged = ["non-persistent://public/default/n"]

    assert list(listed(client).topics) == logged
    mode = CommandGetTopicsOfNamespace
    assert list(listed(client, mode=mode.NON_PERSISTENT).topics) == unlogged
    assert list(listed(client, mode=mode.ALL).topics) == sorted(logged + unlogged)


def test_a_simple_pattern_is_matched_here_and_equal_names_are_not_sent_again(bench, client):
    for name in ("a1", "a2", "b1"):
        bench.engine.create_topic(topic_name(name))
    found = listed(client, topics_pattern=FULL + "a.*")

    assert found.filtered
    assert list(found.topics) == [FULL + "a1", FULL + "a2"]
    again = listed(client, topics_pattern=FULL + "a.*", topics_hash=found.topics_hash)
    assert not again.changed
    assert list(again.topics) == []


def test_a_pattern_that_may_take_for_ever_is_left_to_the_client(bench, client):
    bench.engine.create_topic(topic_name("a" * 60))
    found = listed(client, topics_pattern="(a+)+$")

    assert not found.filtered
    assert list(found.topics) == [FULL + "a" * 60]


def test_the_hash_of_nothing_is_nothing():
    assert topics_hash([]) == "00000000"


def test_a_namespace_that_is_no_name_closes(client):
    client.say("GET_TOPICS_OF_NAMESPACE", request_id=1, namespace="x")

    assert client.is_closed


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("a.*", "abc", True), ("a.*c", "abc", True), ("a.*c", "ac", True), ("a.*c", "acb", False),
        ("abc", "abc", True), ("ab", "abc", False), ("a.c", "abc", True), (".*b.*", "abc", True),
        (".*b.*b", "ab", False), (".*b.*b", "abb", True), ("a.*x.*c", "abc", False),
        ("persistent://a.*", "persistent://abc", True), ("a.*", "persistent://abc", True),
        ("non-persistent://a.*", "persistent://abc", True), ("per.*", "persistent://abc", False),
    ],
)  # fmt: skip
def test_names_are_matched_as_a_whole(pattern, name, matches):
    found = NamePattern(pattern)

    assert found.is_understood
    assert found.matches(name) is matches
