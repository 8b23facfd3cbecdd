"""T1: kill -9 under load. Nothing confirmed is lost, nothing is invented, order holds."""

import random
import select
import time

import pytest

from kit.checkers import Op, Outcome, Seen, fifo, total_queue
from kit.line_broker import LINE_BROKER
from kit.line_protocol import LineClient
from penstock.testing.running import BrokerProcess

TOPICS = ("orders", "events")
WINDOW = 200
"""Unconfirmed publishes of one publisher."""
LIST_MAX = 20
DRAIN_SECONDS_MAX = 20


class Publisher:
    """Publishes as fast as confirms come back and writes the history."""

    def __init__(self, name, address, topic, history):
        self.name = name
        self.topic = topic
        self.client = LineClient(*address)
        self.history = history
        self.next = 0
        self.open = {}

    def value(self, number):
        return f"{self.name}:{number}"

    def work(self, rng):
        self.hear()
        count = min(rng.randint(1, LIST_MAX), WINDOW - len(self.open))
        if self.client.unsent_bytes or count <= 0:
            self.client.flush()
            return
        lines = []
        for number in range(self.next, self.next + count):
            value = self.value(number)
            self.open[str(number)] = value
            self.history.append(Op(self.name, "enqueue", value, Outcome.INVOKE))
            lines.append(f"PUB {self.topic} {number} {value}")
        self.next += count
        self.client.say(*lines)

    def hear(self):
        for words in self.client.hear():
            if words[0] == "CONFIRM":
                self.history.append(Op(self.name, "enqueue", self.open.pop(words[1]), Outcome.OK))
            elif words[0] == "REFUSED":
                self.history.append(Op(self.name, "enqueue", self.open.pop(words[1]), Outcome.FAIL))
            elif words[0] == "ERROR":
                raise AssertionError(" ".join(words))

    def over(self):
        """The broker is gone: what is not answered is unknown."""
        self.hear()
        for value in self.open.values():
            self.history.append(Op(self.name, "enqueue", value, Outcome.INFO))
        self.client.close()


class Drainer:
    """Consumes both topics, acknowledges, and remembers the order."""

    def __init__(self, address, history, seen):
        self.client = LineClient(*address)
        self.history = history
        self.seen = seen
        self.values = set()
        for topic in TOPICS:
            self.client.ask(f"SUB {topic} drain 500", "SUB", topic, "drain")

    def hear(self):
        acks = {}
        for words in self.client.hear():
            if words[0] != "MSG":
                continue
            _, topic, _, queue, offset, redelivered, value = words
            is_redelivered = redelivered == "1"
            self.values.add(value)
            self.history.append(
                Op("drain", "dequeue", value, Outcome.OK, is_redelivered=is_redelivered)
            )
            self.seen.append(Seen(f"{topic}/{queue}", value, is_redelivered))
            acks.setdefault((topic, queue), []).append(offset)
        self.client.say(
            *[f"ACK {t} drain {q} {' '.join(offsets)}" for (t, q), offsets in acks.items()]
        )

    def drain(self, mark):
        """Read until the marks published last have arrived in every topic."""
        wanted = {f"{topic}-{mark}:0" for topic in TOPICS}
        until = time.monotonic() + DRAIN_SECONDS_MAX
        while not wanted <= self.values:
            assert time.monotonic() < until, f"{wanted - self.values} never came"
            assert not self.client.is_over, "the broker hung up while it was drained"
            select.select([self.client], [], [], 0.1)
            self.hear()


def publish_marks(address, mark, history):
    client = LineClient(*address)
    for topic in TOPICS:
        value = f"{topic}-{mark}:0"
        history.append(Op("marks", "enqueue", value, Outcome.INVOKE))
        client.ask(f"PUB {topic} 1 {value}", "CONFIRM", "1")
        history.append(Op("marks", "enqueue", value, Outcome.OK))
    client.close()


def load(broker, rng, life, history, seen):
    """Publish and consume until the broker is killed at a random moment."""
    address = broker.address("line")
    publishers = [
        Publisher(f"p{life}.{n}", address, TOPICS[n % len(TOPICS)], history)
        for n in range(rng.randint(4, 8))
    ]
    drainer = Drainer(address, history, seen) if rng.random() < 0.7 else None
    until = time.monotonic() + rng.uniform(0.1, 0.6)
    while time.monotonic() < until:
        for publisher in publishers:
            publisher.work(rng)
        if drainer is not None:
            drainer.hear()
    broker.kill()
    for publisher in publishers:
        publisher.over()
    if drainer is not None:
        drainer.hear()
        drainer.client.close()
    return sum(publisher.next for publisher in publishers)


@pytest.mark.timeout(3600)
def test_nothing_confirmed_is_lost_and_nothing_invented_when_the_broker_is_killed(
    tmp_path, is_long, chosen_seed
):
    kills = 200 if is_long else 20
    seed = chosen_seed if chosen_seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    history, seen = [], []
    published = 0
    with BrokerProcess(tmp_path / "data", command=LINE_BROKER) as broker:
        client = LineClient(*broker.address("line"))
        for topic in TOPICS:
            client.ask(f"TOPIC {topic}", "TOPIC", topic)
            client.ask(f"SUB {topic} drain 1", "SUB", topic, "drain")
        client.close()
        for life in range(kills):
            published += load(broker, rng, life, history, seen)
            broker.start()
            publish_marks(broker.address("line"), life, history)
            drainer = Drainer(broker.address("line"), history, seen)
            drainer.drain(life)
            drainer.client.close()
    report = total_queue(history)
    order = fifo(seen)
    print(report.sentence)
    assert report.is_valid, f"seed {seed}: {report.sentence}"
    assert order.is_valid, f"seed {seed}: {order.sentence}"
    assert not report.duplicated, f"seed {seed}: {report.sentence}"
    assert report.confirmed > published // 10, "the load was real"
