"""RocketMQ over sockets: durable sends, pulls from a backlog, idle long polls; and Apache's broker.

    python benchmarks/macro/rocketmq.py                       a private Penstock, and Apache's
    python benchmarks/macro/rocketmq.py --only penstock       without Java
    python benchmarks/macro/rocketmq.py --target HOST:PORT --pid PID    any broker that runs

128-byte bodies, one connection with 64 sends in flight, each answered once it is durable; then one
connection that pulls 32 at a time from every queue until the backlog is read; then long polls that
nothing wakes. CPU is that of the broker's process, all threads, from the kernel's own account. The
driver runs on the same machine, so figures compare brokers in one run and nothing else.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path

from process_cost import cpu_seconds, resident_bytes
from remoting_driver import Wire, hold_polls, pull_all, send_all, send_frames

from kit.rocketmq.clusters import CACHE, Unavailable, apache_cluster
from penstock.testing.running import running_broker
from penstock.wire.rocketmq.codes import RequestCode

TOPIC = "bench"
WARM_UP = 20_000


def measure(host, port, pid, options):
    """All figures of one broker."""
    figures = {}
    queues = options.queues
    wire = Wire(host, port)
    numbers = {"readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
    for topic in (TOPIC, f"{TOPIC}-warm"):
        wire.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {"topic": topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG",
             "topicSysFlag": "0", "order": "false", **numbers},
        )  # fmt: skip
    warm = send_frames(f"{TOPIC}-warm", queues=queues, body_bytes=options.body)
    send_all(wire, warm, min(WARM_UP, options.messages), window=options.window)
    frames = send_frames(TOPIC, queues=queues, body_bytes=options.body)
    cpu = cpu_seconds(pid)
    sent = send_all(wire, frames, options.messages, window=options.window)
    figures["send_per_s"] = round(sent.per_second)
    figures["send_cpu_us"] = round((cpu_seconds(pid) - cpu) / sent.messages * 1e6, 2)
    figures["refused"] = sent.refused
    if sent.refused:
        figures["first_refusal"] = sent.first_refusal
    cpu = cpu_seconds(pid)
    pulled = pull_all(wire, TOPIC, queues=queues, messages=options.messages - sent.refused)
    figures["pull_per_s"] = round(pulled.per_second)
    figures["pull_cpu_us"] = round((cpu_seconds(pid) - cpu) / max(pulled.messages, 1) * 1e6, 2)
    figures["pulled"] = pulled.messages
    figures["messages_per_pull"] = round(pulled.messages / max(pulled.pulls, 1), 1)
    wire.close()
    figures["resident_mib"] = round(resident_bytes(pid) / 2**20)
    if options.polls:
        with contextlib.closing(Wire(host, port)) as wire:
            wire.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {"topic": "bench-idle", "defaultTopic": "TBW102",
                 "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
                 "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"},
            )  # fmt: skip
        share, answers = hold_polls(
            host, port, "bench-idle", polls=options.polls, seconds=options.idle_seconds,
            cpu_seconds=lambda: cpu_seconds(pid),
        )  # fmt: skip
        figures["idle_polls_core_percent"] = round(share * 100, 2)
        figures["idle_polls_answers"] = answers
    return figures


def main():
    options = arguments()
    found = {}
    if options.target:
        host, _, port = options.target.rpartition(":")
        found["target"] = measure(host, int(port), options.pid, options)
    directory = options.dir or tempfile.gettempdir()
    if not options.target and options.only in (None, "penstock"):
        with (
            tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=directory) as place,
            running_broker(data=Path(place, "data")) as broker,
        ):
            address = broker.address("rocketmq_broker")
            found["penstock"] = measure(*address, broker.pid, options)
    if not options.target and options.only in (None, "apache"):
        try:
            settings = {"flushDiskType": "SYNC_FLUSH"}
            with apache_cluster(Path(options.cache), directory, settings) as cluster:
                host, _, port = cluster.broker_address.rpartition(":")
                found["apache"] = measure(host, int(port), cluster.pid, options)
        except Unavailable as why:
            found["apache_skipped"] = str(why)
    tell(found, options.json)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, default=128, help="bytes of a body")
    parser.add_argument("--window", type=int, default=64, help="sends in flight")
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--polls", type=int, default=1000, help="idle long polls; 0 = leave out")
    parser.add_argument("--idle-seconds", type=float, default=20)
    parser.add_argument("--only", choices=["penstock", "apache"])
    parser.add_argument("--target", help="host:port of the broker listener of a running broker")
    parser.add_argument("--pid", type=int, help="its process, with --target")
    parser.add_argument("--dir", help="directory (disk) for the stores")
    parser.add_argument("--cache", default=str(CACHE))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.target and not options.pid:
        parser.error("--target needs --pid, whose CPU is to be counted")
    return options


def tell(found, is_json):
    if is_json:
        print(json.dumps(found, indent=2))
        return
    names = [name for name in found if isinstance(found[name], dict)]
    rows = list(dict.fromkeys(key for name in names for key in found[name]))
    for row in rows:
        cells = "".join(f"{found[name].get(row, '-')!s:>16}" for name in names)
        ratio = ""
        if {"penstock", "apache"} <= set(names) and row != "first_refusal":
            ours, theirs = found["penstock"].get(row), found["apache"].get(row)
            ratio = f"{ours / theirs:>10.2f}x" if ours and theirs else ""
        print(f"{row:<26}{cells}{ratio}")
    print(f"{'':<26}" + "".join(f"{name:>16}" for name in names))
    if "apache_skipped" in found:
        print(f"Apache RocketMQ skipped: {found['apache_skipped']}", file=sys.stderr)


if __name__ == "__main__":
    main()
