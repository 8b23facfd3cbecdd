"""Spark over a private broker's Flight port: reads, the exactly-once sink, the archive pipeline.

    python benchmarks/macro/spark.py [--only source|sink|archive] [--rows N] [--runs 3] [--body 128]
                                     [--dir DIR] [--json]

RocketMQ messages with a tag, a key and the client's own properties in four queues; a local session
with two cores. The first round of each kind warms up and is not counted.

* **source** (3 M rows): batch reads to Spark's noop sink; a streaming query, AvailableNow in
  batches of 200,000 rows; what a query costs that waits at the end of the topic for ten seconds.
* **sink** (1 M rows): key and body of that topic into another one, exactly once; a table with
  ``df.write`` and a stream in the same batches.
* **archive** (3 M rows): the shipped pipeline as it is, ``--once``, into Parquet by topic and day,
  with its own admission (``target_batch`` 10 s from 5,000 rows on); then the merging of its files.

Streams have two figures: of the whole query with its start and end, and of their large batches
(200,000 rows and more), commits included; those are what a stream does that runs on. CPU is user
and system time from the kernel's account, apart for Spark's JVM, its Python workers, this process
(the driver), the broker, and the broker's Flight process; seconds for a million rows are
microseconds for one. It is that of the median round.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

from host import Stolen
from process_cost import (
    children,
    cpu_seconds,
    descendants_cpu_seconds,
    process_and_waited_cpu_seconds,
)

from penstock.client import Admin, BrokerBusy, Message, Producer
from penstock.pipelines.compaction import compact
from penstock.pipelines.flow_file import load_pipeline
from penstock.pipelines.launch import RunOptions, launch
from penstock.pipelines.table import Table
from penstock.spark.session import local_session
from penstock.testing.running import running_broker

TOPIC = "bench"
TARGET = "copies"
QUEUES = 4
BATCH = 100
SENDERS = 8
CORES = 2
ROWS = {"source": 3_000_000, "sink": 1_000_000, "archive": 3_000_000}
STREAM_BATCH = 200_000
LIMITS = {"maxRowsPerTrigger": STREAM_BATCH, "targetBatchDuration": "off"}
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
            batch = [Message(TOPIC, body[:body_bytes], tag="new", keys=f"k{n}") for n in numbers]
            while True:
                try:
                    producer.send_batch(batch)
                except BrokerBusy:  # refused, as a drowned machine's broker does: not stored
                    time.sleep(0.1)
                else:
                    return

        with ThreadPoolExecutor(SENDERS) as pool:
            for _ in pool.map(send, range(0, rows, BATCH)):
                pass
    return time.perf_counter() - began


class Account:
    """Seconds and CPU of one round, by who spent it."""

    def __init__(self, jvm, broker, flight):
        self._jvm, self._broker, self._flight = jvm, broker, flight

    def __enter__(self):
        self._before, self._began = self._spent(), time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self._began
        self.cpu = {name: now - self._before[name] for name, now in self._spent().items()}

    def _spent(self):
        return {
            "JVM": process_and_waited_cpu_seconds(self._jvm)[0],
            "workers": descendants_cpu_seconds(self._jvm),
            "driver": time.process_time(),
            "broker": process_and_waited_cpu_seconds(self._broker)[0],
            "Flight": process_and_waited_cpu_seconds(self._flight)[0],
        }


class Bench:
    """A broker with its topic filled, a session, and the rounds of what is measured."""

    def __init__(self, options, place, broker, spark):
        self.runs, self.rows, self.place, self.spark = options.runs, options.rows, place, spark
        self.endpoint = broker.endpoints["flight"]
        # pyspark has no public name for the process that it started.
        self._jvm = spark.sparkContext._gateway.proc.pid
        self.broker, (self.flight, *_) = broker.pid, children(broker.pid)
        self.found = []

    def account(self):
        return Account(self._jvm, self.broker, self.flight)

    def note(self, name, rounds, *, cpu_of=None):
        """``rounds``: rows per second of each; ``cpu_of``: their accounts."""
        rounds, middle = rounds[1:], None
        if cpu_of:
            pairs = sorted(zip(rounds, cpu_of[1:], strict=True), key=lambda each: each[0])
            middle = pairs[len(pairs) // 2][1]
        self.found.append(
            {
                "figure": name,
                "rows_per_s": [round(each) for each in rounds],
                "cpu_s_per_million_rows": {
                    who: round(spent * 1e6 / self.rows, 2) for who, spent in middle.cpu.items()
                }
                if middle
                else {},
                "cores_busy": round(sum(middle.cpu.values()) / middle.seconds, 2) if middle else 0,
            }
        )
        print(f"{name}: {', '.join(f'{each:,.0f}' for each in rounds)} rows/s", flush=True)

    def source(self, reader, **options):
        reader = reader.format("penstock").option("endpoint", self.endpoint)
        for name, value in {"topics": TOPIC, "startingOffsets": "earliest", **options}.items():
            reader = reader.option(name, value)
        return reader.load()

    def table(self, name, written):
        """Rounds of a batch job."""
        rates, accounts = [], []
        for _ in range(self.runs + 1):
            with self.account() as account:
                written()
            rates.append(self.rows / account.seconds)
            accounts.append(account)
        self.note(name, rates, cpu_of=accounts)

    def stream(self, name, started):
        """Rounds of a streaming query that ends by itself; ``started`` gives it."""
        whole, large, accounts = [], [], []
        for run in range(self.runs + 1):
            with self.account() as account:
                query = started(run)
                query.awaitTermination()
            whole.append(self.rows / account.seconds)
            large.append(rate_of_large_batches(query))
            accounts.append(account)
        self.note(f"{name}, large batches", large)
        self.note(f"{name}, start and end included", whole, cpu_of=accounts)
        print(f"  batches, ms: {where_time_goes(query)}", flush=True)


def large_batches(query):
    """Where there are none, the largest."""
    found = query.recentProgress
    least = min(STREAM_BATCH, max(each["numInputRows"] for each in found))
    return [each for each in found if each["numInputRows"] >= least]


def rate_of_large_batches(query):
    """Rows per second of the median of them."""
    return statistics.median(
        each["numInputRows"] / each["durationMs"]["triggerExecution"] * 1000
        for each in large_batches(query)
    )


def where_time_goes(query):
    """Milliseconds of the phases of a large batch, medians, as Spark tells them."""
    phases = {}
    for each in large_batches(query):
        for name, took_ms in each["durationMs"].items():
            phases.setdefault(name, []).append(took_ms)
    found = {name: round(statistics.median(each)) for name, each in phases.items()}
    return ", ".join(f"{name} {took_ms}" for name, took_ms in sorted(found.items()))


def measure_source(bench):
    def read(**options):
        frame = bench.source(bench.spark.read, **options)
        frame.write.format("noop").mode("overwrite").save()

    bench.table("batch read, without properties", lambda: read(includeProperties="false"))
    bench.table("batch read, with properties", read)

    def started(run):
        name = f"stream-{run}"
        frame = bench.source(bench.spark.readStream, subscription=name, **LIMITS)
        writer = frame.writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(bench.place / name))
        return writer.trigger(availableNow=True).start()

    bench.stream("streaming with properties", started)


def idle_cost(bench):
    """Share of a core that each process spends on a query with nothing to do."""
    frame = bench.source(bench.spark.readStream, subscription="idle", startingOffsets="latest")
    writer = frame.writeStream.format("noop")
    query = writer.option("checkpointLocation", str(bench.place / "idle")).start()
    query.processAllAvailable()
    time.sleep(2)
    pids = {"broker": bench.broker, "Flight process": bench.flight}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    time.sleep(IDLE_S)
    spent = {name: (cpu_seconds(pid) - before[name]) / IDLE_S for name, pid in pids.items()}
    query.stop()
    return spent


def measure_sink(bench):
    target = {"endpoint": bench.endpoint, "topic": TARGET}

    def written():
        frame = bench.source(bench.spark.read, includeProperties="false").select("key", "body")
        frame.write.format("penstock").mode("append").options(**target).save()

    def started(run):
        name = f"sink-{run}"
        frame = bench.source(
            bench.spark.readStream, subscription=name, includeProperties="false", **LIMITS
        )
        writer = frame.select("key", "body").writeStream.format("penstock").options(**target)
        writer = writer.option("checkpointLocation", str(bench.place / name))
        return writer.trigger(availableNow=True).start()

    bench.table("exactly-once sink, a table", written)
    bench.stream("exactly-once sink, a stream", started)


def measure_archive(bench):
    def archived(run):
        """The query of the pipeline, when it is over."""
        path = Path(str(files("penstock.pipelines") / "shipped" / "archive.toml"))
        pipeline = load_pipeline(
            path,
            directory=bench.place,
            environment={},
            given={"TOPICS": TOPIC, "OUT": str(bench.place / f"archive-{run}")},
            state=bench.place / f"state-{run}",
            endpoint=lambda: bench.endpoint,
        )
        seen = []
        is_done = launch(
            pipeline,
            pipeline.flows,
            RunOptions(is_once=True),
            show=lambda _: seen.extend(bench.spark.streams.active),
            is_stopping=lambda: False,
            session=bench.spark,
        )
        assert is_done, "the archive failed"
        return seen[0]

    bench.stream("archive to Parquet", archived)
    merged = []
    for run in range(bench.runs + 1):
        began = time.perf_counter()
        done = compact(Table(bench.place / f"archive-{run}"))
        assert done.rows <= bench.rows
        merged.append(done.rows / (time.perf_counter() - began))
    bench.note("merging the archive's files", merged)


MEASURES = {"source": measure_source, "sink": measure_sink, "archive": measure_archive}


def measure(kind, options, place):
    with running_broker("--flight", "0", data=place / "data") as broker:
        took = fill(broker.endpoints["rocketmq"], options.rows, options.body)
        print(f"{options.rows:,} messages of {options.body} B stored in {took:.0f} s", flush=True)
        with Admin(broker.endpoints["rocketmq"]) as admin:
            admin.create_topic(TARGET, queues=QUEUES)
        spark = local_session("bench", cores=CORES, directory=place / "spark")
        try:
            bench = Bench(options, place, broker, spark)
            stolen = Stolen()
            MEASURES[kind](bench)
            return {
                "rows": options.rows,
                "figures": bench.found,
                "idle_share_of_a_core": idle_cost(bench) if kind == "source" else {},
                "load": os.getloadavg()[1],
                "stolen_percent": round(stolen.percent, 1),
            }
        finally:
            spark.stop()


def show(kind, found):
    print(
        f"\n{kind}, {found['rows']:,} rows; load of the last 5 minutes {found['load']:.1f}, "
        f"{found['stolen_percent']} % of the cores taken by the host\n"
    )
    who = ["JVM", "workers", "driver", "broker", "Flight"]
    columns = ["rows/s", "lowest", "median", "highest", *who, "cores busy"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for each in found["figures"]:
        rates, cpu = each["rows_per_s"], each["cpu_s_per_million_rows"]
        cells = [f"{value:,.0f}" for value in (min(rates), statistics.median(rates), max(rates))]
        cells += [f"{cpu[name]:.2f}" if cpu else "" for name in who]
        cells.append(f"{each['cores_busy']:.2f}" if cpu else "")
        print(f"| {each['figure']} | " + " | ".join(cells) + " |")
    for name, share in found["idle_share_of_a_core"].items():
        print(f"| an idle query, share of a core, {name} | | {share:.2%} |")


def main():
    options = arguments()
    found = {}
    for kind in [options.only] if options.only else list(MEASURES):
        given = argparse.Namespace(**{**vars(options), "rows": options.rows or ROWS[kind]})
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.dir) as place:
            found[kind] = measure(kind, given, Path(place))
        if not options.json:
            show(kind, found[kind])
    if options.json:
        print(json.dumps(found, indent=2))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(MEASURES))
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--body", type=int, default=128)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
