"""How far a message travels through the code: calls, functions and files, for a reader of the code.

A real broker runs in a child process with real clients on sockets. Between two signals everything
its event loop calls is recorded; the figure is the least of several rounds, so that housekeeping
does not count. Needs pika (part of the tools for tests).

    .venv/bin/python benchmarks/journey.py                     this tree
    .venv/bin/python benchmarks/journey.py --src OTHER/src     another one, in the same way
    .venv/bin/python benchmarks/journey.py --list "AMQP publish"   the calls of one journey by file
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pika

from penstock.client import LitePullConsumer, Message, Producer

ROUNDS = 7
WARM_UP = 20
SETTLED_S = 0.25
"""After this a message's last turn and sync are over."""

CHILD = """
import json, os, signal, sys
calls = {}
def profile(frame, event, argument):
    if event == "call":
        code = frame.f_code
        at = code.co_filename.rpartition("/penstock/")[2] + "\\t" + code.co_qualname
        if "/penstock/" in code.co_filename:
            calls[at] = calls.get(at, 0) + 1
def begin(*_):
    calls.clear()
    sys.setprofile(profile)
def end(*_):
    sys.setprofile(None)
    with open(os.environ["JOURNEY"] + ".part", "w") as file:
        json.dump(calls, file)
    os.rename(os.environ["JOURNEY"] + ".part", os.environ["JOURNEY"])
signal.signal(signal.SIGUSR1, begin)
signal.signal(signal.SIGUSR2, end)
from penstock.cli.main import main
sys.argv = ["penstock", "up", *sys.argv[1:]]
main()
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class TracedBroker:
    """A broker in a child process that says what it called."""

    def __init__(self, source, directory):
        self.amqp, self.rocketmq, http = free_port(), free_port(), free_port()
        self._told = Path(directory, "calls.json")
        environment = {**os.environ, "PYTHONPATH": str(source), "JOURNEY": str(self._told)}
        flags = ["--data", f"{directory}/data", "--amqp", str(self.amqp)]
        flags += ["--rocketmq", str(self.rocketmq), "--http", str(http)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *flags],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.rocketmq)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)

    def traced(self, act):
        """The fewest calls of some rounds of ``act``, as {(file, function): calls}."""
        found = []
        for _ in range(ROUNDS):
            time.sleep(SETTLED_S)
            self._told.unlink(missing_ok=True)
            self.process.send_signal(signal.SIGUSR1)
            act()
            time.sleep(SETTLED_S)
            self.process.send_signal(signal.SIGUSR2)
            for _ in range(100):
                if self._told.exists():
                    break
                time.sleep(0.02)
            found.append(Counter(json.loads(self._told.read_text())))
        return min(found, key=lambda calls: calls.total())


def amqp_journeys(broker):
    parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp)
    publisher, reader = pika.BlockingConnection(parameters), pika.BlockingConnection(parameters)
    out = publisher.channel()
    out.confirm_delivery()
    durable = pika.BasicProperties(delivery_mode=2)
    for name in ("kept", "read"):
        out.queue_declare(name, durable=True)

    def publish(queue):
        out.basic_publish("", queue, b"x" * 128, durable)

    inward = reader.channel()
    inward.basic_qos(prefetch_count=100)
    arrived = inward.consume("read", inactivity_timeout=5)

    def through():
        publish("read")
        method, _, _ = next(arrived)
        inward.basic_ack(method.delivery_tag)
        reader.process_data_events(0)

    for _ in range(WARM_UP):
        publish("kept")
    yield "AMQP publish", broker.traced(lambda: publish("kept"))
    publish("read")
    for _ in range(WARM_UP):
        through()
    yield "AMQP publish, delivery, ack", broker.traced(through)
    publisher.close()
    reader.close()


def rocketmq_journeys(broker):
    name_server = f"127.0.0.1:{broker.rocketmq}"
    with Producer(name_server, "journey") as producer:

        def send():
            producer.send(Message("journey", b"x" * 128))

        for _ in range(WARM_UP):
            send()
        yield "RocketMQ send", broker.traced(send)
        with LitePullConsumer(name_server, "readers") as consumer:
            consumer.subscribe("journey")

            def through():
                send()
                while not consumer.poll(5):
                    pass

            for _ in range(WARM_UP):
                through()
            yield "RocketMQ send and pull", broker.traced(through)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--src", type=Path, default=Path(__file__).parents[1] / "src")
    options.add_argument("--list", metavar="JOURNEY", default="")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        broker = TracedBroker(asked.src.resolve(), directory)
        try:
            print(f"{'journey':30} {'calls':>6} {'functions':>10} {'files':>6}")
            for journeys in (amqp_journeys, rocketmq_journeys):
                for name, calls in journeys(broker):
                    files = {at.partition("\t")[0] for at in calls}
                    print(f"{name:30} {calls.total():6} {len(calls):10} {len(files):6}")
                    if name == asked.list:
                        for at, number in sorted(calls.items()):
                            print(f"    {number:4} {at}")
        finally:
            broker.process.send_signal(signal.SIGINT)
            broker.process.wait(30)


if __name__ == "__main__":
    main()
