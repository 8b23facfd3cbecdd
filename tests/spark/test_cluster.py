"""Queries and pipelines on a Spark standalone cluster: a master and two workers, each a process.

The workers have Python, pyspark and pyarrow, and nothing of ours: what their tasks need comes with
the query, as the zip of ``penstock spark package``.

One of the two is lost on the way: an executor, or a whole worker with what it runs.

Takes half a minute and four JVMs, so it runs with ``--long`` only.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pyspark
import pytest

from kit.rocketmq.clusters import free_ports, penstock_cluster
from kit.topic_rows import topic_rows
from penstock.client import Message, Producer
from penstock.spark.java import use_java
from penstock.spark.package import write_executor_zip
from penstock.testing.running import eventually

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

MESSAGES = 3000
EXECUTOR = b"CoarseGrainedExecutorBackend"
WORKER = b"org.apache.spark.deploy.worker.Worker"
BARE = "PENSTOCK_BARE"
"""Variable of the workers' environment, which executors and their Python inherit."""


@pytest.fixture
def master(tmp_path):
    """``spark://`` of a cluster with two workers of one core."""
    use_java()
    port, page = free_ports(2)
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class")]
    address = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", BARE: "1"}
    environment.pop("PYTHONPATH", None)
    names = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
    names += ["--port", str(port), "--webui-port", str(page)]
    started = []
    log = (tmp_path / "cluster.log").open("ab")

    def start(*words):
        started.append(
            subprocess.Popen([*command, *words], env=environment, stdout=log, stderr=log)
        )

    try:
        start(*names)
        for number in range(2):
            start(
                "org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g",
                "--host", "127.0.0.1", "--webui-port", "0",
                "--work-dir", str(tmp_path / f"worker-{number}"), address,
            )  # fmt: skip
        seen = tmp_path / "cluster.log"
        eventually(
            lambda: seen.read_text(errors="replace").count("Registering worker") == 2, seconds=120
        )
        yield address
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.wait(30)
        log.close()


def python_of(directory):
    """One path, as Spark wants it: ours for the driver; for executors one that finds pyspark and
    pyarrow, and no other package."""
    packages = directory / "packages"
    packages.mkdir()
    site = Path(pyspark.__file__).parents[1]
    for name in ("pyspark", "py4j", "pyarrow", "numpy", "numpy.libs"):
        if (site / name).exists():
            (packages / name).symlink_to(site / name)
    real = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    script = directory / "python"
    script.write_text(
        f'#!/bin/sh\n[ -n "${BARE}" ] || exec "{sys.executable}" "$@"\n'
        f'PYTHONPATH="$PYTHONPATH:{packages}" exec "{real}" -S "$@"\n'
    )
    script.chmod(0o755)
    seen = subprocess.run(
        [str(script), "-c", "import pyarrow.flight, pyspark; import msgspec"],
        capture_output=True, text=True, check=False, env={**os.environ, BARE: "1"},
    )  # fmt: skip
    assert "No module named 'msgspec'" in seen.stderr, seen.stderr
    return script


def processes(name, directory):
    """Those of a class of Spark that work below a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            place = (path / "cwd").readlink()
        except OSError:
            continue
        if name in words and (place.is_relative_to(directory) or os.fsencode(directory) in words):
            found.append(int(path.name))
    return found


def family(process):
    """A process and all that it started."""
    children = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(path.name))
    found = [process]
    for each in found:
        found += children.get(each, [])
    return found


def tell(those, number):
    for each in those:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)


class Driver:
    """A query or a pipeline that runs on the cluster, until its end."""

    def __init__(self, place, *words):
        self.place = place
        self._words = words

    def run(self, checkpoint, victim):
        """Run it; in the middle of a batch, when two are done, kill a worker or an executor."""
        python = str(python_of(self.place))
        environment = {
            **os.environ, "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_DRIVER_PYTHON": python, "PYSPARK_PYTHON": python,
        }  # fmt: skip
        with (self.place / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", *self._words], stdout=log, stderr=log, env=environment
            )
        try:
            self.wait_for_batch(driver, checkpoint, 2)
            assert len(processes(EXECUTOR, self.place)) == 2, self.said()
            mine = processes(victim, self.place)
            assert len(mine) == 2, self.said()
            while True:
                batch = self.wait_for_batch(driver, checkpoint, 2)
                lost = family(mine[0])
                # Stopped first: a batch that was done just before has to be left to end.
                tell(lost, signal.SIGSTOP)
                if not (checkpoint / "commits" / str(batch)).exists():
                    break
                tell(lost, signal.SIGCONT)
            tell(lost, signal.SIGKILL)
            began = time.monotonic()
            code = driver.wait(400)
        finally:
            driver.kill()
            driver.wait()
        assert code == 0, self.said()
        took_s = time.monotonic() - began
        print(f"batch {batch}: killed {len(lost)} processes, the rest took {took_s:.1f} s")

    def wait_for_batch(self, driver, checkpoint, done):
        """Until a batch is under way, with so many before it; its number."""
        until = time.monotonic() + 300
        while driver.poll() is None and time.monotonic() < until:
            planned, committed = (
                {int(each.name) for each in (checkpoint / name).glob("[0-9]*")}
                for name in ("offsets", "commits")
            )
            if len(committed) >= done and planned - committed:
                return max(planned)
            time.sleep(0.005)
        return pytest.fail(f"no batch is under way: {self.said()}", pytrace=False)

    def said(self):
        return (self.place / "driver.log").read_text(errors="replace")[-3000:]


@pytest.fixture
def numbers():
    """A broker with a topic of numbers, and its Flight port."""
    (port,) = free_ports(1)
    with penstock_cluster("--flight", str(port)) as cluster:
        cluster.create_topic("numbers", queues=4)
        cluster.create_topic("copies", queues=2)
        with Producer(cluster.name_server, "numbers") as producer:
            for number in range(MESSAGES):
                producer.send(Message("numbers", b"%d" % number))
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("target", "victim"), [("", EXECUTOR), ("copies", WORKER)], ids=["files", "topic"]
)
def test_a_cluster_does_the_same_also_when_it_loses_an_executor_or_a_worker(
    master, numbers, tmp_path, target, victim
):
    result = tmp_path / "result"
    words = ["kit.spark_job", "--rows", "200", "--endpoint", numbers, "--topic", "numbers"]
    words += ["--place", str(tmp_path), "--result", str(result), "--master", master]
    words += ["--zip", str(write_executor_zip(tmp_path))]
    words += ["--to", target] if target else []
    Driver(tmp_path, *words).run(tmp_path / "checkpoint", victim)
    assert sorted(map(int, result.read_text().split())) == [*range(MESSAGES)]


FLOWS = """
endpoint = "ENDPOINT"
[spark]
master = "MASTER"
settings = { "spark.executor.memory" = "512m" }
[flow.table]
from = { topics = "numbers", max_rows = 200, options = { targetBatchDuration = "off" } }
decode = { format = "text" }
map = "functions:parse"
output = "id long, part long"
retry = { max_attempts = 1 }
to = { parquet = "table", partition_by = ["part"] }
[flow.copy]
from = { topics = "numbers", max_rows = 600 }
sql = "SELECT body FROM messages"
to = { topic = "copies" }
"""
FUNCTIONS = """
def parse(row):
    number = int(row["value"])
    if number % 10 == 3:
        raise ValueError("no")
    return {"id": number, "part": number % 2}
"""


def test_flows_of_a_pipeline_run_on_a_cluster_that_loses_a_worker_as_they_do_at_home(
    master, numbers, tmp_path
):
    text = FLOWS.replace("MASTER", master).replace("ENDPOINT", numbers)
    (tmp_path / "flows.toml").write_text(text)
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    words = ["penstock", "pipeline", "run", str(tmp_path / "flows.toml"), "--once", "--json"]
    driver = Driver(tmp_path, *words)
    driver.run(tmp_path / "penstock-pipelines" / "table" / "checkpoint", WORKER)
    found = duckdb.sql(f"SELECT id FROM '{tmp_path}/table/**/*.parquet'").fetchall()
    dead = [int(each.body) for each in topic_rows(numbers, "table-dead")]
    copied = [int(each.body) for each in topic_rows(numbers, "copies")]
    print(f"{len(found)} rows, {len(dead)} dead letters, {len(copied)} copies")
    assert sorted(number for (number,) in found) == [n for n in range(MESSAGES) if n % 10 != 3]
    assert sorted(dead) == [n for n in range(MESSAGES) if n % 10 == 3]
    assert sorted(copied) == [*range(MESSAGES)]
