"""T1 through publisher confirms: what pika was told is confirmed survives kill -9, in order."""

import random
import time

import pytest

from kit.checkers import Op, Outcome, Seen, fifo, total_queue
from penstock.testing.running import BrokerProcess

pika = pytest.importorskip("pika")
select_connection = pytest.importorskip("pika.adapters.select_connection")

QUEUES = ("kills.a", "kills.b")
SENDERS = 4
WINDOW = 200
TICK_S = 0.002
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Sender:
    """One connection with confirms; keeps publishes in flight and writes the history of each."""

    def __init__(self, name, address, queue, *, rng, history, loop):
        self.name = name
        self.queue = queue
        self.rng = rng
        self.history = history
        self.next = 1
        self.open = {}
        self.is_over = False
        self.channel = None
        self.loop = loop
        host, port = address
        self.connection = select_connection.SelectConnection(
            pika.ConnectionParameters(host, port, heartbeat=0),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.opened),
            on_open_error_callback=self.over,
            on_close_callback=self.over,
            custom_ioloop=loop,
        )

    def opened(self, channel):
        self.channel = channel
        channel.confirm_delivery(self.answered, callback=lambda _: self.work())

    def work(self):
        if self.is_over or not self.channel.is_open:
            return
        for _ in range(min(self.rng.randint(1, 50), WINDOW - len(self.open))):
            value = f"{self.name}:{self.next}"
            self.history.append(Op(self.name, "enqueue", value, Outcome.INVOKE))
            self.open[self.next] = value
            self.next += 1
            self.channel.basic_publish("", self.queue, value.encode(), PERSISTENT)
        self.loop.call_later(TICK_S, self.work)

    def answered(self, frame):
        method = frame.method
        outcome = Outcome.OK if method.NAME == "Basic.Ack" else Outcome.FAIL
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self.open if tag <= method.delivery_tag]
        for tag in tags:
            self.history.append(Op(self.name, "enqueue", self.open.pop(tag), outcome))

    def over(self, *_):
        """The broker is gone: what is not answered by now is unknown."""
        self.is_over = True
        for value in self.open.values():
            self.history.append(Op(self.name, "enqueue", value, Outcome.INFO))
        self.open.clear()


def load(broker, rng, life, history):
    """Publish from several connections until the broker is killed at a random moment."""
    loop = select_connection.IOLoop()
    loop.activate_poller()
    address = broker.address("amqp")
    senders = [
        Sender(f"p{life}.{n}", address, QUEUES[n % 2], rng=rng, history=history, loop=loop)
        for n in range(SENDERS)
    ]
    until = time.monotonic() + rng.uniform(0.1, 0.3)
    is_killed = False
    while not all(sender.is_over for sender in senders):
        loop.call_later(TICK_S, lambda: None)
        loop.poll()
        loop.process_timeouts()
        if not is_killed and time.monotonic() > until:
            is_killed = True
            broker.kill()
        assert time.monotonic() < until + 30, "pika did not notice that the broker is gone"
    loop.deactivate_poller()
    loop.close()
    return sum(sender.next - 1 for sender in senders)


def drain(broker, history, seen):
    """Take and acknowledge everything there is."""
    host, port = broker.address("amqp")
    with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=500)
        for queue in QUEUES:
            left = channel.queue_declare(queue, passive=True).method.message_count
            if not left:
                continue
            for method, _, body in channel.consume(queue, inactivity_timeout=10):
                assert method is not None, f"{left} messages of {queue} were not delivered"
                value = body.decode()
                is_again = method.redelivered
                history.append(Op("reader", "dequeue", value, Outcome.OK, is_redelivered=is_again))
                seen.append(Seen(queue, value, is_again))
                left -= 1
                if not left:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                    break
                if method.delivery_tag % 100 == 0:
                    channel.basic_ack(method.delivery_tag, multiple=True)
            channel.cancel()


@pytest.mark.timeout(900)
def test_nothing_that_was_confirmed_to_pika_is_lost_in_twenty_kills(tmp_path, is_long, chosen_seed):
    seed = chosen_seed if chosen_seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    history, seen = [], []
    sent = 0
    with BrokerProcess(tmp_path / "data") as broker:
        host, port = broker.address("amqp")
        with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
            for queue in QUEUES:
                connection.channel().queue_declare(queue, durable=True)
        for life in range(200 if is_long else 20):
            sent += load(broker, rng, life, history)
            broker.start()
            drain(broker, history, seen)
    report, order = total_queue(history), fifo(seen)
    print(report.sentence)
    assert report.is_valid, f"seed {seed}: {report.sentence}"
    assert order.is_valid, f"seed {seed}: {order.sentence}"
    assert not report.duplicated, f"seed {seed}: {report.sentence}"
    assert report.confirmed > sent // 10, "the load was real"
