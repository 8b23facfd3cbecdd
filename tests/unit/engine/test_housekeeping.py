"""Chores: retention, the idle mark, topics nobody uses; the waiting room; the flow map."""

import pytest

from penstock.engine.subscription_options import SubscriptionOptions
from penstock.engine.topic import Overflow, TopicPolicy
from penstock.flow.diagnosis import diagnose
from penstock.flow.fast_fail import BusyCause
from penstock.flow.prefetch import Window
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.settings.storage import StorageSettings
from penstock.testing.workbench import Workbench

KIB = 1024


@pytest.fixture
def bench():
    return Workbench()


def small_segments():
    storage = StorageSettings(segment_bytes_max=64 * KIB, settled_keep_ms=0)
    return Workbench(Settings(storage=storage))


def fill(bench, topic, messages=300):
    channel = bench.channel()
    for _ in range(messages // 10):
        bench.publish(channel, topic, *[b"x" * KIB] * 10)
        bench.settle()


def chores(bench):
    for _ in range(3):
        bench.advance(bench.settings.storage.retention_sweep_ms)
        bench.settle()


class Recorder:
    def __init__(self):
        self.ran = 0
        self.refused = []

    def run(self):
        self.ran += 1

    def refuse(self, busy):
        self.refused.append(busy)


def test_segments_go_when_every_cursor_has_passed_them():
    bench = small_segments()
    topic = bench.topic()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    fill(bench, topic)
    chores(bench)
    kept = bench.store.log_bytes
    queue = topic.queues[0]
    assert queue.index.min_offset == 0
    subscription.settle_upto(queue.queue_id, 250)
    chores(bench)
    assert bench.store.log_bytes < kept / 2
    assert 0 < queue.index.min_offset <= 250
    subscription.settle_upto(queue.queue_id, 300)
    assert queue.index.entries(0, 1)[0][1] == queue.index.min_offset


def test_a_subscription_that_holds_no_data_keeps_no_segment():
    bench = small_segments()
    topic = bench.topic()
    options = SubscriptionOptions(holds_data=False)
    bench.engine.create_subscription(topic.name, "s", options)
    fill(bench, topic)
    chores(bench)
    assert topic.queues[0].index.min_offset > 0


def test_retention_time_keeps_what_no_cursor_needs_and_lets_it_go_later():
    bench = small_segments()
    topic = bench.topic(policy=TopicPolicy(retention_ms=3_600_000))
    fill(bench, topic)
    chores(bench)
    assert topic.queues[0].index.min_offset == 0
    bench.advance(3_600_000)
    chores(bench)
    assert topic.queues[0].index.min_offset > 0


def test_retention_size_bounds_what_retention_time_keeps():
    bench = small_segments()
    policy = TopicPolicy(retention_ms=3_600_000, retention_bytes_max=100 * KIB)
    topic = bench.topic(policy=policy)
    fill(bench, topic)
    chores(bench)
    index = topic.queues[0].index
    assert 0 < index.min_offset < index.next_offset
    assert index.bytes_between(index.min_offset, index.next_offset) >= 100 * KIB


def test_an_unused_topic_goes_after_its_time_and_a_used_one_stays(bench):
    policy = TopicPolicy(expires_ms=5_000)
    used, unused = bench.topic("used", policy), bench.topic("unused", policy)
    subscription = bench.engine.create_subscription(used.name, "s", SubscriptionOptions())
    consumer = subscription.attach(bench.outlet, Window(0), name="c")
    bench.advance(4_999)
    assert bench.engine.topic(unused.name) is not None
    bench.advance(1)
    assert bench.engine.topic(unused.name) is None
    bench.advance(22_345)
    assert bench.engine.topic(used.name) is not None
    subscription.detach(consumer)
    bench.advance(4_999)
    assert bench.engine.topic(used.name) is not None
    bench.advance(2)
    assert bench.engine.topic(used.name) is None


def test_after_an_idle_second_a_frame_carries_the_synced_mark(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, b"a")
    bench.settle()
    end = bench.store.end_position
    bench.advance(bench.settings.storage.idle_mark_ms)
    assert bench.store.end_position > end
    bench.settle()
    end = bench.store.end_position
    bench.advance(60_000)
    bench.settle()
    assert bench.store.end_position == end


def test_an_engine_at_rest_wants_no_turn_and_only_distant_deadlines(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, b"a")
    bench.settle()
    bench.advance(5_000)
    bench.settle()
    assert not bench.engine.needs_turn
    assert bench.engine.next_deadline_ms() > bench.clock.monotonic_ms() + 1_000


def test_a_request_runs_at_once_while_the_log_takes_what_it_gets(bench):
    request = Recorder()
    bench.engine.waiting.submit("send", "orders", request)
    assert request.ran == 1


def test_a_waiting_request_runs_when_the_sync_returned(bench):
    job = held_log(bench)
    send, ack = Recorder(), Recorder()
    bench.engine.waiting.submit("send", "orders", send)
    bench.engine.waiting.submit("ack", "orders", ack)
    bench.turns()
    assert (send.ran, ack.ran) == (0, 1)
    bench.finish(job)
    bench.turns()
    assert send.ran == 1


def test_a_request_that_waited_too_long_is_refused_with_its_numbers(bench):
    held_log(bench)
    request = Recorder()
    bench.engine.waiting.submit("send", "orders", request)
    bench.advance(199)
    assert request.refused == []
    bench.advance(1)
    (busy,) = request.refused
    assert (busy.cause, busy.waited_ms, busy.queued) == (BusyCause.AGE, 200, 1)
    assert request.ran == 0


def test_a_busy_store_drains_the_sends_that_wait(bench):
    held_log(bench)
    bench.clock.advance(bench.settings.flow.store_busy_ms - 150)
    request = Recorder()
    bench.engine.waiting.submit("send", "orders", request)
    bench.advance(100)
    (busy,) = request.refused
    assert busy.cause is BusyCause.STORE


def held_log(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, b"a")
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.clock.advance(bench.settings.storage.sync_hold_ms + 1)
    return job


def test_the_flow_map_names_the_disk_while_a_sync_hangs(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a")
    bench.turns()
    bench.engine.take_sync_job()
    while channel.connection.may_read:
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.clock.advance(50)
        bench.turns()
    found = diagnose(bench.engine.flow_views(bench.clock.monotonic_ms()))
    assert (found.kind, found.side) == ("log", "publish")


def test_the_flow_map_follows_the_chain_to_the_log():
    bench = Workbench(Settings(flow=FlowSettings(pending_publishes_max=0)))
    topic, channel = bench.topic(), bench.channel()
    while channel.connection.may_read:
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.turns()
    views = bench.engine.flow_views(bench.clock.monotonic_ms())
    held = {view.kind: view.culprit for view in views if view.is_held}
    assert held == {
        "connection": "channel c1/1",
        "channel": "queue orders",
        "queue": "log",
    }
    assert diagnose(views).kind == "log"
    bench.settle()
    bench.advance(5_000)
    views = bench.engine.flow_views(bench.clock.monotonic_ms())
    assert not any(view.is_held for view in views)
    edges = bench.engine.take_flow_edges()
    assert [edge.kind for edge in edges if edge.episode is None].count("queue") == 1


def test_the_flow_map_names_a_full_topic_and_an_alarm(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions(sees_unsynced=True))
    channel = bench.channel()
    bench.publish(channel, topic, b"a", b"b")
    bench.settle()
    views = {view.kind: view for view in bench.engine.flow_views(bench.clock.monotonic_ms())}
    assert "length_max" in views["channel"].culprit
    assert views["connection"].state == "flow"
    bench.engine.set_alarm("disk", 0)
    views = {view.kind: view for view in bench.engine.flow_views(bench.clock.monotonic_ms())}
    assert views["connection"].state == "blocked"


def test_statistics_count_what_happened(bench):
    topic, channel = bench.topic(), bench.channel()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    subscription.attach(bench.outlet, Window(2), name="c")
    bench.publish(channel, topic, b"a", b"b", b"c")
    bench.settle()
    stats = bench.engine.statistics()
    (numbers,) = stats.topics
    assert (stats.published, stats.confirmed, stats.routed) == (3, 3, 3)
    assert (numbers.messages_in, numbers.ready, numbers.unacked) == (3, 1, 2)
    assert numbers.backlog_bytes > 0
    bench.advance(1_000)
    assert bench.engine.statistics().topics[0].oldest_age_ms == 1_000
