"""Connections that are cut: whoever comes back goes on at the right place, with permits from 0."""

import random
import socket
import struct
import time

import pytest

from kit.pulsar.real_clients import KINDS, QUEUE_SIZE, RealClients
from kit.pulsar_peer import NONE
from kit.slow_link import carried

CUTS = 20
ENTRIES = 300
FAILOVER_CUTS = 3
"""Of the short run: whoever becomes the active one of a failover waits for a second."""
CLIENT_CUTS = 6
"""Of the short run: the real client takes its time."""
CUT_SECONDS = 0.15
PERMITS_MAX = 12


@pytest.fixture
def rng(chosen_seed):
    seed = chosen_seed if chosen_seed is not None else random.randrange(1 << 32)
    # pytest shows it with a failure.
    print(f"seed {seed}")
    return random.Random(seed)


def cut(peer, rng):
    """Without a word, politely or not."""
    if rng.random() < 0.5:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


class Backlog:
    """What is stored and not acked with a receipt: (id, places of the messages left)."""

    def __init__(self, producer, rng):
        self.left = {}
        self.sizes = {}
        payloads = [
            b"x" if rng.random() < 0.5 else [b"y"] * rng.randint(2, 9) for _ in range(ENTRIES)
        ]
        for each, payload in zip(producer.publish_all(payloads), payloads, strict=True):
            self.sizes[each] = len(payload) if isinstance(payload, list) else 1
            self.left[each] = set(range(self.sizes[each]))

    def check(self, deliveries):
        """They are the first that are left, in order, and say which of their messages are."""
        assert [each.id for each in deliveries] == list(self.left)[: len(deliveries)]
        for each in deliveries:
            left, size = self.left[each.id], self.sizes[each.id]
            assert each.count == 0
            assert places(each.ack_set, size) == left if each.ack_set else len(left) == size

    def ack(self, consumer, delivery, rng):
        """The entry, or some of its messages."""
        left, size = self.left[delivery.id], self.sizes[delivery.id]
        target = {"ledgerId": delivery.id[0], "entryId": delivery.id[1]}
        acked = set(left)
        if size > 1 and rng.random() < 0.5:
            acked = {each for each in left if rng.random() < 0.5}
            bits = sum(1 << each for each in range(size) if each not in acked)
            target |= {"ack_set": [bits], "batch_size": size}
        consumer.acked(target)
        left -= acked
        if not left:
            del self.left[delivery.id]

    def ack_upto(self, consumer, delivery):
        consumer.acked(delivery.id, kind="Cumulative")
        for each in list(self.left):
            if each <= delivery.id:
                del self.left[each]


def places(words, size):
    bits = sum((word & NONE) << 64 * at for at, word in enumerate(words))
    return {each for each in range(size) if bits >> each & 1}


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared"])
def test_a_consumer_comes_back_at_its_place(pulsar, topic, rng, is_long, kind):
    backlog = Backlog(pulsar.peer().producer(topic), rng)
    for _ in range(FAILOVER_CUTS if kind == "Failover" and not is_long else CUTS):
        peer = pulsar.peer()
        consumer = peer.consumer(topic, "s", kind, initialPosition="Earliest")
        assert (consumer.permits, consumer.unacked) == (0, 0)
        if kind == "Failover":
            peer.expect("active_consumer_change", is_active=True)
        peer.expect_nothing()
        got = taken(consumer, rng.randint(1, PERMITS_MAX))
        backlog.check(got)
        if kind in ("Exclusive", "Failover") and rng.random() < 0.5:
            backlog.ack_upto(consumer, rng.choice(got))
        else:
            for each in got:
                if rng.random() < 0.5:
                    backlog.ack(consumer, each, rng)
        cut(peer, rng)


def taken(consumer, permits):
    """What so many permits bring; a batch is never divided."""
    consumer.flow(permits)
    got = []
    while permits > 0:
        got.append(consumer.message())
        left = got[-1].ack_set
        permits -= len(places(left, 64)) if left else len(got[-1].payloads)
    return got


def test_a_reader_comes_back_where_it_says(pulsar, topic, rng):
    ids = pulsar.peer().producer(topic).publish_all([b"x"] * ENTRIES)
    at = 0
    for _ in range(CUTS):
        peer = pulsar.peer()
        # Theirs now and then finds its subscription still fenced, and says so or never delivers.
        name = pulsar.name("reader") if pulsar.is_real else "reader"
        reader = peer.reader(topic, ids[at], name)
        peer.expect_nothing()
        permits = rng.randint(1, PERMITS_MAX)
        reader.flow(permits)
        assert [each.id for each in reader.messages(permits)] == ids[at : at + permits]
        at += rng.randrange(permits)
        cut(peer, rng)


@pytest.mark.timeout(180)
def test_the_real_client_comes_through_twenty_cuts(pulsar, rng, is_long):
    library = pytest.importorskip("pulsar", reason="the wheel pulsar-client is not installed")
    topic = f"persistent://{pulsar.namespace(deduplication=True)}/cut"

    def permits():
        found = pulsar.stats(topic)["subscriptions"]
        return [each["availablePermits"] for kind in KINDS for each in found[kind]["consumers"]]

    def look():
        """They began at 0 on both sides each time: at rest one queue is granted, half at least."""
        pulsar.eventually(lambda: len(permits()) == len(KINDS) and min(permits()) > QUEUE_SIZE // 2)
        assert max(permits()) <= QUEUE_SIZE

    with carried(pulsar.server.address) as link:
        clients = RealClients(library, f"pulsar://127.0.0.1:{link.port}", topic)
        try:
            clients.begin()
            for _ in range(CUTS if is_long else CLIENT_CUTS):
                clients.wait_for_receipts(1)
                time.sleep(rng.uniform(0, CUT_SECONDS))
                link.cut()
        finally:
            clients.finish(look)
    clients.check()
