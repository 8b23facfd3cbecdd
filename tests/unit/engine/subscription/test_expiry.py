"""When a message is out of time."""

import pytest

from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.engine.subscription.pick import expires_ms
from penstock.engine.subscription.subscription import EXPIRE_ENTRIES_MAX
from penstock.engine.topic import AT_ONCE_MS, TopicPolicy
from penstock.flow.demand import Window
from penstock.model.record import neutral_record

ENTRY = (0, 0, 0, 1_000, 100, 1, 0, 0)


def test_the_earlier_of_the_two_times_counts():
    record = neutral_record(b"x")
    assert expires_ms(ENTRY, record, 0) == 0
    assert expires_ms(ENTRY, record, 50) == 1_050
    record.reshape(expire_ms=1_020)
    assert expires_ms(ENTRY, record, 50) == 1_020
    assert expires_ms(ENTRY, record, 10) == 1_010
    assert expires_ms(ENTRY, record, 0) == 1_020


def test_no_time_at_all_ends_when_the_message_is_stored():
    assert expires_ms(ENTRY, neutral_record(b"x"), AT_ONCE_MS) == 1_000


def expiring(bench, lives_ms):
    record = neutral_record(b"x")
    record.reshape(expire_ms=bench.clock.wall_ms() + lives_ms)
    return record


@pytest.mark.parametrize("is_by_topic", [True, False])
def test_who_waits_gets_a_message_however_short_its_life(is_by_topic):
    bench = Workbench()
    policy = TopicPolicy(message_ttl_ms=AT_ONCE_MS if is_by_topic else 0)
    topic = bench.topic(policy=policy)
    reader = bench.reader(topic)
    consumer = reader.attach(bench.outlet, Window(1), name="c")
    channel = bench.channel()
    record = neutral_record(b"x") if is_by_topic else expiring(bench, 0)
    bench.publish(channel, topic, record)
    # However long the turn takes to come.
    bench.clock.advance(5)
    bench.settle()
    assert len(bench.outlet.deliveries) == 1
    bench.publish(channel, topic, neutral_record(b"x") if is_by_topic else expiring(bench, 0))
    bench.advance(2)
    bench.settle()
    assert reader.ready(topic.queues[0].queue_id) == 0
    reader.detach(consumer)
    bench.advance(2)
    bench.settle()
    assert reader.ready(topic.queues[0].queue_id) == 0
    assert len(bench.outlet.deliveries) == 1


def test_what_expired_while_the_broker_was_down_is_not_delivered():
    bench = Workbench()
    topic = bench.topic(policy=TopicPolicy(message_ttl_ms=1000))
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions(sees_unsynced=True))
    bench.publish(bench.channel(), topic, b"x")
    bench.settle()
    bench.clock.advance(2000)
    bench.kill()
    restored = bench.engine.topic(topic.name).subscriptions["s"]
    restored.attach(bench.outlet, Window(0), name="c")
    bench.settle()
    assert bench.outlet.deliveries == []


@pytest.mark.parametrize("is_by_topic", [True, False])
def test_many_that_expire_together_are_shown_until_they_are_gone(is_by_topic):
    bench = Workbench()
    topic = bench.topic(policy=TopicPolicy(message_ttl_ms=1_000 if is_by_topic else 0))
    reader = bench.reader(topic)
    channel = bench.channel()
    count = EXPIRE_ENTRIES_MAX + 500
    for _ in range(count // 100):
        records = [expiring(bench, 0 if is_by_topic else 1_000) for _ in range(100)]
        for record in records:
            record.reshape(expire_ms=0 if is_by_topic else record.expire_ms)
        bench.publish(channel, topic, *records)
        bench.settle()
    due_ms = bench.clock.monotonic_ms() + 1_001
    assert reader.view().undone is None
    bench.clock.advance(1_200)
    bench.engine.turn()
    # One with a time of its own says nothing of those behind it.
    left = count - EXPIRE_ENTRIES_MAX if is_by_topic else 1
    undone = reader.view().undone
    assert (undone.what, undone.count) == ("expiries", left)
    assert due_ms - 1 <= undone.since_ms <= due_ms
    bench.advance(1)
    assert reader.view().undone is None
