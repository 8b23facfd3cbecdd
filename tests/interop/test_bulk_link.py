"""The bulk link of a real broker: questions over its socket, bad input, kill -9, the process."""

import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from penstock.bulk import link
from penstock.cli.remoting import RemotingClient
from penstock.model import queries
from penstock.model.spark_batch import NO_TOPIC
from penstock.testing.running import BrokerProcess, eventually

SECONDS_MAX = 10


class Link:
    """A scripted other end of the socket."""

    def __init__(self, data):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SECONDS_MAX)
        handle = os.open(data, os.O_RDONLY)  # the path may be too long for an address
        self.socket.connect(f"/proc/self/fd/{handle}/{link.SOCKET_NAME}")
        os.close(handle)
        self.number = 0

    def send(self, question):
        self.number += 1
        question.id = self.number
        self.socket.sendall(link.encode_request(question))
        return self.number

    def receive(self):
        size = link.frame_length(self._exactly(link.LENGTH_BYTES))
        return link.decode_reply(self._exactly(size))

    def ask(self, question, name):
        self.send(question)
        reply = self.receive()
        assert reply.id == self.number
        if reply.error is not None:
            return reply.error
        return link.decode_response(name, reply.ok)

    def poll(self, start=None, **changes):
        given = {"topics": ["orders"], "subscription": "etl"} | changes
        return self.ask(queries.PollRequest(start={"orders": start or {}}, **given), "poll")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def is_closed(self):
        return self.socket.recv(1) == b""

    def _exactly(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the broker closed the link"
            data += part
        return data


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("bulk") / "data") as process:
        client = RemotingClient(*process.address("rocketmq_broker"))
        client.create_topic("orders", 1)
        for number in range(20):
            client.send("orders", b"%d" % number)
        client.close()
        yield process


@pytest.fixture
def bulk(broker):
    with Link(broker.data) as connected:
        yield connected


def test_two_queries_on_one_subscription_are_shown_each_with_its_lag(bulk, broker):
    slow, fast = "a" * 32, "b" * 32
    bulk.poll({0: 5}, subscription="both", checkpoint=slow)
    bulk.poll({0: 20}, subscription="both", checkpoint=fast)
    progress = queries.BatchProgress(
        query_id="1234", query_name="to-lake", checkpoint=fast, batch_ms=5, retries=3, dead=2
    )
    bulk.ask(queries.ReportRequest(subscription="both", progress=progress), "report")
    lease = queries.LeaseRequest(subscription="both", checkpoint=slow, topics=["orders"])
    assert not bulk.ask(lease, "lease").is_broken
    web = http.client.HTTPConnection(*broker.address("http"), timeout=SECONDS_MAX)
    web.request("GET", "/api/queries")
    rows = json.load(web.getresponse())["queries"]
    shown = [each for each in rows if each["subscription"] == "both"]
    assert [(each["name"], each["lag_messages"], each["lease"]) for each in shown] == [
        ("both", 15, "held"),
        ("both#bbbbbbbb", 0, "held"),
    ]
    assert [each["last_batch"]["query_name"] for each in shown] == ["", "to-lake"]
    assert [(each["retried"], each["dead"]) for each in shown] == [(0, 0), (3, 2)]
    web.request("GET", "/metrics")
    metrics = web.getresponse().read().decode()
    assert 'penstock_query_dead_letters_total{query="both#bbbbbbbb"} 2.0' in metrics
    assert 'penstock_query_retried_total{query="both#bbbbbbbb"} 3.0' in metrics
    web.request("GET", "/api/flow")
    flow = web.getresponse().read().decode()
    assert "both on orders" in flow
    assert "both#bbbbbbbb on orders" in flow
    bulk.ask(queries.ReleaseRequest(subscription="both", is_final=True), "release")
    web.close()


def test_topics_are_resolved_with_durable_ends(bulk):
    found = bulk.ask(queries.ResolveRequest(topics=["orders"]), "resolve")
    queue = found.topics[0].queues[0]
    assert (found.topics[0].name, queue.earliest, queue.end) == ("orders", 0, 20)
    assert queue.bytes > 0


def test_an_unknown_topic_is_an_error_of_its_kind(bulk):
    problem = bulk.ask(queries.ResolveRequest(topics=["order"]), "resolve")
    assert problem.kind == NO_TOPIC
    assert "'orders'" in problem.text


def test_a_poll_is_answered_within_its_limits(bulk):
    answer = bulk.poll({0: 5}, rows_max=10)
    assert (answer.ends, answer.latest) == ({"orders": {0: 15}}, {"orders": {0: 20}})


def test_a_poll_at_the_end_waits_as_long_as_it_may(bulk):
    began = time.monotonic()
    answer = bulk.poll({0: 20}, wait_ms=200)
    assert answer.ends == {"orders": {0: 20}}
    assert time.monotonic() - began >= 0.19


def test_other_questions_are_answered_while_sixteen_polls_wait(bulk, broker):
    for number in range(link.IN_FLIGHT_MAX):
        order = {"subscription": f"q{number}", "topics": ["orders"], "wait_ms": 300}
        bulk.send(queries.PollRequest(start={"orders": {0: 20}}, **order))
    resolved = bulk.send(queries.ResolveRequest())
    with Link(broker.data) as other:
        assert other.ask(queries.ResolveRequest(topics=["orders"]), "resolve").topics
    answered = [bulk.receive().id for _ in range(link.IN_FLIGHT_MAX + 1)]
    assert sorted(answered) == list(range(1, resolved + 1))


def test_index_entries_are_located(bulk):
    located = bulk.ask(queries.LocateRequest(topic="orders", queue=0, start=3, end=99), "locate")
    on_file = sum(each.entries for each in located.files)
    assert located.end == 20
    assert on_file + len(located.tail) // 48 >= 17


@pytest.mark.parametrize(
    "rubbish", [struct.pack("<I", 1 << 30), struct.pack("<I", 3) + b"\xff\0\1"]
)
def test_rubbish_closes_that_link_only(broker, rubbish):
    with Link(broker.data) as bad, Link(broker.data) as good:
        bad.socket.sendall(rubbish)
        assert bad.is_closed()
        assert good.ask(queries.ResolveRequest(topics=["orders"]), "resolve").topics


def test_positions_survive_kill_nine(tmp_path):
    with BrokerProcess(tmp_path / "data") as process:
        client = RemotingClient(*process.address("rocketmq_broker"))
        client.create_topic("orders", 1)
        for number in range(10):
            client.send("orders", b"%d" % number)
        with Link(process.data) as bulk:
            bulk.poll({0: 7})
        # A send that is answered was synced behind the position.
        client.send("orders", b"last")
        client.close()
        process.kill()
        process.start()
        told = get(process, "/api/queries")["queries"]
    assert [each["name"] for each in told] == ["etl"]
    assert told[0]["topics"][0]["queues"][0]["position"] == 7
    assert told[0]["lag_messages"] == 4


def get(process, path):
    connection = http.client.HTTPConnection(*process.address("http"), timeout=SECONDS_MAX)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as listed:
        return [int(each) for each in listed.read().split()]


def test_the_flight_process_is_started_again_and_dies_with_the_broker(tmp_path):
    pytest.importorskip("pyarrow")
    with BrokerProcess(tmp_path / "data", flags=("--flight", "0")) as process:
        assert process.address("flight")[1] > 0
        eventually(lambda: children(process.pid), SECONDS_MAX)
        first = children(process.pid)[0]
        os.kill(first, signal.SIGKILL)
        eventually(lambda: children(process.pid) not in ([], [first]), SECONDS_MAX)
        second = children(process.pid)[0]
        with Link(process.data) as bulk:
            bulk.ask(queries.ResolveRequest(), "resolve")
        process.kill()
        eventually(lambda: not is_running(second), SECONDS_MAX)


def penstock(broker, *arguments):
    command = [sys.executable, "-m", "penstock", *arguments, "--data", str(broker.data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout or done.stderr


def test_queries_and_policies_on_the_command_line(bulk, broker):
    progress = queries.BatchProgress(rows=5, batch_ms=90, read_ms=5, sink_ms=80)
    bulk.poll({0: 12}, subscription="cli", report=progress)
    flags = ("--spark-backpressure", "hard", "--spark-backlog-max", "5")
    assert "new policy" in penstock(broker, "topics", "set", "orders", *flags)
    rows = json.loads(penstock(broker, "queries", "--json"))
    row = next(each for each in rows if each["name"] == "cli")
    assert (row["lag_messages"], row["slow_part"], row["lease"]) == (8, "sink", "held")
    assert row["topics"][0]["is_held"]
    assert "cli" in penstock(broker, "queries")
    assert "nothing to set" in penstock(broker, "topics", "set", "orders")
    assert "forgotten" in penstock(broker, "queries", "forget", "cli")
    assert "there is no query" in penstock(broker, "queries", "forget", "cli")


def test_metrics_have_queries(bulk, broker):
    bulk.poll({0: 12}, subscription="seen")
    connection = http.client.HTTPConnection(*broker.address("http"), timeout=SECONDS_MAX)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    assert 'penstock_query_lag_messages{query="seen"} 8.0' in page
    assert 'penstock_leases_broken_total{cause="bytes"} 0.0' in page
