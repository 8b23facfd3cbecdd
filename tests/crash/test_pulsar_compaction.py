"""``kill -9`` around compactions: readers find the last view that was told, or the next, whole."""

import random

import pytest

from kit.pulsar_peer import EARLIEST, Delivery, PulsarPeer, PulsarRest
from penstock.testing.running import BrokerProcess, eventually

TOPIC = "persistent://public/default/prices"
PLACE = "persistent/public/default/prices/compaction"
KEYS = 20
ROUND = 200
"""Messages between two compactions."""
KILLS = 4
KILLS_LONG = 20
"""With ``--long``."""


class Prices:
    """What was sent, and which horizons a reader may find."""

    def __init__(self, broker):
        self.broker = broker
        self.sent = []
        self.horizons = {0}

    @property
    def rest(self):
        return PulsarRest(f"http://{self.broker.endpoints['pulsar_http']}")

    def peer(self):
        peer = PulsarPeer(self.broker.address("pulsar"))
        peer.connect()
        peer.lookup(TOPIC)
        return peer

    def publish(self, rng):
        with self.peer() as peer:
            producer = peer.producer(TOPIC)
            for _ in range(ROUND):
                key = f"k{rng.randrange(KEYS)}"
                payload = b"%d" % len(self.sent) if rng.random() < 0.9 else b""
                producer.publish(payload, partition_key=key)
                self.sent.append((key, payload))

    def compact(self):
        """Ask for it; from now on its outcome is possible."""
        assert self.rest.put(PLACE).status == 204
        self.horizons.add(len(self.sent))

    def is_done(self):
        return self.rest.get(PLACE).json["status"] == "SUCCESS"

    def expected(self, horizon):
        newest = {}
        for offset, (key, payload) in enumerate(self.sent[:horizon]):
            newest.pop(key, None)
            if payload:
                newest[key] = offset
        view = [self.sent[offset] for offset in sorted(newest.values())]
        return view + self.sent[horizon:]

    def read(self):
        with self.peer() as peer:
            start = {"ledgerId": EARLIEST[0], "entryId": EARLIEST[1]}
            consumer = peer.consumer(
                TOPIC, "reader-1", read_compacted=True, durable=False, start_message_id=start
            )
            consumer.flow(100_000)
            found = [Delivery(each) for each in peer.gather() if each.kind == "message"]
        return [(each.metadata.partition_key, each.payload) for each in found]

    def check(self):
        """One of the possible views is there, whole; it is the one from now on."""
        found = self.read()
        fitting = [each for each in self.horizons if self.expected(each) == found]
        assert fitting, f"{len(found)} messages, none of the views at {sorted(self.horizons)}"
        self.horizons = set(fitting)


@pytest.fixture
def rng(chosen_seed):
    seed = chosen_seed if chosen_seed is not None else random.randrange(1 << 32)
    # pytest shows it with a failure.
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.timeout(900)
def test_a_view_is_there_as_a_whole_after_kills_at_any_time(tmp_path, rng, is_long):
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    try:
        prices = Prices(broker)
        for number in range(KILLS_LONG if is_long else KILLS):
            prices.publish(rng)
            prices.compact()
            if number % 2 == 0:
                # Told, and no snapshot has been taken since.
                eventually(prices.is_done, what="the compaction is done")
                prices.horizons = {len(prices.sent)}
            else:
                for _ in range(rng.randrange(4)):
                    prices.is_done()
            broker.kill()
            broker.start()
            prices.check()
    finally:
        broker.kill()
