"""Rows of the observations that need another setting than the default (observations 1, 6, 8, 11).

Penstock is started with it. The real server is to be started with all of ``REAL`` (by
``pulsar_standalone.sh CACHE DATA key=value ...``), apart from the others' server; then

    pytest tests/interop/pulsar/test_other_settings.py --real-pulsar ... [--real-pulsar-pid PID]

Where it has other settings these tests are skipped. The pid is for the one that stops the server.
"""

import os
import signal

import pytest

from kit.pulsar_peer import NONE, murmur3

REAL = {
    "acknowledgmentAtBatchIndexLevelEnabled": "false",
    "subscriptionKeySharedUseConsistentHashing": "false",
    "maxConcurrentNonPersistentMessagePerConnection": "5",
    "brokerDeleteInactiveTopicsFrequencySeconds": "5",
}
OURS = (
    "--set", "pulsar.acknowledgment_at_batch_index_level=false",
    "--set", "pulsar.key_shared_use_consistent_hashing=false",
    "--set", "pulsar.max_concurrent_non_persistent_messages=5",
    "--set", "pulsar.delete_inactive_topics=true",
    "--set", "pulsar.inactive_topics_s_max=1",
)  # fmt: skip
SLOTS = 65536


@pytest.fixture(scope="module")
def pulsar_server(serve):
    with serve(*OURS) as server:
        if server.is_real:
            said = server.rest.get("brokers/configuration/runtime").json
            if any(said[name] != value for name, value in REAL.items()):
                pytest.skip("the real server has other settings: see the head of this file")
        yield server


# ---- acks of messages in a batch, where they are off


def part(target, *words):
    return {"ledgerId": target[0], "entryId": target[1], "ack_set": words, "batch_size": 10}


@pytest.mark.parametrize("words", [0b1111100000, 0])
def test_a_set_of_acks_is_answered_and_ignored(pulsar, peer, topic, words):
    sent = pulsar.peer().producer(topic).publish([b"x"] * 10)
    consumer = peer.consumer(topic, "s", "Shared", initialPosition="Earliest")
    consumer.flow(100)
    consumer.message()
    assert not consumer.acked(part(sent, words)).HasField("error")
    assert consumer.unacked == 10
    assert consumer.permits == 90
    consumer.redeliver()
    found = consumer.message()
    assert (found.id, found.ack_set, found.count) == (sent, [], 1)


def test_a_cumulative_set_of_acks_acks_the_entries_before(pulsar, peer, topic):
    sent = pulsar.peer().producer(topic).publish_all([[b"x"] * 10] * 3)
    consumer = peer.consumer(topic, "s", initialPosition="Earliest")
    consumer.flow(100)
    consumer.messages(3)
    assert not consumer.acked(part(sent[1], 0b1111100000), kind="Cumulative").HasField("error")
    consumer.redeliver()
    assert [(each.id, each.ack_set) for each in consumer.messages(2)] == [
        (sent[1], []), (sent[2], []),
    ]  # fmt: skip


def test_a_batch_index_without_a_set_acks_the_whole_entry_here_too(pulsar, peer, topic):
    sent = pulsar.peer().producer(topic).publish([b"x"] * 10)
    consumer = peer.consumer(topic, "s", "Shared", initialPosition="Earliest")
    consumer.flow(100)
    consumer.message()
    consumer.acked({"ledgerId": sent[0], "entryId": sent[1], "batch_index": 3, "batch_size": 10})
    assert consumer.unacked == 0


def test_a_seek_into_a_batch_ignores_its_set(pulsar, peer, topic):
    sent = pulsar.peer().producer(topic).publish_all([[b"x"] * 4] * 2)
    consumer = peer.consumer(topic, "s", initialPosition="Earliest")
    request = consumer.seek({**part(sent[1], 0b1100), "batch_index": 2, "batch_size": 4})
    consumer.expect_closed()
    peer.expect("success", request_id=request)
    again = peer.consumer(topic, "s")
    again.flow(100)
    found = again.message()
    assert (found.id, found.ack_set) == (sent[1], [])


# ---- Key_Shared by halved ranges


def test_ranges_are_halved_for_who_joins_and_go_back_when_he_leaves(pulsar, peer, topic):
    consumers = {}
    for name in ("a", "b", "c"):
        consumer = peer.consumer(topic, "s", "Key_Shared", consumer_name=name)
        consumers[name] = consumer
        consumer.flow(1000)
    names = {each.id: name for name, each in consumers.items()}
    producer = pulsar.peer().producer(topic)
    keys = [f"key-{number}" for number in range(60)]

    def owners():
        for key in keys:
            producer.publish(key.encode(), partition_key=key)
        found = {}
        for each in peer.messages(len(keys)):
            owner = names[each.command.consumer_id]
            found[each.metadata.partition_key] = owner
            consumers[owner].ack(each.id)
        return found

    def wanted(**ends):
        """By the last slot of each: the lowest that is not below the key's."""
        return {
            key: min((end, name) for name, end in ends.items() if end >= slot(key))[1]
            for key in keys
        }

    assert owners() == wanted(c=16384, b=32768, a=65536)
    consumers["b"].close()
    assert owners() == wanted(c=16384, a=65536)


def slot(key):
    return (murmur3(key.encode()) & 0x7FFFFFFF) % SLOTS or 1


# ---- topics without a log, and such that nobody uses


def test_without_a_log_too_many_at_once_are_dropped_with_a_receipt_of_no_id(pulsar, peer):
    topic = pulsar.topic(domain="non-persistent")
    producer = peer.producer(topic)
    count = 400
    # In one write, so that they are read before the first of them is done.
    frames = []
    peer.write = frames.append
    for _ in range(count):
        producer.send(b"x")
    del peer.write
    peer.write(b"".join(frames))
    found = [producer.receipt() for _ in range(count)]
    assert set(found) == {(0, 0), (NONE, NONE)}


def test_a_topic_that_nobody_uses_is_gone(pulsar, peer):
    topic = pulsar.topic("unused")
    peer.producer(topic).close()
    pulsar.eventually(lambda: not is_there(pulsar, topic), "it is deleted")


def is_there(pulsar, topic):
    namespace = topic.split("://")[1].rpartition("/")[0]
    return topic in pulsar.rest.get(f"persistent/{namespace}").json


# ---- the end of the server


def test_a_broker_that_stops_closes_all_and_then_the_connection(pulsar, peer, topic, stop_server):
    """CLOSE_PRODUCER and CLOSE_CONSUMER without a request, then the end: the last test here."""
    producer, consumer = peer.producer(topic), peer.consumer(topic, "s")
    stop_server()
    told = {each.kind: each.command for each in peer.drain() if each.kind != "ping"}
    assert told.keys() == {"close_producer", "close_consumer"}
    assert (told["close_producer"].producer_id, told["close_producer"].request_id) == (
        producer.id, NONE,
    )  # fmt: skip
    assert (told["close_consumer"].consumer_id, told["close_consumer"].request_id) == (
        consumer.id, NONE,
    )  # fmt: skip


@pytest.fixture
def stop_server(pulsar):
    pid = pulsar.server.pid
    if pid is None:
        pytest.skip("stops the server: --real-pulsar-pid says which process that is")
    return lambda: os.kill(pid, signal.SIGTERM)
