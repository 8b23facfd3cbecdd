"""Connections that are cut, brokers and consumers that are killed, all under load."""

import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from kit.pulsar_peer import PulsarRest
from kit.rocketmq.clusters import free_ports
from penstock.client.pulsar import (
    Batching,
    Client,
    InitialPosition,
    NothingReceived,
    SubscriptionType,
)
from penstock.testing.running import eventually, running_broker

WAIT_MS = 20_000
POLL_MS = 200
STALL_MS = 2_000
"""So long an Apache that has more to send may take, before the test looks at why."""
CUTS = 20
KILLS = 3
MESSAGES = 1_500
FAST = {"backoff_initial_ms": 20, "backoff_max_ms": 200}
EARLIEST = {"initial_position": InitialPosition.EARLIEST}


@contextmanager
def publishing(client, topic, count, *, pause_s=0.0, **options):
    """Somebody publishes so many numbers meanwhile; all of them are stored when it is left."""
    failed = []

    def run():
        try:
            with client.create_producer(topic, send_timeout_ms=0, **options) as producer:
                for number in range(count):
                    producer.send_callback(b"%d" % number, lambda _: None, key=f"k{number % 7}")
                    if pause_s and number % 10 == 0:
                        time.sleep(pause_s)
                producer.flush()
        except Exception as problem:
            failed.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert failed == []


def came_back(consumer, times):
    return lambda: consumer.statistics().reconnects == times


def drain(consumer, wait_ms=POLL_MS):
    """What comes again because its ack was lost."""
    try:
        while True:
            consumer.acknowledge(consumer.receive(wait_ms))
    except NothingReceived:
        pass


class Backlog:
    """What the broker still has to deliver to the subscription ``s``, or to hear an ack of."""

    def __init__(self, pulsar, topic):
        self._rest = pulsar.rest
        self._path = topic.replace("://", "/")
        self._before = None

    def _stats(self):
        return json.loads(self._rest.get(f"{self._path}/stats").text)["subscriptions"]["s"]

    def __len__(self):
        return self._stats()["msgBacklog"]

    def begin_anew(self, consumer):
        """Apache's dispatcher forgets what it was about; the time before must have been of use."""
        consumer.flush_acks()
        before, self._before = self._before, len(self)
        assert before is None or self._before < before, "it does not go on, with nothing in the way"
        times = consumer.statistics().reconnects
        self._rest.done("PUT", f"{self._path}/unload")
        eventually(came_back(consumer, times + 1), what="came back")

    def is_late_copies(self):
        """Whether all of it is what an Apache's shared subscription never delivers to anybody.

        All chunks of a message go to the consumer that was given the first one, and with the last
        one the dispatcher forgets who that was. A copy of a later chunk that comes then (its
        receipt was lost with the producer's connection) waits to be sent again for all times. What
        a consumer was given and did not ack is none of it, nor is the beginning of a message.
        """
        stats = self._stats()
        left = stats["msgBacklog"]
        if stats["msgInReplay"] != left or any(c["unackedMessages"] for c in stats["consumers"]):
            return False
        at = f"{self._path}/subscription/s/position"
        found = [self._rest.get(f"{at}/{number}").headers for number in range(1, left + 1)]
        return all(int(each["x-pulsar-chunk-id"]) > 0 for each in found)


class Receiver:
    """Receives, acks and remembers: what came, and of which the broker knows that it is done.

    Of an ack without a receipt nobody knows whether it got there before the connection broke, and
    a broker that keeps no acks of single messages (Pulsar's default) knows of whole batches only.
    So these come again, with Pulsar's own clients, too. A batch that was received and acked on one
    connection, and then a receipt came on it, must not.
    """

    def __init__(self, consumer):
        self.consumer = consumer
        self.seen = set()
        self.highest = -1
        self._left = {}
        """By connection and entry: messages that are not acked."""
        self._done = set()

    def receive(self, wait_ms=WAIT_MS, *, is_in_order=False):
        message = self.consumer.receive(wait_ms)
        number, message_id = int(message.data), message.message_id
        assert message_id.entry not in self._done, f"{number} was acked with a receipt"
        assert not is_in_order or number <= self.highest + 1
        self.highest = max(self.highest, number)
        self.seen.add(number)
        self.consumer.acknowledge(message)
        place = message.epoch, message_id.entry
        left = self._left.setdefault(place, set(range(max(1, message_id.batch_size))))
        left.discard(max(0, message_id.batch_index))

    def flush(self):
        (part,) = self.consumer._parts.values()
        self.consumer.flush_acks()
        # Acks of an earlier connection may have been lost with it, before this receipt.
        done = {
            entry for (epoch, entry), left in self._left.items() if not left and epoch == part.epoch
        }
        self._done |= done


@pytest.mark.parametrize("kind", ["EXCLUSIVE", "SHARED"])
def test_20_cut_connections_lose_nothing_and_an_exclusive_consumer_never_skips(pulsar, kind):
    topic = pulsar.topic()
    client = pulsar.client(**FAST)
    consumer = client.subscribe(
        topic, "s", subscription_type=SubscriptionType[kind], receiver_queue_size=50, **EARLIEST
    )
    receiver, cuts = Receiver(consumer), 0
    with publishing(pulsar.client(), topic, MESSAGES, batching_max_messages=7):
        while len(receiver.seen) < MESSAGES:
            receiver.receive(is_in_order=kind == "EXCLUSIVE")
            if cuts < CUTS and len(receiver.seen) >= cuts * MESSAGES // (CUTS + 2):
                eventually(came_back(consumer, cuts), what="came back")
                if cuts % 2:
                    receiver.flush()
                pulsar.cut(client)
                cuts += 1
    eventually(came_back(consumer, CUTS), what="came back")
    drain(consumer)
    consumer.flush_acks()
    consumer.close()
    consumer = client.subscribe(topic, "s", subscription_type=SubscriptionType[kind])
    with pytest.raises(NothingReceived):
        consumer.receive(POLL_MS)


@pytest.mark.parametrize("kind", ["EXCLUSIVE", "SHARED"])
def test_of_messages_in_chunks_cuts_at_both_ends_leave_nothing_behind(pulsar, kind):
    topic, count = pulsar.topic(), 40
    client, other = pulsar.client(**FAST), pulsar.client(**FAST)
    options = {"subscription_type": SubscriptionType[kind]}
    consumer = client.subscribe(topic, "s", **options, **EARLIEST)
    chunks = {"chunking_enabled": True, "batching_enabled": False, "chunk_bytes_max": 1_000}
    seen = set()
    producer = other.create_producer(topic, send_timeout_ms=0, **chunks)
    cuts = 0
    for number in range(count):
        producer.send_callback(b"%04d" % number * 1_000)
        if number % 4 == 3:
            pulsar.cut(other)
            cuts += 1
            pulsar.comes_back(producer, cuts)
        if number % 10 == 5:
            pulsar.cut(client)
    producer.flush()
    assert cuts == count // 4
    backlog = Backlog(pulsar, topic)
    is_apache_shared = pulsar.is_real and kind == "SHARED"
    while len(seen) < count:
        try:
            message = consumer.receive(STALL_MS if is_apache_shared else WAIT_MS)
        except NothingReceived:
            # Behind a copy that it cannot deliver it stops, with permits and more to read. And what
            # it gave to a consumer whose connection is gone it may never give to another.
            if not is_apache_shared:
                raise
            backlog.begin_anew(consumer)
            continue
        assert message.data == message.data[:4] * 1_000
        seen.add(int(message.data[:4]))
        consumer.acknowledge(message)
    drain(consumer)
    consumer.flush_acks()
    if is_apache_shared:
        while not backlog.is_late_copies():
            backlog.begin_anew(consumer)
            drain(consumer, STALL_MS)
            consumer.flush_acks()
    else:
        # Chunks that were stored twice and belong to no message are acked, too.
        eventually(lambda: len(backlog) == 0, what="everything is acked")
    consumer.close()
    with client.subscribe(topic, "s", **options) as again, pytest.raises(NothingReceived):
        again.receive(POLL_MS)


def test_3_kills_of_the_broker_lose_nothing_and_with_dedup_nothing_is_stored_twice(penstock_only):
    port, http = free_ports(2)
    with running_broker("--pulsar", str(port), "--pulsar-http", str(http)) as broker:
        url = f"pulsar://127.0.0.1:{port}"
        rest = PulsarRest(f"http://127.0.0.1:{http}")
        rest.done("PUT", "namespaces/public/kills", {})
        rest.done("POST", "namespaces/public/kills/deduplication", True)
        topic = "persistent://public/kills/t"
        places: dict[int, set[tuple[int, int, int]]] = {}
        kills = 0
        with Client(url, **FAST) as client, Client(url, **FAST) as other:
            consumer = client.subscribe(
                topic, "s", subscription_type=SubscriptionType.SHARED, **EARLIEST
            )
            options = {"producer_name": "p", "pause_s": 0.01, "batching_max_messages": 5}
            with publishing(other, topic, MESSAGES, **options):
                while len(places) < MESSAGES:
                    message = consumer.receive(WAIT_MS)
                    found = places.setdefault(int(message.data), set())
                    found.add(message.message_id.position)
                    consumer.acknowledge(message)
                    if kills < KILLS and len(places) >= (kills + 1) * MESSAGES // 5:
                        kills += 1
                        broker.kill()
                        broker.start()
                        # Or it takes the next two hundred from its queue, and misses a kill.
                        eventually(lambda: consumer.is_connected, what="came back")
            assert kills == KILLS
            assert set(places) == set(range(MESSAGES))
            assert all(len(each) == 1 for each in places.values()), "stored twice"
            assert consumer.statistics().reconnects >= KILLS


# ---- two processes ------------------------------------------------------------------------------


class Worker:
    """A consumer in another process, and what it has said so far."""

    def __init__(self, url, topic, kind, name):
        command = (sys.executable, "-m", "kit.client.pulsar_worker", url, topic, "s", kind, name)
        self.name = name
        self.lines = []
        self.killed_at = None
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": ":".join(sys.path)}
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.split())

    def kill(self):
        if self.killed_at is None:
            self.killed_at = time.monotonic()
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        self.process.stdout.close()

    def spans(self):
        """(key, from when, until when) of each message; what it had at its death ended then."""
        found, begun = [], None
        for word, *rest in self.lines:
            if word == "begin":
                begun = rest
            elif word == "end":
                found.append((begun[1], float(begun[0]), float(rest[0])))
                begun = None
        if begun is not None and len(begun) == 3:
            found.append((begun[1], float(begun[0]), self.killed_at))
        return found

    def bodies(self):
        return {line[3] for line in self.lines if line[0] == "begin" and len(line) == 4}


@pytest.mark.parametrize("kind", ["FAILOVER", "KEY_SHARED"])
def test_of_two_processes_one_is_killed_and_no_key_is_in_two_hands(pulsar, kind):
    topic, client, count = pulsar.topic(), pulsar.client(), 300
    client.subscribe(topic, "s", subscription_type=SubscriptionType[kind]).close()
    workers = [Worker(pulsar.url, topic, kind, name) for name in ("a", "b")]
    try:
        eventually(lambda: all(each.lines for each in workers), what="both have subscribed")
        with publishing(client, topic, count, pause_s=0.01, batching_type=Batching.KEY):
            eventually(lambda: sum(len(each.lines) for each in workers) > count // 2, what="half")
            busy = max(workers, key=lambda each: len(each.lines))
            busy.kill()
        wanted = {str(number) for number in range(count)}
        eventually(lambda: workers[0].bodies() | workers[1].bodies() == wanted, what="all of them")
    finally:
        for each in workers:
            each.kill()
    assert all(each.bodies() for each in workers) or kind == "FAILOVER"
    for key, begun, ended in workers[0].spans():
        for other, from_when, until_when in workers[1].spans():
            is_same = kind == "FAILOVER" or key == other
            assert not (is_same and begun < until_when and from_when < ended), (key, begun)
