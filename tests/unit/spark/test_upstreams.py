"""The three places rows come from, each without its network."""

import subprocess
import sys

import pytest

from penstock.bulk.tickets import BulkError, Summary
from penstock.client import (
    NoRoute,
    PullResult,
    PullStatus,
    QueueRef,
    ReceivedMessage,
    Unreachable,
)
from penstock.client.admin import QueueStats
from penstock.model.queries import (
    LeaseResponse,
    PollRequest,
    PollResponse,
    QueueRange,
    ResolveResponse,
    TopicRange,
)
from penstock.model.spark_batch import BatchProgress
from penstock.spark import rocketmq
from penstock.spark.options import read_options
from penstock.spark.over_flight import FlightUpstream, OfflineUpstream
from penstock.spark.readers import new_upstream
from penstock.spark.tasks import ReadRange
from penstock.spark.upstream import Position
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import StoredMessage

RANGE = ReadRange(
    topic="orders", queue="1", start=5, end=9, epoch=3, incarnation=7, columns=("offset",)
)
START = Position(epoch=3, offsets={"orders": {"0": 2, "1": 5}})


def asking(at, **limits):
    return PollRequest(subscription="etl", start=at.offsets, epoch=at.epoch, **limits)


class Client:
    """Remembers what it is asked."""

    def __init__(self):
        self.asked = []
        self.summary = Summary()

    def resolve(self, topics=None, *, pattern=None, optional=()):
        self.asked.append((topics, pattern))
        queue = QueueRange(queue=1, queue_id=9, incarnation=7, earliest=2, end=8, bytes=60)
        return ResolveResponse(epoch=3, topics=[TopicRange(name="orders", queues=[queue])])

    def by_time(self, topic, at_ms):
        return {topic: {0: at_ms, 1: at_ms + 1}}

    def poll(self, question):
        self.asked.append(question)
        return PollResponse(
            epoch=3,
            ends={"orders": {0: 4, 1: 6}},
            latest={"orders": {0: 9, 1: 9}},
            incarnations={"orders": {0: 6, 1: 7}},
            lag_rows=11,
            lost="retention removed them",
        )

    def lease(self, question):
        self.asked.append(question)
        return LeaseResponse(ttl_ms=1000, is_broken=True, text="it held 2 GiB")

    def report(self, subscription, progress, *, state, text):
        self.asked.append((subscription, progress, state, text))

    def read(self, ticket):
        self.asked.append(ticket)
        return iter(())

    def close(self):
        self.asked.append("close")


@pytest.fixture
def client():
    return Client()


def flight(client, **given):
    return FlightUpstream(read_options({"topics": "orders", **given}), client)


def test_questions_to_a_broker_carry_numbers_for_queues_and_answers_texts(client):
    upstream = flight(client, subscription="etl", leaseTtl="2s")
    assert upstream.resolve().by_queue("end") == {"orders": {"1": 8}}
    assert upstream.resolve().row_bytes == 10
    assert upstream.at_time("orders", 5) == {"0": 5, "1": 6}
    answer = upstream.poll(asking(START, rows_max=10, wait_ms=3, report=BatchProgress(rows=1)))
    asked = client.asked[-1]
    assert (asked.subscription, asked.topics, asked.pattern) == ("etl", ["orders"], None)
    assert (asked.start, asked.epoch, asked.wait_ms) == ({"orders": {0: 2, 1: 5}}, 3, 3)
    assert answer.ends == {"orders": {"0": 4, "1": 6}}
    assert answer.lost == "retention removed them"
    assert upstream.renew_lease(START) == "it held 2 GiB"
    assert client.asked[-1].ttl_ms == 2000
    upstream.report(BatchProgress(), state="stopped")
    assert client.asked[-1] == ("etl", BatchProgress(), "stopped", "")


def test_tickets_are_strict_unless_loss_is_accepted(client):
    list(flight(client, filter="A", checkRecords="true", rowsPerBatch="50").read(RANGE))
    ticket = client.asked[-1]
    assert (ticket.queue, ticket.start, ticket.end, ticket.columns) == (1, 5, 9, ["offset"])
    assert (ticket.epoch, ticket.incarnation, ticket.fail_on_data_loss) == (3, 7, True)
    assert (ticket.filter.text, ticket.check, ticket.rows_per_batch) == ("A", True, 50)
    list(flight(client, failOnDataLoss="false").read(RANGE))
    ticket = client.asked[-1]
    assert (ticket.epoch, ticket.incarnation, ticket.fail_on_data_loss) == (0, 0, False)


def test_a_data_directory_answers_at_once(client):
    options = read_options({"topicsPattern": "ord.*", "path": "data"})
    upstream = OfflineUpstream(options, client)
    answer = upstream.poll(asking(Position(), wait_ms=1000, rows_max=4))
    assert client.asked == [(None, "ord.*")]
    assert (answer.ends, answer.starts) == ({"orders": {"1": 6}}, {"orders": {"1": 2}})
    assert upstream.at_time("orders", 5) == {"0": 5, "1": 6}
    assert upstream.renew_lease(START) == ""
    upstream.close()
    assert client.asked[-1] == "close"


def test_the_options_choose_the_kind(tmp_path):
    kinds = {"endpoint": "h:1"}, {"path": str(tmp_path)}, {"endpoint": "rocketmq://h:1"}
    made = [new_upstream(read_options({"topics": "a", **each})) for each in kinds]
    names = [type(each).__name__ for each in made]
    assert names == ["FlightUpstream", "OfflineUpstream", "RocketMqUpstream"]


class Cluster:
    """RocketMQ's administrator and reader in one; breaks as often as it is told."""

    def __init__(self, *, first=0, end=10, breaks=0):
        self.first, self.end, self.breaks = first, end, breaks
        self.committed = {}
        self.pulled = []

    def _maybe_break(self):
        if self.breaks:
            self.breaks -= 1
            raise Unreachable("h:9876", "it is restarted")

    def topics(self):
        return ["orders", "%RETRY%g", "TBW102"]

    def topic_stats(self, topic):
        self._maybe_break()
        if topic != "orders":
            raise NoRoute(topic)
        return {QueueRef(topic, "a", 1): QueueStats(self.first, self.end)}

    def offsets_at(self, topic, at_ms):
        return {QueueRef(topic, "a", 1): at_ms}

    def commit(self, queue, offset):
        self.committed[queue] = offset

    def pull(self, queue, offset, *, max_messages, tags, sql):
        self._maybe_break()
        self.pulled.append((offset, tags, sql))
        at = max(offset, self.first)
        following = min(at + min(3, max_messages), self.end)
        return PullResult(
            queue=queue,
            status=PullStatus.FOUND,
            messages=[Stored(each) for each in range(at, following)],
            next_offset=following,
            min_offset=self.first,
            max_offset=self.end,
        )

    def stop(self):
        pass


class Stored:
    """As much of a message as a row of offsets needs."""

    stored_bytes = 20

    def __init__(self, offset):
        self.offset = offset


def cluster_of(monkeypatch, cluster, **given):
    options = {"topics": "orders", "endpoint": "rocketmq://h:9876", "retryTimeout": "5s", **given}
    upstream = rocketmq.RocketMqUpstream(read_options(options))
    monkeypatch.setattr(rocketmq.RocketMqUpstream, "_asking", lambda self: cluster)
    monkeypatch.setattr(rocketmq.RocketMqUpstream, "_pulling", lambda self: cluster)
    monkeypatch.setattr(rocketmq.time, "sleep", lambda seconds: None)
    return upstream


def whole(start=0, end=10):
    return ReadRange(topic="orders", queue="a:1", start=start, end=end, columns=("queue", "offset"))


def test_queues_of_rocketmq_have_the_name_of_their_broker(monkeypatch):
    upstream = cluster_of(monkeypatch, Cluster(first=2), topics="orders")
    assert upstream.resolve().by_queue("earliest") == {"orders": {"a:1": 2}}
    assert upstream.at_time("orders", 5) == {"a:1": 5}
    with pytest.raises(BulkError, match="no topic 'order'; did you mean 'orders'"):
        cluster_of(monkeypatch, Cluster(), topics="order").resolve()


def test_a_pattern_does_not_mean_rocketmqs_own_topics(monkeypatch):
    options = read_options({"topicsPattern": ".*", "endpoint": "rocketmq://h:9876"})
    upstream = cluster_of(monkeypatch, Cluster())
    upstream._options = options
    assert list(upstream.resolve().by_queue("end")) == ["orders"]


def test_ranges_are_read_over_a_break_and_add_up(monkeypatch):
    cluster = Cluster()
    upstream = cluster_of(monkeypatch, cluster)
    batches = upstream.read(whole(1, 9))
    rows = next(batches).column("offset").to_pylist()
    cluster.breaks = 2
    rows += [each for batch in batches for each in batch.column("offset").to_pylist()]
    assert rows == [*range(1, 9)]
    summary = upstream.summary()
    assert (summary.next_offset, summary.rows, summary.read, summary.lost) == (9, 8, 8, 0)


def test_rows_of_a_rocketmq_are_those_that_a_penstock_would_give():
    properties = {"TAGS": "new", "KEYS": "k1 k2", "UNIQ_KEY": "ABC", "mine": "x"}
    ordered = {"__SHARDINGKEY": "customer", **properties}
    queue = QueueRef("orders", "a", 1)
    messages = [
        ReceivedMessage(StoredMessage(topic="orders", **fields), queue)
        for fields in (
            {"properties": format_properties(properties), "body": b"1", "born_ms": 5},
            {"properties": format_properties(ordered), "body": b"no zlib", "sys_flag": 1},
            {},
        )
    ]
    columns = ("key", "tag", "properties", "body")
    rows = rocketmq.batch_of(messages, queue, columns).to_pylist()
    assert rows == [
        {"key": "k1", "tag": "new", "properties": [("mine", "x")], "body": b"1"},
        {"key": "customer", "tag": "new", "properties": [("mine", "x")], "body": b"no zlib"},
        {"key": None, "tag": None, "properties": [], "body": b""},
    ]


def test_messages_that_rocketmq_removed_are_lost_and_those_behind_the_end_too(monkeypatch):
    upstream = cluster_of(monkeypatch, Cluster(first=4, end=8))
    assert sum(each.num_rows for each in upstream.read(whole())) == 4
    summary = upstream.summary()
    assert (summary.next_offset, summary.read, summary.lost) == (10, 4, 6)


def test_filters_are_the_brokers_business_and_leave_no_loss(monkeypatch):
    cluster = Cluster()
    list(cluster_of(monkeypatch, cluster, filter="A || B").read(whole()))
    assert {each[1:] for each in cluster.pulled} == {("A || B", None)}
    cluster.pulled.clear()
    list(cluster_of(monkeypatch, cluster, filter="n > 5").read(whole()))
    assert {each[1:] for each in cluster.pulled} == {("*", "n > 5")}


def test_processed_positions_are_stored_for_a_named_subscription_only(monkeypatch):
    cluster = Cluster()
    start = Position(offsets={"orders": {"a:1": 4}})
    cluster_of(monkeypatch, cluster).poll(asking(start))
    assert cluster.committed == {}
    answer = cluster_of(monkeypatch, cluster, subscription="etl").poll(asking(start))
    assert cluster.committed == {QueueRef("orders", "a", 1): 4}
    assert answer.ends == {"orders": {"a:1": 10}}


def test_a_cluster_that_stays_away_is_one_clear_error(monkeypatch):
    upstream = cluster_of(monkeypatch, Cluster(breaks=10**9), retryTimeout="1ms")
    with pytest.raises(BulkError, match="no answer from rocketmq://h:9876") as raised:
        upstream.resolve()
    assert raised.value.kind == "unreachable"


def test_a_query_of_a_broker_imports_nothing_of_a_data_directory():
    """The engine behind it would take each start of a query half a second."""
    script = "import sys, penstock.spark.over_flight; print('penstock.bulk.offline' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    assert said.stdout.split() == ["False"]
