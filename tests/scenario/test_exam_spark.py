"""The exam of Spark's queries and sinks: which part is slow, and what is its own limit."""

import pytest

from kit.exam import Exam
from penstock.engine.connection import ConnectionOptions
from penstock.engine.topic import Overflow, TopicPolicy
from penstock.flow.spark_brake import Backpressure
from penstock.model.queries import (
    CommitBatchRequest,
    LeaseRequest,
    PollRequest,
    ReportRequest,
    StageRoomRequest,
)
from penstock.model.spark_batch import BatchProgress
from penstock.settings.protocols import SparkSettings

ROWS = 10
"""Of one batch: less than comes in a second."""
SILENT_MS = 62_000
"""A query is gone that has not polled for a minute (``spark.alive_ms_max``), or lost its lease."""


class Asker:
    def __init__(self):
        self.answers = []

    def answered(self, order, answer):
        self.answers.append(answer)


class SparkExam(Exam):
    """A topic with a query that takes ten rows a second."""

    def __init__(self, **spark):
        super().__init__(parts={"spark": SparkSettings(**spark)})
        self.orders = self.bench.topic("orders")
        self.channel = self.bench.channel()
        self.position = 0

    def poll(self, **changes):
        order = PollRequest(
            subscription="etl",
            topics=["orders"],
            start={"orders": {0: self.position}},
            **{"rows_max": ROWS, **changes},
        )
        answer = self.bench.engine.queries.poll(order, Asker())
        self.bench.settle()
        self.position = answer.ends["orders"][0]

    def run(self, *, published=3 * ROWS, **poll):
        """It polls once a second, and more or less comes in than it takes."""
        due_ms = self.now_ms

        def polls():
            nonlocal due_ms
            if self.now_ms >= due_ms:
                due_ms += 1_000
                self.publish(self.orders, published, self.channel)
                self.poll(**poll)

        self.meanwhile = polls

    def drain(self):
        """It has read everything, and says so."""
        self.meanwhile = None
        self.poll(rows_max=0)
        self.poll(rows_max=0)
        self.ok_again()


def times(**parts):
    return BatchProgress(rows=ROWS, batch_ms=1_000, query_id="of-spark", **parts)


@pytest.fixture
def exam():
    exam = SparkExam()
    exam.poll()
    exam.run(published=ROWS // 2)
    exam.pass_ms(3_000)
    return exam


@pytest.mark.parametrize(
    ("part", "progress", "put_ms"),
    [
        ("read", times(read_ms=800, work_ms=900, sink_ms=50), 0),
        ("sink", times(read_ms=50, work_ms=100, sink_ms=800), 0),
        ("transform-or-sink", times(read_ms=50, work_ms=900, sink_ms=40), 0),
        ("transform", times(read_ms=50, work_ms=900, sink_ms=40), 100),
        ("sink", times(read_ms=50, work_ms=900, sink_ms=40), 700),
    ],
)
def test_a_query_that_is_slow_in_a_part(exam, part, progress, put_ms):
    exam.begins()
    exam.run(published=5 * ROWS, report=progress)
    exam.pass_ms(1_000)
    commit = CommitBatchRequest(sink="s", query="of-spark", batch=0, put_ms=put_ms)
    exam.bench.engine.queries.handle(commit, Asker())
    found = exam.found("behind", part, "query/etl", name="etl")
    assert found.path == ("topic/orders", "query/etl")
    exam.drain()


def test_a_query_that_takes_what_its_user_allows_is_at_its_own_limit(exam):
    exam.begins()
    exam.run(published=5 * ROWS, own_rows_max=ROWS, report=times(read_ms=800, work_ms=900))
    found = exam.found("behind", "own-limit", "query/etl", name="etl")
    assert f"maxRowsPerTrigger {ROWS}" in found.sentence
    exam.drain()


def test_a_query_that_catches_up_is_ok_in_every_look(exam):
    exam.publish(exam.orders, 400, exam.channel)
    for _ in range(30):
        exam.publish(exam.orders, 2, exam.channel)
        exam.poll(rows_max=15)
        exam.bench.advance(1_000)
        exam.ok()


def test_a_query_that_holds_publishers_is_to_blame_and_its_part_is_the_cause(exam):
    policy = TopicPolicy(spark_backpressure=Backpressure.HARD, spark_backlog_messages_max=60)
    exam.bench.engine.set_policy(exam.orders.name, policy)
    progress = times(read_ms=50, work_ms=100, sink_ms=800)
    other, _ = exam.topic("returns")
    exam.publish(other, 1, exam.channel)
    exam.begins()
    exam.run(published=6 * ROWS, report=progress)
    waiting = [exam.channel.connection.stage.id]
    found = exam.found("holding", "sink", "query/etl", name="etl", waiting=waiting)
    assert "its sink is the slow part" in found.detail
    assert found.path == (*waiting, "topic/orders", "log", "query/etl")
    assert found.starved == ("topic/returns",), "what is held itself is not starved"
    assert [each.command for each in found.do] == [
        "penstock topics set orders --spark-backlog-max 120",
        "penstock topics set orders --spark-backpressure off",
        "penstock queries",
    ]
    exam.bench.engine.set_policy(exam.orders.name, TopicPolicy())
    exam.bench.advance(100)
    exam.drain()


@pytest.mark.parametrize("holds_channels", [False, True])
def test_publishers_wait_for_the_query_that_is_behind_now_not_for_who_was_at_first(holds_channels):
    exam = SparkExam()
    policy = TopicPolicy(spark_backpressure=Backpressure.HARD, spark_backlog_messages_max=60)
    exam.bench.engine.set_policy(exam.orders.name, policy)
    channel = exam.bench.channel(ConnectionOptions(holds_channels=holds_channels))

    def read(name, upto):
        start = {"orders": {0: upto}}
        poll = PollRequest(subscription=name, topics=["orders"], start=start, rows_max=ROWS)
        exam.bench.engine.queries.poll(poll, Asker())
        exam.bench.settle()

    both = {"first", "second"}
    for name in both:
        read(name, 0)
    exam.begins()
    exam.publish(exam.orders, 90, channel)
    waiting = [channel.connection.stage.id]
    blamed = exam.found("holding", "unknown", "query/", waiting=waiting).culprit.name
    read(blamed, 60)
    read(blamed, 60)
    exam.bench.advance(1_000)
    (other,) = both - {blamed}
    exam.now("holding", "unknown", f"query/{other}", waiting=waiting)
    exam.meanwhile = lambda: [read(name, exam.orders.queues[0].index.next_offset) for name in both]
    exam.ok_again()


def test_a_query_that_does_not_poll(exam):
    exam.meanwhile = None
    exam.drain()
    exam.begins()
    exam.publish(exam.orders, 20, exam.channel)
    exam.found("behind", "silent", "query/etl", name="etl", within_ms=SILENT_MS)
    exam.drain()


@pytest.mark.parametrize(
    ("state", "text", "said"),
    [("stopped", "", "it was stopped"), ("failed", "no such column", "it failed (no such column)")],
)
def test_a_query_that_was_stopped_or_failed_and_is_behind_says_so(exam, state, text, said):
    exam.drain()
    exam.begins()
    exam.meanwhile = lambda: exam.publish(exam.orders, 2, exam.channel)
    report = ReportRequest(subscription="etl", progress=BatchProgress(), state=state, text=text)
    exam.bench.engine.queries.handle(report, Asker())
    found = exam.found("behind", state, "query/etl", name="etl")
    assert f"messages behind: {said}." in found.sentence
    exam.drain()


def test_a_query_with_a_lease_that_did_not_begin(exam):
    exam.drain()
    exam.begins()
    lease = LeaseRequest(subscription="new", topics=["orders"], start={})
    exam.bench.engine.queries.handle(lease, Asker())
    exam.publish(exam.orders, 20, exam.channel)
    exam.meanwhile = lambda: exam.poll(rows_max=0)
    # It reads from the beginning: what it is behind is older than its lease.
    exam.found("behind", "not-started", "query/new", name="new", within_ms=SILENT_MS, is_older=True)
    exam.bench.engine.queries.release("new", is_final=True)
    exam.ok_again()


def test_a_query_whose_lease_is_broken_is_told_so_while_its_data_goes():
    exam = SparkExam(lease_ms_max=60_000)
    exam.poll()
    exam.begins()
    exam.publish(exam.orders, 20, exam.channel)
    found = exam.found("behind", "lease-broken", "query/etl", name="etl", within_ms=SILENT_MS)
    assert "lease" in found.sentence
    assert exam.now_ms - found.since_ms < 5_000, "when it broke"
    exam.drain()


# Sinks.


def test_a_put_that_waits_for_room_among_staged_rows():
    exam = SparkExam(stage_bytes_max=100, stage_batch_bytes_max=90)

    def room(query, size, wait_ms=0):
        key = {"sink": "out", "query": query, "batch": 0, "name": "0.a"}
        request = StageRoomRequest(bytes=size, wait_ms=wait_ms, **key)
        return exam.bench.engine.queries.handle(request, Asker())

    room("one", 60)
    room("two", 40)
    room("one", 20)
    exam.begins()
    assert room("two", 20, 60_000) is None
    exam.bench.settle()
    limit = "limit/spark.stage_bytes_max"
    found = exam.found("holding", "stage", limit, waiting=["sink/two/out"])
    assert "staged and not committed" in found.sentence
    exam.bench.advance(60_000)
    exam.ok_again()


def test_a_put_for_a_topic_at_its_limit_waits_with_the_other_publishers():
    exam = SparkExam()
    topic, subscription = exam.topic("full", TopicPolicy())
    exam.publish(topic, 3)
    # A batch may pass a limit by itself: it waits where others have passed it.
    policy = TopicPolicy(length_max=2, overflow=Overflow.HOLD)
    exam.bench.engine.set_policy(topic.name, policy)
    exam.begins()
    channel = exam.bench.channel()
    exam.publish(topic, 5, channel)
    key = {"sink": "out", "query": "q", "batch": 0, "name": "0.a", "topics": ["full"]}
    exam.bench.engine.queries.handle(StageRoomRequest(bytes=9, wait_ms=60_000, **key), Asker())
    exam.bench.settle()
    waiting = ["sink/q/out", channel.connection.stage.id]
    exam.found("holding", "held", "limit/length_max/topic/full", waiting=waiting)
    exam.meanwhile = exam.reader(subscription).ack_all
    exam.ok_again()
