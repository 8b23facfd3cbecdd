"""Every confirmed message is where it belongs exactly once, whoever is killed.

A publisher sends numbers, each of them once, and remembers which were confirmed. Spark copies them
into Parquet files, into a topic (staged and committed, D19), or, as flows of a pipeline, into a
Parquet table, a Delta table and a topic, with dead letters. At random moments Spark, the broker or
both get SIGKILL, or Spark dies in the middle of a commit. A number that was not confirmed may be
there or not, but never twice.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import duckdb
import pytest
from deltalake import DeltaTable

from kit import brief_spark, pipeline_job, spark_job
from kit.dying import STEP
from kit.rocketmq.clusters import free_ports, penstock_cluster
from kit.topic_rows import topic_rows
from penstock.client import ClientError, Message, Producer
from penstock.testing.running import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

ROUNDS = 2
ROUNDS_LONG = 10
BROKER, SPARK, COMMIT = "broker", "spark", "commit"
"""Who is killed; ``COMMIT`` is Spark at a step of a commit."""
PAUSE_S = 0.02
PAUSE_S_LONG = 0.004
"""Between two messages: so many that every batch has some."""
SETTLE_S = 300
LOOK_S = 0.5
"""Between two looks at everything that is there."""


class Publisher(threading.Thread):
    """Sends numbers until it is told to stop."""

    def __init__(self, name_server, body, pause_s):
        super().__init__(daemon=True)
        self.name_server = name_server
        self.body = body
        self.pause_s = pause_s
        self.sent = 0
        self.confirmed = set()
        self.ended = threading.Event()

    def run(self):
        options = {"retries": 0, "send_timeout_ms": 3000}
        with Producer(self.name_server, "numbers", **options) as producer:
            while not self.ended.wait(self.pause_s):
                number, self.sent = self.sent, self.sent + 1
                message = Message("numbers", self.body(number), properties={"number": str(number)})
                try:
                    producer.send(message)
                except ClientError:
                    continue
                self.confirmed.add(number)


class Job:
    """Spark in a process of its own, with everything that belongs to it."""

    topics = ()
    """What it needs besides its source."""
    steps = ()
    """At which of them it can die in a commit."""

    def __init__(self, cluster, endpoint, place, *, is_long=False):
        self.cluster = cluster
        self.is_long = is_long
        self.endpoint = endpoint
        self.place = place
        self.process = None

    @staticmethod
    def body(number):
        return b"%d" % number

    def spawn(self, *words, **environment):
        with (self.place / "spark.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdout=log,
                stderr=log,
                cwd=self.place,
                env={**os.environ, "JAVA_TOOL_OPTIONS": brief_spark.JVM, **environment},
                start_new_session=True,
            )

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def die(self, step):
        """Run until it has killed itself in a commit."""
        self.kill()
        self.start(step)
        try:
            code = self.process.wait(SETTLE_S)
        except subprocess.TimeoutExpired:
            # Every batch comes to every step as long as messages come, bad ones among them.
            pytest.fail(f"not at {step} within {SETTLE_S} s: {self.said()}", pytrace=False)
        assert code == -signal.SIGKILL, self.said()
        # What Spark forked may outlive it for a moment.
        self.kill()

    def work(self):
        """Let it get batches done."""
        if self.process is None:
            self.start()
        enough = self.batches() + (2 if self.is_long else 1)
        eventually(lambda: self.check_running() and self.batches() >= enough, seconds=SETTLE_S)

    def batches(self):
        return min(len(list(each.glob("[0-9]*"))) for each in self.commits())

    def commits(self):
        return [self.place / "checkpoint" / "commits"]

    def check_running(self):
        if self.process.poll() is not None:
            pytest.fail(f"Spark ended by itself:\n{self.said()}", pytrace=False)
        return True

    def said(self):
        return (self.place / "spark.log").read_text(errors="replace")[-3000:]

    def settle(self, confirmed):
        """Run on until all of them are there."""
        if self.process is None:
            self.start()
        until = time.monotonic() + SETTLE_S
        while any(confirmed - set(each) for each in self.found().values()):
            assert self.check_running()
            assert time.monotonic() < until, f"not all is there:\n{self.said()}"
            time.sleep(LOOK_S)


class Files(Job):
    """Spark's own files, which only Spark knows to read."""

    victims = ((BROKER,), (SPARK,), (SPARK, BROKER))
    """In this order a short run needs two starts of Spark only."""

    def start(self, step="", *flags):
        assert not step
        words = ["kit.spark_job", "--endpoint", self.endpoint, "--topic", "numbers"]
        self.spawn(*words, "--place", str(self.place), *flags)

    def settle(self, confirmed):
        self.kill()
        self.start("", "--result", str(self.place / "result"))
        code = self.process.wait(600)
        assert code == 0, self.said()
        self.process = None

    def found(self):
        return {"files": [int(line) for line in (self.place / "result").read_text().split()]}


class Topic(Job):
    """Another topic of the same broker."""

    topics = ("copies",)
    steps = spark_job.STEPS
    victims = ((COMMIT,), (BROKER,), (SPARK,), (SPARK, BROKER))

    def start(self, step=""):
        words = ["kit.spark_job", "--endpoint", self.endpoint, "--topic", "numbers"]
        words += ["--place", str(self.place), "--to", "copies", "--rows", "3000"]
        self.spawn(*words, **({STEP: step} if step else {}))

    def found(self):
        return {"topic": [int(each.body) for each in topic_rows(self.endpoint, "copies")]}


PIPELINE = """
endpoint = "ENDPOINT"
[spark.settings]
"spark.sql.codegen.wholeStage" = false
"spark.sql.streaming.checkpoint.fileChecksum.enabled" = false
"""
FLOW = """
[flow.KIND]
from = { topics = "numbers", max_rows = 3000, options = { targetBatchDuration = "off" } }
decode = { format = "json", schema = "id long" }
map = "functions:enrich"
output = "id long"
retry = { max_attempts = 2, delays = "1s" }
to = { KIND = "KIND", ROLL }
"""
KINDS = ("parquet", "delta", "topic")
FUNCTIONS = """
import random

def enrich(row):
    number = row["value"]["id"]
    # Not the same every time: what was decided first counts.
    if number % 10 == 3 or (number % 10 == 4 and random.random() < 0.5):
        raise ValueError("no")
    return {"id": number}
"""


class Flows(Job):
    """Of a pipeline, with dead letters: to Parquet as DuckDB reads it, to Delta, to a topic."""

    topics = ("topic", *(f"{each}-dead" for each in KINDS))
    steps = pipeline_job.STEPS
    victims = ((COMMIT,), (BROKER,), (SPARK,), (SPARK, BROKER))

    def __init__(self, cluster, endpoint, place, **more):
        super().__init__(cluster, endpoint, place, **more)
        flows = "".join(FLOW.replace("KIND", each) for each in KINDS)
        flows = flows.replace('"topic", ROLL', '"topic"').replace("ROLL", 'roll_time = "100ms"')
        (place / "flows.toml").write_text(PIPELINE.replace("ENDPOINT", endpoint) + flows)
        (place / "functions.py").write_text(FUNCTIONS)

    @staticmethod
    def body(number):
        return b"junk" if number % 10 == 7 else json.dumps({"id": number}).encode()

    def start(self, step=""):
        if step:
            # A short run starts no flow whose death it does not see: starts are what takes long.
            table = "delta" if step == "renamed" else "parquet"
            names = () if self.is_long else (table, "topic")
            self.spawn("kit.pipeline_job", "flows.toml", *names, **{STEP: step})
        else:
            self.spawn("penstock", "pipeline", "run", "flows.toml", "--json")

    def work(self):
        super().work()
        # What a flow counts is in the broker's metrics.
        eventually(lambda: self.dead_letters_counted() > 0, seconds=SETTLE_S)

    def dead_letters_counted(self):
        page = f"http://{self.cluster.broker.endpoints['http']}/metrics"
        with urllib.request.urlopen(page) as answer:
            text = answer.read().decode()
        found = re.search(
            r'^penstock_query_dead_letters_total\{query="delta"\} (.*)$', text, re.MULTILINE
        )
        return float(found[1]) if found else 0.0

    def commits(self):
        state = self.place / "penstock-pipelines"
        return [state / each / "checkpoint" / "commits" for each in KINDS]

    def settle(self, confirmed):
        super().settle(confirmed)
        if self.is_long:
            self.process.send_signal(signal.SIGTERM)
        else:
            # As Ctrl-C in a terminal: everybody of the group hears it.
            os.killpg(self.process.pid, signal.SIGINT)
        assert self.process.wait(120) == 0, self.said()
        self.process = None
        said = [json.loads(line) for line in self.said().splitlines()[-len(KINDS) :]]
        assert {each["state"] for each in said} == {"stopped"}

    def found(self):
        return {kind: self.rows(kind) + self.dead(kind) for kind in KINDS}

    def rows(self, kind):
        if kind == "topic":
            return [json.loads(each.body)["id"] for each in topic_rows(self.endpoint, "topic")]
        try:
            if kind == "delta":
                table = DeltaTable(self.place / "delta").to_pyarrow_table()
                return table.column("id").to_pylist()
            found = duckdb.sql(f"SELECT id FROM '{self.place}/parquet/**/*.parquet'").fetchall()
        except (duckdb.IOException, FileNotFoundError):
            return []  # nothing yet
        return [each for (each,) in found]

    def dead(self, kind):
        found = topic_rows(self.endpoint, f"{kind}-dead")
        return [int(each.properties["number"]) for each in found]

    def check(self, sent):
        for kind in KINDS:
            rows, dead = self.rows(kind), self.dead(kind)
            print(f"{kind}: {len(rows)} rows, {len(dead)} dead letters")
            assert {number % 10 for number in dead} <= {3, 4, 7}
            assert not {number % 10 for number in rows} & {3, 7}


def one_round(job, cluster, victims, chosen):
    """Let it work, and then kill whom it hits, at any moment of a batch."""
    if COMMIT in victims:
        step = chosen.choice(job.steps)
        job.die(step)
        return f"spark, {step}"
    job.work()
    time.sleep(chosen.uniform(0, 1.5))
    if SPARK in victims:
        job.kill()
    if BROKER in victims:
        cluster.kill()
        cluster.start()
    return ", ".join(victims)


@pytest.mark.parametrize(
    "kind",
    [
        Files,
        # A short run has a topic among its flows.
        pytest.param(Topic, marks=pytest.mark.long),
        Flows,
    ],
    ids=["files", "topic", "flows"],
)
def test_every_confirmed_message_is_written_exactly_once(tmp_path, is_long, chosen_seed, kind):
    seed = chosen_seed if chosen_seed is not None else random.randrange(10**6)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    rounds = ROUNDS_LONG if is_long else ROUNDS
    (port,) = free_ports(1)
    with penstock_cluster("--flight", str(port)) as cluster:
        cluster.create_topic("numbers", queues=4)
        for topic in kind.topics:
            cluster.create_topic(topic, queues=2)
        pause_s = PAUSE_S_LONG if is_long else PAUSE_S
        publisher = Publisher(cluster.name_server, kind.body, pause_s)
        publisher.start()
        job = kind(cluster, f"127.0.0.1:{port}", tmp_path, is_long=is_long)
        try:
            for number in range(rounds):
                victims = kind.victims[number] if number < 2 else chosen.choice(kind.victims)
                killed = one_round(job, cluster, victims, chosen)
                print(f"round {number}: {killed}; {publisher.sent} sent, {job.batches()} batches")
            publisher.ended.set()
            publisher.join(30)
            job.settle(publisher.confirmed)
            everything = job.found()
            if isinstance(job, Flows):
                job.check(publisher.sent)
        finally:
            publisher.ended.set()
            job.kill()
    print(f"{publisher.sent} sent, {len(publisher.confirmed)} confirmed")
    for name, found in everything.items():
        print(f"{name}: {len(found)} there")
        assert len(found) == len(set(found)), f"seed {seed}: some came twice"
        assert publisher.confirmed - set(found) == set(), f"seed {seed}: some are lost"
        assert set(found) <= set(range(publisher.sent))
        assert len(found) > 100
