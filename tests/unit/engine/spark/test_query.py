"""Queries that fall behind: leases that keep and break, publishers that are slowed and held."""

from dataclasses import replace

import pytest

from kit.workbench import Workbench
from penstock.engine.connection import ConnectionOptions
from penstock.engine.topic import TopicPolicy
from penstock.flow.reason import Reason
from penstock.model.names import topic_name
from penstock.model.queries import PollRequest
from penstock.model.refusal import RefusalKind
from penstock.settings.broker import StorageSettings
from penstock.settings.load import Settings
from penstock.settings.protocols import SparkSettings

HARD = TopicPolicy(spark_backpressure="hard", spark_backlog_messages_max=100)
SOFT = TopicPolicy(spark_backlog_messages_max=100)
SPARK = SparkSettings(lease_ms_max=600_000, alive_ms_max=10_000)


class Bench(Workbench):
    def polled(self, _order, _answer):
        raise AssertionError("nothing waits here")

    def poll(self, offset=0, name="etl", **changes):
        order = PollRequest(
            subscription=name, topics=["orders"], start={"orders": {0: offset}}, **changes
        )
        return self.engine.queries.poll(order, self)

    def send(self, channel, topic, count):
        self.publish(channel, topic, *[b"x" * 100] * count)
        self.settle()

    def stored(self, topic):
        return topic.queues[0].index.next_offset

    @property
    def query(self):
        return self.engine.queries.registry.queries["etl"]


def made(**spark):
    storage = StorageSettings(
        segment_bytes_max=64 * 1024, settled_keep_ms=1, settled_keep_bytes_max=0,
        retention_sweep_ms=1000, snapshot_bytes_min=0,
    )  # fmt: skip
    return Bench(Settings(storage=storage, spark=replace(SPARK, **spark)))


@pytest.fixture
def bench():
    return made()


def test_hard_holds_publishers_at_the_bound_and_names_the_query(bench):
    topic, channel = bench.topic(policy=HARD), bench.channel()
    bench.poll()
    bench.advance(100)
    bench.send(channel, topic, 300)
    assert bench.stored(topic) == 100
    assert channel.connection.gate.reasons[Reason.SPARK].startswith("Spark query 'etl' is 100 mess")
    assert channel.connection.may_read
    assert bench.poll(0).held.startswith("Spark query 'etl'")


def test_what_the_query_drains_lets_as_much_in(bench):
    topic, channel = bench.topic(policy=HARD), bench.channel()
    bench.poll()
    bench.advance(100)
    bench.send(channel, topic, 300)
    bench.poll(60)
    bench.settle()
    assert bench.stored(topic) == 160
    bench.poll(160)
    bench.settle()
    assert bench.stored(topic) == 260


def test_another_topic_of_another_channel_is_untouched(bench):
    topic, other = bench.topic(policy=HARD), bench.topic("other")
    bench.poll()
    bench.advance(100)
    bench.send(bench.channel(), topic, 300)
    bench.send(bench.channel(), other, 300)
    assert bench.stored(other) == 300
    assert other.limits is None


def test_a_held_publish_is_refused_when_its_time_is_up(bench):
    topic, channel = bench.topic(policy=HARD), bench.channel()
    bench.poll()
    bench.advance(100)
    bench.send(channel, topic, 101)
    for _ in range(25):
        bench.advance(1000)
        bench.poll()
    assert bench.refusal_kinds == [RefusalKind.HELD_TOO_LONG]
    assert "query 'etl'" in bench.outlet.refusals[0][1].text


def test_a_protocol_that_fails_fast_waits_a_moment_and_is_told_busy(bench):
    topic = bench.topic(policy=HARD)
    channel = bench.channel(ConnectionOptions(is_fast_failing=True))
    bench.poll()
    bench.advance(100)
    bench.send(channel, topic, 101)
    assert not bench.refusal_kinds
    bench.advance(1000)
    assert bench.refusal_kinds == [RefusalKind.HELD_TOO_LONG]
    assert "spark.busy_hold_ms_max" in bench.outlet.refusals[0][1].text


def test_a_query_that_fell_silent_holds_nobody(bench):
    topic, channel = bench.topic(policy=HARD), bench.channel()
    bench.poll()
    bench.advance(100)
    bench.send(channel, topic, 300)
    bench.advance(10_200)
    bench.settle()
    assert bench.stored(topic) == 300
    assert topic.limits is None
    assert bench.query.lease.holds


def test_a_query_that_ends_lets_publishers_go(bench):
    topic, channel = bench.topic(policy=HARD), bench.channel()
    bench.poll()
    bench.advance(100)
    bench.send(channel, topic, 300)
    bench.engine.queries.release("etl", is_final=False)
    bench.settle()
    assert bench.stored(topic) == 300


def test_soft_caps_publishers_at_a_little_more_than_the_drain_rate(bench):
    topic, channel = bench.topic(policy=SOFT), bench.channel()
    bench.send(channel, topic, 200)
    done = 0
    bench.poll(0, rows_max=100)
    for _ in range(2):  # 100 messages a second
        bench.advance(1000)
        done += 50
        bench.poll(done, rows_max=50)
    before = bench.stored(topic)
    bench.publish(channel, topic, *[b"x"] * 1000)
    for _ in range(4):
        bench.advance(1000)
        bench.settle()
        done += 50
        bench.poll(done, rows_max=50)
    assert 4 * 50 * 1.05 <= bench.stored(topic) - before <= 4 * 50 * 1.1 + 30


def test_soft_costs_a_topic_nothing_while_its_queries_keep_up(bench):
    topic, channel = bench.topic(policy=SOFT), bench.channel()
    bench.poll()
    bench.advance(1000)
    bench.send(channel, topic, 99)
    bench.advance(1000)
    assert topic.limits is None


def test_a_policy_can_be_changed_while_publishers_wait(bench):
    topic, channel = bench.topic(policy=HARD), bench.channel()
    bench.poll()
    bench.advance(100)
    bench.send(channel, topic, 300)
    bench.engine.set_policy(topic_name("orders"), TopicPolicy(spark_backpressure="off"))
    bench.advance(200)
    bench.settle()
    assert bench.stored(topic) == 300


def test_another_bound_holds_from_the_very_next_publish(bench):
    topic, channel = bench.topic(policy=HARD), bench.channel()
    bench.poll()
    bench.advance(100)
    bench.send(channel, topic, 300)
    policy = TopicPolicy(spark_backpressure="hard", spark_backlog_messages_max=150)
    bench.engine.set_policy(topic_name("orders"), policy)
    bench.settle()
    assert bench.stored(topic) == 150


def fill_segments(bench, topic, channel, count):
    for _ in range(count):
        bench.publish(channel, topic, *[b"x" * 1000] * 60)
        bench.settle()
        bench.advance(2100)
        bench.settle()


def test_a_lease_keeps_what_the_query_has_not_processed(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.poll()
    fill_segments(bench, topic, channel, 6)
    assert topic.queues[0].index.min_offset == 0
    bench.poll(300)
    fill_segments(bench, topic, channel, 2)
    assert 0 < topic.queues[0].index.min_offset <= 300


def test_a_lease_of_a_silent_query_breaks_and_its_data_goes(bench, caplog):
    topic, channel = bench.topic(), bench.channel()
    bench.poll()
    fill_segments(bench, topic, channel, 4)
    bench.advance(601_000)
    fill_segments(bench, topic, channel, 2)
    assert topic.queues[0].index.min_offset > 0
    assert bench.engine.queries.registry.leases_broken == {"silence": 1}
    assert [each.event for each in bench.engine.queries.registry.take_lease_events()] == [
        "lease-broken"
    ]
    assert "lease of a query is broken" in caplog.text
    answer = bench.poll(0)
    assert answer.starts["orders"][0] > 0
    assert "silent for" in answer.lost


def test_a_lease_above_its_bytes_breaks_and_survives_a_restart():
    bench = made(lease_bytes_max=100_000, backpressure="off")
    topic, channel = bench.topic(), bench.channel()
    bench.poll()
    fill_segments(bench, topic, channel, 4)
    assert bench.query.lease.cause == "bytes"
    bench.kill()
    assert bench.query.lease.is_broken
    topic = bench.engine.topics()[0]
    bench.poll(bench.stored(topic))
    assert bench.query.lease.holds
