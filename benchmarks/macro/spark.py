"""Spark over a private broker's Flight port: batch and streaming reads, writes, and a query's cost.

    python benchmarks/macro/spark.py [--rows 1000000] [--runs 3] [--body 128] [--dir DIR] [--json]
                                     [--only read|sink]

RocketMQ messages with a tag, a key and the client's own properties in four queues; a local session
with two cores. Batch reads go to Spark's noop sink; the streaming query is AvailableNow in batches
of 200,000 rows, its figure that of the median batch, commit included. The first read of each kind
warms up and is not counted. The sink copies key and body of that topic into another one, exactly
once; a table with ``df.write`` and a stream in the same batches. The idle query waits at the end of
the topic for ten seconds.
CPU is user and system time from the kernel's account.
"""

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from process_cost import cpu_seconds

from penstock.client import Admin, Message, Producer
from penstock.spark.session import local_session
from penstock.testing.running import running_broker

TOPIC = "bench"
TARGET = "copies"
QUEUES = 4
BATCH = 100
SENDERS = 8
CORES = 2
STREAM_BATCH = 200_000
IDLE_S = 10.0


def fill(name_server, rows, body_bytes):
    """A backlog to read; seconds it took."""
    with Admin(name_server) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    began = time.perf_counter()
    with Producer(name_server, "bench", send_timeout_ms=30_000) as producer:

        def send(first):
            numbers = range(first, min(first + BATCH, rows))
            producer.send_batch(
                [Message(TOPIC, body[:body_bytes], tag="new", keys=f"k{n}") for n in numbers]
            )

        with ThreadPoolExecutor(SENDERS) as pool:
            for _ in pool.map(send, range(0, rows, BATCH)):
                pass
    return time.perf_counter() - began


def source(reader, endpoint, **options):
    reader = reader.format("penstock").option("endpoint", endpoint).option("topics", TOPIC)
    for name, value in {"startingOffsets": "earliest", **options}.items():
        reader = reader.option(name, value)
    return reader.load()


def batch_read(spark, endpoint, options, runs, rows):
    """Rows per second of each run."""
    found = []
    for run in range(runs + 1):
        began = time.perf_counter()
        frame = source(spark.read, endpoint, **options)
        frame.write.format("noop").mode("overwrite").save()
        if run:
            found.append(rows / (time.perf_counter() - began))
    return found


def stream_read(spark, endpoint, place, runs, rows):
    """Rows per second of the median batch, and of the whole query with its start."""
    steady, whole = [], []
    limits = {"maxRowsPerTrigger": STREAM_BATCH, "targetBatchDuration": "off"}
    for run in range(runs + 1):
        name = f"stream-{run}"
        frame = source(spark.readStream, endpoint, subscription=name, **limits)
        began = time.perf_counter()
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(place / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        took = time.perf_counter() - began
        full = [each for each in query.recentProgress if each["numInputRows"] >= STREAM_BATCH]
        if run:
            whole.append(rows / took)
            steady.append(
                statistics.median(
                    each["numInputRows"] / each["durationMs"]["triggerExecution"] * 1000
                    for each in full
                )
            )
    return steady, whole


def sink_write(spark, endpoint, place, runs, rows):
    """Rows per second of a table's write, and of the median batch of a stream, commits included."""
    table, stream = [], []
    target = {"endpoint": endpoint, "topic": TARGET}
    limits = {"maxRowsPerTrigger": STREAM_BATCH, "targetBatchDuration": "off"}
    for run in range(runs + 1):
        frame = source(spark.read, endpoint, includeProperties="false").select("key", "body")
        began = time.perf_counter()
        frame.write.format("penstock").mode("append").options(**target).save()
        took = time.perf_counter() - began
        name = f"sink-{run}"
        frame = source(
            spark.readStream, endpoint, subscription=name, includeProperties="false", **limits
        ).select("key", "body")
        writer = frame.writeStream.format("penstock").options(**target)
        writer = writer.option("checkpointLocation", str(place / name))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        full = [each for each in query.recentProgress if each["numInputRows"] >= STREAM_BATCH]
        if run:
            table.append(rows / took)
            stream.append(
                statistics.median(
                    each["numInputRows"] / each["durationMs"]["triggerExecution"] * 1000
                    for each in full
                )
            )
    return table, stream


def idle_cost(spark, endpoint, place, pids):
    """Share of a core that each process spends on a query with nothing to do."""
    frame = source(spark.readStream, endpoint, subscription="idle", startingOffsets="latest")
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", str(place / "idle")).start()
    )
    query.processAllAvailable()
    time.sleep(2)
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    time.sleep(IDLE_S)
    spent = {name: (cpu_seconds(pid) - before[name]) / IDLE_S for name, pid in pids.items()}
    query.stop()
    return spent


def processes(broker):
    """The broker, and the Flight process that it started."""
    pids = {"broker": broker.pid}
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children")
    for number, pid in enumerate(children.read_text().split() if children.exists() else ()):
        pids["Flight process" if number == 0 else f"child {number}"] = int(pid)
    return pids


def measure(options, place):
    rows = options.rows
    found, idle = {}, {}
    with running_broker("--flight", "0", data=place / "data") as broker:
        endpoint = broker.endpoints["flight"]
        took = fill(broker.endpoints["rocketmq"], rows, options.body)
        print(f"{rows:,} messages of {options.body} B stored in {took:.0f} s", flush=True)
        spark = local_session("bench", cores=CORES, directory=place / "spark")
        try:
            if options.only != "sink":
                for name, given in (
                    ("batch read to noop, without properties", {"includeProperties": "false"}),
                    ("batch read to noop, with properties", {}),
                ):
                    found[name] = batch_read(spark, endpoint, given, options.runs, rows)
                steady, whole = stream_read(spark, endpoint, place, options.runs, rows)
                found["streaming to noop, median batch"] = steady
                found["streaming to noop, start and end included"] = whole
                idle = idle_cost(spark, endpoint, place, processes(broker))
            if options.only != "read":
                with Admin(broker.endpoints["rocketmq"]) as admin:
                    admin.create_topic(TARGET, queues=QUEUES)
                table, stream = sink_write(spark, endpoint, place, options.runs, rows)
                found["exactly-once sink, a table"] = table
                found["exactly-once sink, median batch of a stream"] = stream
        finally:
            spark.stop()
    return found, idle


def main():
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.dir) as place:
        found, idle = measure(options, Path(place))
    if options.json:
        print(json.dumps({"rows_per_s": found, "idle_share_of_a_core": idle}, indent=2))
        return
    print(f"| {'figure':<44} | median rows/s | lowest to highest |")
    print("|---|---|---|")
    for name, rates in found.items():
        low, high = min(rates), max(rates)
        print(f"| {name:<44} | {statistics.median(rates):,.0f} | {low:,.0f} to {high:,.0f} |")
    for name, share in idle.items():
        print(f"| an idle query costs the {name} | {share:.2%} of a core | |")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--body", type=int, default=128)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--only", choices=["read", "sink"])
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
