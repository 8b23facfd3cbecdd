"""The golden table (D16) with Pulsar in it: batches of every size and compression, over sockets.

What a Pulsar client publishes as single messages, or in batches of 1, 3 and 1,000, with or without
compression, is read message by message by AMQP, RocketMQ, Spark's bulk lane and Pulsar itself; what
AMQP and RocketMQ publish is read by Pulsar. The usual run takes a covering choice of sizes and
compressions, ``--long`` all of them.
"""

import time
from collections.abc import Iterator

import pytest

from kit.pulsar_payload import COMPRESSIONS, PulsarMessage, batch_tail, single_tail
from kit.pulsar_peer import PulsarPeer
from penstock.bulk.client import BulkClient
from penstock.bulk.tickets import Ticket
from penstock.client import LitePullConsumer, ReceivedMessage
from penstock.testing.running import BrokerProcess, running_broker

pika = pytest.importorskip("pika", reason="pika is not installed (extra: dev)")

BORN_MS = 1_700_000_000_000
WAIT_S = 20
SINGLE = 0
"""A size: one message that is no batch."""
SIZES = (SINGLE, 1, 3, 1_000)
CHOSEN = {
    (SINGLE, "NONE"), (SINGLE, "ZSTD"), (1, "NONE"), (1, "LZ4"), (3, "NONE"), (3, "SNAPPY"),
    (3, "ZLIB"), (1_000, "LZ4"), (1_000, "ZSTD"),
}  # fmt: skip
FULL = "persistent://public/default/"


def pytest_generate_tests(metafunc):
    if "shape" in metafunc.fixturenames:
        every = [(size, each) for size in SIZES for each in COMPRESSIONS]
        chosen = every if metafunc.config.getoption("--long") else sorted(CHOSEN)
        metafunc.parametrize("shape", chosen, ids=lambda shape: f"{shape[0]}-{shape[1]}")


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker("--flight", "0") as running:
        yield running


@pytest.fixture
def amqp(broker: BrokerProcess):
    host, port = broker.address("amqp")
    with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
        yield connection.channel()


@pytest.fixture
def peer(broker: BrokerProcess) -> Iterator[PulsarPeer]:
    with PulsarPeer(broker.address("pulsar")) as found:
        found.connect()
        yield found


@pytest.fixture
def bulk(broker: BrokerProcess) -> Iterator[BulkClient]:
    host, port = broker.address("flight")
    with BulkClient(f"{host}:{port}", patience_s=30) as client:
        yield client


def sent_messages(count: int) -> list[PulsarMessage]:
    return [
        PulsarMessage(
            b"body %d " % number * 9,
            f"customer-{number % 7}",
            {"TAGS": f"tag-{number % 2}", "message_id": f"id-{number}", "colour": f"{number}"},
            event_ms=BORN_MS + number * 1000,
            sequence_id=number,
        )
        for number in range(count)
    ]


def publish(peer: PulsarPeer, topic: str, size: int, compression: str) -> list[PulsarMessage]:
    """One entry of so many messages: what its consumers must see."""
    producer = peer.producer(FULL + topic)
    messages = sent_messages(size or 1)
    more = {"producer_name": producer.name, "sequence_id": 0}
    if size == SINGLE:
        tail = single_tail(messages[0], compression=compression, **more)
    else:
        tail = batch_tail(*messages, compression=compression, **more)
    peer.command("send", tail, producer_id=producer.id, sequence_id=0, num_messages=len(messages))
    producer.receipt()
    return messages


def consumed(amqp, queue: str, count: int):
    """The next messages of a queue: method, properties, body."""
    found = []
    for method, properties, body in amqp.consume(queue, inactivity_timeout=WAIT_S):
        assert method is not None, f"only {len(found)} of {count} came"
        found.append((method, properties, body))
        if len(found) == count:
            amqp.basic_ack(method.delivery_tag, multiple=True)
            break
    amqp.cancel()
    return found


def pulled(broker: BrokerProcess, topic: str, count: int) -> list[ReceivedMessage]:
    """The first messages of a topic, as a RocketMQ client sees them."""
    found: list[ReceivedMessage] = []
    until = time.monotonic() + WAIT_S
    with LitePullConsumer(
        broker.name_server, f"group-of-{topic}", consume_from="first"
    ) as consumer:
        consumer.subscribe(topic)
        while len(found) < count and time.monotonic() < until:
            found += consumer.poll(200)
    assert len(found) == count
    return found


def test_what_pulsar_published_is_seen_by_all(broker, peer, amqp, bulk, shape) -> None:
    size, compression = shape
    topic = f"golden-{size}-{compression.lower()}"
    peer.producer(FULL + topic)
    # AMQP's subscription begins at the end of a topic that is there (D11).
    amqp.queue_declare(topic, durable=True)
    sent = publish(peer, topic, size, compression)
    see_by_amqp(amqp, topic, sent)
    see_by_rocketmq(broker, topic, sent)
    see_by_spark(bulk, topic, sent)


def see_by_amqp(amqp, topic, sent) -> None:
    found = consumed(amqp, topic, len(sent))
    assert [body for _, _, body in found] == [each.body for each in sent]
    for (method, properties, _), each in zip(found, sent, strict=True):
        assert (method.exchange, method.routing_key) == ("", topic)
        assert not method.redelivered
        assert properties.type == each.properties["TAGS"]
        assert properties.message_id == each.properties["message_id"]
        assert properties.timestamp == each.event_ms // 1000
        assert properties.headers == {"colour": each.properties["colour"], "key": each.key}


def see_by_rocketmq(broker, topic, sent) -> None:
    found = pulled(broker, topic, len(sent))
    assert [each.body for each in found] == [each.body for each in sent]
    assert [each.offset for each in found] == list(range(len(sent)))
    for message, each in zip(found, sent, strict=True):
        assert message.ordering_key == each.key
        assert message.tag == each.properties["TAGS"]
        assert message.message_id == each.properties["message_id"]
        assert message.born_at_ms == each.event_ms
        assert message.property_value("colour") == each.properties["colour"]


def see_by_spark(bulk, topic, sent) -> None:
    wanted = Ticket(topic=topic, queue=0, start=0, end=len(sent))
    rows = [row for batch in bulk.read(wanted) for row in batch.to_pylist()]
    assert [row["body"] for row in rows] == [each.body for each in sent]
    for number, (row, each) in enumerate(zip(rows, sent, strict=True)):
        assert (row["offset"], row["protocol"]) == (number, "pulsar")
        assert (row["key"], row["tag"]) == (each.key, each.properties["TAGS"])
        assert row["born_timestamp"].timestamp() * 1000 == each.event_ms
        own = {name: each.properties[name] for name in ("colour", "message_id")}
        assert dict(row["properties"]) == own
