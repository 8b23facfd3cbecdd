"""What it costs to be looked at: largest piece of the loop, idle CPU, and every page's price.

``.venv/bin/python benchmarks/macro/observe.py [--case NAME]... [--json]``

A broker of this tree runs in a process of its own, on asyncio's plain loop, whose every callback is
timed by the CPU of its thread: the machine's other work does not count. The largest one is the
*largest piece*: nothing else of the broker happens meanwhile. For each case: what an idle broker
uses and its largest piece; then every page three times,
and of these the one with the largest piece; then what the case ends with.

==============  ====================================================================================
queues          10,000 queues of AMQP, hence 10,000 subscriptions, all empty, nobody connected
ready           the same with a message in each that nobody consumes: each has something to tell
subscriptions   10 topics of Pulsar with 1,000 subscriptions each and a message that none has read
connections     5,000 connections with a channel each that do nothing
held            the same with a publish each that an alarm holds; at last the alarm ends
consumers       5,000 consumers of one queue, on as many connections, with a message each and more
                that wait: none of them acks
wide            10 topics of Pulsar with 1,000 partitions each (queues of ours), a subscription of
                each that nobody reads, and a message in every one
==============  ====================================================================================
"""

import argparse
import asyncio
import base64
import json
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from penstock.client.pulsar import Client
from penstock.server.lifecycle import Broker, settle_heap
from penstock.settings.load import load_settings, variable_name

QUEUES = 10_000
TOPICS = 10
SUBSCRIPTIONS = 1_000
"""Of each topic."""
CONNECTIONS = 5_000
PARTITIONS = 1_000
"""Of each topic of ``wide``."""
IDLE_S = 20.0
SETTLE_S = 40.0
"""Until what is new has been sampled as moving, and as standing still."""
ALARM_S = 5.0
PAUSE_S = 3.0
"""Before each page: what is kept of the one before is old by then."""
START_S_MAX = 60.0
PAGES = {
    "/metrics": False,
    "/metrics?all": False,
    "/metrics?compat=rabbitmq": False,
    "/api/flow": False,
    "/api/overview": True,
    "/api/queues?page=1&page_size=100": True,
    "/api/connections?page=1&page_size=100": True,
    "/api/topics": False,
}
"""Path -> whether it wants a password."""


# ---- the broker, in the child --------------------------------------------------------------------


class Pieces:
    """CPU of every callback of a loop: the largest, and all together."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.largest_ms = 0.0
        self.largest = ""
        self.began = time.monotonic(), time.thread_time()

    def watch(self):
        run = asyncio.Handle._run
        clock = time.thread_time

        def timed(handle):
            began = clock()
            callback = handle._callback
            run(handle)
            took_ms = (clock() - began) * 1000
            if took_ms > self.largest_ms:
                self.largest_ms, self.largest = took_ms, repr(callback)[:80]

        asyncio.Handle._run = timed

    def report(self):
        wall_s = time.monotonic() - self.began[0]
        cpu_s = time.thread_time() - self.began[1]
        return {
            "largest_ms": round(self.largest_ms, 2),
            "largest": self.largest,
            "cpu_ms": round(cpu_s * 1000, 1),
            "percent": round(100 * cpu_s / wall_s, 2),
        }


async def serve(data):
    """A broker that answers a line with its report, and begins anew."""
    given = {
        "broker.data": data,
        "listeners.http": 0,
        "listeners.amqp": 0,
        "listeners.rocketmq": 0,
        "listeners.rocketmq_broker": 0,
        "listeners.pulsar": 0,
        "listeners.pulsar_http": 0,
        "listeners.flight": "off",
        "listeners.connections_per_address_max": 10_000,
    }
    environ = {variable_name(key): str(value) for key, value in given.items()}
    broker = Broker(load_settings(environ=environ))
    await broker.start()
    settle_heap()
    pieces, loop = Pieces(), asyncio.get_running_loop()
    pieces.watch()
    print(json.dumps(broker.endpoints), flush=True)

    def asked():
        if not sys.stdin.readline():
            broker.request_stop()
            return
        print(json.dumps(pieces.report()), flush=True)
        loop.call_soon(pieces.reset)

    loop.add_reader(sys.stdin, asked)
    loop.add_signal_handler(signal.SIGTERM, broker.request_stop)
    await broker.wait()
    await broker.stop()


class Child:
    """The broker's process, from outside."""

    def __init__(self, place):
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.endpoints = json.loads(self._process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(START_S_MAX)

    def report(self):
        """Since the last one."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def get(self, path, *, with_password=False, method="GET", body=None, listener="http"):
        request = urllib.request.Request(
            f"http://{self.endpoints[listener]}{path}", body, method=method
        )
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if with_password:
            given = base64.b64encode(b"guest:guest").decode()
            request.add_header("Authorization", f"Basic {given}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()


# ---- what there is to be seen --------------------------------------------------------------------


def method(channel, class_id, method_id, arguments=b""):
    payload = struct.pack(">HH", class_id, method_id) + arguments
    return struct.pack(">BHL", 1, channel, len(payload)) + payload + b"\xce"


def short(text):
    return bytes([len(text)]) + text.encode()


HELLO = (
    b"AMQP\x00\x00\x09\x01"
    + method(0, 10, 11, struct.pack(">L", 0) + short("PLAIN") + struct.pack(">L", 12)
             + b"\x00guest\x00guest" + short("en_US"))
    + method(0, 10, 31, struct.pack(">HLH", 2047, 131072, 0))
    + method(0, 10, 40, short("/") + short("") + b"\x00")
    + method(1, 20, 10, short(""))
)  # fmt: skip
OPENED = struct.pack(">HH", 20, 11)


def publish(queue, body=b"x"):
    content = struct.pack(">HHQH", 60, 0, len(body), 0)
    return (
        method(1, 60, 40, struct.pack(">H", 0) + short("") + short(queue) + b"\x00")
        + struct.pack(">BHL", 2, 1, len(content)) + content + b"\xce"
        + struct.pack(">BHL", 3, 1, len(body)) + body + b"\xce"
    )  # fmt: skip


def connected(child):
    host, _, port = child.endpoints["amqp"].rpartition(":")
    peer = socket.create_connection((host, int(port)), timeout=60)
    peer.sendall(HELLO)
    seen = b""
    while OPENED not in seen:
        seen += peer.recv(4096)
    return peer


def declare(child, count):
    names = [{"name": f"q{number:05d}", "vhost": "/"} for number in range(count)]
    for at in range(0, count, 1000):
        body = json.dumps({"queues": names[at : at + 1000]}).encode()
        child.get("/api/definitions", with_password=True, method="POST", body=body)


def with_queues(child, _stack):
    declare(child, QUEUES)


def with_ready(child, stack):
    declare(child, QUEUES)
    peer = stack.enter_context(connected(child))
    for number in range(QUEUES):
        peer.sendall(publish(f"q{number:05d}"))


PULSAR = "pulsar_http"


def with_subscriptions(child, _stack):
    for number in range(TOPICS):
        topic = f"persistent/public/default/t{number}"
        for each in range(SUBSCRIPTIONS):
            path = f"/admin/v2/{topic}/subscription/s{each:04d}"
            child.get(path, method="PUT", body=b'"earliest"', listener=PULSAR)
    with Client(f"pulsar://{child.endpoints['pulsar']}") as client:
        for number in range(TOPICS):
            with client.create_producer(f"t{number}") as producer:
                producer.send(b"x")


def with_connections(child, stack):
    declare(child, 1)
    return [stack.enter_context(connected(child)) for _ in range(CONNECTIONS)]


def with_held(child, stack):
    peers = with_connections(child, stack)
    limits = json.dumps({"memory": 0}).encode()
    child.get("/api/flow/limits", method="PUT", body=limits)
    for peer in peers:
        peer.sendall(publish("q00000"))


def with_consumers(child, stack):
    peers = with_connections(child, stack)
    for number, peer in enumerate(peers):
        tag = short(f"worker-{number}")
        peer.sendall(
            method(1, 60, 10, struct.pack(">LHB", 0, 1, 0))
            + method(1, 60, 20, struct.pack(">H", 0) + short("q00000") + tag + bytes(5))
        )
    for _ in range(2 * CONNECTIONS):
        peers[0].sendall(publish("q00000"))


def with_wide_topics(child, _stack):
    for number in range(TOPICS):
        topic = f"/admin/v2/persistent/public/default/t{number}"
        child.get(f"{topic}/partitions", method="PUT", body=b"%d" % PARTITIONS, listener=PULSAR)
        path = f"{topic}/subscription/reader"
        child.get(path, method="PUT", body=b'"earliest"', listener=PULSAR)
    with Client(f"pulsar://{child.endpoints['pulsar']}") as client:
        for number in range(TOPICS):
            for partition in range(PARTITIONS):
                with client.create_producer(f"t{number}-partition-{partition}") as producer:
                    producer.send(b"x")


CASES = {
    "queues": with_queues,
    "ready": with_ready,
    "subscriptions": with_subscriptions,
    "connections": with_connections,
    "held": with_held,
    "consumers": with_consumers,
    "wide": with_wide_topics,
}


def end_of_alarm(child):
    """All that were held are stored, and a second later told of in the log and as events."""
    child.report()
    child.get("/api/flow/limits", method="PUT", body=json.dumps({"memory": "0.9"}).encode())
    time.sleep(ALARM_S)
    return {"the alarm ends": child.report()}


def page_of_queue(child):
    return {"one queue": page_figures(child, "/api/queues/%2F/q00000", with_password=True)}


ENDS = {"held": end_of_alarm, "consumers": page_of_queue}
"""Case -> what is measured after the pages."""


def page_figures(child, path, with_password):
    worst = None
    for _ in range(3):
        time.sleep(PAUSE_S)
        child.report()
        began = time.perf_counter()
        body = child.get(path, with_password=with_password)
        took_ms = round((time.perf_counter() - began) * 1000, 1)
        report = child.report() | {"took_ms": took_ms, "bytes": len(body)}
        if worst is None or report["largest_ms"] > worst["largest_ms"]:
            worst = report
    return worst


def measured(name, idle_s):
    found = {}
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
        child = stack.enter_context(Child(place))
        # Both ways to answer have what they import; the first who asks pays for it.
        child.get("/metrics")
        child.get("/api/definitions", with_password=True)
        CASES[name](child, stack)
        time.sleep(SETTLE_S)
        child.report()
        time.sleep(idle_s)
        found["idle"] = child.report()
        say(name, "idle", found["idle"])
        for path, with_password in PAGES.items():
            try:
                found[path] = page_figures(child, path, with_password)
            except OSError as problem:
                found[path] = {"failed": str(problem)}
            say(name, path, found[path])
        for what, figures in (ENDS[name](child) if name in ENDS else {}).items():
            found[what] = figures
            say(name, what, figures)
    return found


def say(case, what, report):
    figures = ", ".join(f"{key} {value}" for key, value in report.items())
    print(f"{case} {what}: {figures}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--idle", type=float, default=IDLE_S)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(serve(options.serve))
        return
    found = {case: measured(case, options.idle) for case in options.case or CASES}
    if options.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
