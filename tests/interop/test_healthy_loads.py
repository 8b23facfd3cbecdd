"""Five healthy loads on a broker as it comes: the answer is ``ok`` in every look.

Ten seconds each, a minute with ``--long``. That the looks could have found something is shown at
the end, on the same broker and with the same load: its reader stops, and is found within ten
seconds; it goes on, and all is well again. A queue that nobody reads lies beside them.
"""

import contextlib
import threading
import time

import pika
import pytest

from penstock.cli.http_client import address, send
from penstock.testing.running import eventually, running_broker

LOOK_S = 0.5
TICK_S = 0.05
FOUND_S_MAX = 10
OK_S_MAX = 5
SLACK_S = 5
"""What a machine that is busy with other tests may take longer."""


@pytest.fixture(scope="module")
def broker():
    with running_broker() as started:
        with opened(started) as channel:
            channel.queue_declare("audit", durable=True)
            for _ in range(500):
                channel.basic_publish("", "audit", b"nobody reads this")
        yield started


@contextlib.contextmanager
def opened(broker):
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def page(broker):
    status, found = send("GET", "/api/flow", at=address(broker.data, ""))
    assert status == 200
    return found


class Load:
    """Publishers and readers on threads of their own, until it is over."""

    def __init__(self, broker):
        self.broker = broker
        self.published = self.consumed = 0
        self.is_reading = True
        self._over = threading.Event()
        self._threads = []
        self._failures = []
        self._queues = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join(20)
        # What is left in them when their reader goes would rightly be found beside the next load.
        with opened(self.broker) as channel:
            for name in self._queues:
                channel.queue_delete(name)
        assert not self._failures, self._failures

    def _start(self, work, *arguments):
        def run():
            try:
                with opened(self.broker) as channel:
                    work(channel, *arguments)
            except Exception as problem:
                self._failures.append(problem)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def queue(self, name):
        with opened(self.broker) as channel:
            channel.queue_declare(name, durable=True)
        self._queues.append(name)
        return name

    def publish(self, amount, key, exchange=""):
        """``amount(tick)`` messages every twentieth of a second."""

        def work(channel):
            tick = 0
            while not self._over.wait(TICK_S):
                for _ in range(amount(tick)):
                    channel.basic_publish(exchange, key, b"x" * 100)
                    self.published += 1
                channel.connection.process_data_events(0)
                tick += 1

        self._start(work)

    def read(self, queue, per_tick=1_000, prefetch=50):
        def work(channel):
            waiting = []
            channel.basic_qos(prefetch_count=prefetch)
            channel.basic_consume(queue, lambda _c, method, _p, _b: waiting.append(method))
            while not self._over.is_set():
                channel.connection.process_data_events(TICK_S)
                for method in waiting[:per_tick] if self.is_reading else []:
                    channel.basic_ack(method.delivery_tag)
                    waiting.remove(method)
                    self.consumed += 1

        self._start(work)


def idle(load):
    load.read(load.queue("idle"))


def steady(load):
    name = load.queue("steady")
    load.read(name)
    load.publish(lambda _tick: 10, name)


def bursty(load):
    name = load.queue("bursty")
    load.read(name, per_tick=30)
    load.publish(lambda tick: 400 if tick % 60 == 0 else 0, name)


def fan_out(load):
    with opened(load.broker) as channel:
        channel.exchange_declare("news", "fanout")
    for number in range(12):
        name = load.queue(f"reader-{number}")
        with opened(load.broker) as channel:
            channel.queue_bind(name, "news")
        load.read(name)
    load.publish(lambda _tick: 2, "", "news")


def drained(load):
    name = load.queue("backlog")
    with opened(load.broker) as channel:
        for _ in range(6_000):
            channel.basic_publish("", name, b"x" * 100)
    load.read(name, per_tick=20, prefetch=20)
    load.publish(lambda _tick: 2, name)


@pytest.mark.parametrize("healthy", [idle, steady, bursty, fan_out, drained])
def test_a_healthy_load_is_ok_in_every_look(broker, healthy, is_long):
    seconds = 60 if is_long else 10
    with Load(broker) as load:
        healthy(load)
        # Six thousand at once may hold who publishes them, for a moment: that is before it begins.
        eventually(lambda: page(broker)["answer"]["severity"] == "ok")
        until = time.monotonic() + seconds
        looks = []
        while time.monotonic() < until:
            found = page(broker)
            looks.append(found["answer"])
            time.sleep(LOOK_S)
    parked = [each["culprit_id"] for each in found["findings"] if each["severity"] == "parked"]
    assert "sub/audit/amqp" in parked, "it is seen, and is no answer"
    wrong = [each["sentence"] for each in looks if each["severity"] != "ok"]
    assert wrong == []
    assert len(looks) >= seconds / 2
    assert healthy is idle or load.consumed > 100, "it was no load at all"


def test_the_same_load_is_found_when_its_reader_stops_and_is_ok_when_it_goes_on(broker):
    with Load(broker) as load:
        steady(load)
        eventually(lambda: load.consumed > 50)
        eventually(lambda: page(broker)["answer"]["severity"] == "ok")
        load.is_reading = False
        eventually(
            lambda: page(broker)["answer"]["cause"] == "slow-consumer", FOUND_S_MAX + SLACK_S
        )
        load.is_reading = True
        eventually(lambda: page(broker)["answer"]["severity"] == "ok", OK_S_MAX + SLACK_S)
