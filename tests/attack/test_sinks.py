"""Puts without end, names that lead elsewhere, commits of very many rows: others are served."""

import contextlib
import os
import threading
import uuid

import msgspec
import pika
import pyarrow as pa
import pytest
from pyarrow import flight

from penstock.bulk.client import BulkClient
from penstock.bulk.rows import FLIGHT_OPTIONS
from penstock.bulk.tickets import BulkError
from penstock.model.queries import AbortBatchRequest, CommitBatchRequest
from penstock.model.spark_batch import StageCommand, StagedRows

ROWS = 200_000
FLAGS = ("--flight", "0", "--set", "spark.stage_batch_bytes_max=64MiB")


def connected(place):
    options = [*FLIGHT_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    return flight.connect(f"grpc://{place}", generic_options=options)


def rows(count, size=100):
    return pa.record_batch({"body": pa.array([bytes(size)] * count, pa.binary())})


@pytest.fixture
def victim(attack):
    with attack(*FLAGS) as made:
        yield made


@pytest.fixture
def bulk(victim):
    with BulkClient(victim.broker.endpoints["flight"], patience_s=60) as client:
        yield client


def test_publishers_are_served_while_very_many_rows_are_committed(victim, bulk):
    command = StageCommand(sink="big", query="q", batch=0, stage="a", topic="big")
    receipt = bulk.put_stage(command, (rows(10_000) for _ in range(ROWS // 10_000)))
    stages = [StagedRows(name=receipt.name, rows=receipt.rows)]
    done = threading.Event()

    def hostile():
        bulk.commit_batch(CommitBatchRequest(sink="big", query="q", batch=0, stages=stages))
        done.set()

    before = victim.metric("penstock_turns_total")
    confirmed = 0
    with pika.BlockingConnection(pika.URLParameters(victim.broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("busy")
        channel.confirm_delivery()
        committing = threading.Thread(target=hostile)
        committing.start()
        while not done.is_set():
            channel.basic_publish("", "busy", b"x")
            confirmed += 1
        committing.join()
    # Copied and entered some thousands at a time, and each time somebody else had his chance.
    assert victim.metric("penstock_turns_total") - before > ROWS / 3000
    assert confirmed > 10
    victim.serves()


def test_puts_that_never_end_leave_places_for_others(victim):
    with contextlib.ExitStack() as stack:
        for number in range(300):
            peer = stack.enter_context(connected(victim.broker.endpoints["flight"]))
            command = {
                "sink": "slow",
                "query": "q",
                "batch": 0,
                "stage": f"s{number}",
                "topic": "t",
            }
            descriptor = flight.FlightDescriptor.for_command(msgspec.json.encode(command))
            writer, _ = peer.do_put(descriptor, rows(1).schema)
            with contextlib.suppress(pa.ArrowException):
                writer.write_batch(rows(10))
        victim.serves()


def test_names_that_lead_elsewhere_are_refused(victim, bulk):
    for changes in (
        {"stage": "../../../x"},
        {"sink": "../../log", "stage": "a/b"},
        {"batch": -1},
        {"sink": "x" * 2000},
        {"query": "a\nb"},
        {"topic": "x" * 300},
        {"topic": "a\x00b"},
    ):
        command = {"sink": "s", "query": "q", "batch": 0, "stage": "a", "topic": "t"} | changes
        with pytest.raises(BulkError):
            bulk.put_stage(StageCommand(**command), [rows(1)])
    for name in ("../../catalog.db", "0.a/../../../x", "\x00", "0." + "a" * 1000):
        stages = [StagedRows(name=name, rows=1)]
        with pytest.raises(BulkError):
            bulk.commit_batch(CommitBatchRequest(sink="s", query="q", batch=0, stages=stages))
        request = AbortBatchRequest(sink="s", query="q", batch=0, stages=[name])
        assert bulk.abort_batch(request).dropped == 0
    # What has any name it likes stays below its directory.
    command = StageCommand(sink="../..", query="..", batch=0, stage="a", topic="t")
    receipt = bulk.put_stage(command, [rows(1)])
    stages = [StagedRows(name=receipt.name, rows=1)]
    assert (
        bulk.commit_batch(CommitBatchRequest(sink="../..", query="..", batch=0, stages=stages)).rows
        == 1
    )
    names = {each.name for each in victim.broker.data.iterdir()}
    assert names <= {"log", "index", "delayed", "keys", "spill", "stage", "lock", "format",
                     "catalog.db", "catalog.db-wal", "catalog.db-shm", "ready.json", "bulk.sock",
                     "cut"}  # fmt: skip
    victim.serves()


def test_a_put_larger_than_a_batch_may_be_is_refused_and_leaves_nothing(victim, bulk):
    command = StageCommand(sink="s", query="q", batch=0, stage="a", topic="t")
    with pytest.raises(BulkError, match="maxRowsPerTrigger"):
        bulk.put_stage(command, (rows(1000, 1000) for _ in range(100)))
    walk = os.walk(victim.broker.data / "stage")
    assert [name for _, _, names in walk for name in names] == []
    assert victim.metric("penstock_stage_bytes") == 0


def test_very_many_batches_that_nobody_commits_are_bounded_and_others_write(victim, bulk):
    for number in range(300):
        stage = uuid.uuid4().hex
        command = StageCommand(sink="s", query=f"q{number}", batch=0, stage=stage, topic="t")
        bulk.put_stage(command, [rows(1)])
    stages = [StagedRows(name=f"{n}.a", rows=1) for n in range(20_000)]
    with pytest.raises(BulkError, match="at most 10000 stages"):
        bulk.commit_batch(CommitBatchRequest(sink="s", query="q", batch=0, stages=stages))
    page = victim.page("/api/queries")
    assert page.count('"sink"') <= 400
    victim.serves()


def test_garbage_for_a_put_is_a_sentence(victim):
    with connected(victim.broker.endpoints["flight"]) as peer:
        for command in (b"", b"{}", b"[]", b"\xff", b'{"sink": 1}'):
            descriptor = flight.FlightDescriptor.for_command(command)
            writer, notes = peer.do_put(descriptor, rows(1).schema)
            with pytest.raises(pa.ArrowException, match="a put has a command"):
                _ended(writer, notes)
        good = msgspec.json.encode(
            {"sink": "s", "query": "q", "batch": 0, "stage": "a", "topic": "t"}
        )
        for last in (b"", b"{}", b'{"rows": "x"}', b'{"rows": 5}'):
            writer, notes = peer.do_put(flight.FlightDescriptor.for_command(good), rows(1).schema)
            writer.write_batch(rows(1))
            writer.write_metadata(last)
            with pytest.raises(
                pa.ArrowException, match=r"last word|says how many|says that it has 5"
            ):
                _ended(writer, notes)
    victim.serves()


def _ended(writer, notes):
    writer.done_writing()
    notes.read()
    writer.close()
