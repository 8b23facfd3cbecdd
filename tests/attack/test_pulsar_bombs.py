"""Decompression bombs in Pulsar's entries (T13): readers of every kind get past them, and memory
stays where it was.

What says how large it becomes is believed only up to what a message may be; what lies about it is
corrupt. Pulsar's own clients are passed the bytes as they came: they inflate and bound them.
"""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pika
import pytest

from kit.pulsar_payload import COMPRESSIONS, batch_tail, tail
from kit.pulsar_peer import PulsarPeer, PulsarRest
from penstock.bulk.client import BulkClient
from penstock.bulk.tickets import Ticket
from penstock.cli.remoting import RemotingClient
from penstock.testing.running import eventually
from penstock.wire.pulsar.metadata import read_metadata

MIB = 1024 * 1024
BOMB_BYTES = 128 * MIB
"""What a bomb becomes when somebody lets it."""
PEAK_BYTES_MAX = 32 * MIB
"""Far below one bomb; readers may have a message of the largest size in each of their stages."""
QUEUE = "bombs"
TOPIC = f"persistent://public/default/{QUEUE}"


@pytest.fixture(scope="module")
def bombs():
    """Tails: of each compression one that says its size, one that says less, one of one message."""
    made = []
    for compression in COMPRESSIONS:
        if compression == "NONE":
            continue
        whole = batch_tail(bytes(BOMB_BYTES), compression=compression)
        metadata, at = read_metadata(whole)
        for said, messages in ((BOMB_BYTES, 5), (5_000, 5), (BOMB_BYTES, 1), (5_000, 1)):
            metadata.uncompressed_size = said
            metadata.num_messages_in_batch = messages
            # A bomb larger than a frame may be is none.
            if len(whole) - at < 4 * MIB:
                made.append(tail(metadata, whole[at:]))
    assert len(made) >= 8
    return made


def peak_bytes(victim):
    status = Path(f"/proc/{victim.broker.pid}/status").read_text()
    (line,) = [each for each in status.splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def publish(victim, bombs):
    with PulsarPeer(victim.broker.address("pulsar"), seconds=60) as peer:
        peer.connect()
        consumer = peer.consumer(TOPIC, "peeked", "Shared", initialPosition="Earliest")
        producer = peer.producer(TOPIC)
        for number, each in enumerate(bombs):
            peer.command("send", each, producer_id=producer.id, sequence_id=number)
            producer.receipt()
        producer.publish(b"behind them")
        consumer.flow(1_000)
        # As they came.
        assert [each.tail for each in consumer.messages(len(bombs) + 1)][:-1] == bombs


def read_by_amqp(victim):
    with pika.BlockingConnection(pika.URLParameters(victim.broker.amqp_url)) as connection:
        channel = connection.channel()
        body = None
        for _ in range(1_000):
            method, _, body = channel.basic_get(QUEUE, auto_ack=True)
            if method is None or body == b"behind them":
                break
        assert body == b"behind them"


def read_by_rocketmq(victim):
    with RemotingClient(*victim.broker.address("rocketmq_broker")) as client:
        at, last = 0, b""
        for _ in range(1_000):
            pulled = client.pull(QUEUE, 0, at)
            if not pulled.messages:
                break
            at, last = pulled.number("nextBeginOffset"), pulled.messages[-1].body
        assert last == b"behind them"


def peek_by_rest(victim, count):
    """A bomb cannot be read, and that is said."""
    base = f"http://{victim.broker.endpoints['pulsar_http']}/admin/v2/persistent/public/default"
    for number in range(1, count + 2):
        try:
            url = f"{base}/{QUEUE}/subscription/peeked/position/{number}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            body = error.read()
            assert b"the message cannot be read" in body
        assert len(body) < 8 * MIB
    assert body == b"behind them"


def read_rows(victim):
    with BulkClient(victim.broker.endpoints["flight"], patience_s=60) as client:
        found = client.resolve([QUEUE])
        (queue,) = found.topics[0].queues
        ticket = Ticket(
            topic=QUEUE, queue=queue.queue, start=queue.earliest, end=queue.end,
            epoch=found.epoch, incarnation=queue.incarnation,
        )  # fmt: skip
        rows = [row for batch in client.read(ticket) for row in batch.to_pylist()]
        assert rows[-1]["body"] == b"behind them"
        assert max(len(row["body"] or b"") for row in rows) < 8 * MIB


def compact(victim, bombs):
    """What cannot be opened is kept as it came."""
    rest = PulsarRest(f"http://{victim.broker.endpoints['pulsar_http']}")
    place = f"persistent/public/default/{QUEUE}/compaction"
    assert rest.put(place).status == 204
    eventually(lambda: rest.get(place).json["status"] == "SUCCESS", what="it is compacted")
    with PulsarPeer(victim.broker.address("pulsar"), seconds=60) as peer:
        peer.connect()
        consumer = peer.consumer(
            TOPIC, "compacted", read_compacted=True, initialPosition="Earliest"
        )
        consumer.flow(1_000)
        found = [each.tail for each in consumer.messages(len(bombs))]
        assert found == bombs


def test_bombs_are_passed_over_by_readers_of_every_kind(attack, bombs):
    with attack("--flight", "0") as victim:
        with pika.BlockingConnection(pika.URLParameters(victim.broker.amqp_url)) as connection:
            connection.channel().queue_declare(QUEUE, durable=True)
        publish(victim, bombs)
        before_bytes = peak_bytes(victim)
        read_by_amqp(victim)
        read_by_rocketmq(victim)
        peek_by_rest(victim, len(bombs))
        compact(victim, bombs)
        family_bytes = victim.resident_bytes
        read_rows(victim)
        assert peak_bytes(victim) < before_bytes + PEAK_BYTES_MAX
        assert victim.resident_bytes < family_bytes + PEAK_BYTES_MAX
        assert json.loads(victim.page("/api/topics"))
