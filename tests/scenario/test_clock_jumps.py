"""T19: the clock is set, and nothing happens: no mass expiry, no early end, no timer lost."""

import pytest

from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.engine.topic import TopicPolicy
from penstock.flow.demand import Window
from penstock.model.record import RecordFlag, neutral_record
from penstock.settings.broker import StorageSettings, TopicSettings
from penstock.settings.load import Settings

HOUR_MS = 3_600_000
JUMPS = pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, 24 * HOUR_MS, -24 * HOUR_MS])
TICK_MS = 100


@pytest.fixture
def bench():
    return Workbench()


def consume(bench, topic, **options):
    subscription = bench.engine.create_subscription(
        topic.name, "s", SubscriptionOptions(sees_unsynced=True, **options)
    )
    subscription.attach(bench.outlet, Window(0), name="c")
    return subscription


def wait(bench, ms):
    """Let time pass in ticks, as a running broker sees it."""
    for _ in range(ms // TICK_MS):
        bench.advance(TICK_MS)


@JUMPS
def test_no_message_expires_by_a_jump_whoever_set_its_time(bench, jump_ms):
    topic = bench.topic(policy=TopicPolicy(message_ttl_ms=60_000))
    own = bench.topic("own")
    channel = bench.channel()
    bench.publish(channel, topic, *[b"x"] * 50)
    mortal = [neutral_record(b"y") for _ in range(50)]
    for record in mortal:
        record.reshape(expire_ms=bench.engine.clock.wall_ms() + 60_000)
    bench.publish(channel, own, *mortal)
    bench.settle()
    bench.clock.jump_wall(jump_ms)
    wait(bench, 55_000)
    consume(bench, topic)
    consume(bench, own)
    bench.settle()
    assert len(bench.outlet.deliveries) == 100


@JUMPS
def test_what_is_published_after_a_jump_lives_as_long_as_it_should(bench, jump_ms):
    topic = bench.topic(policy=TopicPolicy(message_ttl_ms=60_000))
    subscription = bench.engine.create_subscription(
        topic.name, "s", SubscriptionOptions(sees_unsynced=True)
    )
    queue_id = topic.queues[0].queue_id
    channel = bench.channel()
    bench.publish(channel, topic, b"before")
    bench.settle()
    subscription.settle_upto(queue_id, 1)
    bench.clock.jump_wall(jump_ms)
    wait(bench, 30_000)
    bench.publish(channel, topic, *[b"x"] * 10)
    bench.settle()
    wait(bench, 59_000)
    assert subscription.ready(queue_id) == 10
    wait(bench, 2_000)
    assert subscription.ready(queue_id) == 0


@JUMPS
def test_no_delay_ends_early_or_never(bench, jump_ms):
    topic, skipping = bench.topic(), bench.topic("skipping")
    consume(bench, topic)
    consume(bench, skipping)
    wall_ms = bench.engine.clock.wall_ms()
    for_all = neutral_record(b"for all")
    for_all.reshape(flags=for_all.flags | RecordFlag.DELAYED)
    for_one = neutral_record(b"for one")
    for_all.reshape(deliver_ms=wall_ms + 30_000)
    for_one.reshape(deliver_ms=wall_ms + 30_000)
    channel = bench.channel()
    bench.publish(channel, topic, for_all)
    bench.publish(channel, skipping, for_one)
    bench.settle()
    bench.clock.jump_wall(jump_ms)
    wait(bench, 30_000 - TICK_MS)
    assert bench.outlet.bodies == []
    wait(bench, 2 * TICK_MS)
    bench.settle()
    assert sorted(bench.outlet.bodies) == [b"for all", b"for one"]


@JUMPS
def test_delays_that_rest_in_files_keep_their_time(jump_ms):
    bench = Workbench(Settings(topics=TopicSettings(delay_horizon_ms=1_000)))
    topic = bench.topic()
    consume(bench, topic)
    record = neutral_record(b"later")
    record.reshape(flags=record.flags | RecordFlag.DELAYED)
    record.reshape(deliver_ms=bench.engine.clock.wall_ms() + 60_000)
    bench.publish(bench.channel(), topic, record)
    bench.settle()
    bench.clock.jump_wall(jump_ms)
    # One per cent is what a clock that is set may cost.
    wait(bench, 59_300)
    assert bench.outlet.bodies == []
    wait(bench, 1_400)
    bench.settle()
    assert bench.outlet.bodies == [b"later"]


@JUMPS
def test_what_is_held_for_a_time_comes_back_in_that_time(bench, jump_ms):
    topic = bench.topic()
    subscription = consume(bench, topic)
    bench.publish(bench.channel(), topic, b"x")
    bench.settle()
    subscription.requeue(topic.queues[0].queue_id, [0], delay_ms=20_000)
    bench.clock.jump_wall(jump_ms)
    wait(bench, 20_000 - TICK_MS)
    assert len(bench.outlet.deliveries) == 1
    wait(bench, TICK_MS)
    bench.settle()
    assert len(bench.outlet.deliveries) == 2


@JUMPS
def test_retention_by_time_takes_nothing_because_of_a_jump(jump_ms):
    storage = StorageSettings(segment_bytes_max=64 * 1024, settled_keep_ms=0)
    bench = Workbench(Settings(storage=storage))
    topic = bench.topic(policy=TopicPolicy(retention_ms=10 * 60_000))
    channel = bench.channel()
    for _ in range(6):
        bench.publish(channel, topic, bytes(40_000))
        bench.settle()
    bench.clock.jump_wall(jump_ms)
    for _ in range(5 * 6):
        wait(bench, 10_000)
        bench.settle()
    assert topic.queues[0].index.min_offset == 0
    assert len(bench.records(topic)) == 6
