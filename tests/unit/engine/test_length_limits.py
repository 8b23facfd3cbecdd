"""Length limits as RabbitMQ counts them: ready messages and the bytes of their bodies."""

from itertools import pairwise

import pytest

from kit.workbench import Workbench
from penstock.engine import topic as limits
from penstock.engine.host import SubscriptionOptions
from penstock.engine.topic import NONE_MAX, Overflow, TopicPolicy
from penstock.flow.demand import Window
from penstock.flow.quota import QuotaPolicy
from penstock.model.record import neutral_record
from penstock.model.refusal import RefusalKind

FULL = RefusalKind.LENGTH_LIMIT


@pytest.fixture
def bench():
    return Workbench()


def limited(bench, overflow=Overflow.DROP_HEAD, **limits):
    topic = bench.topic(policy=TopicPolicy(overflow=overflow, **limits))
    return topic, bench.reader(topic)


def consuming(bench, reader, window=0):
    return reader.attach(bench.outlet, Window(window), name="c")


def handed(bench):
    return [delivery.record.body for delivery in bench.outlet.deliveries]


def waiting(reader, topic):
    return reader.ready(topic.queues[0].queue_id)


def test_a_queue_of_one_that_has_one_refuses_the_second(bench):
    topic, reader = limited(bench, Overflow.REJECT, length_max=1)
    bench.publish(bench.channel(), topic, b"a", b"b")
    bench.settle()
    assert bench.refusal_kinds == [FULL]
    assert waiting(reader, topic) == 1


def test_bytes_are_those_of_bodies(bench):
    topic, reader = limited(bench, Overflow.REJECT, bytes_max=10)
    heavy = neutral_record(b"12345", properties=b"name\x01" + b"v" * 500 + b"\x02")
    bench.publish(bench.channel(), topic, heavy, b"67890", b"x")
    bench.settle()
    assert bench.refusal_kinds == [FULL]
    assert reader.ready_body_bytes() == 10


def test_what_consumers_hold_is_no_part_of_the_limit(bench):
    topic, reader = limited(bench, Overflow.REJECT, bytes_max=3)
    consuming(bench, reader, window=1)
    channel = bench.channel()
    for body in (b"111", b"222", b"333"):
        bench.publish(channel, topic, body)
        bench.settle()
    assert bench.refusal_kinds == [FULL]
    assert handed(bench) == [b"111"]
    assert waiting(reader, topic) == 1


def test_a_list_that_consumers_take_at_once_is_never_too_long(bench):
    for overflow in (Overflow.REJECT, Overflow.DROP_HEAD, Overflow.HOLD):
        topic = bench.topic(overflow.value, TopicPolicy(length_max=1, overflow=overflow))
        reader = bench.reader(topic)
        consuming(bench, reader)
        bench.publish(bench.channel(), topic, *[b"%d" % number for number in range(50)])
        bench.settle()
        assert bench.refusal_kinds == []
    assert len(handed(bench)) == 150


def test_of_a_longer_list_the_newest_stay_and_consumers_have_the_oldest(bench):
    topic, reader = limited(bench, length_max=3)
    consuming(bench, reader, window=2)
    bench.publish(bench.channel(), topic, *[b"%d" % number for number in range(10)])
    bench.settle()
    assert handed(bench) == [b"0", b"1"]
    assert reader.low_mark(topic.queues[0].queue_id) == 0
    bench.outlet.settle_all(reader)
    bench.settle()
    assert handed(bench)[2:] == [b"7", b"8"]


def test_a_message_above_the_limit_by_itself_does_not_stay(bench):
    topic, reader = limited(bench, bytes_max=3)
    channel = bench.channel()
    bench.publish(channel, topic, b"a")
    bench.publish(channel, topic, b"large")
    bench.settle()
    assert waiting(reader, topic) == 0


def test_a_message_above_the_limit_by_itself_is_refused_even_if_awaited(bench):
    topic, reader = limited(bench, Overflow.REJECT, bytes_max=3)
    consuming(bench, reader)
    bench.publish(bench.channel(), topic, b"large")
    bench.settle()
    assert bench.refusal_kinds == [FULL]


def test_drop_head_by_bytes_drops_as_few_as_needed(bench):
    topic, reader = limited(bench, bytes_max=10)
    bench.publish(bench.channel(), topic, b"4444", b"333", b"22", b"55555")
    bench.settle()
    assert waiting(reader, topic) == 3
    assert reader.ready_body_bytes() == 10


def test_what_comes_back_may_be_too_much(bench):
    topic, reader = limited(bench, length_max=1)
    consumer = consuming(bench, reader, window=1)
    bench.publish(bench.channel(), topic, b"a", b"b")
    bench.settle()
    assert waiting(reader, topic) == 1
    reader.detach(consumer)
    bench.settle()
    assert waiting(reader, topic) == 1
    consuming(bench, reader)
    bench.settle()
    assert handed(bench) == [b"a", b"b"]


def test_a_limit_of_nothing_lets_only_those_through_who_are_awaited(bench):
    topic, reader = limited(bench, length_max=NONE_MAX)
    channel = bench.channel()
    bench.publish(channel, topic, b"a")
    bench.settle()
    assert waiting(reader, topic) == 0
    consuming(bench, reader)
    bench.publish(channel, topic, b"b")
    bench.settle()
    assert handed(bench) == [b"b"]


def test_a_limit_of_nothing_refuses_everything_where_overflow_is_refused(bench):
    topic, reader = limited(bench, Overflow.REJECT, length_max=NONE_MAX)
    consuming(bench, reader)
    bench.publish(bench.channel(), topic, b"a")
    bench.settle()
    assert bench.refusal_kinds == [FULL]


def test_a_hold_by_bytes_ends_when_a_consumer_takes(bench):
    topic, reader = limited(bench, Overflow.HOLD, bytes_max=4)
    channel = bench.channel()
    bench.publish(channel, topic, b"1234", b"5")
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0]
    consuming(bench, reader, window=1)
    bench.settle()
    assert bench.outlet.confirmed_tokens == [0, 1]


def test_dropped_heads_are_dead_letters_in_order(bench):
    grave = bench.topic("grave")
    policy = TopicPolicy(length_max=1, dead_letter_topic="grave")
    topic = bench.topic(policy=policy)
    bench.reader(topic)
    bench.publish(bench.channel(), topic, b"a", b"b", b"c")
    bench.settle()
    assert bench.bodies(grave) == [b"a", b"b"]


def test_dropped_heads_and_expired_ones_between_them_die_in_order(bench):
    grave = bench.topic("grave")
    topic = bench.topic(policy=TopicPolicy(length_max=1, dead_letter_topic="grave"))
    reader = bench.reader(topic)
    mortal = neutral_record(b"b")
    mortal.reshape(expire_ms=bench.clock.wall_ms() + 10)
    consumer = consuming(bench, reader, window=2)
    channel = bench.channel()
    bench.publish(channel, topic, b"a", mortal)
    bench.settle()
    bench.clock.advance(50)
    reader.detach(consumer)
    bench.publish(channel, topic, b"c", b"d")
    bench.settle()
    assert bench.bodies(grave) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("limit", [{"length_max": 10}, {"bytes_max": 10}])
@pytest.mark.parametrize("is_durable", [True, False])
def test_thousands_that_come_back_are_dropped_over_several_turns(
    bench, monkeypatch, limit, is_durable
):
    monkeypatch.setattr(limits, "DROPPED_MAX", 100)
    policy = TopicPolicy(overflow=Overflow.DROP_HEAD, **limit)
    topic = bench.topic(policy=policy, is_durable=is_durable)
    options = SubscriptionOptions(sees_unsynced=True, is_durable=is_durable)
    reader = bench.engine.create_subscription(topic.name, "s", options)
    consumer = consuming(bench, reader)
    for _ in range(10):
        bench.publish(bench.channel(), topic, *[b"x"] * 100)
        bench.settle()
    assert len(bench.outlet.deliveries) == 1000
    reader.detach(consumer)
    seen = [waiting(reader, topic)]
    while bench.engine.needs_turn:
        bench.engine.turn()
        seen.append(waiting(reader, topic))
    assert max(before - after for before, after in pairwise(seen)) <= 100
    bench.settle()
    assert waiting(reader, topic) == 10


EVICTING = [
    {"length_max": 2},
    {"bytes_max": 2},
    {"quota_bytes_max": 100, "quota_policy": QuotaPolicy.EVICT},
]


def of_what_is_durable(bench, topic):
    return bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())


@pytest.mark.parametrize("limit", EVICTING, ids=lambda limit: next(iter(limit)))
def test_what_is_too_much_and_not_durable_yet_waits_for_the_sync_without_turns(bench, limit):
    topic = bench.topic(policy=TopicPolicy(**limit))
    reader = of_what_is_durable(bench, topic)
    bench.settle()
    bench.publish(bench.channel(), topic, *[b"x"] * 6)
    assert bench.turns() <= 3
    assert topic.queues[0].index.next_offset == 6
    assert waiting(reader, topic) == 0  # none of them durable, hence none to be seen or dropped
    bench.settle()
    assert waiting(reader, topic) < 6
    assert reader.low_mark(topic.queues[0].queue_id) == 6 - waiting(reader, topic)


def test_a_backlog_that_is_all_in_flight_is_evicted_when_it_comes_back_and_makes_no_turns(bench):
    topic = bench.topic(policy=TopicPolicy(quota_bytes_max=100, quota_policy=QuotaPolicy.EVICT))
    reader = of_what_is_durable(bench, topic)
    consumer = consuming(bench, reader)
    bench.publish(bench.channel(), topic, *[b"x"] * 6)
    bench.settle()
    assert len(handed(bench)) == 6
    reader.detach(consumer)
    bench.settle()
    assert reader.low_mark(topic.queues[0].queue_id) > 0
    assert waiting(reader, topic) < 6


def with_one_in_flight(bench, topic):
    """A subscription whose only consumer has the oldest message, and does not settle it."""
    reader = of_what_is_durable(bench, topic)
    consuming(bench, reader, window=1)
    return reader


def test_a_message_in_flight_does_not_cost_all_that_wait_behind_it(bench):
    policy = TopicPolicy(quota_bytes_max=10_000, quota_policy=QuotaPolicy.EVICT)
    topic = bench.topic(policy=policy)
    reader = with_one_in_flight(bench, topic)
    for _ in range(20):
        bench.publish(bench.channel(), topic, b"x" * 1000)
        bench.settle()
    assert len(handed(bench)) == 1
    assert reader.unacked(topic.queues[0].queue_id) == 1
    assert 5 <= waiting(reader, topic) <= 9


def test_a_message_in_flight_that_is_too_old_does_not_cost_the_young_behind_it(bench):
    policy = TopicPolicy(quota_age_ms_max=10_000, quota_age_policy=QuotaPolicy.EVICT)
    topic = bench.topic(policy=policy)
    reader = with_one_in_flight(bench, topic)
    for _ in range(20):
        bench.publish(bench.channel(), topic, b"x")
        bench.settle()
        bench.advance(1_000)
    assert reader.unacked(topic.queues[0].queue_id) == 1
    assert 7 <= waiting(reader, topic) <= 10


@pytest.mark.parametrize(
    "limit",
    [
        {"quota_bytes_max": 1000, "quota_policy": QuotaPolicy.EVICT},
        {"quota_age_ms_max": 1000, "quota_age_policy": QuotaPolicy.EVICT},
    ],
    ids=["bytes", "age"],
)
def test_a_quota_that_comes_late_evicts_over_several_turns(bench, monkeypatch, limit):
    monkeypatch.setattr(limits, "DROPPED_MAX", 100)
    topic = bench.topic()
    reader = of_what_is_durable(bench, topic)
    for _ in range(10):
        bench.publish(bench.channel(), topic, *[b"x"] * 100)
        bench.settle()
    bench.advance(5_000)
    bench.engine.set_policy(topic.name, TopicPolicy(**limit))
    bench.publish(bench.channel(), topic, b"the newest")
    seen = [waiting(reader, topic)]
    while bench.engine.needs_turn or bench.sync():
        bench.engine.turn()
        seen.append(waiting(reader, topic))
    assert max(before - after for before, after in pairwise(seen)) <= 100
    assert waiting(reader, topic) < 20
