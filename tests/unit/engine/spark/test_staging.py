"""Sinks at the desk: room for puts, commits that appear at once, replays, pressure, ends."""

import pytest

from kit.stages import block_of, rows, write_stage
from kit.workbench import Workbench
from penstock.engine.spark import staging
from penstock.engine.spark.query import QueryRefused
from penstock.engine.topic import DirectRoute, Overflow, TopicPolicy
from penstock.flow.quota import QuotaPolicy
from penstock.flow.reason import Reason
from penstock.log.staging import batch_path
from penstock.model.names import topic_name
from penstock.model.queries import (
    AbortBatchRequest,
    CommitBatchRequest,
    CommitBatchResponse,
    LeaseRequest,
    PollRequest,
    ResolveRequest,
    SinkStateRequest,
    StageDoneRequest,
    StageRoomRequest,
)
from penstock.model.spark_batch import (
    BAD_REQUEST,
    NO_STAGE,
    NO_TOPIC,
    REWOUND,
    TOO_LARGE,
    UNREACHABLE,
    BatchProgress,
    StagedRows,
)
from penstock.settings.broker import StorageSettings
from penstock.settings.load import Settings
from penstock.settings.protocols import SparkSettings
from penstock.testing.storage import FaultKind

MIB = 1 << 20
HOUR_MS = 3_600_000


class Asker:
    def __init__(self):
        self.answers = []

    def answered(self, order, answer):
        self.answers.append(answer)

    @property
    def answer(self):
        [answer] = self.answers
        return answer


class Bench(Workbench):
    def ask(self, request, asker=None):
        """The answer, or None when it comes later."""
        return self.engine.queries.handle(request, asker or Asker())

    def put(self, topic, bodies, batch=0, *, name="0.a", sink="out", query="q", queue=0, **facts):
        """Rows beside the log, as a put leaves them."""
        queue_id = topic.queues[queue].queue_id
        blocks = [block_of(queue_id, rows(bodies, **facts))]
        path = write_stage(self.storage, (sink, query, batch), name, blocks)
        size = self.storage.size(path)
        key = {"sink": sink, "query": query, "batch": batch, "name": name}
        self.ask(StageRoomRequest(bytes=size, **key))
        self.ask(StageDoneRequest(bytes=size, **key))
        return StagedRows(name=name, rows=len(bodies))

    def commit(self, batch, *stages, asker=None, wait_ms=1000, **changes):
        """What a commit gets once everything is durable; None while it waits."""
        asker = asker or Asker()
        key = {"sink": "out", "query": "q"} | changes
        request = CommitBatchRequest(batch=batch, stages=list(stages), wait_ms=wait_ms, **key)
        answer = self.ask(request, asker)
        self.settle()
        return answer or (asker.answers[0] if asker.answers else None)

    def staged(self):
        self.storage.exists("stage")
        return sorted(self.store.stages.found())


def bench_of(**spark):
    return Bench(Settings(spark=SparkSettings(**spark)))


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def orders(bench):
    topic = bench.topic(queues=2)
    bench.settle()
    return topic


# ---- commits


def test_a_commit_makes_its_rows_visible_and_says_where(bench, orders):
    one = bench.put(orders, [b"a", b"b"], name="0.a")
    two = bench.put(orders, [b"c"], name="1.b", queue=1)
    answer = bench.commit(0, one, two)
    assert answer == CommitBatchResponse(rows=3, offsets={"orders": {0: (0, 2), 1: (0, 1)}})
    assert (bench.bodies(orders), bench.bodies(orders, 1)) == ([b"a", b"b"], [b"c"])
    assert [queue.durable_end for queue in orders.queues] == [2, 1]
    assert bench.staged() == []
    assert bench.engine.staged.counters.rows == 3


def test_nothing_is_visible_while_the_copy_and_the_commit_are_not_durable(bench, orders):
    one = bench.put(orders, [b"a", b"b"])
    asker = Asker()
    bench.ask(CommitBatchRequest(sink="out", query="q", batch=0, stages=[one], wait_ms=9), asker)
    seen = []
    while not asker.answers:
        bench.turns()
        seen.append((orders.queues[0].index.next_offset, orders.queues[0].durable_end))
        bench.sync()
    assert seen[:-1] == [(0, 0)] * (len(seen) - 1)
    assert asker.answer.rows == 2


def test_only_the_puts_that_are_named_count(bench, orders):
    bench.put(orders, [b"lost attempt"], name="0.lost")
    good = bench.put(orders, [b"good"], name="0.good")
    bench.commit(0, good)
    assert bench.bodies(orders) == [b"good"]
    assert bench.staged() == []


def test_a_batch_without_rows_is_a_batch(bench, orders):
    assert bench.commit(4).rows == 0
    assert bench.ask(SinkStateRequest(sink="out", query="q")).batch == 4


def test_publishes_before_and_behind_a_commit_keep_their_order(bench, orders):
    channel, queue = bench.channel(), orders.queues[0]
    one = bench.put(orders, [b"a", b"b"])
    asker = Asker()
    bench.ask(CommitBatchRequest(sink="out", query="q", batch=0, stages=[one], wait_ms=9), asker)
    sent = 0
    while not asker.answers:
        bench.publish(channel, DirectRoute(queue), b"%d" % sent)
        sent += 1
        bench.turns()
        bench.sync()
    bench.settle()
    bodies = bench.bodies(orders)
    assert sorted(bodies) == sorted([b"a", b"b", *(b"%d" % n for n in range(sent))])
    assert bodies.index(b"b") == bodies.index(b"a") + 1
    assert [each for each in bodies if each.isdigit()] == [b"%d" % n for n in range(sent)]
    assert queue.durable_end == queue.index.next_offset == len(bodies)


def test_consumers_are_told_of_committed_rows(bench, orders):
    asker = Asker()
    start = {"orders": {0: 0, 1: 0}}
    poll = PollRequest(subscription="etl", topics=["orders"], start=start, wait_ms=60_000)
    assert bench.ask(poll, asker) is None
    bench.commit(0, bench.put(orders, [b"a"]))
    assert asker.answer.ends == {"orders": {0: 1, 1: 0}}


def test_a_large_batch_is_copied_and_entered_piece_by_piece(bench, orders, monkeypatch):
    monkeypatch.setattr(staging, "COPY_ROWS_MAX", 2)
    monkeypatch.setattr(staging, "ENTER_ROWS_MAX", 1)
    stages = [bench.put(orders, [b"%d" % n] * 2, name=f"{n}.x") for n in range(5)]
    channel = bench.channel()
    before = bench.engine.statistics().turns
    asker = Asker()
    bench.ask(CommitBatchRequest(sink="out", query="q", batch=0, stages=stages, wait_ms=9), asker)
    bench.publish(channel, orders, b"other")
    bench.settle()
    assert asker.answer.rows == 10
    assert bench.engine.statistics().turns - before > 15
    bodies = bench.bodies(orders) + bench.bodies(orders, 1)
    assert sorted(bodies) == sorted([b"%d" % n for n in range(5)] * 2 + [b"other"])


def test_delayed_rows_appear_when_it_is_time(bench, orders):
    at_ms = bench.clock.wall_ms() + 5_000
    later = bench.put(orders, [b"later"], name="0.a", deliver_ms=at_ms)
    now = bench.put(orders, [b"now"], name="1.a")
    answer = bench.commit(0, later, now)
    assert answer.offsets == {"orders": {0: (0, 1)}}
    assert bench.bodies(orders) == [b"now"]
    bench.advance(5_001)
    bench.settle()
    assert bench.bodies(orders) == [b"now", b"later"]


def test_delayed_rows_wait_for_their_time_also_behind_a_crash(bench, orders):
    later = bench.put(orders, [b"later"], deliver_ms=bench.clock.wall_ms() + 5_000)
    bench.commit(0, later)
    bench.cut_power()
    topic = bench.engine.topic(topic_name("orders"))
    bench.advance(5_001)
    bench.settle()
    assert bench.bodies(topic) == [b"later"]


# ---- replays and what is refused


def test_a_batch_that_comes_again_is_answered_and_its_rows_are_dropped(bench, orders):
    bench.commit(7, bench.put(orders, [b"a"], 7))
    again = bench.put(orders, [b"a"], 7, name="0.again")
    answer = bench.commit(7, again)
    assert (answer.rows, answer.is_replay) == (1, True)
    assert bench.bodies(orders) == [b"a"]
    assert bench.staged() == []
    assert bench.engine.staged.counters.replays == 1
    assert bench.engine.staged.counters.replays_changed == 0


def test_a_replay_with_another_number_of_rows_is_counted(bench, orders, caplog):
    bench.commit(7, bench.put(orders, [b"a"], 7))
    answer = bench.commit(7, bench.put(orders, [b"a", b"b"], 7, name="0.again"))
    assert (answer.rows, answer.is_replay) == (1, True)
    assert bench.engine.staged.counters.replays_changed == 1
    assert "another number of rows" in caplog.text


@pytest.mark.parametrize("durability", ["os", "interval:1000"])
def test_where_written_counts_as_durable_a_commit_is_answered_at_once(durability):
    bench = Bench(Settings(storage=StorageSettings(durability=durability)))
    topic = bench.topic()
    bench.settle()
    assert bench.commit(0, bench.put(topic, [b"a"])).rows == 1
    assert bench.bodies(topic) == [b"a"]
    bench.kill()
    assert bench.bodies(bench.engine.topic(topic_name("orders"))) == [b"a"]


def test_a_replay_is_known_behind_a_crash_and_a_clean_stop(bench, orders):
    bench.commit(7, bench.put(orders, [b"a"], 7))
    for end in (bench.cut_power, bench.kill, bench.stop):
        end()
        topic = bench.engine.topic(topic_name("orders"))
        assert bench.commit(7, bench.put(topic, [b"a"], 7, name="0.x")).is_replay
        assert bench.bodies(topic) == [b"a"]


def test_a_streaming_query_that_goes_back_is_refused_by_name(bench, orders):
    bench.commit(7, bench.put(orders, [b"a"], 7))
    words = r"batch 6 of query 'q' in sink 'out'.*set back"
    with pytest.raises(QueryRefused, match=words) as caught:
        bench.commit(6, bench.put(orders, [b"b"], 6))
    assert caught.value.kind == REWOUND
    assert "option sink" in str(caught.value)
    assert bench.bodies(orders) == [b"a"]
    assert bench.engine.staged.counters.rewound == 1


def test_whoever_counts_batches_himself_may_repeat_any_of_them(bench, orders):
    bench.commit(7, bench.put(orders, [b"a"], 7), is_streaming=False)
    assert bench.commit(3, bench.put(orders, [b"x"], 3), is_streaming=False).is_replay
    assert bench.bodies(orders) == [b"a"]


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_batch_of_another_checkpoint_that_is_not_new_is_refused(bench, orders, is_streaming):
    bench.commit(7, bench.put(orders, [b"a"], 7), checkpoint="one", is_streaming=is_streaming)
    for batch in (0, 7):
        stage = bench.put(orders, [b"b"], batch, name="0.b")
        with pytest.raises(QueryRefused, match=r"checkpoint two.*checkpoint one") as caught:
            bench.commit(batch, stage, checkpoint="two", is_streaming=is_streaming)
        assert caught.value.kind == REWOUND
    newer = bench.put(orders, [b"c"], 8)
    assert bench.commit(8, newer, checkpoint="two", is_streaming=is_streaming).rows == 1


def test_numbers_may_be_left_out(bench, orders):
    bench.commit(1, bench.put(orders, [b"a"], 1))
    assert bench.commit(9, bench.put(orders, [b"b"], 9)).rows == 1


def test_two_sinks_of_one_query_never_meet(bench, orders):
    one = bench.put(orders, [b"a"], 3, sink="one")
    other = bench.put(orders, [b"b"], 3, sink="other")
    assert bench.commit(3, one, sink="one").rows == 1
    assert not bench.commit(3, other, sink="other").is_replay
    assert bench.bodies(orders) == [b"a", b"b"]


def test_a_commit_that_is_asked_for_again_while_it_runs_is_one_commit(bench, orders):
    stage = bench.put(orders, [b"a"])
    askers = [Asker(), Asker()]
    for asker in askers:
        request = CommitBatchRequest(sink="out", query="q", batch=0, stages=[stage], wait_ms=9)
        assert bench.ask(request, asker) is None
    bench.settle()
    assert [asker.answer.rows for asker in askers] == [1, 1]
    assert bench.bodies(orders) == [b"a"]


def test_of_two_drivers_that_commit_the_same_batch_the_first_one_counts(bench, orders):
    first, second = bench.put(orders, [b"a"], name="0.a"), bench.put(orders, [b"b"], name="0.b")
    askers = [Asker(), Asker()]
    for asker, stage in zip(askers, (first, second), strict=True):
        request = CommitBatchRequest(sink="out", query="q", batch=0, stages=[stage], wait_ms=9)
        assert bench.ask(request, asker) is None
    with pytest.raises(QueryRefused, match=r"batch 0 .* is being committed"):
        bench.ask(CommitBatchRequest(sink="out", query="q", batch=1))
    bench.settle()
    assert [asker.answer.is_replay for asker in askers] == [False, True]
    assert bench.bodies(orders) == [b"a"]


def test_a_stage_that_is_not_there_fails_the_commit_and_leaves_nothing(bench, orders):
    good = bench.put(orders, [b"a"])
    with_lost = (good, StagedRows(name="9.lost", rows=3))
    answer = bench.commit(0, *with_lost)
    assert isinstance(answer, QueryRefused)
    assert answer.kind == NO_STAGE
    assert "9.lost is not there" in str(answer)
    assert bench.bodies(orders) == []
    assert bench.commit(0, good).rows == 1


def test_a_stage_with_other_rows_than_its_receipt_fails_the_commit(bench, orders):
    stage = bench.put(orders, [b"a", b"b"])
    answer = bench.commit(0, StagedRows(name=stage.name, rows=3))
    assert (answer.kind, "has 2 rows, not 3" in str(answer)) == (NO_STAGE, True)


def test_a_damaged_stage_fails_the_commit(bench, orders):
    stage = bench.put(orders, [b"a", b"b"])
    file = bench.storage.open(f"{batch_path('out', 'q', 0)}/{stage.name}", create=False)
    file._node.content[-5] ^= 1
    answer = bench.commit(0, stage)
    assert (answer.kind, "checksum" in str(answer)) == (NO_STAGE, True)
    assert bench.bodies(orders) == []
    assert bench.commit(0, bench.put(orders, [b"a"], name="0.b")).rows == 1


def test_a_put_that_is_written_again_while_it_is_copied_fails_the_commit(bench, orders):
    bench.engine.set_alarm("memory", 1 << 60)
    stage = bench.put(orders, [b"a", b"b"])
    asker = Asker()
    assert bench.commit(0, stage, asker=asker, wait_ms=60_000) is None
    bench.storage.remove(f"{batch_path('out', 'q', 0)}/{stage.name}")
    blocks = [block_of(orders.queues[0].queue_id, rows([b"a"]))]
    write_stage(bench.storage, ("out", "q", 0), stage.name, blocks)
    bench.engine.set_alarm("memory", 0)
    bench.settle()
    assert (asker.answer.kind, "written again" in str(asker.answer)) == (NO_STAGE, True)
    assert bench.bodies(orders) == []


@pytest.mark.parametrize("name", ["../../log/x", "0.a/../b", ""])
def test_a_name_that_leads_elsewhere_is_refused(bench, orders, name):
    with pytest.raises(QueryRefused) as caught:
        bench.commit(0, StagedRows(name=name, rows=1))
    assert caught.value.kind == BAD_REQUEST
    with pytest.raises(QueryRefused):
        bench.ask(StageRoomRequest(sink="out", query="q", batch=0, name=name))


@pytest.mark.parametrize("sink", ["", "a\nb", "x" * 1001])
def test_a_sink_without_a_proper_name_is_refused(bench, sink):
    with pytest.raises(QueryRefused) as caught:
        bench.ask(SinkStateRequest(sink=sink, query="q"))
    assert caught.value.kind == BAD_REQUEST


def test_a_topic_that_is_deleted_before_the_commit_fails_it(bench, orders):
    stage = bench.put(orders, [b"a"])
    bench.engine.delete_topic(orders.name)
    answer = bench.commit(0, stage)
    assert (answer.kind, "is gone" in str(answer)) == (NO_TOPIC, True)


def test_who_asks_for_a_sink_hears_of_a_commit_that_is_on_its_way(bench, orders):
    stage = bench.put(orders, [b"a"])
    asked = SinkStateRequest(sink="out", query="q")
    asker = Asker()
    bench.ask(CommitBatchRequest(sink="out", query="q", batch=0, stages=[stage], wait_ms=9), asker)
    assert (bench.ask(asked).batch, bench.ask(asked).is_committing) == (-1, True)
    bench.settle()
    assert (bench.ask(asked).batch, bench.ask(asked).is_committing) == (0, False)


def test_a_batch_that_spark_was_killed_behind_is_written_again_within_its_bound():
    bench = bench_of(stage_batch_bytes_max=400)
    orders = bench.topic()
    bench.settle()
    for task in range(2):
        bench.put(orders, [b"x"], name=f"{task}.lost")
    size = bench.engine.staged.size_bytes
    assert 200 < size <= 400
    again = [bench.put(orders, [b"x"], name=f"{task}.again") for task in range(2)]
    assert bench.engine.staged.size_bytes == size
    assert bench.commit(0, *again).rows == 2
    assert bench.staged() == []


def test_a_topic_that_is_deleted_during_the_copy_fails_the_commit(bench, orders):
    other = bench.topic("other")
    stages = [bench.put(orders, [b"a"], name="0.a"), bench.put(other, [b"b"], name="0.b")]
    asker = Asker()
    bench.ask(CommitBatchRequest(sink="out", query="q", batch=0, stages=stages, wait_ms=9), asker)
    bench.turns()
    bench.engine.delete_topic(orders.name)
    bench.settle()
    assert asker.answer.kind == NO_TOPIC
    assert bench.bodies(other) == []


def test_a_topic_that_is_deleted_while_the_commit_waits_for_the_log_fails_it(bench, orders):
    stage = bench.put(orders, [b"a"])
    asker = Asker()
    request = CommitBatchRequest(sink="out", query="q", batch=0, stages=[stage], wait_ms=9_000)
    bench.ask(request, asker)
    bench.turns()
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    bench.settle()
    assert bench.storage.plan.struck == 1, "the commit's own record"
    bench.engine.delete_topic(orders.name)
    bench.advance(2 * staging.RETRY_MS)
    assert asker.answer.kind == NO_TOPIC


# ---- the disk


def test_a_copy_that_the_disk_refuses_is_tried_again(bench, orders):
    stage = bench.put(orders, [b"a"])
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    asker = Asker()
    bench.ask(CommitBatchRequest(sink="out", query="q", batch=0, stages=[stage], wait_ms=9), asker)
    bench.settle()
    assert asker.answers == []
    bench.advance(200)
    bench.settle()
    assert asker.answers[-1].held or asker.answers[-1].rows == 1
    assert bench.bodies(orders) == [b"a"]


def test_a_failed_sync_refuses_commits_and_puts(bench, orders):
    stage = bench.put(orders, [b"a"])
    asker = Asker()
    bench.ask(CommitBatchRequest(sink="out", query="q", batch=0, stages=[stage], wait_ms=9), asker)
    bench.turns()
    bench.storage.plan.fail_next("sync", FaultKind.EIO)
    bench.settle()
    assert asker.answer.kind == UNREACHABLE
    with pytest.raises(QueryRefused):
        bench.ask(StageRoomRequest(sink="out", query="q", batch=1, name="0.a"))
    bench.cut_power()
    topic = bench.engine.topic(topic_name("orders"))
    assert bench.bodies(topic) in ([], [b"a"])


def test_a_copy_that_cannot_go_on_and_that_nobody_wants_is_given_up(bench, orders):
    stage = bench.put(orders, [b"a"])
    bench.storage.capacity_bytes = bench.storage.used_bytes
    asker = Asker()
    bench.ask(CommitBatchRequest(sink="out", query="q", batch=0, stages=[stage], wait_ms=50), asker)
    bench.advance(100)
    assert asker.answer.held
    assert bench.engine.staged.commits_waiting == 1
    bench.advance(staging.ABANDON_MS + 200)
    assert bench.engine.staged.commits_waiting == 0


# ---- pressure


def test_a_commit_waits_while_its_topic_is_full_and_may_pass_the_limit_by_itself(bench):
    for overflow in (Overflow.HOLD, Overflow.REJECT):
        policy = TopicPolicy(length_max=2, overflow=overflow)
        topic = bench.topic(f"full-{overflow.value}", policy)
        reader = bench.reader(topic)
        first = bench.put(topic, [b"%d" % n for n in range(5)], 0, sink=topic.name.name)
        assert bench.commit(0, first, sink=topic.name.name).rows == 5
        second = StagedRows(name="0.b", rows=1)
        write_stage(
            bench.storage,
            (topic.name.name, "q", 1),
            "0.b",
            [block_of(topic.queues[0].queue_id, rows([b"more"]))],
        )
        asker = Asker()
        answer = bench.commit(1, second, asker=asker, wait_ms=500, sink=topic.name.name)
        assert answer is None
        bench.advance(501)
        assert "length_max" in asker.answer.held
        asker = Asker()
        bench.commit(1, second, asker=asker, wait_ms=60_000, sink=topic.name.name)
        reader.commit(topic.queues[0].queue_id, 4)
        bench.settle()
        assert asker.answer.rows == 1


def test_a_commit_waits_for_a_backlog_quota_whatever_its_policy_is(bench):
    for quota in (QuotaPolicy.HOLD, QuotaPolicy.EXCEPTION):
        topic = bench.topic(quota.value, TopicPolicy(quota_bytes_max=100, quota_policy=quota))
        reader = bench.reader(topic)
        assert bench.commit(0, bench.put(topic, [b"a"], query=quota.value), query=quota.value).rows
        asker = Asker()
        write_stage(
            bench.storage,
            ("out", quota.value, 1),
            "0.b",
            [block_of(topic.queues[0].queue_id, rows([b"more"]))],
        )
        stage = StagedRows(name="0.b", rows=1)
        assert bench.commit(1, stage, asker=asker, query=quota.value, wait_ms=60_000) is None
        held = bench.engine.staged.held["out", quota.value]
        assert held.hold.reason is Reason.QUOTA
        reader.commit(topic.queues[0].queue_id, 1)
        bench.settle()
        assert asker.answer.rows == 1
        assert bench.engine.staged.held == {}


def test_where_the_oldest_messages_go_a_commit_waits_for_nobody(bench):
    topic = bench.topic("short", TopicPolicy(length_max=2))
    reader = bench.reader(topic)
    assert bench.commit(0, bench.put(topic, [b"%d" % n for n in range(5)])).rows == 5
    assert bench.commit(1, bench.put(topic, [b"x", b"y", b"z"], 1)).rows == 3
    bench.settle()
    assert reader.ready(topic.queues[0].queue_id) == 2


def test_a_publish_rate_holds_the_next_commit_for_as_long_as_the_batch_was_large(bench):
    topic = bench.topic("slow", TopicPolicy(publish_messages_per_s=10))
    assert bench.commit(0, bench.put(topic, [b"x"] * 30)).rows == 30
    asker = Asker()
    stage = bench.put(topic, [b"y"], 1)
    assert bench.commit(1, stage, asker=asker, wait_ms=60_000) is None
    assert bench.engine.staged.held["out", "q"].hold.reason is Reason.RATE
    bench.advance(30_000)
    bench.settle()
    assert asker.answer.rows == 1


def test_topics_of_pipelines_themselves_pass_no_admission(bench):
    topic = bench.topic("penstock.retry.etl", TopicPolicy(length_max=1, overflow=Overflow.REJECT))
    bench.reader(topic)
    for batch in range(3):
        assert bench.commit(batch, bench.put(topic, [b"a", b"b"], batch)).rows == 2


def test_letters_of_a_flow_pass_the_limits_of_the_topics_that_it_names_and_of_no_others(bench):
    policy = TopicPolicy(length_max=1, overflow=Overflow.HOLD)
    dead, other = bench.topic("etl-dead", policy), bench.topic("other", policy)
    for topic in (dead, other):
        bench.reader(topic)
        assert bench.commit(0, bench.put(topic, [b"a"], sink=topic.name.name), sink=topic.name.name)
    key = {"sink": "etl", "query": "q", "batch": 1}
    room = StageRoomRequest(name="0.a", topics=["etl-dead", "other"], bytes=9, **key)
    assert bench.ask(room).held
    room.passing = ["etl-dead"]
    assert "'other'" in bench.ask(room).held
    room.topics = ["etl-dead"]
    assert not bench.ask(room).held
    letters = bench.put(dead, [b"b", b"c"], 1, name="0.d", sink="etl")
    assert bench.commit(1, letters, sink="etl", passing=["etl-dead"]).rows == 2
    both = [letters, bench.put(other, [b"d"], 2, name="0.o", sink="etl")]
    both[0] = bench.put(dead, [b"e"], 2, name="0.d", sink="etl")
    assert bench.commit(2, *both, sink="etl", passing=["etl-dead"], wait_ms=60_000) is None
    assert bench.engine.staged.held["etl", "q"].hold.reason is Reason.HELD


def test_letters_for_a_topic_that_takes_nothing_any_more_are_refused_all_the_same(bench, orders):
    stage = bench.put(orders, [b"a"])
    bench.engine.terminate_topic(orders.name)
    assert "terminated" in str(bench.commit(0, stage, passing=["orders"]))


def test_nobody_names_more_topics_that_hold_nothing_than_a_flow_has(bench):
    many = [f"t{number}" for number in range(staging.PASSING_MAX + 1)]
    with pytest.raises(QueryRefused, match="at most 8"):
        bench.commit(0, passing=many)
    with pytest.raises(QueryRefused, match="at most 8"):
        bench.ask(StageRoomRequest(sink="s", query="q", batch=0, name="0.a", passing=many))


def test_the_memory_alarm_holds_puts_and_commits(bench, orders):
    stage = bench.put(orders, [b"a"])
    bench.engine.set_alarm("memory", 1 << 60)
    commit, put = Asker(), Asker()
    assert bench.commit(0, stage, asker=commit, wait_ms=60_000) is None
    room = StageRoomRequest(sink="out", query="q", batch=1, name="0.a", bytes=9, wait_ms=60_000)
    assert bench.ask(room, put) is None
    assert bench.engine.staged.held["out", "q"].hold.reason is Reason.MEMORY
    bench.engine.set_alarm("memory", 0)
    bench.settle()
    assert (commit.answer.rows, put.answer.held) == (1, "")


def _leased(bench, orders):
    """Query q of Spark, whose lease keeps everything."""
    request = LeaseRequest(subscription="etl", topics=["orders"])
    bench.ask(request)
    bench.engine.queries.report("etl", BatchProgress(query_id="q", batch_ms=1), "running", "")


def test_under_the_disk_alarm_a_query_with_a_lease_commits_from_the_reserve(orders, bench):
    bench.engine.set_alarm_limits(memory_bytes=1 << 60, disk_free_bytes=1000 * MIB)
    stage = bench.put(orders, [b"a"])
    _leased(bench, orders)
    bench.engine.set_alarm("disk", 900 * MIB)
    assert bench.commit(0, stage).rows == 1
    room = StageRoomRequest(sink="out", query="q", batch=1, name="0.a", bytes=10 * MIB)
    assert not bench.ask(room).held
    bench.engine.set_alarm("disk", 700 * MIB)
    assert "free, limit" in bench.ask(room).held


def test_under_the_disk_alarm_others_wait(bench, orders):
    bench.engine.set_alarm_limits(memory_bytes=1 << 60, disk_free_bytes=1000 * MIB)
    stage = bench.put(orders, [b"a"])
    bench.engine.set_alarm("disk", 900 * MIB)
    asker = Asker()
    assert bench.commit(0, stage, asker=asker, wait_ms=60_000) is None
    assert bench.engine.staged.held["out", "q"].hold.reason is Reason.DISK
    bench.engine.set_alarm("disk", 5000 * MIB)
    bench.settle()
    assert asker.answer.rows == 1


def test_the_reserve_is_not_spent_twice_between_two_looks_at_the_disk(bench, orders):
    bench.engine.set_alarm_limits(memory_bytes=1 << 60, disk_free_bytes=1000 * MIB)
    _leased(bench, orders)
    bench.engine.set_alarm("disk", 900 * MIB)
    grants = 0
    for number in range(20):
        room = StageRoomRequest(sink="out", query="q", batch=number, name="0.a", bytes=10 * MIB)
        grants += not bench.ask(room).held
    assert grants == 7  # 156 MiB above what must stay free, 20 MiB each: staged, and copied


def test_a_querys_own_brake_does_not_hold_its_commit():
    spark = SparkSettings(backpressure="hard", backlog_messages_max=1)
    bench = Bench(Settings(spark=spark))
    loop = bench.topic()
    bench.settle()
    _leased(bench, loop)
    assert bench.commit(0, bench.put(loop, [b"a", b"b"])).rows == 2
    bench.advance(1000)
    assert bench.commit(1, bench.put(loop, [b"c"], 1)).rows == 1
    other = bench.put(loop, [b"d"], query="other")
    asker = Asker()
    assert bench.commit(0, other, query="other", asker=asker, wait_ms=60_000) is None
    assert bench.engine.staged.held["out", "other"].hold.reason is Reason.SPARK


OTHER_NAMES = {
    "at least once": {"query": "q~0a1b"},
    "letters of a table": {"query": "flow-id", "sink": "etl.letters"},
    "a write within foreachBatch": {"query": "write-0a1b"},
}


@pytest.mark.parametrize("key", OTHER_NAMES.values(), ids=OTHER_NAMES.keys())
def test_the_reserve_is_for_a_query_with_a_lease_under_whatever_name_it_writes(bench, orders, key):
    bench.engine.set_alarm_limits(memory_bytes=1 << 60, disk_free_bytes=1000 * MIB)
    stage = bench.put(orders, [b"a"], **key)
    _leased(bench, orders)
    bench.engine.set_alarm("disk", 900 * MIB)
    key = {"sink": "out"} | key
    room = StageRoomRequest(batch=1, name="0.a", bytes=10 * MIB, **key)
    assert "free, limit" in bench.ask(room).held
    room.spark_query = "q"
    assert not bench.ask(room).held
    assert bench.commit(0, stage, spark_query="q", **key).rows == 1


@pytest.mark.parametrize("key", OTHER_NAMES.values(), ids=OTHER_NAMES.keys())
def test_a_querys_own_brake_does_not_hold_what_it_writes_under_another_name(key):
    bench = bench_of(backpressure="hard", backlog_messages_max=1)
    loop = bench.topic()
    bench.settle()
    _leased(bench, loop)
    assert bench.commit(0, bench.put(loop, [b"a", b"b"])).rows == 2
    bench.advance(1000)
    stage = bench.put(loop, [b"c"], **key)
    key = {"sink": "out"} | key
    room = StageRoomRequest(batch=0, name="0.b", topics=[str(loop.name)], bytes=9, **key)
    assert bench.ask(room).held
    room.spark_query = "q"
    assert not bench.ask(room).held
    assert bench.commit(0, stage, spark_query="q", **key).rows == 1


def test_a_topic_that_is_full_holds_puts_too(bench):
    topic = bench.topic("full", TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    reader = bench.reader(topic)
    bench.commit(0, bench.put(topic, [b"a"]))
    asker = Asker()
    room = StageRoomRequest(
        sink="out", query="q", batch=1, name="0.a", topics=["full"], bytes=9, wait_ms=60_000
    )
    assert bench.ask(room, asker) is None
    bench.settle()
    assert asker.answers == []
    reader.commit(topic.queues[0].queue_id, 1)
    bench.settle()
    assert not asker.answer.held


# ---- room for puts


def test_a_put_is_told_where_its_rows_go(bench, orders):
    room = StageRoomRequest(sink="out", query="q", batch=0, name="0.a", topics=["orders"])
    answer = bench.ask(room)
    [told] = answer.topics
    assert told.queues == [int(queue.queue_id) for queue in orders.queues]
    assert told.message_bytes_max == bench.settings.topics.message_bytes_max
    assert answer.wall_ms == bench.clock.wall_ms()


def test_a_topic_that_is_missing_is_made_and_durable_before_the_answer(bench):
    asker = Asker()
    room = StageRoomRequest(sink="out", query="q", batch=0, name="0.a", topics=["space/made"])
    assert bench.ask(room, asker) is None
    bench.turns()
    assert asker.answers == []
    bench.settle()
    made = bench.engine.topic(topic_name("made", "space"))
    assert asker.answer.topics[0].queues == [int(queue.queue_id) for queue in made.queues]
    assert len(made.queues) == 4


def test_a_topic_that_is_missing_is_refused_when_none_are_made(bench):
    bench = bench_of(is_auto_creating=False)
    bench.topic("orders")
    room = StageRoomRequest(sink="out", query="q", batch=0, name="0.a", topics=["order"])
    with pytest.raises(
        QueryRefused, match=r"did you mean 'orders'.* topics create order`"
    ) as caught:
        bench.ask(room)
    assert caught.value.kind == NO_TOPIC
    assert not bench.ask(ResolveRequest(topics=[])).is_auto_creating


def test_rows_for_a_topic_that_keeps_nothing_are_refused(bench):
    bench.topic("passing", is_durable=False)
    room = StageRoomRequest(sink="out", query="q", batch=0, name="0.a", topics=["passing"])
    with pytest.raises(QueryRefused, match="not durable"):
        bench.ask(room)


def test_a_terminated_topic_refuses_puts_and_commits(bench, orders):
    stage = bench.put(orders, [b"a"])
    bench.engine.terminate_topic(orders.name)
    room = StageRoomRequest(sink="out", query="q", batch=0, name="0.a", topics=["orders"])
    with pytest.raises(QueryRefused, match="terminated"):
        bench.ask(room)
    assert "terminated" in str(bench.commit(0, stage))


def test_rows_without_a_priority_go_to_the_lowest(bench):
    topic = bench.topic("urgent", TopicPolicy(max_priority=3))
    room = StageRoomRequest(sink="out", query="q", batch=0, name="0.a", topics=["urgent"])
    assert bench.ask(room).topics[0].queues == [int(topic.queues[0].queue_id)]


def test_a_batch_above_its_bound_fails_with_the_option_that_makes_it_smaller():
    bench = bench_of(stage_batch_bytes_max=100)
    room = StageRoomRequest(sink="out", query="q", batch=0, name="0.a", bytes=60)
    assert not bench.ask(room).held
    with pytest.raises(QueryRefused, match="maxRowsPerTrigger") as caught:
        bench.ask(room)
    assert caught.value.kind == TOO_LARGE


def test_puts_wait_while_staged_rows_have_no_room_but_one_batch_goes_on():
    bench = bench_of(stage_bytes_max=100, stage_batch_bytes_max=90)

    def room(query, size, wait_ms=0, asker=None):
        request = StageRoomRequest(
            sink="out", query=query, batch=0, name="0.a", bytes=size, wait_ms=wait_ms
        )
        return bench.ask(request, asker)

    assert not room("one", 60).held
    assert not room("two", 40).held
    assert not room("one", 20).held, "the first that needs it may pass"
    assert "stage_bytes_max" in room("two", 20).held
    waiting = Asker()
    assert room("two", 20, 60_000, waiting) is None
    bench.ask(StageDoneRequest(sink="out", query="one", batch=0, name="0.a"))
    bench.settle()
    assert not waiting.answer.held
    assert bench.engine.staged.size_bytes == 60


def test_a_put_for_a_topic_whose_rate_is_used_up_goes_on_in_its_time(bench):
    topic = bench.topic("slow", TopicPolicy(publish_messages_per_s=10))
    assert bench.commit(0, bench.put(topic, [b"x"] * 30)).rows == 30
    asker = Asker()
    room = StageRoomRequest(
        sink="out", query="q", batch=1, name="0.b", topics=["slow"], bytes=9, wait_ms=60_000
    )
    assert bench.ask(room, asker) is None
    bench.advance(30_000)
    assert not asker.answer.held


def test_figures_of_an_earlier_look_do_not_decide(bench):
    topic = bench.topic("full", TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    reader = bench.reader(topic)
    bench.commit(0, bench.put(topic, [b"a"]))
    room = StageRoomRequest(sink="out", query="q", batch=1, name="0.a", topics=["full"])
    assert bench.ask(room).held
    reader.commit(topic.queues[0].queue_id, 1)
    bench.settle()
    assert not bench.ask(room).held


def test_a_put_whose_time_is_up_is_told_what_it_waited_for():
    bench = bench_of(stage_bytes_max=10)
    asker = Asker()
    request = StageRoomRequest(sink="out", query="q", batch=0, name="0.a", bytes=20, wait_ms=100)
    assert bench.ask(request, asker) is None
    assert bench.engine.staged.puts_held == 1
    bench.advance(101)
    assert "stage_bytes_max" in asker.answer.held
    assert bench.engine.staged.held == {}


def test_puts_of_a_flight_process_that_dies_give_their_room_back(bench, orders):
    done, open_ = Asker(), Asker()
    bench.put(orders, [b"a"])
    size = bench.engine.staged.size_bytes
    room = StageRoomRequest(sink="out", query="q", batch=0, name="1.b", bytes=500)
    bench.ask(room, open_)
    assert bench.engine.staged.size_bytes == size + 500
    bench.engine.queries.disconnected(done)
    bench.engine.queries.disconnected(open_)
    assert bench.engine.staged.size_bytes == size


def test_a_put_that_ends_after_its_batch_ends_in_time_too(bench, orders):
    bench.commit(0, bench.put(orders, [b"a"]))
    bench.put(orders, [b"late"], name="1.late")
    bench.advance(HOUR_MS + staging.LOOK_MS)
    bench.settle()
    assert bench.staged() == []


def test_a_question_for_topics_alone_leaves_nothing(bench, orders):
    room = StageRoomRequest(sink="out", query="q", batch=0, name="0.a", topics=["orders"])
    bench.ask(room)
    assert bench.engine.staged.snapshots() == []


def test_nobodys_new_sinks_push_out_what_is_known_of_others():
    bench = bench_of(sinks_max=100)
    bench.commit(3, query="honest", maker="other")
    for number in range(89):
        bench.commit(0, query=f"h{number}", maker="hostile")
    with pytest.raises(QueryRefused, match=r"spark\.sinks_max"):
        bench.commit(0, query="h89", maker="hostile")
    assert bench.ask(SinkStateRequest(sink="out", query="honest")).batch == 3
    assert bench.commit(0, query="newcomer", maker="new").rows == 0


def test_a_commit_of_too_many_puts_is_refused(bench):
    stages = [StagedRows(name=f"{n}.a", rows=1) for n in range(staging.PUTS_MAX + 1)]
    with pytest.raises(QueryRefused, match="at most 10000 stages"):
        bench.commit(0, *stages)


def test_what_an_asker_waited_for_is_forgotten_when_it_leaves(bench, orders):
    stage = bench.put(orders, [b"a"])
    bench.engine.set_alarm("memory", 1 << 60)
    asker = Asker()
    assert bench.commit(0, stage, asker=asker) is None
    room = StageRoomRequest(sink="out", query="q", batch=1, name="0.a", bytes=9, wait_ms=60_000)
    bench.ask(room, asker)
    bench.engine.queries.disconnected(asker)
    assert bench.engine.staged.commits_waiting == bench.engine.staged.puts_held == 0
    bench.engine.set_alarm("memory", 0)
    bench.settle()
    assert asker.answers == []
    assert bench.commit(0, stage).rows == 1


def test_a_put_that_goes_on_does_not_end_the_hold_of_the_commit_that_waits(bench):
    full = bench.topic("full", TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    slow = bench.topic("slow", TopicPolicy(publish_messages_per_s=10))
    bench.reader(full)
    assert bench.commit(0, bench.put(full, [b"a"])).rows == 1
    key = {"sink": "out", "query": "q"}
    assert bench.commit(1, bench.put(full, [b"b"], 1), wait_ms=60_000) is None
    since_ms = bench.engine.staged.held["out", "q"].since_ms
    other = bench.put(slow, [b"x"] * 30, query="other")
    assert bench.commit(0, other, query="other").rows == 30
    put = Asker()
    room = StageRoomRequest(batch=2, name="0.a", topics=["slow"], bytes=9, wait_ms=60_000, **key)
    assert bench.ask(room, put) is None
    bench.advance(30_000)
    assert not put.answer.held
    assert bench.engine.staged.held["out", "q"].since_ms == since_ms


def test_a_hold_begins_when_the_first_put_waits_and_ends_with_the_last(bench):
    slow = bench.topic("slow", TopicPolicy(publish_messages_per_s=10))
    full = bench.topic("full", TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    reader = bench.reader(full)
    bench.commit(0, bench.put(full, [b"a"]))
    bench.commit(1, bench.put(slow, [b"x"] * 30, 1))
    askers = [Asker(), Asker()]
    for asker, name in zip(askers, ("slow", "full"), strict=True):
        room = StageRoomRequest(
            sink="out", query="q", batch=2, name="0.a", topics=[name], bytes=9, wait_ms=60_000
        )
        assert bench.ask(room, asker) is None
    since_ms = bench.engine.staged.held["out", "q"].since_ms
    bench.advance(30_000)
    assert [len(each.answers) for each in askers] == [1, 0]
    assert bench.engine.staged.held["out", "q"].since_ms == since_ms
    reader.commit(full.queues[0].queue_id, 1)
    bench.settle()
    assert bench.engine.staged.held == {}


@pytest.mark.parametrize("end", ["it leaves", "its topic is terminated"])
def test_a_put_that_is_over_holds_nothing_any_more(bench, end):
    full = bench.topic("full", TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    bench.reader(full)
    bench.commit(0, bench.put(full, [b"a"]))
    asker = Asker()
    room = StageRoomRequest(
        sink="out", query="q", batch=1, name="0.a", topics=["full"], bytes=9, wait_ms=60_000
    )
    assert bench.ask(room, asker) is None
    assert bench.engine.staged.held
    if end == "it leaves":
        bench.engine.queries.disconnected(asker)
    else:
        bench.engine.terminate_topic(full.name)
        bench.settle()
        assert "terminated" in str(asker.answer)
    assert bench.engine.staged.held == {}


def test_long_names_are_shown_as_they_are_while_they_are_known(bench, orders):
    long = "ü" * 300
    bench.put(orders, [b"a"], sink=long, query="q" * 300)
    [seen] = bench.engine.staged.snapshots()
    assert (seen.sink, seen.query, seen.staged_batches) == (long, "q" * 300, 1)
    bench.stop()
    [seen] = bench.engine.staged.snapshots()
    assert (seen.sink, seen.query, seen.staged_batches) == ("ü" * 10 + "…", "q" * 60 + "…", 1)


# ---- ends


def test_an_abort_drops_what_it_names_and_nothing_else(bench, orders):
    bench.put(orders, [b"a"], name="0.a")
    kept = bench.put(orders, [b"b"], name="1.b")
    answer = bench.ask(AbortBatchRequest(sink="out", query="q", batch=0, stages=["0.a", "9.z"]))
    assert answer.dropped == 1
    bench.settle()
    assert bench.commit(0, kept).rows == 1


def test_an_abort_never_undoes_a_commit(bench, orders):
    stage = bench.put(orders, [b"a"])
    asker = Asker()
    bench.ask(CommitBatchRequest(sink="out", query="q", batch=0, stages=[stage], wait_ms=9), asker)
    abort = AbortBatchRequest(sink="out", query="q", batch=0, stages=[stage.name])
    assert not bench.ask(abort).is_committed
    bench.settle()
    assert asker.answer.rows == 1
    assert bench.ask(abort).is_committed
    bench.settle()
    assert bench.bodies(orders) == [b"a"]


def test_a_stage_that_nobody_commits_ends_an_hour_after_the_last_put_of_its_batch(bench, orders):
    bench.put(orders, [b"a"], name="0.a")
    bench.advance(HOUR_MS // 2)
    bench.put(orders, [b"b"], name="1.b")
    bench.advance(HOUR_MS - 1)
    assert bench.staged()
    bench.advance(staging.LOOK_MS)
    bench.settle()
    assert bench.staged() == []
    assert bench.engine.staged.size_bytes == 0
    assert bench.engine.staged.counters.expired == 1


def test_the_age_of_what_is_staged_is_that_of_the_batch_that_ends_first(bench, orders):
    assert bench.engine.staged.staged_ms_ago == 0
    bench.put(orders, [b"a"], name="0.a")
    bench.put(orders, [b"b"], 1, name="0.b")
    bench.advance(5000)
    bench.put(orders, [b"c"], name="1.c")
    bench.advance(1000)
    assert bench.engine.staged.staged_ms_ago == 6000


def test_a_stage_that_waits_for_its_commit_does_not_end(bench, orders):
    stage = bench.put(orders, [b"a"])
    bench.engine.set_alarm("memory", 1 << 60)
    for _ in range(70):
        bench.commit(0, stage, wait_ms=60_000)
        bench.advance(60_000)
    assert bench.staged()


def test_a_later_batch_ends_the_stages_of_earlier_ones(bench, orders):
    bench.put(orders, [b"old"], 3)
    bench.put(orders, [b"of another query"], 3, query="other")
    bench.commit(4, bench.put(orders, [b"new"], 4))
    bench.settle()
    assert bench.staged() == ["stage/out/other/3"]


def test_stages_are_found_again_behind_a_restart_and_can_be_committed(bench, orders):
    stage = bench.put(orders, [b"a"])
    size = bench.engine.staged.size_bytes
    bench.cut_power()
    assert bench.engine.staged.size_bytes == size
    assert bench.commit(0, stage).rows == 1
    assert bench.engine.staged.size_bytes == 0


def test_the_table_of_sinks_is_bounded_and_plain_writes_go_first():
    bench = bench_of(sinks_max=2)
    bench.commit(0, query="stream")
    for number in range(4):
        bench.commit(0, query=f"write-{number}", is_streaming=False, is_single=True)
    assert [row.query for row in bench.store.sinks.rows.values()] == ["stream", "write-3"]
    bench.commit(0, query="stream2")
    bench.commit(0, query="stream3")
    assert [row.query for row in bench.store.sinks.rows.values()] == ["stream2", "stream3"]


def test_a_sink_is_forgotten_a_month_after_its_last_batch(bench):
    bench.commit(0)
    bench.commit(0, query="write-1", is_streaming=False, is_single=True)
    bench.advance(2 * HOUR_MS)
    assert list(bench.store.sinks.rows) == [("out", "q")]
    bench.clock.advance(31 * 24 * HOUR_MS)
    bench.advance(1)
    assert list(bench.store.sinks.rows) == []


def test_operators_see_sinks_and_what_is_staged(bench, orders):
    bench.commit(0, bench.put(orders, [b"a", b"b"]))
    bench.put(orders, [b"c"], 1)
    bench.put(orders, [b"d"], sink="a/b", query="x")
    bench.advance(1000)
    other, own = bench.engine.staged.snapshots()
    assert (own.sink, own.query, own.batch, own.rows, own.state) == ("out", "q", 0, 2, "idle")
    assert (own.committed_ms_ago, own.staged_batches, own.staged_ms_ago) == (1000, 1, 1000)
    assert (other.sink, other.query, other.batch, other.staged_bytes > 0) == ("a/b", "x", -1, True)


def test_what_waits_is_a_stage_of_the_flow_map(bench, orders):
    stage = bench.put(orders, [b"a"])
    bench.engine.set_alarm("memory", 1 << 60)
    bench.commit(0, stage, wait_ms=60_000)
    [view] = [
        each
        for each in bench.engine.flow_map(bench.clock.monotonic_ms()).views
        if each.kind == "sink"
    ]
    assert (view.name, view.reason, view.state) == ("out of query q", Reason.MEMORY, "blocked")
    assert "used" in view.culprit
