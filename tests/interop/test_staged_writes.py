"""Spark's sink without Spark: puts and commits over Flight, read back by clients of all kinds."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pika
import pulsar
import pyarrow as pa
import pytest

from penstock.bulk.client import BulkClient
from penstock.bulk.tickets import BulkError, Ticket
from penstock.client import PullConsumer, QueueRef
from penstock.client.producer.selection import queue_of_key
from penstock.model.queries import AbortBatchRequest, CommitBatchRequest
from penstock.model.spark_batch import HELD, NO_STAGE, REWOUND, TOO_LARGE, StageCommand, StagedRows
from penstock.testing.running import BrokerProcess, eventually

MAP = pa.map_(pa.string(), pa.string())


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    data = tmp_path_factory.mktemp("staged") / "data"
    with BrokerProcess(data, flags=("--flight", "0")) as process:
        yield process


def client_of(process, patience_s=30):
    host, port = process.address("flight")
    return BulkClient(f"{host}:{port}", patience_s=patience_s)


@pytest.fixture
def bulk(running):
    with client_of(running) as client:
        yield client


def put(bulk, batches, batch=0, *, stage="a", **changes):
    """A put; what a commit names of it."""
    key = {"sink": "out", "query": "q", "batch": batch, "stage": stage, "topic": "orders"}
    batches = [batches] if isinstance(batches, pa.RecordBatch) else batches
    receipt = bulk.put_stage(StageCommand(**key | changes), batches)
    return StagedRows(name=receipt.name, rows=receipt.rows)


def commit(bulk, batch, *stages, patience_s=30, **changes):
    key = {"sink": "out", "query": "q"} | changes
    request = CommitBatchRequest(batch=batch, stages=list(stages), **key)
    return bulk.commit_batch(request, patience_s=patience_s)


def bodies_of(topic, bulk):
    """All rows of a topic, as Spark's source reads them."""
    found = []
    for queue in bulk.resolve([topic]).topics[0].queues:
        ticket = Ticket(topic=topic, queue=queue.queue, start=0, end=queue.end, check=True)
        for each in bulk.read(ticket):
            found += each.column("body").to_pylist()
    return found


def staged_files(process):
    # Not by a glob: directories go while one looks.
    walk = os.walk(process.data / "stage")
    return sorted(f"{place}/{name}" for place, _, names in walk for name in names)


def numbered(count, prefix=""):
    return pa.record_batch({"body": [f"{prefix}{n}".encode() for n in range(count)]})


def test_rows_are_seen_by_every_protocol_with_all_they_have(running, bulk):
    with pika.BlockingConnection(pika.URLParameters(running.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("golden", durable=True)
        rows = pa.record_batch(
            {
                "body": [b"one", b"two"],
                "key": ["k1", None],
                "tag": ["A", None],
                "properties": pa.array([[("colour", "red")], None], MAP),
                "message_id": ["id-1", None],
            }
        )
        pulsar_client = pulsar.Client(f"pulsar://{':'.join(map(str, running.address('pulsar')))}")
        reader = pulsar_client.subscribe("golden", "late")
        answer = commit(bulk, 0, put(bulk, rows, topic="golden", sink="g"), sink="g")
        assert answer.offsets == {"golden": {0: (0, 2)}}

        method, properties, body = next(channel.consume("golden", auto_ack=True))
        assert (body, properties.message_id, properties.type) == (b"one", "id-1", "A")
        assert properties.headers == {"colour": "red", "key": "k1"}
        assert method.routing_key == "golden"
        channel.cancel()

    first = reader.receive(timeout_millis=10_000)
    assert (first.data(), first.partition_key()) == (b"one", "k1")
    expected = {"colour": "red", "message_id": "id-1", "TAGS": "A"}
    assert first.properties() == expected
    assert reader.receive(timeout_millis=10_000).data() == b"two"
    pulsar_client.close()

    with PullConsumer(running.name_server, "lookers", registers_group=False) as consumer:
        [queue] = consumer.queues("golden")
        one, two = consumer.pull(queue, 0)
        assert (one.body, one.keys, one.tag, one.properties["colour"]) == (
            b"one", ("k1",), "A", "red",
        )  # fmt: skip
        assert one.properties["UNIQ_KEY"] == "id-1"
        assert two.body == b"two"
        assert [each.body for each in consumer.pull(queue, 0, tags="A")] == [b"one"]

    [rows] = list(bulk.read(Ticket(topic="golden", queue=0, start=0, end=2)))
    assert rows.column("properties").to_pylist()[0] == [("colour", "red"), ("message_id", "id-1")]
    assert rows.column("protocol").to_pylist() == ["neutral", "neutral"]


def test_a_batch_of_several_puts_appears_at_once_and_leaves_no_files(running, bulk):
    stages = [put(bulk, numbered(5000, f"{p}-"), stage=f"s{p}", partition=p, topic="many",
                  sink="many") for p in range(3)]  # fmt: skip
    assert bulk.resolve(["many"]).topics[0].queues[0].end == 0
    answer = commit(bulk, 0, *stages, sink="many")
    assert (answer.rows, answer.is_replay) == (15_000, False)
    expected = sorted(f"{p}-{n}".encode() for p in range(3) for n in range(5000))
    assert sorted(bodies_of("many", bulk)) == expected
    eventually(lambda: not [each for each in staged_files(running) if "many" in each])


def test_a_replay_changes_nothing_and_an_older_batch_is_refused(bulk):
    rows = numbered(10)
    assert commit(bulk, 3, put(bulk, rows, 3, topic="again", sink="again"), sink="again").rows == 10
    second = put(bulk, rows, 3, stage="b", topic="again", sink="again")
    assert commit(bulk, 3, second, sink="again").is_replay
    assert len(bodies_of("again", bulk)) == 10
    older = put(bulk, rows, 2, stage="c", topic="again", sink="again")
    with pytest.raises(BulkError, match="set back") as caught:
        commit(bulk, 2, older, sink="again")
    assert caught.value.kind == REWOUND
    assert bulk.sink_state("again", "q").batch == 3


def test_an_abort_drops_puts_and_never_a_commit(running, bulk):
    dropped = put(bulk, numbered(3), topic="aborted", sink="aborted")
    request = AbortBatchRequest(sink="aborted", query="q", batch=0, stages=[dropped.name])
    assert bulk.abort_batch(request).dropped == 1
    eventually(lambda: not [each for each in staged_files(running) if "aborted" in each])
    with pytest.raises(BulkError, match="is not there") as caught:
        commit(bulk, 0, dropped, sink="aborted")
    assert caught.value.kind == NO_STAGE
    kept = put(bulk, numbered(3), stage="b", topic="aborted", sink="aborted")
    commit(bulk, 0, kept, sink="aborted")
    again = AbortBatchRequest(sink="aborted", query="q", batch=0, stages=[kept.name])
    assert bulk.abort_batch(again).is_committed
    assert len(bodies_of("aborted", bulk)) == 3


def test_a_put_at_least_once_is_there_without_a_commit(bulk):
    command = StageCommand(
        sink="fast", query="q", batch=0, stage="a", topic="fast", guarantee="at-least-once"
    )
    assert bulk.put_stage(command, [numbered(7)]).is_committed
    assert len(bodies_of("fast", bulk)) == 7


def test_what_is_wrong_with_rows_is_said_and_leaves_nothing(running, bulk):
    for rows, words in (
        (pa.record_batch({"bodi": [b""]}), "did you mean body"),
        (pa.record_batch({"body": [b"x", None]}), "row 1, column body: it is null"),
        (pa.record_batch({"body": [b"x"], "key": [1]}), "column key is int64"),
    ):
        with pytest.raises(BulkError, match=words):
            put(bulk, rows, sink="wrong", topic="wrong")
    assert [each for each in staged_files(running) if "wrong" in each] == []


def test_rows_whose_source_fails_leave_nothing(running, bulk):
    def rows():
        yield numbered(10)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        put(bulk, rows(), sink="broken", topic="broken")
    eventually(lambda: not [each for each in staged_files(running) if "broken" in each])


def test_delayed_rows_come_in_their_time(running, bulk):
    rows = pa.record_batch({"body": [b"now", b"later"], "delay_ms": [None, 1500]})
    before = time.monotonic()
    commit(bulk, 0, put(bulk, rows, topic="timed", sink="timed"), sink="timed")
    assert bodies_of("timed", bulk) == [b"now"]
    eventually(lambda: b"later" in bodies_of("timed", bulk))
    assert time.monotonic() - before > 1.4


def test_operators_see_sinks_and_stages(running, bulk):
    commit(bulk, 5, put(bulk, numbered(4), 5, topic="seen", sink="seen"), sink="seen")
    put(bulk, numbered(4), 6, topic="seen", sink="seen")
    with urllib.request.urlopen(f"{running.http_url}/api/queries") as answer:
        sinks = {each["sink"]: each for each in json.load(answer)["sinks"]}
    assert (sinks["seen"]["batch"], sinks["seen"]["rows"]) == (5, 4)
    assert sinks["seen"]["staged_bytes"] > 0
    with urllib.request.urlopen(f"{running.http_url}/metrics") as answer:
        page = answer.read().decode()
    assert "penstock_sink_commits_total" in page
    assert "penstock_stage_bytes" in page
    with urllib.request.urlopen(f"{running.http_url}/api/flow") as answer:
        limits = {each["name"]: each for each in json.load(answer)["limits"]}
    assert limits["staged rows"]["used"] > 0
    oldest = limits["oldest staged rows"]
    assert (oldest["unit"], oldest["limit"]) == ("ms", 3_600_000)
    assert 0 <= oldest["used"] < 600_000
    command = [sys.executable, "-m", "penstock", "queries", "sinks"]
    endpoint = running.http_url.partition("//")[2]
    shown = subprocess.run(
        [*command, "--endpoint", endpoint], capture_output=True, text=True, check=True
    ).stdout
    [line] = [each for each in shown.splitlines() if each.startswith("seen ")]
    assert line.split()[:5] == ["seen", "q", "idle", "5", "4"]


def test_a_commit_waits_for_a_full_queue_and_says_so(running, bulk):
    with pika.BlockingConnection(pika.URLParameters(running.amqp_url)) as connection:
        channel = connection.channel()
        full = {"x-max-length": 5, "x-overflow": "reject-publish"}
        channel.queue_declare("full", durable=True, arguments=full)
        second = put(bulk, numbered(1), 1, stage="b", topic="full", sink="full")
        assert commit(bulk, 0, put(bulk, numbered(9), topic="full", sink="full"), sink="full").rows
        with pytest.raises(BulkError, match="length_max") as caught:
            commit(bulk, 1, second, sink="full", patience_s=0.2)
        assert caught.value.kind == HELD
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(commit, bulk, 1, second, sink="full")
            [held] = eventually(lambda: _held_sinks(running))
            assert (held["reason"], held["name"]) == ("held", "full of query q")
            channel.queue_purge("full")
            assert waiting.result().rows == 1


def _held_sinks(process):
    with urllib.request.urlopen(f"{process.http_url}/api/flow") as answer:
        return [each for each in json.load(answer)["stages"] if each["kind"] == "sink"]


def test_stages_and_commits_outlive_the_broker(tmp_path):
    with BrokerProcess(tmp_path / "data", flags=("--flight", "0")) as process:
        with client_of(process) as bulk:
            first = put(bulk, numbered(100), topic="kept")
            commit(bulk, 0, first)
            second = put(bulk, numbered(100, "x"), 1, topic="kept")
        process.kill()
        process.start()
        with client_of(process) as bulk:
            assert commit(bulk, 1, second).rows == 100
            assert commit(bulk, 0, first, is_streaming=False).is_replay
            assert len(bodies_of("kept", bulk)) == 200
        process.kill()
        process.start()
        with client_of(process) as bulk:
            assert len(bodies_of("kept", bulk)) == 200
            again = put(bulk, numbered(100, "x"), 1, stage="z", topic="kept")
            assert commit(bulk, 1, again).is_replay


def test_bounds_of_stages_are_kept(tmp_path):
    flags = (
        "--flight", "0", "--set", "spark.stage_batch_bytes_max=64KiB",
        "--set", "spark.stage_hold_ms_max=300", "--set", "topics.message_bytes_max=10KiB",
    )  # fmt: skip
    with BrokerProcess(tmp_path / "data", flags=flags) as process, client_of(process) as bulk:
        with pytest.raises(BulkError, match="maxRowsPerTrigger") as caught:
            put(bulk, numbered(2000))
        assert caught.value.kind == TOO_LARGE
        with pytest.raises(BulkError, match="message_bytes_max") as caught:
            put(bulk, pa.record_batch({"body": [b"x" * 20_000]}))
        assert caught.value.kind == TOO_LARGE
        assert staged_files(process) == []
        assert commit(bulk, 0, put(bulk, numbered(10))).rows == 10


def limit_disk(process, text):
    request = urllib.request.Request(
        f"{process.http_url}/api/flow/limits",
        json.dumps({"disk": text}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


def test_a_disk_that_is_short_holds_puts_and_commits_and_why_names_it(tmp_path):
    flags = ("--flight", "0", "--set", "spark.stage_hold_ms_max=400")
    with BrokerProcess(tmp_path / "data", flags=flags) as process, client_of(process) as bulk:
        first = put(bulk, numbered(10))
        limit_disk(process, "0")
        with pytest.raises(BulkError, match=r"stage_hold_ms_max.*free, limit") as caught:
            put(bulk, numbered(10), 1)
        assert caught.value.kind == HELD
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(commit, bulk, 0, first)
            [held] = eventually(lambda: _held_sinks(process))
            assert (held["state"], held["reason"]) == ("blocked", "disk")
            with urllib.request.urlopen(f"{process.http_url}/api/flow") as answer:
                sentence = json.load(answer)["diagnosis"]["sentence"]
            assert "The disk alarm holds 1 sink of Spark" in sentence
            limit_disk(process, "auto")
            assert waiting.result().rows == 10
        assert commit(bulk, 1, put(bulk, numbered(10), 1)).rows == 10


def test_queues_are_those_of_the_clients_producer(running, bulk):
    keys = [f"customer-{n}" for n in range(200)]
    rows = pa.record_batch({"body": [key.encode() for key in keys], "key": keys})
    commit(bulk, 0, put(bulk, rows, topic="keyed", sink="keyed"), sink="keyed")
    queues = [QueueRef("keyed", "b", number) for number in range(4)]
    for number in range(4):
        ticket = Ticket(topic="keyed", queue=number, start=0,
                        end=bulk.resolve(["keyed"]).topics[0].queues[number].end)  # fmt: skip
        for each in bulk.read(ticket):
            for key in each.column("key").to_pylist():
                assert queue_of_key(queues, key) == queues[number]
