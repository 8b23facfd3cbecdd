"""The golden table (D16) for all pairs of protocols and Spark, with batches and compressions.

One source publishes, over its own protocol, as single messages or in batches of 1, 3 and 1,000,
with and without compression; AMQP, RocketMQ, Pulsar and Spark's bulk lane read the same messages,
one by one and in order, with body, key, tag, message id, time of birth and properties where the
table has them. What Pulsar published Pulsar's consumers get byte for byte. The usual run takes a
covering choice of sizes and compressions, ``--long`` all of them.

AMQP knows neither batches nor compression, RocketMQ's clients compress single messages only, and of
what they may use the broker opens zlib.
"""

import itertools
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from kit.pulsar_payload import COMPRESSIONS, PulsarMessage, batch_tail, single_tail, unpacked
from kit.pulsar_peer import PulsarPeer, batch_singles
from penstock.bulk.client import BulkClient
from penstock.bulk.tickets import Ticket
from penstock.client import LitePullConsumer, Message, Producer
from penstock.testing.running import BrokerProcess, running_broker

pika = pytest.importorskip("pika", reason="pika is not installed (extra: dev)")

BORN_MS = 1_700_000_000_000
WAIT_S = 20
SINGLE = 0
"""A size: one message that is no batch."""
SIZES = (SINGLE, 1, 3, 1_000)
SHAPES = {
    "pulsar": [(size, each) for size in SIZES for each in COMPRESSIONS],
    "rocketmq": [(size, each) for size in SIZES for each in ("NONE", "ZLIB")],
    "amqp": [(size, "NONE") for size in SIZES if size],
}
CHOSEN = {
    "pulsar": [
        (SINGLE, "NONE"), (SINGLE, "ZSTD"), (1, "NONE"), (1, "LZ4"), (3, "NONE"), (3, "SNAPPY"),
        (3, "ZLIB"), (1_000, "LZ4"), (1_000, "ZSTD"),
    ],
    "rocketmq": [(SINGLE, "ZLIB"), (1, "NONE"), (3, "NONE"), (3, "ZLIB"), (1_000, "NONE")],
    "amqp": [(1, "NONE"), (3, "NONE"), (1_000, "NONE")],
}  # fmt: skip
FULL = "persistent://public/default/"
NUMBERS = itertools.count(1)


def pytest_generate_tests(metafunc):
    if "source" in metafunc.fixturenames:
        shapes = SHAPES if metafunc.config.getoption("--long") else CHOSEN
        every = [(source, *shape) for source, chosen in shapes.items() for shape in chosen]
        ids = ["-".join(map(str, each)) for each in every]
        metafunc.parametrize(("source", "size", "compression"), every, ids=ids)


class Golden(NamedTuple):
    """A message as everybody sees it."""

    body: bytes
    key: str
    tag: str
    message_id: str
    born_s: int
    """AMQP has no more than that."""
    colour: str


def golden_messages(count: int) -> list[Golden]:
    return [
        Golden(
            b"body %d " % number * 9,
            f"customer-{number % 7}",
            f"tag-{number % 2}",
            f"id-{number}",
            BORN_MS // 1000 + number,
            f"{number}",
        )
        for number in range(count)
    ]


class Place:
    """A broker, its clients, and a topic of one queue that AMQP's subscription has from its start.

    (AMQP's begins at the end of a topic that is there, D11.)
    """

    def __init__(self, broker, amqp, peer, bulk, topic):
        self.broker, self.amqp, self.peer, self.bulk, self.topic = broker, amqp, peer, bulk, topic
        self.amqp.queue_declare(topic, durable=True)
        self.amqp.confirm_delivery()


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker("--flight", "0") as running:
        yield running


@pytest.fixture
def place(broker: BrokerProcess, request) -> Iterator[Place]:
    host, port = broker.address("flight")
    parameters = pika.ConnectionParameters(*broker.address("amqp"))
    topic = "".join(each if each.isalnum() else "-" for each in request.node.name).strip("-")
    with (
        pika.BlockingConnection(parameters) as connection,
        PulsarPeer(broker.address("pulsar")) as peer,
        BulkClient(f"{host}:{port}", patience_s=30) as bulk,
    ):
        peer.connect()
        yield Place(broker, connection.channel(), peer, bulk, topic)


# Sources: each publishes and says what is to be seen; None = its client chooses that.


def publish_by_pulsar(place: Place, size: int, compression: str) -> list[Golden]:
    """One entry of so many messages; its consumers get these bytes."""
    producer = place.peer.producer(FULL + place.topic)
    wanted = golden_messages(size or 1)
    sent = [
        PulsarMessage(
            each.body,
            each.key,
            {"TAGS": each.tag, "message_id": each.message_id, "colour": each.colour},
            event_ms=each.born_s * 1000,
            sequence_id=number,
        )
        for number, each in enumerate(wanted)
    ]
    more = {"producer_name": producer.name, "sequence_id": 0, "compression": compression}
    tail = single_tail(sent[0], **more) if size == SINGLE else batch_tail(*sent, **more)
    place.peer.command("send", tail, producer_id=producer.id, sequence_id=0, num_messages=len(sent))
    producer.receipt()
    consumer = place.peer.consumer(FULL + place.topic, "bytes", initialPosition="Earliest")
    consumer.flow(1)
    assert consumer.message().tail == tail
    return wanted


def publish_by_rocketmq(place: Place, size: int, compression: str) -> list[Golden]:
    """As one request, unless they are compressed, each for itself."""
    is_batch = size != SINGLE and compression == "NONE"
    wanted = golden_messages(size or 1)
    if is_batch:
        # A batch goes to one queue, so its messages share what decides the queue.
        wanted = [each._replace(key=wanted[0].key) for each in wanted]
    before_s = int(time.time())
    messages = [
        Message(
            place.topic,
            each.body,
            tag=each.tag,
            ordering_key=each.key,
            properties={"colour": each.colour},
        )
        for each in wanted
    ]
    options = {"compress_bytes_min": 1} if compression == "ZLIB" else {}
    with Producer(place.broker.name_server, "golden", **options) as producer:
        if is_batch:
            producer.send_batch(messages)
        else:
            for message in messages:
                producer.send(message)
    # Its client chose the ids and noted the time; what it reads itself holds for all.
    own = seen_by_rocketmq(place, len(wanted))
    assert all(before_s <= each.born_s <= time.time() + 1 for each in own)
    assert len({each.message_id for each in own}) == len(own)
    return [
        each._replace(message_id=seen.message_id, born_s=seen.born_s)
        for each, seen in zip(wanted, own, strict=True)
    ]


def publish_by_amqp(place: Place, size: int, _compression: str) -> list[Golden]:
    wanted = golden_messages(size)
    for each in wanted:
        properties = pika.BasicProperties(
            delivery_mode=2,
            headers={"colour": each.colour, "key": each.key},
            message_id=each.message_id,
            timestamp=each.born_s,
            type=each.tag,
        )
        place.amqp.basic_publish("", place.topic, each.body, properties)
    return wanted


EXTRA = {
    "pulsar": set(),
    "rocketmq": set(),
    "amqp": {"amqp.delivery_mode", "key"},
}
SOURCES = {
    "pulsar": publish_by_pulsar,
    "rocketmq": publish_by_rocketmq,
    "amqp": publish_by_amqp,
}


# Readers


def seen_by_amqp(place: Place, count: int) -> list[Golden]:
    amqp, found = place.amqp, []
    for method, properties, body in amqp.consume(place.topic, inactivity_timeout=WAIT_S):
        assert method is not None, f"only {len(found)} of {count} came"
        assert (method.exchange, method.routing_key) == ("", place.topic)
        assert not method.redelivered
        headers = dict(properties.headers)
        key, colour = headers.pop("key"), headers.pop("colour")
        assert not headers
        about = (properties.type, properties.message_id, properties.timestamp)
        found.append(Golden(body, key, *about, colour))
        if len(found) == count:
            amqp.basic_ack(method.delivery_tag, multiple=True)
            break
    amqp.cancel()
    return found


def seen_by_rocketmq(place: Place, count: int) -> list[Golden]:
    found = []
    until = time.monotonic() + WAIT_S
    group = f"group-{next(NUMBERS)}-of-{place.topic}"
    with LitePullConsumer(place.broker.name_server, group, consume_from="first") as consumer:
        consumer.subscribe(place.topic)
        while len(found) < count and time.monotonic() < until:
            found += consumer.poll(200)
    assert [each.offset for each in found] == list(range(count))
    return [
        Golden(
            each.body,
            each.ordering_key,
            each.tag,
            each.message_id,
            each.born_at_ms // 1000,
            each.property_value("colour"),
        )
        for each in found
    ]


def seen_by_pulsar(place: Place, count: int, extra: set[str]) -> list[Golden]:
    """``extra``: properties that only say how another protocol has it."""
    consumer = place.peer.consumer(FULL + place.topic, "golden", initialPosition="Earliest")
    consumer.flow(count)
    found = []
    while len(found) < count:
        entry = consumer.message(WAIT_S)
        payload = unpacked(entry.metadata, entry.payload)
        is_batch = entry.metadata.HasField("num_messages_in_batch")
        pairs = batch_singles(payload, entry.messages) if is_batch else [(entry.metadata, payload)]
        for about, body in pairs:
            properties = {each.key: each.value for each in about.properties}
            own = [properties.pop(name) for name in ("TAGS", "message_id", "colour")]
            assert not properties.keys() - extra
            born_s = about.event_time // 1000
            found.append(Golden(body, about.partition_key, own[0], own[1], born_s, own[2]))
    place.peer.expect_nothing()
    return found


def seen_by_spark(place: Place, count: int, source: str) -> list[Golden]:
    wanted = Ticket(topic=place.topic, queue=0, start=0, end=count)
    rows = [row for batch in place.bulk.read(wanted) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(count))
    assert {row["protocol"] for row in rows} == {source}
    return [
        Golden(
            row["body"],
            row["key"],
            row["tag"],
            dict(row["properties"]).get("message_id", ""),
            int(row["born_timestamp"].timestamp()),
            dict(row["properties"])["colour"],
        )
        for row in rows
    ]


def test_what_one_published_is_seen_by_all(place, source, size, compression) -> None:
    wanted = SOURCES[source](place, size, compression)
    count = len(wanted)
    assert seen_by_amqp(place, count) == wanted
    assert seen_by_rocketmq(place, count) == wanted
    assert seen_by_pulsar(place, count, EXTRA[source]) == wanted
    if source == "rocketmq":
        # Rows leave out what RocketMQ's clients add to every message, its id among them.
        wanted = [each._replace(message_id="") for each in wanted]
    assert seen_by_spark(place, count, source) == wanted


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("is_batched", [False, True])
def test_what_the_real_client_compressed_is_seen_by_all(place, compression, is_batched) -> None:
    library = pytest.importorskip("pulsar", reason="the wheel pulsar-client is not installed")
    wanted = golden_messages(3)
    kind = getattr(library.CompressionType, {"ZLIB": "ZLib"}.get(compression, compression))
    quiet = library.ConsoleLogger(library.LoggerLevel.Error)
    host, port = place.broker.address("pulsar")
    client = library.Client(f"pulsar://{host}:{port}", logger=quiet)
    producer = client.create_producer(
        place.topic,
        compression_type=kind,
        batching_enabled=is_batched,
        batching_max_messages=len(wanted),
        batching_max_publish_delay_ms=10_000,
    )
    for each in wanted:
        properties = {"TAGS": each.tag, "message_id": each.message_id, "colour": each.colour}
        producer.send_async(
            each.body,
            lambda *_: None,
            properties,
            partition_key=each.key,
            event_timestamp=each.born_s * 1000,
        )
    producer.flush()
    consumer = client.subscribe(
        place.topic, "real", initial_position=library.InitialPosition.Earliest
    )
    bodies = [consumer.receive(timeout_millis=WAIT_S * 1000).data() for _ in wanted]
    client.close()
    assert bodies == [each.body for each in wanted]
    assert seen_by_amqp(place, 3) == wanted
    assert seen_by_rocketmq(place, 3) == wanted
    assert seen_by_pulsar(place, 3, set()) == wanted
    assert seen_by_spark(place, 3, "pulsar") == wanted
