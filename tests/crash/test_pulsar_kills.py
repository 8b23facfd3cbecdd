"""T1 through SEND_RECEIPT: what Pulsar's clients were told is stored, or acked, survives kill -9.

Raw peers say exactly what was answered, and to which number; the last test is the real client,
which lives through the kills and sends again by itself.
"""

import contextlib
import itertools
import random
import select
import time

import pytest

from kit.checkers import Op, Outcome, Seen, fifo, total_queue
from kit.pulsar.real_clients import RealClients
from kit.pulsar_peer import NONE, Delivery, PulsarPeer, PulsarRest
from kit.rocketmq.clusters import free_ports
from penstock.testing.running import BrokerProcess, eventually

TOPIC = "persistent://public/default/kills"
PARTITIONS = [f"{TOPIC}-partition-{number}" for number in range(2)]
SUBSCRIPTION = "takers"
WINDOW = 64
"""SENDs of one producer without a receipt."""
BATCH_MAX = 30
PERMITS = 1_000
NO_ENTRY = (NONE, NONE)
DRAIN_SECONDS_MAX = 30


@pytest.fixture
def rng(chosen_seed):
    seed = chosen_seed if chosen_seed is not None else random.randrange(1 << 32)
    # pytest shows it with a failure.
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def kills(is_long):
    return 20 if is_long else 2


@pytest.fixture
def broker(tmp_path):
    with BrokerProcess(tmp_path / "data") as running:
        rest = PulsarRest(f"http://{running.endpoints['pulsar_http']}")
        rest.done("PUT", f"{TOPIC.replace('://', '/')}/partitions", len(PARTITIONS))
        yield running


def deduplicate(broker):
    rest = PulsarRest(f"http://{broker.endpoints['pulsar_http']}")
    rest.done("POST", "namespaces/public/default/deduplication", True)


@pytest.fixture
def connect(broker):
    """Connections to the broker that runs, closed at the end."""
    with contextlib.ExitStack() as peers:

        def connected():
            peer = peers.enter_context(PulsarPeer(broker.address("pulsar")))
            peer.connect()
            return peer

        yield connected


def arrived(peer):
    """The frames that are here, without waiting for more."""
    found = []
    with contextlib.suppress(TimeoutError, ConnectionError):
        if select.select([peer.socket], [], [], 0)[0]:
            found.append(peer.receive())
        while True:
            found.append(peer.receive(0))
    return found


def work_until_killed(broker, workers, rng):
    """Everybody works, and at a random moment the broker is gone."""
    until = time.monotonic() + rng.uniform(0.1, 0.4)
    while time.monotonic() < until:
        for each in workers:
            each.work(rng)
        select.select([each.peer.socket for each in workers], [], [], 0.002)
    broker.kill()
    for each in workers:
        # What was answered before the end is still in the socket.
        each.hear()
        each.peer.close()


class Publisher:
    """Sends single messages or batches, ``name:1``, ``name:2`` ..., and knows what is answered."""

    def __init__(self, name, topic, history, *, is_batching):
        self.name = name
        self.topic = topic
        self.history = history
        self.is_batching = is_batching
        self.next = 0
        self.open = {}
        """First number of a SEND -> the numbers in it."""
        self.answered = -1
        """The highest number with a receipt."""
        self.duplicates = 0

    def begin(self, connect):
        self.peer = connect()
        self.producer = self.peer.producer(self.topic, self.name)
        return self.producer.success.last_sequence_id

    def work(self, rng):
        for _ in range(min(rng.randint(1, 20), WINDOW - len(self.open))):
            count = rng.randint(1, BATCH_MAX) if self.is_batching else 1
            numbers = range(self.next, self.next + count)
            self.next += count
            for each in numbers:
                self.note(each, Outcome.INVOKE)
            self.open[numbers[0]] = numbers
            self.send(numbers)
        self.hear()

    def send(self, numbers):
        values = [self.value(each).encode() for each in numbers]
        if self.is_batching:
            last = {"highest_sequence_id": numbers[-1]}
            self.producer.send(values, sequence=numbers[0], fields=last, **last)
        else:
            self.producer.send(values[0], sequence=numbers[0])

    def hear(self):
        for kind, command, _ in arrived(self.peer):
            assert kind == "send_receipt", f"{kind} {command}"
            numbers = self.open.pop(command.sequence_id)
            self.answered = numbers[-1]
            self.duplicates += (command.message_id.ledgerId, command.message_id.entryId) == NO_ENTRY
            for each in numbers:
                self.note(each, Outcome.OK)

    def send_again(self):
        """What has no receipt, in its order; then wait for all of them."""
        for numbers in self.open.values():
            self.send(numbers)
        eventually(lambda: self.hear() or not self.open, what="receipts of what was sent again")

    def give_up(self):
        """What has no receipt is unknown, for ever."""
        for numbers in self.open.values():
            for each in numbers:
                self.note(each, Outcome.INFO)
        self.open.clear()

    def note(self, number, outcome):
        self.history.append(Op(self.name, "enqueue", self.value(number), outcome))

    def value(self, number):
        return f"{self.name}:{number}"


class Taker:
    """Takes from one partition, acks most of it with receipts; none of that may come again."""

    def __init__(self, topic, history, seen):
        self.topic = topic
        self.history = history
        self.seen = seen
        self.known = set()
        self.acked = set()
        self.acks_open = {}
        self.permits_used = 0

    def begin(self, connect):
        self.peer = connect()
        self.consumer = self.peer.consumer(
            self.topic, SUBSCRIPTION, "Shared", initialPosition="Earliest"
        )
        self.consumer.flow(PERMITS)
        self.permits_used = 0
        self.acks_open.clear()

    def work(self, rng, acked_part=0.8):
        for delivery in self.hear():
            values = self.left_of(delivery)
            self.take(values)
            if rng.random() < acked_part:
                self.ack(delivery, values, rng)
        if self.permits_used >= PERMITS // 2:
            self.consumer.flow(self.permits_used)
            self.permits_used = 0

    def hear(self):
        """Deliveries; answers to acks are noted."""
        found = []
        for frame in arrived(self.peer):
            if frame.kind == "ack_response":
                self.acked.update(self.acks_open.pop(frame.command.request_id))
            else:
                assert frame.kind == "message", frame
                found.append(Delivery(frame))
        return found

    def left_of(self, delivery):
        """The values of an entry that are not acked, with their places in it."""
        bits = sum((word & NONE) << 64 * at for at, word in enumerate(delivery.ack_set))
        return {
            place: payload.decode()
            for place, payload in enumerate(delivery.payloads)
            if not delivery.ack_set or bits >> place & 1
        }

    def take(self, values):
        self.permits_used += len(values)
        for value in values.values():
            assert value not in self.acked, f"{value} came again, although its ack had a receipt"
            is_again = value in self.known
            self.known.add(value)
            self.history.append(Op("taker", "dequeue", value, Outcome.OK, is_redelivered=is_again))
            self.seen.append(Seen(self.topic, value, is_again))

    def ack(self, delivery, values, rng=None):
        """The whole entry, or some messages of a batch."""
        target = {"ledgerId": delivery.id[0], "entryId": delivery.id[1]}
        if rng is not None and len(delivery.payloads) > 1 and rng.random() < 0.3:
            values = {place: value for place, value in values.items() if rng.random() < 0.5}
            bits = sum(1 << place for place in range(len(delivery.payloads)) if place not in values)
            signed = bits - (1 << 64) if bits >> 63 else bits
            target |= {"ack_set": [signed], "batch_size": len(delivery.payloads)}
        request = self.peer.request(
            "ack", consumer_id=self.consumer.id, ack_type="Individual", message_id=[target]
        )
        self.acks_open[request] = list(values.values())

    def drain(self):
        """Take and ack everything there is."""
        until = time.monotonic() + DRAIN_SECONDS_MAX
        while self.acks_open or self.backlog():
            for delivery in self.hear():
                values = self.left_of(delivery)
                self.take(values)
                self.ack(delivery, values)
                self.consumer.flow(len(delivery.payloads))
            assert time.monotonic() < until, f"{self.topic} is not drained: {self.backlog()} left"

    def backlog(self):
        return self.consumer.stats().msgBacklog


@pytest.mark.timeout(900)
def test_nothing_with_a_receipt_is_lost_in_twenty_kills(broker, connect, kills, rng):
    history, seen = [], []
    takers = [Taker(topic, history, seen) for topic in PARTITIONS]
    sent = acked = 0
    for life in range(kills):
        publishers = [
            Publisher(f"p{life}.{number}", topic, history, is_batching=is_batching)
            for number, (topic, is_batching) in enumerate(
                itertools.product(PARTITIONS, (False, True))
            )
        ]
        for each in (*publishers, *takers):
            each.begin(connect)
        work_until_killed(broker, (*publishers, *takers), rng)
        for each in publishers:
            each.give_up()
        sent += sum(each.next for each in publishers)
        acked = sum(len(each.acked) for each in takers)
        broker.start()
        for each in takers:
            each.begin(connect)
            each.drain()
            each.peer.close()
    report, order = total_queue(history), fifo(seen)
    print(report.sentence)
    assert report.is_valid, report.sentence
    assert not report.duplicated, report.sentence
    assert order.is_valid, order.sentence
    assert report.confirmed > sent // 10, "the load was real"
    assert acked > report.confirmed // 10, "acks had receipts while it ran"


@pytest.mark.timeout(900)
def test_what_is_sent_again_with_its_number_is_stored_once_across_kills(
    broker, connect, kills, rng
):
    deduplicate(broker)
    history = []
    publishers = [
        Publisher(f"till.{number}", topic, history, is_batching=is_batching)
        for number, (topic, is_batching) in enumerate(itertools.product(PARTITIONS, (False, True)))
    ]
    for each in publishers:
        assert each.begin(connect) == -1
    for _ in range(kills):
        work_until_killed(broker, publishers, rng)
        broker.start()
        stored = numbers_stored(connect)
        for each in publishers:
            last = each.begin(connect)
            assert last == stored[each.name][-1], each.name
            assert each.answered <= last < each.next, each.name
            each.send_again()
    stored = numbers_stored(connect)
    for each in publishers:
        assert stored[each.name] == list(range(each.next)), each.name
        each.peer.close()
    # Of two kills none may meet a SEND that is stored and not answered.
    assert kills < 20 or sum(each.duplicates for each in publishers)


def numbers_stored(connect):
    """Name of a publisher -> its numbers, as a reader sees them."""
    found = {}
    with connect() as peer:
        for topic in PARTITIONS:
            reader = peer.reader(topic)
            last = reader.last_id().last_message_id
            reader.flow(PERMITS)
            delivery = None
            while delivery is None or delivery.id != (last.ledgerId, last.entryId):
                delivery = reader.message()
                reader.flow(len(delivery.payloads))
                for payload in delivery.payloads:
                    name, _, number = payload.decode().rpartition(":")
                    found.setdefault(name, []).append(int(number))
            reader.close()
    return found


# ---- the real client, which lives on


@pytest.mark.timeout(900)
def test_the_real_client_comes_through_kills_with_everything_stored_once(tmp_path, kills, rng):
    library = pytest.importorskip("pulsar", reason="the wheel pulsar-client is not installed")
    (port,) = free_ports(1)
    with BrokerProcess(tmp_path / "data", flags=("--pulsar", str(port))) as broker:
        deduplicate(broker)
        topic = "persistent://public/default/lasting"
        clients = RealClients(library, f"pulsar://127.0.0.1:{port}", topic)
        try:
            clients.begin()
            for _ in range(kills):
                clients.wait_for_receipts(100)
                time.sleep(rng.uniform(0, 0.2))
                broker.kill()
                broker.start()
        finally:
            clients.finish()
    clients.check()
