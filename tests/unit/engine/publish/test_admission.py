"""What is refused or held at the door, for how long, and what lets it in again."""

from types import NoneType

import pytest

from kit.workbench import Workbench
from penstock.engine import publish
from penstock.engine.connection import Connection, ConnectionOptions
from penstock.engine.flow_context import GATES_AT_ONCE
from penstock.engine.host import Start, SubscriptionOptions
from penstock.engine.publish import PublishPipeline
from penstock.engine.topic import DirectRoute, FanoutRoute, Hold, Overflow, TopicPolicy
from penstock.flow.quota import QuotaPolicy
from penstock.flow.reason import Reason
from penstock.model.refusal import Refusal, RefusalKind
from penstock.settings.broker import StorageSettings
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.testing.storage import FaultKind


@pytest.fixture
def bench():
    return Workbench()


def flow_bench(**flow):
    return Workbench(Settings(flow=FlowSettings(**flow)))


def test_a_full_queue_rejects_the_new_message_and_admits_again_after_a_settlement(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=2, overflow=Overflow.REJECT))
    subscription = bench.reader(topic)
    channel = bench.channel()
    bench.publish(channel, topic, b"a", b"b", b"c")
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 1]
    assert bench.refusal_kinds == [RefusalKind.LENGTH_LIMIT]
    assert bench.bodies(topic) == [b"a", b"b"]
    subscription.settle_upto(topic.queues[0].queue_id, 1)
    tokens = bench.publish(channel, topic, b"d")
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 1, *tokens]


def test_a_full_queue_that_drops_its_head_keeps_the_newest(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=2))
    subscription = bench.reader(topic)
    bench.publish(bench.channel(), topic, *[b"%d" % number for number in range(5)])
    bench.settle()
    assert subscription.ready(topic.queues[0].queue_id) == 2
    assert subscription.low_mark(topic.queues[0].queue_id) == 3


def test_a_full_queue_that_holds_lets_the_publisher_wait_and_reads_its_acks(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    subscription = bench.reader(topic)
    channel = bench.channel()
    bench.publish(channel, topic, b"a", b"b")
    bench.settle()
    connection = channel.connection
    assert list(connection.gate.reasons) == [Reason.HELD]
    assert connection.may_read
    assert bench.outlet.confirmed_tokens == [0]
    subscription.settle_upto(topic.queues[0].queue_id, 1)
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 1]
    assert connection.gate.is_open
    assert [event.is_open for event in bench.outlet.gates] == [False, True]


def test_a_hold_is_refused_when_it_lasted_too_long(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    bench.reader(topic)
    channel = bench.channel()
    bench.publish(channel, topic, b"a", b"b")
    bench.settle()
    bench.advance(bench.settings.flow.hold_ms_max - 1)
    assert bench.outlet.refusals == []
    bench.advance(1)
    assert bench.refusal_kinds == [RefusalKind.HELD_TOO_LONG]
    assert channel.connection.gate.is_open
    assert channel.connection.bytes_held == 0


def test_a_held_channel_keeps_its_order_and_holds_no_other_channel(bench):
    full = bench.topic("full", TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    free = bench.topic("free")
    bench.reader(full)
    held, other = bench.channel(), bench.channel()
    bench.publish(held, full, b"a", b"b")
    bench.publish(held, free, b"behind")
    bench.publish(other, free, b"beside")
    bench.settle()
    assert bench.bodies(free) == [b"beside"]


def test_a_protocol_that_fails_fast_is_refused_instead_of_held(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    bench.reader(topic)
    channel = bench.channel(ConnectionOptions(is_fast_failing=True))
    bench.publish(channel, topic, b"a", b"b")
    bench.settle()
    assert bench.refusal_kinds == [RefusalKind.LENGTH_LIMIT]


def test_a_publish_rate_pauses_reading_and_lets_go_by_time(bench):
    topic = bench.topic(policy=TopicPolicy(publish_messages_per_s=10))
    channel = bench.channel()
    bench.publish(channel, topic, *[b"x"] * 12)
    bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 10
    assert Reason.RATE in channel.connection.gate.reasons
    assert not channel.connection.may_read
    bench.advance(200)
    bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 12
    assert channel.connection.gate.is_open


@pytest.mark.parametrize(
    ("policy", "kind"), [(QuotaPolicy.EXCEPTION, RefusalKind.QUOTA), (QuotaPolicy.HOLD, None)]
)
def test_a_backlog_quota_refuses_or_holds_at_the_very_publish(bench, policy, kind):
    topic = bench.topic(policy=TopicPolicy(quota_bytes_max=300, quota_policy=policy))
    subscription = bench.reader(topic)
    channel = bench.channel()
    for _ in range(4):
        bench.publish(channel, topic, b"x" * 100)
        bench.settle()
    if kind is None:
        assert Reason.QUOTA in channel.connection.gate.reasons
        subscription.settle_upto(topic.queues[0].queue_id, 2)
        bench.settle()
        assert channel.connection.gate.is_open
        assert bench.outlet.refusals == []
    else:
        assert set(bench.refusal_kinds) == {kind}
    assert bench.outlet.confirmed_tokens


def test_what_waits_for_the_log_counts_against_a_quota_in_every_turn():
    storage = StorageSettings(write_buffers_max=1, write_buffer_bytes=64 * 1024)
    bench = Workbench(Settings(storage=storage))
    policy = TopicPolicy(quota_bytes_max=300, quota_policy=QuotaPolicy.HOLD)
    other, topic = bench.topic("other"), bench.topic(policy=policy)
    bench.reader(topic)
    bench.publish(bench.channel(), other, b"x" * 64 * 1024)
    bench.turns()
    assert bench.engine.log_is_held
    channel = bench.channel()
    bench.publish(channel, topic, *[b"y" * 200] * 10)
    bench.turns()
    waiting = topic.queues[0].inbox.messages
    assert Reason.QUOTA in channel.connection.gate.reasons
    for _ in range(5):
        bench.engine.turn()
    assert topic.queues[0].inbox.messages == waiting == 2
    bench.settle()
    assert len(bench.bodies(topic)) == 2


@pytest.mark.parametrize("policy", [QuotaPolicy.EXCEPTION, QuotaPolicy.HOLD])
def test_a_quota_means_nothing_while_nobody_holds_data(bench, policy):
    topic = bench.topic(policy=TopicPolicy(quota_bytes_max=300, quota_policy=policy))
    channel = bench.channel()
    bench.publish(channel, topic, *[b"x" * 200] * 10)
    bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 10
    assert channel.connection.gate.is_open


def test_a_backlog_quota_that_evicts_lets_the_oldest_go(bench):
    policy = TopicPolicy(quota_bytes_max=1000, quota_policy=QuotaPolicy.EVICT)
    topic = bench.topic(policy=policy)
    subscription = bench.reader(topic)
    channel = bench.channel()
    for _ in range(20):
        bench.publish(channel, topic, b"x" * 100)
        bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 20
    assert subscription.backlog_bytes(topic.queues[0].queue_id) <= 1000


def test_an_alarm_holds_connections_that_publish_and_no_others(bench):
    topic, channel = bench.topic(), bench.channel()
    idle = bench.connect()
    bench.publish(channel, topic, b"before")
    bench.settle()
    bench.engine.set_alarm("memory", 1 << 50)
    bench.publish(channel, topic, b"during")
    assert Reason.MEMORY in channel.connection.gate.reasons
    assert idle.gate.is_open
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0]
    assert channel.connection.may_read
    bench.advance(60_000)
    assert bench.outlet.refusals == []
    bench.engine.set_alarm("memory", 0)
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 1]
    assert channel.connection.gate.is_open


def test_when_an_alarm_is_over_each_turn_wakes_some_of_those_it_held(bench, monkeypatch):
    monkeypatch.setattr(publish, "WOKEN_AT_ONCE", 10)
    topic, channels = held_by_an_alarm(bench, 35)
    late = bench.channel()
    bench.engine.set_alarm("disk", 1 << 50)
    stored = []
    for number in range(4):
        if number == 2:
            bench.publish(late, topic, b"meanwhile")
        bench.engine.turn()
        stored.append(bench.engine.appended_messages)
        assert bench.engine.needs_turn is (number < 3)
    assert stored == [10, 20, 31, 36]
    bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 36
    assert all(each.connection.gate.is_open for each in channels)


def test_who_was_not_woken_yet_when_the_alarm_comes_again_is_held_on(bench, monkeypatch):
    monkeypatch.setattr(publish, "WOKEN_AT_ONCE", 10)
    _, channels = held_by_an_alarm(bench, 35)
    bench.engine.set_alarm("disk", 1 << 50)
    bench.engine.turn()
    bench.engine.set_alarm("disk", 0)
    bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 10
    bench.engine.set_alarm("memory", 1 << 60)
    bench.engine.set_alarm("disk", 1 << 50)
    bench.settle()
    assert [list(each.connection.gate.reasons) for each in channels[10:]] == [[Reason.MEMORY]] * 25
    bench.engine.set_alarm("memory", 0)
    bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 35
    assert not bench.engine.needs_turn


def test_when_one_of_two_alarms_is_over_each_turn_tells_some_and_all_keep_their_order(
    bench, monkeypatch
):
    monkeypatch.setattr(publish, "WOKEN_AT_ONCE", 10)
    topic, channels = held_by_an_alarm(bench, 35)
    bench.engine.set_alarm("memory", 1 << 60)
    bench.settle()
    assert {each.hold.reason for each in channels} == {Reason.MEMORY}, "the first of them"
    bench.engine.set_alarm("memory", 0)
    told = []
    for number in range(4):
        if number == 1:
            late = bench.channel()
            bench.publish(late, topic, b"meanwhile")
        bench.engine.turn()
        told.append(sum(each.hold.reason is Reason.DISK for each in channels))
        assert bench.engine.needs_turn is (number < 3)
    assert told == [10, 20, 30, 35]
    bench.settle()
    assert [list(each.connection.gate.reasons) for each in channels] == [[Reason.DISK]] * 35
    assert bench.outlet.confirmed_tokens == []
    bench.engine.set_alarm("disk", 1 << 50)
    bench.settle()
    assert bench.bodies(topic) == [*[b"%d" % number for number in range(35)], b"meanwhile"]
    assert all(each.connection.gate.is_open for each in (*channels, late))


def test_who_waited_too_long_is_refused_while_others_hear_of_another_alarm(monkeypatch):
    monkeypatch.setattr(publish, "WOKEN_AT_ONCE", 10)
    bench = flow_bench(alarm_hold_ms_max=500)
    _, channels = held_by_an_alarm(bench, 35)
    bench.engine.set_alarm("memory", 1 << 60)
    bench.settle()
    bench.advance(500 - 35)
    assert bench.refusal_kinds == [RefusalKind.MEMORY_ALARM]
    bench.clock.advance(20)
    bench.engine.set_alarm("memory", 0)
    for refused in (10, 20):
        bench.engine.turn()
        assert bench.refusal_kinds[1:] == [RefusalKind.DISK_ALARM] * refused, "not told of it yet"
    assert [each.hold is None for each in channels] == [True] * 21 + [False] * 14


@pytest.fixture
def gates_seen(monkeypatch):
    """Connections whose gates were looked at."""
    looks, refresh = [], Connection.refresh
    monkeypatch.setattr(Connection, "refresh", lambda self: looks.append(self) or refresh(self))
    return looks


def test_an_edge_of_an_alarm_looks_at_some_gates_in_each_turn(bench, gates_seen):
    count = 3 * GATES_AT_ONCE
    connections = [bench.connect() for _ in range(count)]
    topic, late = bench.topic(), connections[-1].open_channel()
    bench.settle()
    for value in (1 << 60, 0):
        gates_seen.clear()
        bench.engine.set_alarm("memory", value)
        assert len(gates_seen) == GATES_AT_ONCE
        if value:
            bench.publish(late, topic, b"x")
            assert list(connections[-1].gate.reasons) == [Reason.MEMORY], "whoever publishes now"
        while bench.engine.needs_turn:
            before = len(gates_seen)
            bench.engine.turn()
            assert len(gates_seen) - before <= GATES_AT_ONCE + 1
        assert set(gates_seen) == set(connections)
    assert connections[-1].gate.is_open


def test_an_alarm_that_comes_again_at_once_concerns_nobody_who_did_not_publish_since(bench):
    topic, channels = bench.topic(), [bench.channel() for _ in range(3 * GATES_AT_ONCE)]
    bench.settle()
    bench.engine.set_alarm("memory", 1 << 60)
    for channel in channels:
        channel.connection.note_publisher()
    for value in (0, 1 << 60):
        bench.engine.set_alarm("memory", value)
    bench.settle()
    assert all(each.connection.gate.is_open for each in channels)
    bench.publish(channels[-1], topic, b"x")
    assert list(channels[-1].connection.gate.reasons) == [Reason.MEMORY]


def test_connections_are_counted_whenever_an_alarm_holds_them_however_soon_it_comes_again(bench):
    topic, channels = bench.topic(), [bench.channel() for _ in range(3)]
    bench.channel()
    for raised in (1, 2):
        bench.engine.set_alarm("memory", 1 << 60)
        for channel in (*channels, *channels):
            bench.publish(channel, topic, b"x")
            bench.settle()
        assert bench.engine.alarm_holds == {Reason.MEMORY: 3 * raised}
        bench.engine.set_alarm("memory", 0)
        bench.settle()


def test_an_alarm_concerns_a_connection_from_its_first_publish_on(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.engine.set_alarm("disk", 0)
    assert channel.connection.gate.is_open
    bench.publish(channel, topic, b"a")
    assert list(channel.connection.gate.reasons) == [Reason.DISK]


def test_who_published_before_an_alarm_is_not_held_by_it_until_it_publishes_again(bench):
    topic, channel = bench.topic(), bench.channel()
    connection = channel.connection
    for token in range(2):
        bench.publish(channel, topic, b"before")
        bench.settle()
        bench.engine.set_alarm("memory", 1 << 50)
        assert connection.gate.is_open
        bench.publish(channel, topic, b"during")
        assert list(connection.gate.reasons) == [Reason.MEMORY]
        bench.engine.set_alarm("memory", 0)
        bench.settle()
        assert connection.gate.is_open
        assert len(bench.outlet.confirmed_tokens) == 2 * (token + 1)
    bench.engine.set_alarm("memory", 1 << 50)
    assert connection.gate.is_open, "the end of the alarm is the end of it"


def test_one_alarm_of_two_that_ends_leaves_a_publisher_held_by_the_other(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.engine.set_alarm("memory", 1 << 50)
    bench.engine.set_alarm("disk", 0)
    bench.publish(channel, topic, b"a")
    bench.engine.set_alarm("memory", 0)
    assert list(channel.connection.gate.reasons) == [Reason.DISK]


def test_publishes_that_were_on_their_way_when_an_alarm_came_make_a_publisher(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a")
    bench.engine.set_alarm("memory", 1 << 50)
    bench.engine.set_alarm("disk", 0)
    bench.settle()
    assert set(channel.connection.gate.reasons) == {Reason.MEMORY, Reason.DISK}


def test_an_alarm_with_a_time_limit_refuses_what_it_held_too_long():
    bench = flow_bench(alarm_hold_ms_max=500)
    topic, channel = bench.topic(), bench.channel()
    bench.engine.set_alarm("disk", 0)
    bench.publish(channel, topic, b"a")
    bench.advance(499)
    assert bench.outlet.refusals == []
    bench.advance(1)
    assert bench.refusal_kinds == [RefusalKind.DISK_ALARM]


def held_by_an_alarm(bench, count):
    """So many channels with a publish each that the disk alarm holds, one each millisecond."""
    topic, channels = bench.topic(), []
    bench.engine.set_alarm("disk", 0)
    for number in range(count):
        channels.append(bench.channel())
        bench.publish(channels[-1], topic, b"%d" % number)
        bench.advance(1)
    return topic, channels


@pytest.fixture
def looked_at(monkeypatch):
    """How often a channel was looked at in a turn."""
    looks, run_channel = [], PublishPipeline._run_channel

    def counted(self, channel, *rest):
        looks.append(channel)
        return run_channel(self, channel, *rest)

    monkeypatch.setattr(PublishPipeline, "_run_channel", counted)
    return looks


def test_turns_do_not_look_at_channels_that_an_alarm_holds(bench, looked_at):
    topic, channels = held_by_an_alarm(bench, 50)
    looked_at.clear()
    for _ in range(10):
        bench.engine.turn()
    assert looked_at == []
    bench.publish(channels[7], topic, b"more")
    bench.settle()
    assert set(looked_at) == {channels[7]}
    bench.engine.set_alarm("disk", 1 << 50)
    bench.settle()
    bodies = bench.bodies(topic)
    assert set(bodies) == {*[b"%d" % number for number in range(50)], b"more"}
    assert bodies.index(b"7") < bodies.index(b"more")


def test_an_alarm_whose_figure_changes_wakes_nobody(bench, looked_at):
    held_by_an_alarm(bench, 50)
    looked_at.clear()
    bench.engine.set_alarm("disk", 1)
    bench.settle()
    assert looked_at == []
    views = bench.engine.flow_map(bench.clock.monotonic_ms()).views
    told = {each.culprit for each in views if each.reason is Reason.DISK and each.is_held}
    assert all(each.startswith("1 B free, ") for each in told)


def test_each_is_refused_in_its_own_time_and_the_others_are_left_alone(looked_at):
    bench = flow_bench(alarm_hold_ms_max=500)
    _, channels = held_by_an_alarm(bench, 100)
    assert bench.engine.next_deadline_ms() <= bench.clock.monotonic_ms() + 400
    bench.advance(399)
    assert bench.outlet.refusals == []
    looked_at.clear()
    for refused in range(1, 11):
        bench.advance(1)
        assert len(bench.outlet.refusals) == refused
    assert set(looked_at) == set(channels[:10])


def test_of_very_many_who_waited_too_long_at_once_each_turn_refuses_some(monkeypatch):
    monkeypatch.setattr(publish, "WOKEN_AT_ONCE", 10)
    bench = flow_bench(alarm_hold_ms_max=500)
    topic, channels = held_by_an_alarm(bench, 35)
    channels[30].abort()
    bench.settle()
    bench.outlet.refusals.clear()
    bench.clock.advance(600)
    refused = []
    for _ in range(4):
        assert bench.engine.next_deadline_ms() <= bench.clock.monotonic_ms()
        bench.engine.turn()
        refused.append(len(bench.outlet.refusals))
    assert refused == [10, 20, 30, 34]
    assert all(each.hold is None for each in channels)
    bench.publish(channels[0], topic, b"more")
    bench.advance(499)
    assert len(bench.outlet.refusals) == 34
    bench.advance(1)
    assert len(bench.outlet.refusals) == 35


def test_another_alarm_in_its_place_holds_them_and_is_named(bench):
    _, channels = held_by_an_alarm(bench, 2)
    bench.engine.set_alarm("memory", 1 << 50)
    bench.settle()
    bench.engine.set_alarm("disk", 1 << 50)
    bench.settle()
    assert {each.hold.reason for each in channels} == {Reason.MEMORY}


@pytest.mark.parametrize("is_polite", [True, False])
def test_what_an_alarm_holds_of_a_channel_that_ends_is_as_for_any_hold(bench, is_polite):
    topic, channels = held_by_an_alarm(bench, 2)
    channels[0].close() if is_polite else channels[0].abort()
    bench.settle()
    bench.engine.set_alarm("disk", 1 << 50)
    bench.settle()
    assert set(bench.bodies(topic)) == ({b"0", b"1"} if is_polite else {b"1"})


def test_a_sync_that_fails_refuses_also_what_an_alarm_holds(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, b"a")
    bench.turns()
    bench.engine.set_alarm("disk", 0)
    bench.publish(bench.channel(), topic, b"b")
    bench.turns()
    bench.storage.plan.fail_next("sync", FaultKind.EIO)
    bench.settle()
    assert bench.refusal_kinds == [RefusalKind.SYNC_FAILED] * 2


# The end of a channel whose publishes are held.


def full_queue(bench):
    """A queue with room for one, a reader that has taken nothing, and a channel with two more."""
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    reader = bench.reader(topic)
    channel = bench.channel()
    bench.publish(channel, topic, b"a", b"b", b"c")
    bench.settle()
    return topic, reader, channel


@pytest.mark.parametrize("whose", ["channel", "connection"])
def test_what_a_full_queue_holds_goes_on_after_a_polite_close(bench, whose):
    topic, reader, channel = full_queue(bench)
    (channel if whose == "channel" else channel.connection).close()
    bench.settle()
    assert bench.bodies(topic) == [b"a"]
    held = bench.engine.statistics()
    assert held.draining == 2
    assert held.inflight_bytes > 0, "it is paid for until it is stored"
    for offset in range(1, 3):
        reader.settle_upto(topic.queues[0].queue_id, offset)
        bench.settle()
    assert bench.bodies(topic) == [b"a", b"b", b"c"]
    after = bench.engine.statistics()
    assert (after.draining, after.inflight_bytes, after.dropped_after_close) == (0, 0, 0)
    assert len(bench.outlet.confirmed_tokens) == 1, "nobody is there to be told"


@pytest.mark.parametrize("whose", ["channel", "connection"])
def test_what_an_alarm_holds_is_stored_after_a_polite_close_when_it_ends(bench, whose):
    topic, channel = bench.topic(), bench.channel()
    bench.engine.set_alarm("disk", 0)
    bench.publish(channel, topic, *[b"%d" % n for n in range(11)])
    bench.settle()
    (channel if whose == "channel" else channel.connection).close()
    bench.settle()
    bench.advance(10 * bench.settings.flow.hold_ms_max)
    assert bench.bodies(topic) == []
    bench.engine.set_alarm("disk", 1 << 50)
    bench.settle()
    assert len(bench.bodies(topic)) == 11
    assert bench.engine.statistics().inflight_bytes == 0
    assert channel.connection.gate.is_open


def test_what_a_full_queue_holds_after_a_polite_close_is_dropped_after_hold_ms_max(bench, caplog):
    topic, _, channel = full_queue(bench)
    channel.connection.close()
    bench.settle()
    bench.advance(bench.settings.flow.hold_ms_max - 1)
    assert bench.engine.statistics().draining == 2
    assert caplog.records == []
    bench.advance(1)
    after = bench.engine.statistics()
    assert (after.draining, after.inflight_bytes, after.dropped_after_close) == (0, 0, 2)
    assert bench.bodies(topic) == [b"a"]
    (line,) = caplog.records
    assert (line.levelname, line.messages, line.channel) == ("WARNING", 2, "c1/1")
    assert "length_max" in line.why


@pytest.mark.parametrize("whose", ["channel", "connection"])
def test_what_is_held_goes_with_a_channel_that_was_refused_or_vanished(bench, whose):
    topic, _, channel = full_queue(bench)
    (channel if whose == "channel" else channel.connection).abort()
    bench.settle()
    assert bench.bodies(topic) == [b"a"]
    after = bench.engine.statistics()
    assert (after.draining, after.inflight_bytes, after.dropped_after_close) == (0, 0, 0)
    assert after.refused == {RefusalKind.CLOSING: 2}


def test_a_channel_that_was_closed_politely_drains_also_when_its_connection_vanishes(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.engine.set_alarm("disk", 0)
    bench.publish(channel, topic, b"a")
    bench.settle()
    channel.close()
    channel.connection.abort()
    bench.engine.set_alarm("disk", 1 << 50)
    bench.settle()
    assert bench.bodies(topic) == [b"a"]


def test_a_closed_channel_whose_queue_is_deleted_is_done(bench):
    topic, _, channel = full_queue(bench)
    channel.connection.close()
    bench.engine.delete_topic(topic.name)
    bench.settle()
    after = bench.engine.statistics()
    assert (after.draining, after.inflight_bytes) == (0, 0)


def test_closed_channels_that_drain_are_bounded_in_number(bench, monkeypatch, caplog):
    monkeypatch.setattr("penstock.engine.publish.DRAINING_CHANNELS_MAX", 2)
    topic = bench.topic()
    bench.engine.set_alarm("disk", 0)
    for _ in range(3):
        channel = bench.channel()
        bench.publish(channel, topic, b"x")
        bench.settle()
        channel.connection.close()
    early = bench.channel()
    bench.publish(early, topic, b"held only after its close")
    early.connection.close()
    bench.settle()
    stats = bench.engine.statistics()
    assert (stats.draining, stats.dropped_after_close) == (2, 2)
    assert "too many" in caplog.records[0].why
    bench.engine.set_alarm("disk", 1 << 50)
    bench.settle()
    assert len(bench.bodies(topic)) == 2
    assert bench.engine.statistics().inflight_bytes == 0


def test_a_closed_connection_keeps_no_more_than_the_pool_has_room_for():
    bench = flow_bench(connection_bytes_max=100_000)
    topic, channel = bench.topic(), bench.channel()
    bench.engine.set_alarm("disk", 0)
    for number in range(5):
        bench.publish(channel, topic, bytes([number]) * 40_000)
        bench.advance(100)
    channel.connection.close()
    stats = bench.engine.statistics()
    assert (stats.draining, stats.dropped_after_close) == (2, 3)
    bench.engine.set_alarm("disk", 1 << 50)
    bench.settle()
    assert [body[0] for body in bench.bodies(topic)] == [0, 1], "the first ones, in order"
    assert bench.engine.statistics().inflight_bytes == 0


def rejecting_fan_out(bench):
    """A publish for a full queue that rejects and for a free one."""
    full = bench.topic("full", TopicPolicy(length_max=1, overflow=Overflow.REJECT))
    free = bench.topic("free")
    bench.reader(full)
    bench.publish(bench.channel(), full, b"first")
    bench.settle()
    bench.outlet.clear()
    return full, free, FanoutRoute((full.queues[0], free.queues[0]))


def test_a_fan_out_is_refused_by_the_full_queue_and_stored_in_the_other(bench):
    full, free, route = rejecting_fan_out(bench)
    channel = bench.channel()
    tokens = bench.publish(channel, route, b"a", b"b")
    bench.settle()
    assert [token for token, _ in bench.outlet.refusals] == tokens
    assert set(bench.refusal_kinds) == {RefusalKind.LENGTH_LIMIT}
    assert bench.outlet.confirmed_tokens == []
    assert (bench.bodies(full), bench.bodies(free)) == ([b"first"], [b"a", b"b"])
    assert channel.connection.bytes_held == 0
    assert bench.engine.statistics().inflight_bytes == 0


def test_a_fan_out_refused_in_part_has_one_answer_whatever_becomes_of_the_rest(bench):
    _, free, route = rejecting_fan_out(bench)
    channel = bench.channel()
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    tokens = bench.publish(channel, route, b"a")
    bench.settle()
    assert [token for token, _ in bench.outlet.refusals] == tokens
    assert bench.bodies(free) == []
    assert channel.connection.bytes_held == 0


def test_a_fan_out_waits_for_the_queue_that_holds_before_the_full_one_refuses_it(bench):
    full, _, _ = rejecting_fan_out(bench)
    holding = bench.topic("holding", TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    reader = bench.reader(holding)
    channel = bench.channel()
    bench.publish(channel, holding, b"there")
    (token,) = bench.publish(channel, FanoutRoute((full.queues[0], holding.queues[0])), b"a")
    bench.settle()
    assert bench.outlet.refusals == []
    reader.settle_upto(holding.queues[0].queue_id, 1)
    bench.settle()
    assert [each for each, _ in bench.outlet.refusals] == [token]
    assert bench.bodies(holding) == [b"there", b"a"]


def test_a_terminated_topic_refuses_every_publish_and_is_read_to_its_end(bench):
    topic = bench.topic(queues=2)
    subscription = bench.reader(topic)
    channel = bench.channel()
    bench.publish(channel, DirectRoute(topic.queues[0]), b"a", b"b")
    bench.settle()
    assert bench.engine.terminate_topic(topic.name) == (1, -1)
    other = bench.topic("other")
    bench.publish(channel, topic, b"c")
    bench.publish(channel, FanoutRoute((topic.queues[0], other.queues[0])), b"d")
    bench.publish(channel, other, b"e")
    bench.settle()
    assert bench.refusal_kinds == [RefusalKind.TERMINATED] * 2
    assert "use another topic" in bench.outlet.refusals[0][1].text
    assert bench.bodies(topic) == [b"a", b"b"]
    assert bench.bodies(other) == [b"e"]
    assert subscription.ready(topic.queues[0].queue_id) == 2
    assert channel.connection.bytes_held == 0
    bench.engine.set_policy(topic.name, TopicPolicy(retention_ms=5))
    bench.publish(channel, topic, b"f")
    bench.settle()
    assert bench.refusal_kinds == [RefusalKind.TERMINATED] * 3
    assert bench.engine.terminate_topic(topic.name) == (1, -1)


def test_a_publish_that_waits_for_the_log_when_its_topic_is_terminated_is_refused():
    bench = flow_bench(queue_log_credit=2, queue_log_more=1)
    topic, other = bench.topic(), bench.topic("other")
    channel = bench.channel()
    for body in (b"a", b"b", b"c"):
        bench.publish(channel, topic, body)
        bench.turns()
    bench.publish(channel, FanoutRoute((topic.queues[0], other.queues[0])), b"d")
    bench.turns()
    stored = topic.queues[0].index.next_offset
    assert stored < 3
    assert bench.engine.terminate_topic(topic.name) == (stored - 1,)
    bench.settle()
    assert len(bench.bodies(topic)) == stored
    assert bench.bodies(other) == [b"d"]
    refused = len(bench.refusal_kinds)
    assert refused == 3 - stored
    assert len(bench.outlet.confirmed_tokens) == stored + 1
    assert channel.connection.bytes_held == 0
    assert not channel.stage.is_blocked
    bench.publish(channel, other, b"e")
    bench.settle()
    assert bench.bodies(other) == [b"d", b"e"]


def test_dead_letters_for_a_terminated_topic_are_dropped_and_counted(bench):
    letters = bench.topic("letters")
    bench.engine.terminate_topic(letters.name)
    topic = bench.topic(policy=TopicPolicy(length_max=1, dead_letter_topic="letters"))
    bench.reader(topic)
    bench.publish(bench.channel(), topic, b"a", b"b")
    bench.settle()
    assert bench.bodies(letters) == []
    assert bench.engine.statistics().deaths_dropped == 1


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(QuotaPolicy.HOLD, Hold), (QuotaPolicy.EXCEPTION, Refusal), (QuotaPolicy.EVICT, NoneType)],
)
def test_a_producer_can_ask_for_the_quotas_verdict_before_it_publishes(bench, policy, expected):
    topic = bench.topic(policy=TopicPolicy(quota_bytes_max=100, quota_policy=policy))
    assert bench.engine.verdict(topic) is None
    bench.publish(bench.channel(), topic, bytes(200))
    bench.settle()
    assert bench.engine.verdict(topic) is None, "nobody holds data"
    subscription = bench.engine.create_subscription(
        topic.name, "s", SubscriptionOptions(start=Start.EARLIEST)
    )
    verdict = bench.engine.verdict(topic)
    assert isinstance(verdict, expected)
    if verdict is not None:
        assert "quota" in (verdict.text if isinstance(verdict, Refusal) else verdict.culprit)
    subscription.settle_upto(topic.queues[0].queue_id, 1)
    assert bench.engine.verdict(topic) is None


def test_the_verdict_on_a_terminated_topic_is_its_refusal(bench):
    topic = bench.topic()
    assert bench.engine.verdict(topic) is None
    bench.engine.terminate_topic(topic.name)
    verdict = bench.engine.verdict(topic)
    assert isinstance(verdict, Refusal)
    assert verdict.kind is RefusalKind.TERMINATED
