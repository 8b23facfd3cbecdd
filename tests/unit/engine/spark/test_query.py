"""Queries that fall behind: leases that keep and break, publishers that are slowed and held."""

from dataclasses import replace

import pytest

from kit.workbench import Workbench
from penstock.engine.connection import ConnectionOptions
from penstock.engine.spark.query import (
    LOOK_PIECE_MS,
    LOOK_STEPS_MAX,
    SUBSCRIPTION_QUERIES_MAX,
    Query,
    QueryRefused,
)
from penstock.engine.spark.views import query_snapshots
from penstock.engine.topic import TopicPolicy
from penstock.flow.reason import Reason
from penstock.model.names import topic_name
from penstock.model.queries import LeaseRequest, LeaseResponse, PollRequest, ReleaseRequest
from penstock.model.refusal import RefusalKind
from penstock.model.spark_batch import BatchProgress
from penstock.settings.broker import StorageSettings
from penstock.settings.load import Settings
from penstock.settings.protocols import SparkSettings

HARD = TopicPolicy(spark_backpressure="hard", spark_backlog_messages_max=100)
SOFT = TopicPolicy(spark_backlog_messages_max=100)
SPARK = SparkSettings(lease_ms_max=600_000, alive_ms_max=10_000)


class Bench(Workbench):
    def answered(self, _order, _answer):
        raise AssertionError("nothing waits here")

    def poll(self, offset=0, name="etl", **changes):
        order = PollRequest(
            subscription=name, topics=["orders"], start={"orders": {0: offset}}, **changes
        )
        return self.engine.queries.poll(order, self)

    def report(self, checkpoint, state):
        self.engine.queries.report("etl", BatchProgress(checkpoint=checkpoint), state, "")

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


# ---- several Spark queries on one subscription --------------------------------------------------

SLOW, FAST = "5a0e" * 8, "fa57" * 8


def test_a_lease_keeps_what_the_slowest_of_two_queries_on_a_subscription_needs(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.poll(0, checkpoint=SLOW)
    bench.poll(0, checkpoint=FAST)
    fill_segments(bench, topic, channel, 6)
    bench.poll(120, checkpoint=SLOW)
    bench.poll(360, checkpoint=FAST)
    fill_segments(bench, topic, channel, 2)
    assert 0 < topic.queues[0].index.min_offset <= 120
    assert bench.poll(120, checkpoint=SLOW).lost is None


def test_each_query_of_a_subscription_is_shown_with_its_own_lag(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.send(channel, topic, 100)
    bench.poll(10, checkpoint=SLOW)
    bench.poll(100, checkpoint=FAST)
    service = bench.engine.queries
    shown = query_snapshots(service, bench.clock.monotonic_ms(), service.wall_ms)
    assert [(each.name, each.subscription, each.lag_messages) for each in shown] == [
        ("etl", "etl", 90),
        ("etl#fa57fa57", "etl", 0),
    ]
    assert [each.checkpoint for each in shown] == [SLOW, FAST]


def test_a_new_run_of_a_query_takes_the_place_of_the_old_one_also_after_a_restart(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.send(channel, topic, 100)
    bench.poll(10, checkpoint=SLOW)
    bench.poll(50, checkpoint=FAST)
    bench.settle()
    bench.kill()
    bench.poll(70, checkpoint=FAST)
    bench.poll(20, checkpoint=SLOW)
    queries = bench.engine.queries.registry.queries
    queue = bench.engine.topics()[0].queues[0]
    assert {name: each.lowest(queue) for name, each in queries.items()} == {
        "etl": 20,
        "etl#fa57fa57": 70,
    }


def test_of_two_queries_the_silent_one_loses_its_lease_and_the_other_keeps_its_own(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.poll(0, checkpoint=SLOW)
    bench.poll(0, checkpoint=FAST)
    for _ in range(7):
        bench.advance(100_000)
        bench.poll(0, checkpoint=FAST)
    bench.send(channel, topic, 1)
    queries = bench.engine.queries.registry.queries
    assert not queries["etl"].lease.holds
    assert queries["etl#fa57fa57"].lease.holds


def test_a_query_from_before_checkpoints_had_ids_keeps_its_position(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.send(channel, topic, 100)
    bench.poll(40)
    bench.poll(60, checkpoint=FAST)
    assert list(bench.engine.queries.registry.queries) == ["etl"]
    assert bench.query.position(topic.queues[0]) == 60


def test_a_query_that_never_had_a_batch_leaves_nothing_behind_when_it_starts_anew(bench):
    topic = bench.topic()
    bench.poll(0, checkpoint=SLOW)
    bench.report(SLOW, "stopped")
    bench.poll(0, checkpoint=FAST)
    bench.settle()
    queries = bench.engine.queries.registry.queries
    assert {name: each.checkpoint for name, each in queries.items()} == {"etl": FAST}
    assert list(topic.subscriptions) == ["spark/etl"]
    bench.kill()
    assert list(bench.engine.queries.registry.queries) == ["etl"]


def test_a_query_that_stopped_in_the_midst_of_a_batch_is_kept_when_another_starts(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.send(channel, topic, 10)
    assert bench.poll(0, checkpoint=SLOW).rows == 10
    bench.report(SLOW, "failed")
    bench.poll(0, checkpoint=FAST)
    assert len(bench.engine.queries.registry.queries) == 2


def test_queries_on_one_subscription_are_bounded_the_longest_silent_one_makes_room(bench, caplog):
    topic, channel = bench.topic(), bench.channel()
    bench.send(channel, topic, 10)
    registry = bench.engine.queries.registry
    for number in range(SUBSCRIPTION_QUERIES_MAX):
        bench.poll(0, checkpoint=f"{number:032x}"[::-1])
    with pytest.raises(QueryRefused, match="16 queries run on subscription 'etl'"):
        bench.poll(0, checkpoint=FAST)
    bench.report("1".ljust(32, "0"), "stopped")
    bench.poll(0, checkpoint=FAST)
    assert len(registry.queries) == SUBSCRIPTION_QUERIES_MAX
    assert "etl#10000000" not in registry.queries
    assert "made room" in registry.take_lease_events()[-1].text


def test_what_is_no_id_of_a_checkpoint_is_refused(bench):
    bench.topic()
    with pytest.raises(QueryRefused, match="letters and digits"):
        bench.poll(0, checkpoint="x" * 65)
    with pytest.raises(QueryRefused, match="letters and digits"):
        bench.poll(0, checkpoint="a\nb")


def test_giving_a_subscription_back_gives_all_its_queries_back(bench):
    bench.topic()
    bench.poll(0, checkpoint=SLOW)
    bench.poll(0, checkpoint=FAST)
    bench.engine.queries.handle(ReleaseRequest(subscription="etl", is_final=True), bench)
    assert not bench.engine.queries.registry.queries


def test_one_of_the_queries_on_a_subscription_may_be_given_back_alone(bench):
    bench.topic()
    bench.poll(0, checkpoint=SLOW)
    bench.poll(0, checkpoint=FAST)
    request = ReleaseRequest(subscription="etl", checkpoint=SLOW, is_final=True)
    bench.engine.queries.handle(request, bench)
    (left,) = bench.engine.queries.registry.queries.values()
    assert left.checkpoint == FAST


# ---- many of them -------------------------------------------------------------------------------
# What a look costs in one turn does not grow with the number of queries and topics.


def crowd(queries, topics, **spark):
    bench = made(**spark)
    for number in range(topics):
        bench.topic(f"t{number:04d}")
    bench.settle()
    for number in range(queries):
        lease(bench, f"q{number:03d}", [f"t{each:04d}" for each in range(topics)])
        bench.settle()
    return bench


def lease(bench, name, topics, **changes):
    order = LeaseRequest(subscription=name, topics=topics, **changes)
    return bench.engine.queries.handle(order, Waiting())


class Waiting:
    def answered(self, order, answer):
        assert isinstance(answer, LeaseResponse), answer


class CountedBytes:
    """Counts how often a lease is asked what it holds."""

    def __init__(self, monkeypatch):
        self.looked = 0
        plain = Query.held_bytes_of

        def counted(query, topic):
            self.looked += 1
            return plain(query, topic)

        monkeypatch.setattr(Query, "held_bytes_of", counted)


def test_a_look_at_many_leases_is_done_in_pieces_with_time_between_them(monkeypatch):
    bench = crowd(queries=12, topics=150)
    bench.advance(5_000)  # looks that were under way end
    registry, counted = bench.engine.queries.registry, CountedBytes(monkeypatch)
    pieces = []
    while sum(pieces) < 12 * 150:
        bench.clock.advance(registry.look_ms - bench.clock.monotonic_ms())
        before = counted.looked
        bench.engine.turn()
        pieces.append(counted.looked - before)
        assert registry.look_ms >= bench.clock.monotonic_ms() + LOOK_PIECE_MS
    assert len(pieces) >= 4
    assert max(pieces) <= LOOK_STEPS_MAX


def test_every_lease_is_judged_in_the_end_however_many_there_are(caplog):
    bench = crowd(queries=12, topics=150)
    bench.advance(600_001)
    bench.advance(5_000)
    queries = bench.engine.queries.registry.queries.values()
    assert {each.lease.cause for each in queries} == {"silence"}
    assert bench.engine.queries.registry.leases_broken == {"silence": 12}


def test_what_retention_asks_of_a_queue_concerns_its_own_readers_only(monkeypatch):
    bench = made(queries_max=100)
    for number in range(40):
        bench.topic(f"t{number:04d}")
        lease(bench, f"q{number:03d}", [f"t{number:04d}"])
    bench.settle()
    asked = []
    plain = Query.lowest
    monkeypatch.setattr(
        Query, "lowest", lambda query, queue: (asked.append(1), plain(query, queue))[1]
    )
    for topic in bench.engine.topics():
        assert bench.engine.queries.registry.lowest_kept(topic.queues[0]) == 0
    assert len(asked) == 40


def test_queries_times_queues_are_bounded_and_a_refused_one_leaves_nothing():
    bench = crowd(queries=2, topics=10, positions_max=25, query_queues_max=20)
    registry = bench.engine.queries.registry
    names = [f"t{each:04d}" for each in range(10)]
    with pytest.raises(
        QueryRefused, match=r"would read 30 queues and 25 are allowed \(spark.posit"
    ):
        lease(bench, "q9", names)
    assert ("q9" in registry.queries, registry.positions) == (False, 20)
    lease(bench, "q9", names[:5])
    registry.release("q000", is_final=True)
    assert registry.positions == 15
    lease(bench, "q9", names)
    assert registry.positions == 20


def test_the_last_places_are_for_those_who_made_few_queries():
    bench = made(queries_max=50)
    bench.topic()
    for number in range(45):
        bench.poll(0, name=f"q{number}", maker="10.0.0.1")
        bench.settle()
    with pytest.raises(QueryRefused, match=r"\(spark.queries_max\): 45 of 50 .* 10.0.0.1 made 45"):
        bench.poll(0, name="q45", maker="10.0.0.1")
    bench.poll(0, name="q0", maker="10.0.0.1")
    bench.poll(0, name="first", maker="10.0.0.2")
    bench.poll(0, name="operators")
    assert len(bench.engine.queries.registry.queries) == 47


def test_one_query_reads_so_many_queues_and_no_more_also_topic_by_topic():
    bench = crowd(queries=1, topics=10, query_queues_max=10)
    bench.topic("one-more")
    with pytest.raises(
        QueryRefused, match=r"would read 11 queues and 10 are allowed \(spark.query_"
    ):
        lease(bench, "q000", ["one-more"])


def test_deleted_topics_are_not_counted_any_more():
    bench = crowd(queries=3, topics=10)
    for number in range(4):
        bench.engine.delete_topic(topic_name(f"t{number:04d}"))
    bench.advance(2_000)
    assert bench.engine.queries.registry.positions == 3 * 6


def test_a_hard_bound_holds_also_on_a_topic_that_very_many_read():
    bench = made(queries_max=1000, backlog_messages_max=100, backpressure="hard")
    topic, channel = bench.topic(), bench.channel()
    for number in range(LOOK_STEPS_MAX + 1):
        lease(bench, f"q{number:03d}", ["orders"])
    bench.advance(1_000)
    for _ in range(20):
        bench.send(channel, topic, 10)
    assert bench.stored(topic) == 100


def test_a_subscription_with_a_control_character_is_refused_before_it_is_known(bench):
    bench.topic("orders")
    with pytest.raises(
        QueryRefused, match=r"subscription 'q.x1b\]0;x.x07' has a control character"
    ):
        bench.poll(name="q\x1b]0;x\x07")
    assert not bench.engine.queries.registry.queries
