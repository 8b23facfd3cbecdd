"""Our Pulsar client beside the official one (C++ with Python on it), in turns, on one Penstock.

    python benchmarks/macro/pulsar_client.py                     both, 3 rounds, medians
    python benchmarks/macro/pulsar_client.py --only ours --case in-batches
    python benchmarks/macro/pulsar_client.py --url pulsar://HOST:PORT   any broker that runs

Cases, each client in a process of its own, which tells the seconds between its first message and
the last receipt (in) or ack (out), its CPU and its largest resident size:

    in-batches, in-single     a producer alone: messages a second until the last receipt
    out-batches, out-single   a consumer of what is there already, each message acknowledged
    memory                    messages of 1 MiB, a receiver queue of 1,000, one received every
                              20 ms: the largest resident size above that at the beginning
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

from process_cost import resident_bytes

from penstock.client.pulsar import Client, InitialPosition, SubscriptionType
from penstock.testing.running import running_broker

CASES = ("in-batches", "in-single", "out-batches", "out-single", "memory")
LIBRARIES = ("ours", "cpp")
RUN_SECONDS_MAX = 300
WAIT_MS = 30_000
LARGE_BYTES = 1 << 20
LARGE_COUNT = 150
LARGE_PAUSE_S = 0.02


# ---- one client, in its own process -------------------------------------------------------------


def official():
    """The module ``pulsar``, which a neighbour of this program has the name of."""
    sys.path.remove(str(Path(__file__).parent))
    return import_module("pulsar")


def ours_produce(options):
    with Client(options.url) as client:
        producer = client.create_producer(
            options.topic, batching_enabled=options.is_batched, batching_max_publish_delay_ms=10
        )
        body = bytes(options.size)
        begun = time.perf_counter()
        for _ in range(options.messages):
            producer.send_callback(body)
        producer.flush()
        return time.perf_counter() - begun


def cpp_produce(options):
    pulsar = official()
    client = pulsar.Client(
        options.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    )
    producer = client.create_producer(
        options.topic, batching_enabled=options.is_batched, block_if_queue_full=True,
        batching_max_publish_delay_ms=10,
    )  # fmt: skip
    body = bytes(options.size)

    def done(result, _):
        assert result == pulsar.Result.Ok, result

    begun = time.perf_counter()
    for _ in range(options.messages):
        producer.send_async(body, done)
    producer.flush()
    seconds = time.perf_counter() - begun
    client.close()
    return seconds


def ours_consume(options):
    with Client(options.url) as client:
        consumer = client.subscribe(
            options.topic, options.library, subscription_type=SubscriptionType.SHARED,
            initial_position=InitialPosition.EARLIEST, receiver_queue_size=1000,
        )  # fmt: skip
        begun = time.perf_counter()
        for _ in range(options.messages):
            consumer.acknowledge(consumer.receive(WAIT_MS))
            pause(options)
        return time.perf_counter() - begun


def cpp_consume(options):
    pulsar = official()
    client = pulsar.Client(
        options.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    )
    consumer = client.subscribe(
        options.topic, options.library, consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1000,
    )  # fmt: skip
    begun = time.perf_counter()
    for _ in range(options.messages):
        consumer.acknowledge(consumer.receive(WAIT_MS))
        pause(options)
    seconds = time.perf_counter() - begun
    client.close()
    return seconds


def pause(options):
    if options.pause_s:
        time.sleep(options.pause_s)


def work(options):
    """One client; prints what it cost."""
    resident = resident_bytes(os.getpid())
    verb = {"in": "produce", "out": "consume"}[options.role]
    seconds = globals()[f"{options.library}_{verb}"](options)
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {
        "per_s": options.messages / seconds,
        "cpu_us": (used.ru_utime + used.ru_stime) / options.messages * 1e6,
        "mib": used.ru_maxrss / 1024,
        "grown_mib": used.ru_maxrss / 1024 - resident / 2**20,
    }
    print(json.dumps(told))


# ---- both of them, in turns ---------------------------------------------------------------------


def started(options, library, role, topic, **given):
    command = [sys.executable, __file__, "--url", options.url, "--library", library]
    command += ["--role", role, "--topic", topic]
    for name, value in given.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    if ran.returncode:
        sys.exit(f"{library} {role}: {ran.stdout}{ran.stderr}")
    return json.loads(ran.stdout.splitlines()[-1])


def one_run(options, case, library, number):
    """What a client says of a case."""
    topic = f"bench-{case}-{library}-{number}"
    if case == "memory":
        large = {"size": LARGE_BYTES, "messages": LARGE_COUNT}
        started(options, "ours", "in", topic, **large, batched=0)
        found = started(options, library, "out", topic, **large, pause_s=LARGE_PAUSE_S)
        return {"grown_mib": found["grown_mib"]}
    role, _, kind = case.partition("-")
    load = {"size": options.body, "batched": int(kind == "batches")}
    load["messages"] = options.messages * (4 if load["batched"] else 1)
    if role == "out":
        started(options, "ours", "in", topic, **load)
    found = started(options, library, role, topic, **load)
    return {name: found[name] for name in ("per_s", "cpu_us", "mib")}


def measured(options):
    figures = {library: {} for library in options.libraries}
    for case in options.case:
        runs = {library: [] for library in options.libraries}
        for number in range(options.rounds):
            for library in options.libraries:
                found = one_run(options, case, library, number)
                runs[library].append(found)
                told = ", ".join(f"{name} {value:,.1f}" for name, value in found.items())
                print(f"{case:<14}{library:<6}{told}", file=sys.stderr, flush=True)
        for library, all_runs in runs.items():
            for name in all_runs[0]:
                middle = statistics.median(each[name] for each in all_runs)
                figures[library][f"{case} {name}"] = round(middle, 1)
    return figures


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=CASES, help="not all of them")
    parser.add_argument("--only", choices=LIBRARIES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=50_000, help="alone; in batches 4 times")
    parser.add_argument("--body", type=int, default=128, help="bytes of a message")
    parser.add_argument("--url", help="of a broker that runs; a Penstock of its own by default")
    parser.add_argument("--dir", type=Path, help="directory (disk) for that Penstock's store")
    parser.add_argument("--json", action="store_true")
    inner = parser.add_argument_group("of one client, used by this program itself")
    inner.add_argument("--role", choices=("in", "out"))
    inner.add_argument("--library", choices=LIBRARIES)
    inner.add_argument("--topic")
    inner.add_argument("--size", type=int)
    inner.add_argument("--batched", type=int, default=1, dest="is_batched")
    inner.add_argument("--pause-s", type=float, default=0.0)
    options = parser.parse_args()
    options.is_batched = bool(options.is_batched)
    options.case = options.case or list(CASES)
    options.libraries = [options.only] if options.only else list(LIBRARIES)
    return options


def main():
    options = arguments()
    if options.role:
        work(options)
        return
    with contextlib.ExitStack() as stack:
        if options.url is None:
            flags = {} if options.dir is None else {"data": options.dir}
            broker = stack.enter_context(running_broker(**flags))
            host, port = broker.address("pulsar")
            options.url = f"pulsar://{host}:{port}"
        found = measured(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'':<26}" + "".join(f"{name:>12}" for name in found))
    for row in next(iter(found.values())):
        cells = [found[name].get(row) for name in found]
        ratio = f"{cells[0] / cells[1]:>9.2f}x" if len(cells) == 2 and cells[1] else ""
        print(f"{row:<26}" + "".join(f"{cell:>12,.1f}" for cell in cells) + ratio)


if __name__ == "__main__":
    main()
