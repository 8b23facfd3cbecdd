"""Consumers killed with SIGKILL: others go on, nothing is passed over, ordered queues stay apart.

Two consumer processes at a time write what they do into one file, a line for the beginning and a
line for the end of each call; appending orders the lines of both. Members are killed and replaced
while messages flow. Locks live for a second and a half here, not for a minute.
"""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import defaultdict

import pytest

from kit.rocketmq.clusters import penstock_cluster
from penstock.client import Message, Producer
from penstock.testing.running import eventually
from penstock.wire.rocketmq.codes import RequestCode

LOCK_MS = 1_500
QUEUES = 4
KILLS = 3
MESSAGES = 400

MEMBER = """
import os, sys, time
from penstock.client import PushConsumer

name_server, topic, is_ordered, path = sys.argv[1:]
log = os.open(path, os.O_WRONLY | os.O_APPEND)

def note(*words):
    os.write(log, (" ".join(map(str, (os.getpid(), *words))) + "\\n").encode())

def listener(message):
    note("begin", message.queue.queue, message.offset)
    time.sleep(0.004)
    note("end", message.queue.queue, message.offset)

consumer = PushConsumer(
    name_server, "killed", listener, is_ordered=is_ordered == "True", consume_from="first",
    rebalance_interval_ms=200, rebalance_spacing_ms=50, persist_interval_ms=50,
    lock_renewal_ms=250, lock_stale_ms=750, consume_threads=4, pull_batch=8,
)
consumer.subscribe(topic)
consumer.start()
note("ready")
sys.stdin.read()
"""


class Members:
    """Consumer processes and their common log."""

    def __init__(self, cluster, topic, is_ordered, path):
        path.touch()
        self._path = path
        self._command = (sys.executable, "-c", MEMBER, cluster.name_server, topic)
        self._command += (str(is_ordered), str(path))
        self.running = []

    def start(self):
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.running.append(process)
        return process

    def kill(self, process):
        process.kill()
        process.wait()
        process.stdin.close()
        self.running.remove(process)
        with self._path.open("a") as log:
            log.write(f"{process.pid} killed\n")

    def lines(self):
        # The last line may be on its way.
        whole = self._path.read_text().rpartition("\n")[0]
        return [line.split() for line in whole.splitlines()]

    def ended(self):
        """Offsets whose call ended, by queue."""
        found = defaultdict(set)
        for _, what, *place in self.lines():
            if what == "end":
                found[int(place[0])].add(int(place[1]))
        return found


@pytest.fixture(scope="module")
def cluster():
    with penstock_cluster("--set", f"rocketmq.queue_lock_ms={LOCK_MS}") as running:
        yield running


def check_committed(cluster, topic, members):
    """Offsets are read before the log: what they stand for must be in it by then."""
    stored = {}
    with cluster.connect() as client:
        for queue in range(QUEUES):
            place = {"consumerGroup": "killed", "topic": topic, "queueId": str(queue)}
            answer = client.request(RequestCode.QUERY_CONSUMER_OFFSET, place)
            stored[queue] = answer.number("offset") if answer.is_ok else 0
    ended = members.ended()
    for queue, offset in stored.items():
        missing = set(range(offset)) - ended[queue]
        assert not missing, f"queue {queue} is committed up to {offset} without {sorted(missing)}"


def check_apart(lines):
    """No call begins on a queue while another process is in one."""
    at_work = defaultdict(set)
    for pid, what, *place in lines:
        if what == "begin":
            others = at_work[place[0]] - {pid}
            assert not others, f"{pid} begins with queue {place} while {others} work on it"
            at_work[place[0]].add(pid)
        elif what == "end":
            at_work[place[0]].discard(pid)
        elif what == "killed":
            for each in at_work.values():
                each.discard(pid)


def check_order(lines):
    """Every message of a queue is first begun after all before it were ended."""
    ended = defaultdict(set)
    for _, what, *place in lines:
        if what in {"begin", "end"}:
            queue, offset = map(int, place)
            if what == "end":
                ended[queue].add(offset)
            else:
                missing = set(range(offset)) - ended[queue]
                assert not missing, f"queue {queue} goes on at {offset} without {missing}"


@pytest.mark.parametrize("is_ordered", [True, False])
def test_killed_consumers_are_replaced_and_nothing_is_passed_over(
    cluster, tmp_path, is_ordered, chosen_seed
):
    seed = chosen_seed if chosen_seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    topic = f"kills-{is_ordered}"
    cluster.create_topic(topic, QUEUES)
    members = Members(cluster, topic, is_ordered, tmp_path / "log")
    with contextlib.ExitStack() as stack, Producer(cluster.name_server, "p") as producer:
        stack.callback(lambda: [members.kill(each) for each in list(members.running)])
        for _ in range(2):
            members.start()
        sent = 0
        for _ in range(KILLS):
            wanted = len(members.lines()) + rng.randrange(1, 60)
            for _ in range(MESSAGES // (KILLS + 1)):
                producer.send(Message(topic, b"x", ordering_key=str(rng.random())))
                sent += 1
            # A moment after something was done, wherever that is within a call.
            eventually(lambda wanted=wanted: len(members.lines()) >= wanted)
            time.sleep(rng.uniform(0, 0.01))
            members.kill(rng.choice(members.running))
            check_committed(cluster, topic, members)
            members.start()
        for _ in range(MESSAGES // (KILLS + 1)):
            producer.send(Message(topic, b"x", ordering_key=str(rng.random())))
            sent += 1
        eventually(
            lambda: sum(map(len, members.ended().values())) == sent,
            30,
            "every message was consumed",
        )
        check_committed(cluster, topic, members)
    lines = members.lines()
    assert len({pid for pid, *_ in lines}) > 2, "the replaced ones took part"
    if is_ordered:
        check_apart(lines)
        check_order(lines)
