"""The exam of Spark's queries with a real Spark: which part is slow, and ``ok`` before and after.

A function of the user that takes its time, a link to the broker that is too narrow for what is read
or for what is written. On the manual clock: ``tests/scenario/test_exam_spark.py``.
"""

import contextlib
import os
import threading
import time

import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType

from kit.real_exam import RealExam
from kit.slow_link import carried
from penstock.client import Message
from penstock.demo.story.processes import row_seconds, set_row_seconds
from penstock.spark.listener import PenstockListener
from penstock.testing.running import eventually

BODY_BYTES = 20_000
PER_S = 30
SLOW_ROW_S = 0.2
NARROW_MS = 500
"""For each 64 KiB: less than is published."""
FOUND_S_MAX = 90
"""Ten seconds are promised once it is slow; Spark begins, and a batch is over, when they like."""
LEARNT_S_MAX = 180
"""Until admission has learnt what a batch takes, one may be given all there is, and for as long as
that is under way nothing is behind."""


@pytest.fixture(scope="module", autouse=True)
def listened(spark):
    listener = PenstockListener()
    spark.streams.addListener(listener)
    yield
    spark.streams.removeListener(listener)


@contextlib.contextmanager
def published(producer, topic):
    """Messages come all the time, on a thread of its own."""
    is_over = threading.Event()

    def publish():
        while not is_over.wait(1 / PER_S):
            producer.send(Message(topic, os.urandom(BODY_BYTES)))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def narrow(endpoint, *, is_narrow):
    """The endpoint, or the same behind a narrow link."""
    if not is_narrow:
        yield endpoint
        return
    host, _, port = endpoint.rpartition(":")
    with carried((host, int(port)), one_way_ms=NARROW_MS) as link:
        yield f"127.0.0.1:{link.port}"


def slow(path):
    def work(body):
        row_seconds(path) and threading.Event().wait(row_seconds(path))
        return bytes(body)

    return f.udf(work, BinaryType()).asNondeterministic()


def found(exam, part, query):
    """In the end it is found, and in every look from then on."""
    until = time.monotonic() + LEARNT_S_MAX
    while True:
        try:
            return exam.found("behind", part, query, within_s=FOUND_S_MAX)
        except pytest.fail.Exception:
            if time.monotonic() > until:
                raise


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize("part", ["read", "transform", "sink"])
def test_the_slow_part_of_a_query_is_named(bench, broker, producer, admin, part):
    exam, name = RealExam(broker), f"{part}-of-{bench.topic}"
    target, flag = f"to-{bench.topic}", bench.directory / "slow"
    admin.create_topic(target, queues=1)
    exam.ok()
    with (
        narrow(bench.endpoint, is_narrow=part == "read") as source,
        narrow(bench.endpoint, is_narrow=part == "sink") as sink,
    ):
        rows = bench.stream(endpoint=source, topics=bench.topic, subscription=name)
        set_row_seconds(flag, SLOW_ROW_S if part == "transform" else 0)
        query = (
            rows.select(slow(str(flag))("body").alias("body"))
            .writeStream.format("penstock")
            .options(endpoint=sink, topic=target)
            .option("checkpointLocation", str(bench.directory / "checkpoint"))
            .trigger(processingTime="1 second")
            .start()
        )
        try:
            with published(producer, bench.topic):
                found(exam, part, f"query/{name}")
            set_row_seconds(flag, 0)
            # It has to come through what it was given, at its pace.
            eventually(lambda: exam.answer()["severity"] == "ok", FOUND_S_MAX)
        finally:
            query.stop()
            exam.run(f"penstock queries forget {name}")
    admin.delete_topic(target)
