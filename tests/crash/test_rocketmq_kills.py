"""T1 through SEND_OK: what RocketMQ clients were told is stored survives kill -9, in order."""

import random
import select
import time

import pytest

from kit.checkers import Op, Outcome, Seen, fifo, total_queue
from penstock.cli.remoting import RemotingClient
from penstock.testing.running import BrokerProcess
from penstock.wire.rocketmq.codes import RequestCode

TOPIC = "kills"
GROUP = "kill-readers"
QUEUES = 4
WINDOW = 64


class Sender:
    """Keeps sends in flight and writes the history of each."""

    def __init__(self, name, address, queue, history):
        self.name = name
        self.client = RemotingClient(*address)
        self.queue = queue
        self.history = history
        self.next = 0
        self.open = {}

    def work(self, rng):
        for _ in range(min(rng.randint(1, 20), WINDOW - len(self.open))):
            value = f"{self.name}:{self.next}"
            self.next += 1
            self.history.append(Op(self.name, "enqueue", value, Outcome.INVOKE))
            opaque = self.client.start_send(TOPIC, value.encode(), queue_id=self.queue)
            self.open[opaque] = value
        self.hear()

    def hear(self):
        for opaque, answer in self.client.take_answers(list(self.open)).items():
            outcome = Outcome.OK if answer.is_ok else Outcome.FAIL
            self.history.append(Op(self.name, "enqueue", self.open.pop(opaque), outcome))

    def over(self):
        """The broker is gone: what is not answered by now is unknown."""
        self.hear()
        for value in self.open.values():
            self.history.append(Op(self.name, "enqueue", value, Outcome.INFO))
        self.client.close()


def load(broker, rng, life, history):
    """Send from several connections until the broker is killed at a random moment."""
    address = broker.address("rocketmq_broker")
    senders = [Sender(f"p{life}.{n}", address, n % QUEUES, history) for n in range(4)]
    until = time.monotonic() + rng.uniform(0.05, 0.25)
    while time.monotonic() < until:
        for sender in senders:
            sender.work(rng)
        select.select([each.client for each in senders], [], [], 0.002)
    broker.kill()
    for sender in senders:
        sender.over()
    return sum(sender.next for sender in senders)


class Reader:
    """Pulls on from where it was, and commits what it has read."""

    def __init__(self, history, seen):
        self.history = history
        self.seen = seen
        self.offsets = [0] * QUEUES

    def drain(self, address):
        client = RemotingClient(*address)
        for queue in range(QUEUES):
            place = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue)}
            self.check_stored(client, queue, place)
            while (answer := self.pull(client, queue)).is_ok:
                for message in answer.messages:
                    value = message.body.decode()
                    self.history.append(Op("reader", "dequeue", value, Outcome.OK))
                    self.seen.append(Seen(f"{TOPIC}/{queue}", value, False))
                self.offsets[queue] = answer.number("nextBeginOffset")
            commit = {**place, "commitOffset": str(self.offsets[queue])}
            assert client.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit).is_ok
        client.close()

    def pull(self, client, queue):
        return client.pull(TOPIC, queue, self.offsets[queue], consumer_group=GROUP)

    def check_stored(self, client, queue, place):
        """An offset may be lost with the last moments, but never point beyond what was read."""
        answer = client.request(RequestCode.QUERY_CONSUMER_OFFSET, place)
        if answer.is_ok:
            assert answer.number("offset") <= self.offsets[queue]


@pytest.mark.timeout(900)
def test_nothing_that_was_answered_send_ok_is_lost_in_twenty_kills(tmp_path, is_long, chosen_seed):
    seed = chosen_seed if chosen_seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    history, seen = [], []
    reader = Reader(history, seen)
    sent = 0
    with BrokerProcess(tmp_path / "data") as broker:
        client = RemotingClient(*broker.address("rocketmq_broker"))
        client.create_topic(TOPIC, QUEUES)
        client.close()
        for life in range(200 if is_long else 20):
            sent += load(broker, rng, life, history)
            broker.start()
            reader.drain(broker.address("rocketmq_broker"))
    report, order = total_queue(history), fifo(seen)
    print(report.sentence)
    assert report.is_valid, f"seed {seed}: {report.sentence}"
    assert order.is_valid, f"seed {seed}: {order.sentence}"
    assert not report.duplicated, f"seed {seed}: {report.sentence}"
    assert report.confirmed > sent // 10, "the load was real"
