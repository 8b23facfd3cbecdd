"""Connections that are cut, brokers and consumers that are killed, all under load."""

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


@pytest.mark.parametrize("kind", ["EXCLUSIVE", "SHARED"])
def test_20_cut_connections_lose_nothing_and_an_exclusive_consumer_never_skips(pulsar, kind):
    topic = pulsar.topic()
    client = pulsar.client(**FAST)
    consumer = client.subscribe(
        topic, "s", subscription_type=SubscriptionType[kind], receiver_queue_size=50, **EARLIEST
    )
    seen, highest, cuts = set(), -1, 0
    with publishing(pulsar.client(), topic, MESSAGES, batching_max_messages=7):
        while len(seen) < MESSAGES:
            message = consumer.receive(WAIT_MS)
            number = int(message.data)
            if kind == "EXCLUSIVE":
                assert number <= highest + 1
            highest = max(highest, number)
            seen.add(number)
            consumer.acknowledge(message)
            if cuts < CUTS and len(seen) >= cuts * MESSAGES // (CUTS + 2):
                eventually(came_back(consumer, cuts), what="came back")
                pulsar.cut(client)
                cuts += 1
    eventually(came_back(consumer, CUTS), what="came back")
    consumer.flush_acks()
    consumer.close()
    consumer = client.subscribe(topic, "s", subscription_type=SubscriptionType[kind])
    with pytest.raises(NothingReceived):
        consumer.receive(200)


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
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": ":".join(sys.path)}
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.split())

    def kill(self):
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        self.process.stdout.close()

    def spans(self):
        """(key, from when, until when) of each message; one at its death has no end."""
        found, begun = [], None
        for word, *rest in self.lines:
            if word == "begin":
                begun = rest
            elif word == "end":
                found.append((begun[1], float(begun[0]), float(rest[0])))
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
