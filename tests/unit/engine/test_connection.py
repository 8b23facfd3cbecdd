"""Credit, shares and gates: where the pressure of a slow disk ends."""

import pytest

from kit.workbench import Workbench
from penstock.engine.connection import ConnectionOptions, root_culprit
from penstock.engine.host import SubscriptionOptions
from penstock.engine.subscription.consumer import Consumer
from penstock.engine.topic import Overflow, TopicPolicy
from penstock.flow.credit import Stage
from penstock.flow.demand import Permits
from penstock.flow.reason import Reason
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings


@pytest.fixture
def bench():
    return Workbench()


def flow_bench(**flow):
    return Workbench(Settings(flow=FlowSettings(**flow)))


def test_a_flood_stops_at_the_credit_of_its_hop_and_goes_on_after_the_sync():
    bench = flow_bench(pending_publishes_max=0)
    topic, channel = bench.topic(), bench.channel()
    connection = channel.connection
    lists = 0
    while connection.may_read:
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.turns()
        lists += 1
        assert lists < 100
    flow = bench.settings.flow
    limit = flow.queue_log_credit + flow.channel_queue_credit + flow.reader_channel_credit
    assert lists * 100 <= limit + 300
    assert connection.gate.reasons == {Reason.FLOW: "log"}
    assert topic.queues[0].stage.is_blocked
    bench.settle()
    assert connection.gate.is_open
    assert len(bench.outlet.confirmed_tokens) == lists * 100


def test_unconfirmed_publishes_are_limited_and_reading_resumes_at_half():
    bench = flow_bench(pending_publishes_max=10)
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, *[b"x"] * 10)
    bench.turns()
    assert Reason.PENDING in channel.connection.gate.reasons
    assert not channel.connection.may_read
    bench.sync()
    assert channel.connection.gate.is_open


def test_large_messages_count_by_their_bytes():
    bench = flow_bench(connection_bytes_max=10_000, inflight_bytes_max=1_000_000)
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"x" * 4_000, b"x" * 4_000)
    assert channel.connection.may_read
    bench.publish(channel, topic, b"x" * 4_000)
    assert not channel.connection.may_read
    bench.settle()
    assert channel.connection.may_read
    assert len(bench.outlet.confirmed_tokens) == 3


def test_when_the_pool_is_used_up_everybody_who_publishes_waits_for_it():
    bench = flow_bench(connection_bytes_max=10_000, inflight_bytes_max=13_000)
    topic = bench.topic()
    first, second = bench.channel(), bench.channel()
    bench.publish(first, topic, b"x" * 9_000)
    bench.publish(second, topic, b"x" * 2_000)
    assert first.connection.may_read
    assert not second.connection.may_read
    bench.settle()
    assert second.connection.may_read
    assert bench.engine.statistics().inflight_bytes == 0


def test_a_deleted_topic_lets_go_of_everybody_who_waits_for_it(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a")
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.clock.advance(bench.settings.storage.sync_hold_ms + 1)
    count = bench.settings.flow.channel_queue_credit
    bench.publish(channel, topic, *[b"x"] * count)
    bench.turns()
    assert channel.stage.is_blocked
    bench.engine.delete_topic(topic.name)
    bench.finish(job)
    bench.settle()
    assert not channel.stage.is_blocked
    assert channel.connection.gate.is_open
    assert len(bench.outlet.confirmed_tokens) == count + 1
    assert bench.engine.statistics().inflight_bytes == 0


# Many producers and consumers on one socket: what stops a producer holds its channel only.

BY_CHANNEL = ConnectionOptions(holds_channels=True, pending_publishes_max=10)


def test_a_producer_without_credit_leaves_the_socket_alone():
    bench = flow_bench(pending_publishes_max=0)
    topic = bench.topic()
    channel = bench.channel(ConnectionOptions(holds_channels=True, pending_publishes_max=0))
    flow = bench.settings.flow
    limit = flow.queue_log_credit + flow.channel_queue_credit + flow.reader_channel_credit
    for _ in range(2 * limit // 100):
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.turns()
    assert channel.stage.is_blocked
    assert channel.connection.gate.reasons == {Reason.FLOW: "log"}
    assert channel.connection.may_read
    bench.settle()
    assert channel.connection.gate.is_open
    assert len(bench.outlet.confirmed_tokens) == 2 * limit // 100 * 100


def test_unconfirmed_publishes_count_per_producer_and_hold_its_channel_only(bench):
    topic, one = bench.topic(), bench.channel(BY_CHANNEL)
    other = one.connection.open_channel()
    for _ in range(3):
        bench.publish(one, topic, *[b"x"] * 10)
        bench.turns()
    assert (one.pending.count, one.inbox_messages) == (10, 20)
    assert Reason.PENDING in one.connection.gate.reasons
    assert one.connection.may_read
    tokens = bench.publish(other, topic, b"y")
    bench.turns()
    assert (other.pending.count, other.inbox_messages) == (1, 0)
    bench.sync()
    assert tokens[0] in bench.outlet.confirmed_tokens
    bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 31
    assert bench.bodies(topic) == [b"x"] * 10 + [b"y"] + [b"x"] * 20
    assert one.connection.gate.is_open


def test_a_held_producer_stops_the_socket_when_its_bytes_are_beyond_the_share():
    bench = flow_bench(connection_bytes_max=10_000, inflight_bytes_max=1_000_000)
    topic = bench.topic(policy=TopicPolicy(publish_messages_per_s=1))
    channel = bench.channel(BY_CHANNEL)
    bench.publish(channel, topic, b"x" * 4_000, b"x" * 4_000)
    bench.settle()
    assert Reason.RATE in channel.connection.gate.reasons
    assert channel.connection.may_read
    bench.publish(channel, topic, b"x" * 9_000)
    assert not channel.connection.may_read
    bench.advance(3_000)
    bench.settle()
    assert channel.connection.may_read
    assert len(bench.outlet.confirmed_tokens) == 3
    assert bench.engine.statistics().inflight_bytes == 0


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (TopicPolicy(quota_bytes_max=300), Reason.QUOTA),
        (TopicPolicy(publish_messages_per_s=2), Reason.RATE),
        (TopicPolicy(length_max=2, overflow=Overflow.HOLD), Reason.HELD),
    ],
)
def test_a_producer_held_by_what_its_own_consumer_drains_goes_on(bench, policy, reason):
    """One connection, as Pulsar's clients have it: the acks behind the held publish are read."""
    topic, channel = bench.topic(policy=policy), bench.channel(BY_CHANNEL)
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    permits = Permits()
    consumer = subscription.attach(bench.outlet, permits, name="c")
    assert isinstance(consumer, Consumer)
    for _ in range(6):
        bench.publish(channel, topic, b"x" * 100)
        bench.settle()
    assert reason in channel.connection.gate.reasons
    assert channel.connection.may_read
    for _ in range(20):
        permits.add(1)
        consumer.wake()
        bench.settle()
        bench.outlet.settle_all(subscription)
        bench.advance(500)
        bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 6
    assert channel.connection.gate.is_open


# Credits of idle hops.


def test_a_channel_forgets_the_credit_of_hops_with_nothing_under_way(bench, monkeypatch):
    monkeypatch.setattr("penstock.engine.connection.CHANNEL_CREDITS_MAX", 3)
    channel = bench.channel()
    topics = [bench.topic(f"t{number}") for number in range(5)]
    for topic in topics[:3]:
        bench.publish(channel, topic, b"x")
        bench.settle()
    assert len(channel.queue_credits) == 3
    bench.publish(channel, topics[3], b"x")
    bench.turns()
    assert list(channel.queue_credits) == [topics[3].queues[0]]
    bench.publish(channel, topics[0], b"again")
    bench.settle()
    assert bench.bodies(topics[0]) == [b"x", b"again"]


def test_a_hop_with_messages_under_way_keeps_its_credit_and_gets_it_back(monkeypatch):
    monkeypatch.setattr("penstock.engine.connection.CHANNEL_CREDITS_MAX", 2)
    bench = flow_bench(queue_log_credit=4, queue_log_more=2, pending_publishes_max=0)
    channel = bench.channel()
    busy, others = bench.topic("busy"), [bench.topic(f"t{number}") for number in range(4)]
    for _ in range(2):
        bench.publish(channel, busy, *[b"x"] * 10)
        bench.turns()
    credit = channel.queue_credits[busy.queues[0]]
    assert credit.in_flight > 0
    for topic in others:
        bench.publish(channel, topic, b"x")
        bench.turns()
    assert channel.queue_credits[busy.queues[0]] is credit
    bench.settle()
    assert len(bench.bodies(busy)) == 20
    assert all(len(bench.bodies(topic)) == 1 for topic in others)
    assert channel.connection.gate.is_open
    assert credit.available + credit.more > credit.initial


# Which of several blockers is named.


def test_of_several_blockers_the_one_is_named_that_leads_to_the_root():
    log, slow, idle = Stage("log", "log"), Stage("queue", "slow"), Stage("queue", "a")
    channel = Stage("channel", "1")
    channel.block(idle)
    channel.block(slow)
    slow.block(log)
    assert root_culprit(channel) == "log"


def test_of_several_blockers_that_are_not_held_themselves_the_first_by_name_is_named():
    channel = Stage("channel", "1")
    for name in "cab":
        channel.block(Stage("queue", name))
    assert root_culprit(channel) == "queue a"


def test_blockers_in_a_circle_are_not_followed_for_ever():
    one, other = Stage("queue", "1"), Stage("queue", "2")
    one.block(other)
    other.block(one)
    assert root_culprit(one) in ("queue 1", "queue 2")


def connection_state(bench):
    views = bench.engine.flow_map(bench.clock.monotonic_ms()).views
    view = next(each for each in views if each.kind == "connection")
    return view.state, view.reason


def test_under_an_alarm_and_with_too_many_unconfirmed_the_alarm_is_named():
    bench = flow_bench(pending_publishes_max=5)
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, *[b"x"] * 5)
    bench.turns()
    bench.engine.set_alarm_limits(memory_bytes=1000, disk_free_bytes=1)
    bench.engine.set_alarm("disk", 1 << 40)
    bench.engine.set_alarm("memory", 2000)
    bench.publish(channel, topic, b"x")
    bench.turns()
    assert {Reason.PENDING, Reason.MEMORY} <= set(channel.connection.gate.reasons)
    assert connection_state(bench) == ("blocked", Reason.MEMORY)
    bench.engine.set_alarm("memory", 10)
    bench.turns()
    assert connection_state(bench) == ("flow", Reason.PENDING)
