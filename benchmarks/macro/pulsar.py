"""Pulsar over sockets: Penstock and Apache Pulsar in turns, driven by raw frames and by a client.

    python benchmarks/macro/pulsar.py --cache DIR               both, 3 rounds, medians, ratios
    python benchmarks/macro/pulsar.py --only penstock           without Java
    python benchmarks/macro/pulsar.py --case in-1 --case single one or some of the cases
    python benchmarks/macro/pulsar.py --target HOST:PORT --pid PID    any broker that runs

The raw driver (``pulsar_driver.py``) costs little itself: one connection with a producer that has
1,000 messages without a receipt and a consumer with 1,000 permits that acknowledges every entry by
itself. The client is ``pulsarload.py`` (``--load``; beside this repository it is found by itself),
the Python package over the C++ library, producer and consumer in processes of their own. Cases
``own-...`` are the same with our own client (``pulsar_client.py``).

Apache Pulsar is started by ``pulsar_standalone.sh`` (``--server``) from the unpacked server in
``--cache``, on ports of its own, with ``journalSyncData=true``: standalone would otherwise say that
a message is stored before it is, which Penstock never does. Both run all the time; a round runs a
case against one and then the other. CPU is that of the broker's process, ended threads included.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from process_cost import process_cpu_seconds, resident_bytes
from pulsar_driver import Load, Wire, run

from penstock.testing.running import running_broker

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "bench"
START_SECONDS_MAX = 120
STARTS = 5
TOPICS = "persistent://public/default/"
WARM_UP = 50_000
LOAD_SECONDS_MAX = 300

RAW = {
    "in-1": ("SENDs of 1, nobody consumes", Load("", 1, 1, is_consuming=False)),
    "in-100": ("SENDs of 100, nobody consumes", Load("", 8, 100, is_consuming=False)),
    "single": ("SENDs of 1", Load("", 1, 1)),
    "batches": ("SENDs of 100", Load("", 8, 100)),
    "acks-100": ("SENDs of 1, 100 acks in a command", Load("", 1, 1, acks=100)),
    "exclusive": ("SENDs of 1, Exclusive", Load("", 1, 1, subscription_type="Exclusive")),
    "keys": (
        "SENDs of 1 with keys, Key_Shared",
        Load("", 1, 1, has_keys=True, subscription_type="Key_Shared"),
    ),
}
"""Name, and a load whose ``messages`` say how many times ``--messages`` it has: batches go fast."""
CLIENT = {"client-single": ("nobatch", 1), "client-batches": ("batch", 2)}
"""The client's own limit is some 100,000 messages a second."""
OWN = {"own-single": (0, 1), "own-batches": (1, 2)}
"""With our own client: whether in batches, and how many times ``--messages``."""
OWN_PROGRAM = Path(__file__).with_name("pulsar_client.py")


class Failed(Exception):
    """A server or a driver did not do what it must."""


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    pid: int


@contextmanager
def apache(options, directory):
    """A private Pulsar standalone; raises ``Failed`` where there is none."""
    if not options.cache or not Path(options.server).is_file():
        raise Failed("name its unpacked server with --cache, its start script with --server")
    port, http, bookie = free_ports(3)
    data = Path(directory, "apache")
    data.mkdir()
    with Path(directory, "apache.log").open("wb") as log:
        process = subprocess.Popen(
            [options.server, options.cache, str(data), "journalSyncData=true"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env={**os.environ, "PORT": str(port), "HTTP": str(http), "BOOKIE": str(bookie),
                 "LEVEL": "warn"},
        )  # fmt: skip
    try:
        begun = time.monotonic()
        while not is_healthy(f"http://127.0.0.1:{http}/admin/v2/brokers/health"):
            if process.poll() is not None or time.monotonic() - begun > START_SECONDS_MAX:
                raise Failed(f"Apache Pulsar did not start in {START_SECONDS_MAX} s")
            time.sleep(0.05)
        yield Server("127.0.0.1", port, process.pid), time.monotonic() - begun
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_healthy(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read() == b"ok"
    except (urllib.error.URLError, OSError):
        return False


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def penstock(directory):
    begun = time.monotonic()
    with running_broker(data=Path(directory, "penstock")) as broker:
        yield Server(*broker.address("pulsar"), broker.pid), time.monotonic() - begun


def penstock_start_seconds(directory):
    seconds = []
    for number in range(STARTS):
        place = Path(directory, f"start-{number}")
        place.mkdir()
        with penstock(place) as (_, took):
            seconds.append(took)
    return statistics.median(seconds)


def raw(server, load):
    """Messages a second, and us of the broker's CPU for each."""
    wire = Wire(server.host, server.port)
    cpu = process_cpu_seconds(server.pid)
    done = run(wire, load)
    cpu = process_cpu_seconds(server.pid) - cpu
    wire.close()
    return {"per_s": done.per_second, "cpu_us": cpu / done.messages * 1e6}


def client(server, mode, options, messages):
    """The same with the Python client."""
    command = [
        sys.executable, options.load, "--url", f"pulsar://{server.host}:{server.port}",
        "--mode", mode, "--messages", str(messages), "--size", str(options.body), "--json",
    ]  # fmt: skip
    cpu = process_cpu_seconds(server.pid)
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=LOAD_SECONDS_MAX, check=False
    )
    cpu = process_cpu_seconds(server.pid) - cpu
    if ran.returncode:
        raise Failed(f"the client said: {ran.stdout}{ran.stderr}")
    said = json.loads(ran.stdout.splitlines()[-1])
    return {
        "per_s": said["e2e_mps"],
        "cpu_us": cpu / messages * 1e6,
        "p50_ms": said["p50_ms"],
        "p99_ms": said["p99_ms"],
    }


def own_client(server, is_batched, options, messages, topic):
    """The same with our own client, both ends at once."""
    url = f"pulsar://{server.host}:{server.port}"
    cpu = process_cpu_seconds(server.pid)
    ends = [
        subprocess.Popen(
            [sys.executable, str(OWN_PROGRAM), "--url", url, "--library", "ours", "--role", role,
             "--topic", topic, "--size", str(options.body), "--messages", str(messages),
             "--batched", str(is_batched)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for role in ("out", "in")
    ]  # fmt: skip
    said = [each.communicate(timeout=LOAD_SECONDS_MAX)[0] for each in ends]
    if any(each.returncode for each in ends):
        raise Failed(f"our client said: {said}")
    cpu = process_cpu_seconds(server.pid) - cpu
    # The consumer counts from its subscription on; the producer begins a moment later.
    per_s = json.loads(said[0].splitlines()[-1])["per_s"]
    return {"per_s": per_s, "cpu_us": cpu / messages * 1e6}


def one_run(case, server, options, name):
    if case in OWN:
        is_batched, times = OWN[case]
        topic = f"{TOPICS}{case}-{name}"
        return own_client(server, is_batched, options, options.messages * times, topic)
    if case in CLIENT:
        mode, times = CLIENT[case]
        return client(server, mode, options, options.messages * times)
    load = RAW[case][1]
    topic = f"{TOPICS}{case}-{name}"
    load = replace(
        load, topic=topic, messages=options.messages * load.messages, body_bytes=options.body
    )
    return raw(server, load)


def rounds(options, servers):
    """Every case against one and then the other, ``--rounds`` times; the median of each figure."""
    figures = {name: {} for name in servers}
    for case in options.case:
        for server in servers.values():
            if case in RAW:
                warm = replace(RAW[case][1], topic=f"{TOPICS}{case}-warm", body_bytes=options.body)
                raw(server, replace(warm, messages=WARM_UP * warm.messages))
        runs = {name: [] for name in servers}
        for number in range(options.rounds):
            for name, server in servers.items():
                found = one_run(case, server, options, f"{number}")
                runs[name].append(found)
                told = ", ".join(f"{key} {value:,.2f}" for key, value in found.items())
                print(f"{case:<16}{name:<10}{told}", file=sys.stderr, flush=True)
        for name, all_runs in runs.items():
            for key in all_runs[0]:
                middle = statistics.median(each[key] for each in all_runs)
                figures[name][f"{case} {key}"] = round(middle, 2)
    return figures


def measured(options):
    found, servers = {}, {}
    with ExitStack() as stack:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.dir)
        )
        if options.target:
            host, _, port = options.target.rpartition(":")
            servers["target"] = Server(host, int(port), options.pid)
        if options.only in (None, "penstock") and not options.target:
            found["penstock"] = {"start_s": round(penstock_start_seconds(directory), 2)}
            servers["penstock"], _ = stack.enter_context(penstock(directory))
        if options.only in (None, "apache") and not options.target:
            try:
                servers["apache"], seconds = stack.enter_context(apache(options, directory))
                found["apache"] = {"start_s": round(seconds, 2)}
            except Failed as why:
                print(f"Apache Pulsar skipped: {why}", file=sys.stderr)
        for name, server in servers.items():
            found.setdefault(name, {})["idle_mib"] = round(resident_bytes(server.pid) / 2**20)
        for name, figures in rounds(options, servers).items():
            found[name].update(figures)
        for name, server in servers.items():
            found[name]["loaded_mib"] = round(resident_bytes(server.pid) / 2**20)
    return found


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--case", action="append", choices=[*RAW, *CLIENT, *OWN], help="not all of them"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=100_000, help="of a run without batches")
    parser.add_argument("--body", type=int, default=128, help="bytes of a message")
    parser.add_argument("--only", choices=["penstock", "apache"])
    parser.add_argument("--target", help="host:port of a running broker")
    parser.add_argument("--pid", type=int, help="its process, with --target")
    parser.add_argument("--cache", default=os.environ.get("PULSAR_CACHE"), help="Apache's server")
    parser.add_argument("--server", default=str(SHARED / "pulsar_standalone.sh"))
    parser.add_argument("--load", default=str(SHARED / "pulsarload.py"))
    parser.add_argument("--dir", help="directory (disk) for the stores")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.target and not options.pid:
        parser.error("--target needs --pid, whose CPU is to be counted")
    clients = CLIENT if Path(options.load).is_file() else ()
    options.case = options.case or [*RAW, *clients, *OWN]
    return options


def tell(found):
    names = list(found)
    print(f"{'':<26}" + "".join(f"{name:>14}" for name in names))
    for row in dict.fromkeys(key for name in names for key in found[name]):
        cells = "".join(f"{found[name].get(row, '-')!s:>14}" for name in names)
        ours, theirs = (found.get(name, {}).get(row) for name in ("penstock", "apache"))
        print(f"{row:<26}{cells}" + (f"{ours / theirs:>9.2f}x" if ours and theirs else ""))


def main():
    options = arguments()
    # As ./penstock starts it: with bytecode, whatever the shell of this machine prefers.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        found = measured(options)
    except Failed as why:
        sys.exit(str(why))
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        tell(found)


if __name__ == "__main__":
    main()
