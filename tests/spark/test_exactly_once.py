"""Every confirmed message is in the files, or in another topic, exactly once, whoever is killed.

A publisher sends numbers, each of them once, and remembers which were confirmed. Spark copies them
into Parquet files or into a topic (staged and committed, D19), and at random moments Spark, the
broker or both get SIGKILL. A number that was not confirmed may be there or not, but never twice.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from kit.rocketmq.clusters import free_ports, penstock_cluster
from penstock.client import ClientError, Message, Producer
from penstock.testing.running import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

ROUNDS = 2
ROUNDS_LONG = 10
VICTIMS = (("broker",), ("spark",), ("spark", "broker"))
"""In this order a short run needs two starts of Spark only."""
PAUSE_S = 0.004
"""Between two messages: some hundred a second, so that many batches have some."""


class Publisher(threading.Thread):
    """Sends numbers until it is told to stop."""

    def __init__(self, name_server, topic):
        super().__init__(daemon=True)
        self.name_server = name_server
        self.topic = topic
        self.sent = 0
        self.confirmed = set()
        self.ended = threading.Event()

    def run(self):
        options = {"retries": 0, "send_timeout_ms": 3000}
        with Producer(self.name_server, "numbers", **options) as producer:
            while not self.ended.wait(PAUSE_S):
                number, self.sent = self.sent, self.sent + 1
                try:
                    producer.send(Message(self.topic, b"%d" % number))
                except ClientError:
                    continue
                self.confirmed.add(number)


class Job:
    """Spark in a process of its own, with everything that belongs to it."""

    def __init__(self, endpoint, topic, place, target):
        self.command = [sys.executable, "-m", "kit.spark_job"]
        self.command += ["--endpoint", endpoint, "--topic", topic, "--place", str(place)]
        self.command += ["--to", target] if target else []
        self.place = place
        self.process = None

    def start(self, *flags):
        with (self.place / "spark.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, *flags], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def batches(self):
        commits = self.place / "checkpoint" / "commits"
        return len(list(commits.glob("[0-9]*"))) if commits.exists() else 0

    def check_running(self):
        if self.process.poll() is not None:
            log = (self.place / "spark.log").read_text(errors="replace")
            pytest.fail(f"Spark ended by itself:\n{log[-3000:]}", pytrace=False)
        return True

    def finish(self, result):
        self.start("--result", str(result))
        code = self.process.wait(600)
        assert code == 0, (self.place / "spark.log").read_text(errors="replace")[-3000:]
        self.process = None
        return [int(line) for line in result.read_text().split()]


def one_round(job, cluster, victims, chosen, *, is_last):
    """Let it work, and then kill whom it hits, at any moment of a batch."""
    done = job.batches()
    eventually(lambda: job.check_running() and job.batches() > done + 1, seconds=300)
    time.sleep(chosen.uniform(0, 1.5))
    if "spark" in victims:
        job.kill()
    if "broker" in victims:
        cluster.kill()
        cluster.start()
    if "spark" in victims and not is_last:
        job.start()


@pytest.mark.parametrize("target", ["", "copies"], ids=["files", "topic"])
def test_every_confirmed_message_is_written_exactly_once(tmp_path, is_long, chosen_seed, target):
    seed = chosen_seed if chosen_seed is not None else random.randrange(10**6)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    rounds = ROUNDS_LONG if is_long else ROUNDS
    (port,) = free_ports(1)
    with penstock_cluster("--flight", str(port)) as cluster:
        cluster.create_topic("numbers", queues=4)
        if target:
            cluster.create_topic(target, queues=2)
        publisher = Publisher(cluster.name_server, "numbers")
        publisher.start()
        job = Job(f"127.0.0.1:{port}", "numbers", tmp_path, target)
        job.start()
        try:
            for number in range(rounds):
                victims = VICTIMS[number] if number < 2 else chosen.choice(VICTIMS)
                one_round(job, cluster, victims, chosen, is_last=number == rounds - 1)
                print(f"round {number}: {victims}, {publisher.sent} sent, {job.batches()} batches")
            publisher.ended.set()
            publisher.join(30)
            job.kill()
            found = job.finish(tmp_path / "result")
        finally:
            publisher.ended.set()
            job.kill()
    print(f"{publisher.sent} sent, {len(publisher.confirmed)} confirmed, {len(found)} written")
    assert len(found) == len(set(found)), f"seed {seed}: some came twice"
    assert publisher.confirmed - set(found) == set(), f"seed {seed}: some are lost"
    assert set(found) <= set(range(publisher.sent))
    assert len(found) > 100
