"""``pulsar-client``, the real one (C++ below Python): permits, types, partitions, letters, readers.

What its own suite asserts is not repeated here (``penstock interop pulsar``); this is what the
broker sees of it. Kills: ``tests/crash/test_pulsar_kills.py``.
"""

import contextlib
import re
import threading
import time

import pytest

pulsar_client = pytest.importorskip("pulsar", reason="the wheel pulsar-client is not installed")

SECONDS = 20_000
"""A receive that takes longer has failed (ms)."""


@pytest.fixture
def connect(pulsar):
    """Clients of the broker, closed at the end."""
    clients = []

    def make(url=None):
        logger = pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Error)
        client = pulsar_client.Client(url or pulsar.url, logger=logger)
        clients.append(client)
        return client

    yield make
    for each in clients:
        each.close()


@pytest.fixture
def client(connect):
    return connect()


def subscribe(client, topic, name="s", kind="Shared", **options):
    options.setdefault("initial_position", pulsar_client.InitialPosition.Earliest)
    return client.subscribe(
        topic, name, consumer_type=getattr(pulsar_client.ConsumerType, kind), **options
    )


def publish(client, topic, payloads, **options):
    producer = client.create_producer(topic, **options)
    for each in payloads:
        producer.send(each)
    producer.close()


def take(consumer, count):
    """Receive and acknowledge so many: their payloads."""
    found = []
    for _ in range(count):
        message = consumer.receive(SECONDS)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def told(pulsar, topic, name="s"):
    """What the broker says of the only consumer of a subscription: permits, unacked."""
    (consumer,) = pulsar.stats(topic)["subscriptions"][name]["consumers"]
    return consumer["availablePermits"], consumer["unackedMessages"]


# ---- permits


def test_the_queue_is_refilled_at_half(pulsar, client, topic):
    publish(client, topic, [b"x"] * 40)
    consumer = subscribe(client, topic, receiver_queue_size=10)
    pulsar.eventually(lambda: told(pulsar, topic) == (0, 10), "a queue full")
    for _ in range(4):
        consumer.receive(SECONDS)
    assert told(pulsar, topic) == (0, 10)
    consumer.receive(SECONDS)
    pulsar.eventually(lambda: told(pulsar, topic) == (0, 15), "half a queue more")


def test_a_paused_listener_takes_a_queue_full_and_no_more(pulsar, client, topic):
    got = threading.Semaphore(0)
    consumer = subscribe(
        client,
        topic,
        receiver_queue_size=4,
        message_listener=lambda consumer, message: (consumer.acknowledge(message), got.release()),
    )
    publish(client, topic, [b"x"] * 3)
    for _ in range(3):
        assert got.acquire(timeout=20)
    consumer.pause_message_listener()
    publish(client, topic, [b"x"] * 20)
    pulsar.eventually(lambda: told(pulsar, topic)[0] == 0, "the queue is full")
    assert not got.acquire(timeout=0.1)
    consumer.resume_message_listener()
    for _ in range(20):
        assert got.acquire(timeout=20)


def test_a_queue_of_0_asks_for_one_message_per_receive(pulsar, client, topic):
    publish(client, topic, [b"a", b"b", b"c"])
    consumer = subscribe(client, topic, receiver_queue_size=0)
    assert told(pulsar, topic) == (0, 0)
    for count, payload in enumerate((b"a", b"b", b"c"), 1):
        assert consumer.receive().data() == payload
        assert told(pulsar, topic) == (0, count)


def test_consumers_of_several_topics_flow_for_each(pulsar, client):
    topics = [pulsar.topic() for _ in range(3)]
    consumer = subscribe(client, topics, receiver_queue_size=100)
    for each in topics:
        pulsar.eventually(lambda each=each: told(pulsar, each)[0] > 0, "permits")
        publish(client, each, [each.encode()])
    assert sorted(take(consumer, 3)) == sorted(each.encode() for each in topics)


# ---- types and partitions


def test_the_type_of_a_subscription_changes_when_nobody_is_there(connect, topic):
    client = connect()
    publish(client, topic, [b"a", b"b", b"c"])
    shared = subscribe(client, topic)
    take(shared, 1)
    with pytest.raises(pulsar_client.ConsumerBusy):
        subscribe(connect(), topic, kind="Exclusive")
    shared.close()
    exclusive = subscribe(connect(), topic, kind="Exclusive")
    assert take(exclusive, 1) == [b"b"]
    exclusive.close()
    assert take(subscribe(client, topic, kind="Failover"), 1) == [b"c"]


def test_a_subscription_of_one_partition(pulsar, client):
    topic = pulsar.topic(partitions=3)
    one = subscribe(client, f"{topic}-partition-1", "one")
    for index in range(3):
        publish(client, f"{topic}-partition-{index}", [b"%d" % index])
    assert take(one, 1) == [b"1"]
    whole = subscribe(client, topic, "all")
    assert sorted(take(whole, 3)) == [b"0", b"1", b"2"]
    with pytest.raises(pulsar_client.Timeout):
        one.receive(100)


def test_partitions_of_one_subscription_may_be_consumed_by_different_consumers(pulsar, connect):
    topic = pulsar.topic(partitions=2)
    first = subscribe(connect(), f"{topic}-partition-0", kind="Exclusive")
    second = subscribe(connect(), f"{topic}-partition-1", kind="Exclusive")
    for index in range(2):
        publish(connect(), f"{topic}-partition-{index}", [b"%d" % index] * 2)
    assert take(first, 2) == [b"0"] * 2
    assert take(second, 2) == [b"1"] * 2


def test_failover_spreads_partitions_over_its_consumers(pulsar, connect):
    topic = pulsar.topic(partitions=4)
    consumers = {
        name: subscribe(connect(), topic, kind="Failover", consumer_name=name) for name in "ab"
    }

    def owners():
        return [
            pulsar.stats(f"{topic}-partition-{index}")["subscriptions"]["s"]["activeConsumerName"]
            for index in range(4)
        ]

    pulsar.eventually(lambda: owners() == ["a", "b", "a", "b"], "both are active")
    client = connect()
    for index in range(4):
        publish(client, f"{topic}-partition-{index}", [b"%d" % index])
    assert sorted(take(consumers["a"], 2)) == [b"0", b"2"]
    assert sorted(take(consumers["b"], 2)) == [b"1", b"3"]
    consumers["a"].close()
    pulsar.eventually(lambda: owners() == ["b"] * 4, "the other takes over")


def test_a_partitioned_producer_reaches_every_partition(pulsar, client):
    topic = pulsar.topic(partitions=3)
    publish(client, topic, [b"%d" % i for i in range(9)])
    found = {}
    consumer = subscribe(client, topic)
    for _ in range(9):
        message = consumer.receive(SECONDS)
        found.setdefault(message.topic_name(), []).append(message.data())
    assert [len(each) for each in found.values()] == [3, 3, 3]


def test_keys_stay_with_their_consumer(connect, topic):
    consumers = [subscribe(connect(), topic, kind="KeyShared") for _ in range(2)]
    producer = connect().create_producer(topic)
    for number in range(40):
        producer.send(b"%d" % number, partition_key=f"key-{number % 10}")
    owner, found = {}, []
    until = time.monotonic() + SECONDS / 1000
    while len(found) < 40 and time.monotonic() < until:
        for consumer in consumers:
            with contextlib.suppress(pulsar_client.Timeout):
                message = consumer.receive(10)
                consumer.acknowledge(message)
                found.append(message.data())
                assert owner.setdefault(message.partition_key(), consumer) is consumer
    assert len(found) == 40


# ---- redelivery and letters


def test_permits_do_not_grow_when_parts_of_batches_come_again(pulsar, client, topic):
    """The client gives back permits for all of a batch, of which a real Pulsar charged a part.

    There what is unacked falls below zero, too.
    """
    consumer = subscribe(
        client,
        topic,
        receiver_queue_size=20,
        batch_index_ack_enabled=True,
        negative_ack_redelivery_delay_ms=100,
    )
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for _ in range(10):
        producer.send_async(b"x", None)
    producer.flush()
    got = [consumer.receive(SECONDS) for _ in range(10)]
    for message in got[:5]:
        consumer.acknowledge(message)
    pulsar.eventually(lambda: told(pulsar, topic)[0] == 20, "all that was taken is given back")
    got = got[5:]
    for _ in range(3):
        for message in got:
            consumer.negative_acknowledge(message)
        got = [consumer.receive(SECONDS) for _ in range(5)]
    if pulsar.is_real:
        pulsar.eventually(lambda: told(pulsar, topic)[0] > 20, "they grow")
    else:
        pulsar.eventually(lambda: told(pulsar, topic) == (20, 5), "as many as its queue holds")


def test_a_negative_ack_brings_the_message_back_with_its_count(client, topic):
    publish(client, topic, [b"x"])
    consumer = subscribe(client, topic, negative_ack_redelivery_delay_ms=100)
    for count in range(3):
        message = consumer.receive(SECONDS)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    consumer.acknowledge(consumer.receive(SECONDS))


def test_a_message_that_nobody_wants_becomes_a_dead_letter(client, topic):
    letters = f"{topic}-s-DLQ"
    consumer = subscribe(
        client,
        topic,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar_client.ConsumerDeadLetterPolicy(
            max_redeliver_count=2, initial_subscription_name="first"
        ),
    )
    publish(client, topic, [b"unwanted"])
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(SECONDS))
    # The client asks for its next message while it sends the letter.
    with pytest.raises(pulsar_client.Timeout):
        consumer.receive(500)
    message = subscribe(client, letters, "first").receive(SECONDS)
    assert message.data() == b"unwanted"
    assert message.properties()["REAL_TOPIC"] == topic


# ---- readers and patterns


def test_a_reader_reads_from_where_it_is_told(client, topic):
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(4)]
    early = client.create_reader(topic, pulsar_client.MessageId.earliest)
    assert [early.read_next(SECONDS).data() for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    assert not early.has_message_available()
    after = client.create_reader(topic, ids[1])
    assert after.read_next(SECONDS).data() == b"2"
    after.seek(ids[0])
    assert after.read_next(SECONDS).data() == b"1"
    late = client.create_reader(topic, pulsar_client.MessageId.latest)
    assert not late.has_message_available()
    producer.send(b"new")
    assert late.read_next(SECONDS).data() == b"new"


def test_a_pattern_consumes_what_it_matches(pulsar, client):
    namespace = pulsar.namespace()
    topics = [f"persistent://{namespace}/orders-{number}" for number in range(2)]
    for each in topics:
        publish(client, each, [each.encode()])
    publish(client, f"persistent://{namespace}/other", [b"not this"])
    consumer = subscribe(client, re.compile(f"persistent://{namespace}/orders-.*"))
    assert sorted(take(consumer, 2)) == [each.encode() for each in topics]
    with pytest.raises(pulsar_client.Timeout):
        consumer.receive(100)


# ---- batches


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_batches_of_every_compression(pulsar, client, topic, compression):
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=50,
        batching_max_publish_delay_ms=1000,
        compression_type=getattr(pulsar_client.CompressionType, compression),
    )
    wanted = [b"payload %d" % number * 20 for number in range(100)]
    for each in wanted:
        producer.send_async(each, None)
    producer.flush()
    consumer = subscribe(client, topic)
    assert take(consumer, 100) == wanted
    pulsar.eventually(lambda: pulsar.backlog(topic, "s") == 0, "all is acknowledged")


def test_the_end_of_a_topic(pulsar, client, topic):
    """Apache's tells this client, which then drops its connection and comes again; ours does not.

    Either way what was sent is received, and the next send says that the topic is at its end.
    """
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic, send_timeout_millis=5_000)
    producer.send(b"last")
    assert take(consumer, 1) == [b"last"]
    pulsar.rest.done("POST", f"{pulsar.path(topic)}/terminate")
    with pytest.raises(pulsar_client.PulsarException):
        producer.send(b"too late")
    with pytest.raises(pulsar_client.PulsarException, match=r"TopicTerminated|Timeout"):
        client.create_producer(topic)
    with pytest.raises(pulsar_client.Timeout):
        consumer.receive(300)
