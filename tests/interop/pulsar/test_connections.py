"""Connections: hello, protocol errors, look-ups, lists of topics (observations 1)."""

import struct

import google_crc32c
import pytest

from kit.pulsar_peer import NONE, check_error, frame, framed
from penstock.wire.pulsar import protocol_pb2 as pb

MESSAGE_BYTES_MAX = 5242880
FRAME_OVERHEAD_MAX = 10240 - 4
"""A frame's length word counts, too."""


def test_connected_says_version_size_and_features(pulsar):
    connected = pulsar.raw().connect(protocol_version=20)
    if pulsar.is_real:
        assert connected.server_version == "Pulsar Server4.0.8"
    assert connected.server_version
    assert connected.protocol_version == 20
    assert connected.max_message_size == MESSAGE_BYTES_MAX
    flags = connected.feature_flags
    assert flags.supports_get_partitioned_metadata_without_auto_creation
    assert flags.supports_topic_watchers


@pytest.mark.parametrize(("asked", "told"), [(21, 21), (25, 21), (19, 19), (3, 3), (0, 0)])
def test_the_protocol_version_is_the_lower_of_both(pulsar, asked, told):
    connected = pulsar.raw().connect(protocol_version=asked)
    assert connected.protocol_version == told
    assert connected.HasField("feature_flags")


def test_a_client_that_names_no_protocol_version_gets_0(pulsar):
    peer = pulsar.raw()
    peer.command("connect", client_version="old")
    assert peer.expect("connected").protocol_version == 0


def test_connect_without_client_version_is_closed(pulsar):
    peer = pulsar.raw()
    peer.command("connect", protocol_version=20)
    peer.expect_closed()


BEFORE_CONNECT = {
    "lookup": frame("lookup_topic", topic="persistent://public/default/x", request_id=1),
    "flow": frame("flow", consumer_id=1, messagePermits=1),
    "subscribe": frame(
        "subscribe",
        topic="persistent://public/default/x",
        subscription="s",
        subType="Shared",
        consumer_id=1,
        request_id=1,
    ),
    "close_producer": frame("close_producer", producer_id=1, request_id=1),
    "ack": frame("ack", consumer_id=1, ack_type="Individual"),
}


@pytest.mark.parametrize("command", BEFORE_CONNECT)
def test_a_command_before_connect_is_closed(pulsar, command):
    peer = pulsar.raw()
    peer.write(BEFORE_CONNECT[command])
    peer.expect_closed()


def test_ping_before_connect_is_answered_and_pong_is_ignored(pulsar):
    peer = pulsar.raw()
    peer.command("pong")
    peer.command("ping")
    peer.expect("pong")
    peer.connect()


def test_a_second_connect_is_closed(peer):
    peer.command("connect", client_version="again", protocol_version=20)
    peer.expect_closed()


def test_an_auth_response_that_nobody_asked_for_is_refused_and_closed(peer):
    peer.command(
        "auth_response",
        client_version="x",
        response={"auth_method_name": "none", "auth_data": b"x"},
        protocol_version=20,
    )
    found = peer.expect_error("AuthenticationError", "Failed to authenticate")
    assert found.request_id == NONE
    peer.expect_closed()


GARBAGE = {
    "unknown command": framed(b"\x08\x7f"),
    "command of 5.x": framed(b"\x08\x46\xb2\x04\x02\x08\x01"),
    "type without its message": framed(b"\x08\x17"),
    "missing required field": frame("lookup_topic", request_id=1),
    "garbage protobuf": framed(b"\xff\xff\xff\xff\xff"),
    "command larger than its frame": struct.pack(">II", 8, 100) + b"\x08\x12\x92\x01",
    "frame of no bytes": struct.pack(">I", 0),
    "message from a client": frame(
        "message", b"", consumer_id=1, message_id={"ledgerId": 1, "entryId": 1}
    ),
    "success from a client": frame("success", request_id=1),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_costs_the_connection_and_gets_no_error(peer, what):
    peer.write(GARBAGE[what])
    peer.expect_closed()


def test_a_frame_above_the_limit_is_closed_at_its_length_word(peer):
    peer.write(struct.pack(">I", MESSAGE_BYTES_MAX + FRAME_OVERHEAD_MAX + 1))
    peer.expect_closed()


def test_an_unsolicited_pong_is_ignored(peer):
    peer.command("pong")
    peer.expect_nothing()


# ---- look-ups


def test_lookup_says_connect_and_our_own_address(pulsar, peer):
    found = peer.lookup("persistent://public/default/looked-up")
    assert found.response == pb.CommandLookupTopicResponse.Connect
    assert found.authoritative
    host, port = pulsar.server.address
    if pulsar.is_real:
        assert found.brokerServiceUrl == f"pulsar://localhost:{port}"
        assert found.proxy_through_service_url
    else:
        assert found.brokerServiceUrl == f"pulsar://{host}:{port}"
    assert not found.brokerServiceUrlTls


def test_lookup_with_an_unknown_listener_fails(peer):
    found = peer.lookup("persistent://public/default/l", advertised_listener_name="test")
    assert found.response == pb.CommandLookupTopicResponse.Failed
    assert found.error == pb.ServiceNotReady
    assert "the broker do not have test listener" in found.message


def test_lookup_with_an_empty_listener_name_is_as_without(peer):
    found = peer.lookup("persistent://public/default/l", advertised_listener_name="")
    assert found.response == pb.CommandLookupTopicResponse.Connect


@pytest.mark.parametrize("namespace", ["nobody/default", "public/nowhere"])
def test_unknown_tenants_and_namespaces_are_not_found(peer, namespace):
    topic = f"persistent://{namespace}/x"
    found = peer.partitions(topic)
    assert found.response == pb.CommandPartitionedTopicMetadataResponse.Failed
    assert found.error == pb.TopicNotFound
    assert found.message == "Namespace not found"
    found = peer.lookup(topic)
    assert found.response == pb.CommandLookupTopicResponse.Failed
    assert found.error == pb.TopicNotFound
    assert found.message == "Namespace not found"


def test_a_namespace_that_nobody_has_looked_up(pulsar, peer):
    """Pulsar does not serve it before; here every namespace is served."""
    namespace = f"public/{pulsar.name('unseen')}"
    pulsar.rest.done("PUT", f"namespaces/{namespace}", {})
    topic = f"persistent://{namespace}/t"
    if pulsar.is_real:
        found = peer.ask("producer", topic=topic, producer_id=99)
        # Now and then it does: another namespace may have brought its bundle.
        if found.kind == "error":
            check_error(found.command, "ServiceNotReady", "Please redo the lookup.")
        pulsar.look_up(topic)
    peer.producer(topic)
    peer.consumer(topic, "s")


@pytest.mark.parametrize("namespace", ["nobody/default", "public/nowhere"])
def test_producer_and_subscribe_in_an_unknown_namespace_are_not_ready(peer, namespace):
    topic = f"persistent://{namespace}/x"
    peer.no_producer("ServiceNotReady", "Please redo the lookup.", topic)
    peer.no_consumer(("ServiceNotReady", "Please redo the lookup."), topic, "s")


@pytest.mark.parametrize(
    "name", ["per://public/default/x", "persistent://public/default/", "persistent://public/a b/x"]
)
def test_a_bad_topic_name_is_invalid(peer, name):
    found = peer.lookup(name)
    assert found.error == pb.InvalidTopicName
    assert "Invalid topic name" in found.message
    assert peer.partitions(name).error == pb.InvalidTopicName
    peer.no_producer("InvalidTopicName", "Invalid topic name", name)
    peer.no_consumer(("InvalidTopicName", "Invalid topic name"), name, "s")


def test_the_text_of_a_bad_domain(peer):
    found = peer.lookup("per://x")
    assert found.error == pb.InvalidTopicName
    assert found.message == "Invalid topic name: Invalid topic domain: 'per'"


def test_short_names_are_accepted_on_the_wire(pulsar, peer):
    short = pulsar.name("short")
    whole = f"persistent://public/default/{short}"
    assert peer.lookup(short).response == pb.CommandLookupTopicResponse.Connect
    sent = peer.producer(short).publish(b"by its short name")
    assert peer.lookup(whole).response == pb.CommandLookupTopicResponse.Connect
    consumer = peer.consumer(whole, "s", initialPosition="Earliest")
    consumer.flow(1)
    assert consumer.message().id == sent


@pytest.mark.parametrize("name", ["default/x", "a/b/c/d/e"])
def test_a_short_name_has_no_slash_or_two(peer, name):
    found = peer.lookup(name)
    assert found.error == pb.InvalidTopicName
    assert found.message == (
        f"Invalid topic name: Invalid short topic name '{name}', it should be in the format of "
        "<tenant>/<namespace>/<topic> or <topic>"
    )


def test_a_name_with_a_cluster_in_it(pulsar, peer):
    """4.0 takes such old names in any namespace, 4.2 refuses them; Penstock knows no clusters."""
    found = peer.lookup(f"persistent://public/standalone/default/{pulsar.name()}")
    if pulsar.is_real:
        assert found.response == pb.CommandLookupTopicResponse.Connect
        return
    assert found.response == pb.CommandLookupTopicResponse.Failed
    assert found.error == pb.TopicNotFound


def test_statistics_of_an_unknown_consumer(pulsar, peer):
    """Pulsar closes the connection, which is a mistake of theirs."""
    if pulsar.is_real:
        peer.request("consumer_stats", consumer_id=99)
        peer.expect_closed()
        return
    found = peer.ask("consumer_stats", consumer_id=99).command
    assert found.error_code == pb.ConsumerNotFound


def test_metadata_of_a_missing_topic_without_creation_is_not_found(peer, topic):
    found = peer.partitions(topic, metadata_auto_creation_enabled=False)
    assert found.response == pb.CommandPartitionedTopicMetadataResponse.Failed
    assert found.error == pb.TopicNotFound
    assert not found.message


def test_metadata_of_a_missing_topic_is_0_partitions(peer, topic):
    found = peer.partitions(topic)
    assert found.response == pb.CommandPartitionedTopicMetadataResponse.Success
    assert found.partitions == 0


def test_metadata_says_the_number_of_partitions(pulsar, peer):
    assert peer.partitions(pulsar.topic(partitions=3)).partitions == 3


def test_without_auto_creation_metadata_fails_and_lookup_does_not(pulsar, peer):
    namespace = pulsar.namespace(autoTopicCreation={"allowAutoTopicCreation": False})
    topic = f"persistent://{namespace}/missing"
    found = peer.partitions(topic)
    assert found.response == pb.CommandPartitionedTopicMetadataResponse.Failed
    assert found.error == pb.TopicNotFound
    assert not found.message
    assert peer.lookup(topic).response == pb.CommandLookupTopicResponse.Connect


# ---- lists of topics


def topics_of(peer, namespace, **fields):
    return peer.ask("get_topics_of_namespace", namespace=namespace, **fields).command


def test_topics_of_an_empty_and_of_an_unknown_namespace(pulsar, peer):
    for namespace in (pulsar.namespace(), "public/nowhere"):
        found = topics_of(peer, namespace)
        assert list(found.topics) == []
        assert found.topics_hash == "00000000"
        assert not found.filtered


def test_a_malformed_namespace_is_closed(peer):
    peer.request("get_topics_of_namespace", namespace="nonsense")
    peer.expect_closed()


@pytest.fixture
def listed(pulsar, peer):
    """A namespace with two topics that exist, and one without a log."""
    namespace = pulsar.namespace()
    names = [f"persistent://{namespace}/{each}" for each in ("a1", "b1")]
    passing = f"non-persistent://{namespace}/n1"
    for each in (*names, passing):
        pulsar.look_up(each)
        peer.producer(each)
    return namespace, names, passing


def test_topics_come_with_their_hash(peer, listed):
    namespace, names, _ = listed
    found = topics_of(peer, namespace)
    assert sorted(found.topics) == names
    crc = google_crc32c.value(",".join(names).encode())
    assert found.topics_hash == crc.to_bytes(4, "little").hex()
    assert not found.filtered
    assert found.changed


def test_the_mode_of_a_list_is_honoured(peer, listed):
    namespace, names, passing = listed
    assert sorted(topics_of(peer, namespace, mode="PERSISTENT").topics) == names
    assert list(topics_of(peer, namespace, mode="NON_PERSISTENT").topics) == [passing]
    assert sorted(topics_of(peer, namespace, mode="ALL").topics) == sorted((*names, passing))


def test_a_pattern_filters_and_an_equal_hash_says_unchanged(peer, listed):
    namespace, names, _ = listed
    pattern = f"persistent://{namespace.split('/')[0]}/.*/a.*"
    assert len(pattern) <= 50
    found = topics_of(peer, namespace, topics_pattern=pattern)
    assert list(found.topics) == names[:1]
    assert found.filtered
    again = topics_of(peer, namespace, topics_pattern=pattern, topics_hash=found.topics_hash)
    assert not again.changed
    assert list(again.topics) == []


def test_a_pattern_above_50_characters_is_left_to_the_client(peer, listed):
    namespace, names, _ = listed
    found = topics_of(peer, namespace, topics_pattern=f"persistent://{namespace}/" + "x" * 60)
    assert sorted(found.topics) == names
    assert not found.filtered


@pytest.mark.parametrize("domain", ["", "persistent://", "non-persistent://"])
def test_the_domain_of_a_pattern_does_not_matter(peer, listed, domain):
    namespace, names, _ = listed
    pattern = f"{domain}{namespace.split('/')[0]}/.*/a.*"
    assert len(pattern) <= 50
    assert list(topics_of(peer, namespace, topics_pattern=pattern).topics) == names[:1]


def test_partitions_are_in_the_list_by_their_own_names(pulsar, peer):
    namespace = pulsar.namespace()
    topic = pulsar.topic(namespace=namespace, partitions=2)
    assert sorted(topics_of(peer, namespace).topics) == [f"{topic}-partition-{i}" for i in (0, 1)]


def test_a_watcher_hears_of_topics_that_come_and_go(pulsar, peer):
    namespace = pulsar.namespace()
    found = peer.ask(
        "watch_topic_list",
        watcher_id=1,
        namespace=namespace,
        topics_pattern="persistent://public/.*/w.*",
    )
    assert found.kind == "watch_topic_list_success"
    assert found.command.topics_hash == "00000000"
    topic = f"persistent://{namespace}/w1"
    pulsar.look_up(topic)
    pulsar.peer().producer(topic).close()
    update = peer.expect("watch_topic_update")
    assert list(update.new_topics) == [topic]
    pulsar.rest.done("DELETE", pulsar.path(topic))
    update = peer.expect("watch_topic_update")
    assert list(update.deleted_topics) == [topic]
    assert peer.ask("watch_topic_list_close", watcher_id=1).kind == "success"


def test_a_watcher_hears_of_topics_that_come_close_together(pulsar, peer):
    namespace = pulsar.namespace()
    fields = {"namespace": namespace, "topics_pattern": "public/.*/w.*"}
    assert not peer.ask("watch_topic_list", watcher_id=1, **fields).command.topic
    wanted = {f"persistent://{namespace}/w{number}" for number in range(3)}
    maker = pulsar.peer()
    for topic in sorted(wanted):
        pulsar.look_up(topic)
        maker.producer(topic)
    # Nobody says a word from now on: what was not told at once is told by itself.
    told = []
    while len(told) < len(wanted):
        told += peer.expect("watch_topic_update").new_topics
    assert sorted(told) == sorted(wanted)


def test_a_watcher_s_pattern_has_at_most_50_characters_without_its_domain(peer):
    local = "public/default/" + "x" * 35
    asked = {"watcher_id": 1, "namespace": "public/default"}
    for each in (local, f"persistent://{local}"):
        found = peer.ask("watch_topic_list", topics_pattern=each, **asked)
        assert found.kind == "watch_topic_list_success"
        peer.ask("watch_topic_list_close", watcher_id=1)
    peer.refused(
        "NotAllowedError",
        "Unable to create topic list watcher: Pattern longer than maximum: 50",
        "watch_topic_list",
        topics_pattern=f"persistent://{local}x",
        **asked,
    )


def test_transactions_are_not_enabled(peer):
    text = "Transactions are not enabled."
    peer.refused("NotAllowedError", text, "tc_client_connect_request", tc_id=0)
