"""The client over loopback: sync sends, async sends, callbacks, batches, consumption; CPU of both.

    python benchmarks/macro/client.py                 a private Penstock
    python benchmarks/macro/client.py --apache        Apache RocketMQ 5.3 (Maven), the same client
    python benchmarks/macro/client.py --name-server HOST:PORT --pid PID    any cluster that runs

128-byte bodies, four queues, every send answered once it is durable. Consumption is of a backlog:
pulls of 32, a listener that does nothing, all messages settled. CPU is user and system time of all
threads: the client's is this process, the broker's is read from the kernel's account. Both share
the machine, so a figure says what one client and one broker reach together.
"""

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path

from process_cost import cpu_seconds

from kit.rocketmq.clusters import PenstockCluster, apache_cluster
from penstock.client import Admin, Message, Producer, PushConsumer, ResultKind

SYNC_THREADS = 16
ASYNC_AT_A_TIME = 2000
BATCH = 32


class Account:
    """Seconds and CPU of a phase."""

    def __init__(self, pid):
        self._pid = pid

    def __enter__(self):
        self._wall = time.perf_counter()
        self._mine, self._theirs = time.process_time(), cpu_seconds(self._pid)
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self._wall
        self.mine = time.process_time() - self._mine
        self.theirs = cpu_seconds(self._pid) - self._theirs

    def figures(self, messages):
        return {
            "messages": messages,
            "per_s": round(messages / self.seconds),
            "client_cpu_us": round(self.mine / messages * 1e6, 1),
            "broker_cpu_us": round(self.theirs / messages * 1e6, 1),
        }


def send_sync(producer, topic, messages, body):
    for _ in range(messages):
        producer.send(Message(topic, body))


def send_threads(producer, topic, messages, body):
    share = messages // SYNC_THREADS
    threads = [
        threading.Thread(target=send_sync, args=(producer, topic, share, body))
        for _ in range(SYNC_THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return share * SYNC_THREADS


async def send_async(name_server, topic, messages, body, account):
    async with Producer(name_server, "bench-async") as producer:
        await asyncio.gather(*[producer.send_async(Message(topic, body)) for _ in range(1000)])
        with account:
            for begun in range(0, messages, ASYNC_AT_A_TIME):
                count = min(ASYNC_AT_A_TIME, messages - begun)
                sends = [producer.send_async(Message(topic, body)) for _ in range(count)]
                await asyncio.gather(*sends)


def send_callback(producer, topic, messages, body):
    answered = 0
    is_over = threading.Event()

    def done(outcome):
        nonlocal answered
        if isinstance(outcome, BaseException):
            raise outcome
        answered += 1
        if answered == messages:
            is_over.set()

    for _ in range(messages):
        producer.send_callback(Message(topic, body), done)
    is_over.wait()


def send_batches(producer, topic, messages, body):
    for _ in range(messages // BATCH):
        producer.send_batch([Message(topic, body) for _ in range(BATCH)])
    return messages // BATCH * BATCH


def consume(name_server, topic, group, messages, account, **options):
    is_coroutine = options.pop("is_coroutine", False)

    def plain(_):
        return None

    async def coroutine(_):
        return None

    consumer = PushConsumer(
        name_server, group, coroutine if is_coroutine else plain, consume_from="first",
        pull_batch=32, **options,
    )  # fmt: skip
    consumer.subscribe(topic)

    def consumed():
        figures = consumer.statistics().topics.get(topic)
        return figures.results[ResultKind.SUCCESS] if figures is not None else 0

    with account, consumer:
        while consumed() < messages:
            time.sleep(0.02)


def measure(name_server, pid, options):
    """All figures of one cluster."""
    found = {}
    body = os.urandom(options.body)
    with Admin(name_server) as admin:
        for topic in ("bench-sync", "bench-async", "bench-read"):
            admin.create_topic(topic, queues=4)
        time.sleep(1)  # Apache's name server hears of it a moment later
    with Producer(name_server, "bench") as producer:
        send_sync(producer, "bench-sync", 200, body)
        with Account(pid) as account:
            send_sync(producer, "bench-sync", options.messages // 20, body)
        found["sync sends, 1 thread"] = account.figures(options.messages // 20)
        with Account(pid) as account:
            sent = send_threads(producer, "bench-sync", options.messages // 5, body)
        found[f"sync sends, {SYNC_THREADS} threads"] = account.figures(sent)
        with Account(pid) as account:
            send_callback(producer, "bench-async", options.messages, body)
        found["async sends, callback"] = account.figures(options.messages)
        with Account(pid) as account:
            sent = send_batches(producer, "bench-read", options.messages, body)
        found[f"sync sends, batches of {BATCH}"] = account.figures(sent)
    account = Account(pid)
    asyncio.run(send_async(name_server, "bench-async", options.messages, body, account))
    found["async sends, awaited"] = account.figures(options.messages)
    for name, more in (
        ("consumed, function", {}),
        ("consumed, function, lists of 32", {"consume_batch": 32}),
        ("consumed, coroutine", {"is_coroutine": True}),
        ("consumed, ordered", {"is_ordered": True}),
    ):
        group = "bench-" + name.replace(", ", "-").replace(" ", "-")
        account = Account(pid)
        consume(name_server, "bench-read", group, sent, account, **more)
        found[name] = account.figures(sent)
    return found


@contextlib.contextmanager
def cluster_of(options):
    """(name server, pid of the broker)."""
    if options.name_server:
        yield options.name_server, options.pid
    elif options.apache:
        settings = {"flushDiskType": "SYNC_FLUSH"}
        with apache_cluster(directory=options.dir, settings=settings) as cluster:
            yield cluster.name_server, cluster.pid
    else:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.dir) as place:
            cluster = PenstockCluster(Path(place, "data"))
            cluster.start()
            try:
                yield cluster.name_server, cluster.pid
            finally:
                cluster.kill()


def main():
    options = arguments()
    with cluster_of(options) as (name_server, pid):
        found = measure(name_server, pid, options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'':<34}{'messages':>10}{'per s':>10}{'client us':>11}{'broker us':>11}")
    for name, row in found.items():
        print(
            f"{name:<34}{row['messages']:>10,}{row['per_s']:>10,}"
            f"{row['client_cpu_us']:>11}{row['broker_cpu_us']:>11}"
        )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--body", type=int, default=128, help="bytes of a body")
    parser.add_argument("--apache", action="store_true", help="against Apache RocketMQ 5.3")
    parser.add_argument("--name-server", help="host:port of a cluster that runs")
    parser.add_argument("--pid", type=int, help="its broker's process, with --name-server")
    parser.add_argument("--dir", help="directory (disk) for the store")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.name_server and not options.pid:
        parser.error("--name-server needs --pid, whose CPU is to be counted")
    return options


if __name__ == "__main__":
    main()
