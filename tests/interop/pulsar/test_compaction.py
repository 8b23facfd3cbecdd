"""Compaction by REST as clients see it: raw conversations, and the real client's readers.

The conversations hold with a real Pulsar, too; how a batch that survives in part is shown is a row
of ``docs/pulsar.md``, and the real client's acks of one are tried with Penstock only.
"""

import pytest

from kit.pulsar_peer import EARLIEST

pulsar_client = pytest.importorskip("pulsar", reason="the wheel pulsar-client is not installed")

RECEIVE_MS = 20_000
NOTHING_MS = 300


def compact(pulsar, topic):
    place = f"{pulsar.path(topic)}/compaction"
    assert pulsar.rest.put(place).status == 204
    pulsar.eventually(
        lambda: pulsar.rest.get(place).json == {"status": "SUCCESS", "lastError": ""},
        "the compaction is done",
    )


@pytest.fixture
def client(pulsar):
    logger = pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Error)
    found = pulsar_client.Client(pulsar.url, logger=logger)
    yield found
    found.close()


def publish(client, topic, *messages, **options):
    """(key, payload) each; None as payload deletes."""
    producer = client.create_producer(topic, **options)
    for key, payload in messages:
        producer.send_async(payload or b"", lambda *_: None, partition_key=key)
    producer.flush()
    producer.close()


def got(consumer, count):
    found = []
    for _ in range(count):
        message = consumer.receive(RECEIVE_MS)
        found.append((message.partition_key(), message.data()))
        consumer.acknowledge(message)
    with pytest.raises(pulsar_client.Timeout):
        consumer.receive(NOTHING_MS)
    return found


def test_a_topic_that_was_never_compacted_says_so(pulsar, peer, topic):
    peer.producer(topic)
    found = pulsar.rest.get(f"{pulsar.path(topic)}/compaction")
    assert (found.status, found.json) == (200, {"status": "NOT_RUN", "lastError": ""})


def test_a_topic_that_is_not_there_cannot_be_compacted(pulsar):
    name = pulsar.name()
    assert pulsar.rest.put(f"persistent/public/default/{name}/compaction").status == 404
    assert pulsar.rest.get(f"persistent/public/default/{name}/compaction").status == 404


def test_a_partitioned_topic_is_compacted_as_a_whole(pulsar, peer):
    if pulsar.is_real:
        pytest.skip("a real Pulsar is asked for the status of each partition")
    topic = pulsar.topic(partitions=2)
    for number in range(2):
        producer = peer.producer(f"{topic}-partition-{number}")
        for payload in (b"1", b"2"):
            producer.publish(payload, partition_key="k")
    compact(pulsar, topic)
    for number in range(2):
        part = f"{topic}-partition-{number}"
        consumer = peer.consumer(part, "s", read_compacted=True, initialPosition="Earliest")
        consumer.flow(10)
        assert [each.payload for each in consumer.messages(1)] == [b"2"]
        peer.expect_nothing()


def test_a_reader_of_the_compacted_topic_goes_on_into_the_tail(pulsar, peer, topic):
    producer = peer.producer(topic)
    for key, payload in (("a", b"1"), ("a", b"2"), ("a", b"3")):
        producer.publish(payload, partition_key=key)
    compact(pulsar, topic)
    start = {"ledgerId": EARLIEST[0], "entryId": EARLIEST[1]}
    consumer = peer.consumer(
        topic, "reader-x", read_compacted=True, durable=False, start_message_id=start
    )
    consumer.flow(10)
    assert consumer.message().payload == b"3"
    producer.publish(b"4", partition_key="a")
    assert consumer.message().payload == b"4"


def test_the_real_client_reads_the_newest_of_batches_and_acks_them(pulsar, client, topic):
    if pulsar.is_real:
        pytest.skip("its batches keep places for what is compacted out, which this client shows")
    batched = {"batching_enabled": True, "batching_max_publish_delay_ms": 5_000}
    publish(client, topic, *[(f"k{each}", b"%d" % each) for each in range(5)], **batched)
    publish(client, topic, ("k1", b"x"), ("k3", None), ("k1", b"y"), **batched)
    compact(pulsar, topic)
    expected = [("k0", b"0"), ("k2", b"2"), ("k4", b"4"), ("k1", b"y")]
    options = {
        "initial_position": pulsar_client.InitialPosition.Earliest,
        "is_read_compacted": True,
    }
    consumer = client.subscribe(topic, "s", **options)
    assert got(consumer, 4) == expected
    consumer.close()

    again = client.subscribe(topic, "s", **options)
    assert got(again, 0) == []
    again.seek(pulsar_client.MessageId.earliest)
    assert got(again, 4) == expected


def test_the_real_clients_reader_knows_when_there_is_no_more(pulsar, client, topic):
    if pulsar.is_real:
        pytest.skip("4.0 shows what deletes a key; 4.2 does not")
    publish(client, topic, ("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", None))
    compact(pulsar, topic)
    reader = client.create_reader(topic, pulsar_client.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(RECEIVE_MS).data())
    assert found == [b"3"]


def test_the_real_clients_table_is_made_of_the_compacted_topic(pulsar, client, topic):
    batched = {"batching_enabled": True, "batching_max_publish_delay_ms": 5_000}
    publish(client, topic, *[(f"k{each % 3}", b"%d" % each) for each in range(9)], **batched)
    publish(client, topic, ("k0", None))
    compact(pulsar, topic)
    publish(client, topic, ("k9", b"tail"))
    table = client.create_table_view(topic)
    assert table.get("k1") == b"7"
    assert table.get("k2") == b"8"
    assert table.get("k0") is None
    pulsar.eventually(lambda: table.get("k9") == b"tail", "the tail is read")
    assert len(table) == 3
    table.close()
