"""What leaves a topic or a subscription keeps to its dispatch rate, and says so while it waits."""

import pytest

from kit.workbench import Workbench
from penstock.engine.host import Mode, SubscriptionOptions
from penstock.engine.topic import TopicPolicy
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import Window, Withheld
from penstock.flow.rate import DispatchRate
from penstock.model.record import neutral_record
from penstock.testing.outlet import RecordingOutlet


@pytest.fixture
def bench():
    return Workbench()


def subscribe(bench, topic, name="s", *, rate=None, mode=Mode.SHARED, outlet=None):
    options = SubscriptionOptions(sees_unsynced=True, dispatch_rate=rate, mode=mode)
    subscription = bench.engine.create_subscription(topic.name, name, options)
    subscription.attach(outlet or bench.outlet, Window(0), name=name, unsent=UnsentLimit(0, 0))
    return subscription


def fill(bench, topic, count, body=b"x"):
    bench.publish(bench.channel(), topic, *[neutral_record(body) for _ in range(count)])
    bench.settle()


def got(bench, ms):
    """How many came within that time."""
    before = len(bench.outlet.deliveries)
    bench.advance(ms)
    return len(bench.outlet.deliveries) - before


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.EXCLUSIVE, Mode.KEY_SHARED])
def test_a_subscription_hands_out_no_more_than_its_rate(bench, mode):
    topic = bench.topic()
    subscribe(bench, topic, rate=DispatchRate(messages=100), mode=mode)
    fill(bench, topic, 500)
    assert len(bench.outlet.deliveries) == 100
    assert got(bench, 1_000) == 100
    assert got(bench, 2_000) == 200
    assert got(bench, 5_000) == 100


def test_who_waits_for_the_rate_is_told_so_until_it_goes_on(bench):
    topic = bench.topic()
    subscription = subscribe(bench, topic, rate=DispatchRate(messages=100))
    fill(bench, topic, 150)
    assert subscription.consumer_statistics()[0].blocked_by == (Withheld.RATE,)
    assert subscription.available_messages() == 0
    bench.advance(1_000)
    assert subscription.consumer_statistics()[0].blocked_by == (Withheld.NOTHING_READY,)
    assert subscription.available_messages() > 0


def test_bytes_count_too_and_one_message_may_cross_the_line(bench):
    topic = bench.topic()
    subscribe(bench, topic, rate=DispatchRate(size_bytes=10_000))
    fill(bench, topic, 10, b"x" * 6_000)
    assert len(bench.outlet.deliveries) == 2
    assert got(bench, 200) == 0
    assert got(bench, 800) in (1, 2)
    bench.advance(10_000)
    assert len(bench.outlet.deliveries) == 10


def test_a_rate_of_one_in_ten_seconds_is_kept(bench):
    topic = bench.topic()
    subscribe(bench, topic, rate=DispatchRate(messages=1, period_ms=10_000))
    fill(bench, topic, 5)
    assert len(bench.outlet.deliveries) == 1
    assert got(bench, 9_999) == 0
    assert got(bench, 1) == 1
    assert got(bench, 30_000) == 3


@pytest.mark.parametrize(("counts_entries", "first"), [(True, 3), (False, 1)])
def test_a_batch_counts_as_its_messages_or_as_one_entry(bench, counts_entries, first):
    topic = bench.topic()
    subscribe(bench, topic, rate=DispatchRate(messages=3, counts_entries=counts_entries))
    records = [neutral_record(b"batch") for _ in range(6)]
    for record in records:
        record.reshape(messages=10)
    bench.publish(bench.channel(), topic, *records)
    bench.settle()
    assert len(bench.outlet.deliveries) == first


def test_the_subscriptions_of_a_topic_share_its_rate_and_none_is_left_out(bench):
    topic = bench.topic(policy=TopicPolicy(dispatch_rate=DispatchRate(messages=100)))
    outlets = [RecordingOutlet() for _ in range(3)]
    for number, outlet in enumerate(outlets):
        subscribe(bench, topic, f"s{number}", outlet=outlet)
    fill(bench, topic, 2_000)
    bench.advance(10_000)
    counts = [len(outlet.deliveries) for outlet in outlets]
    assert 1_000 <= sum(counts) <= 1_100
    bench.advance(3_000)
    grown = [len(outlet.deliveries) - was for outlet, was in zip(outlets, counts, strict=True)]
    assert sum(grown) == 300
    assert min(grown) >= 60


def test_at_one_a_second_every_subscription_has_its_turn(bench):
    topic = bench.topic(policy=TopicPolicy(dispatch_rate=DispatchRate(messages=1)))
    outlets = [RecordingOutlet() for _ in range(3)]
    for number, outlet in enumerate(outlets):
        subscribe(bench, topic, f"s{number}", outlet=outlet)
    fill(bench, topic, 50)
    bench.advance(12_000)
    assert min(len(outlet.deliveries) for outlet in outlets) >= 3


def test_rates_change_while_consumers_live(bench):
    topic = bench.topic()
    subscription = subscribe(bench, topic, rate=DispatchRate(messages=10))
    fill(bench, topic, 1_000)
    assert len(bench.outlet.deliveries) == 10
    subscription.limit_dispatch(DispatchRate(messages=100))
    assert 90 <= got(bench, 1_000) <= 110
    subscription.limit_dispatch(DispatchRate())
    assert got(bench, 1) > 700
    bench.engine.set_policy(topic.name, TopicPolicy(dispatch_rate=DispatchRate(messages=20)))
    fill(bench, topic, 100)
    assert got(bench, 1_000) <= 21
    bench.engine.set_policy(topic.name, TopicPolicy())
    bench.advance(1)
    assert len(bench.outlet.deliveries) == 1_100


def test_a_topics_rate_survives_a_restart(bench):
    topic = bench.topic(policy=TopicPolicy(dispatch_rate=DispatchRate(5, period_ms=2_000)))
    bench.settle()
    bench.kill()
    again = bench.engine.topic(topic.name)
    assert again.policy.dispatch_rate == DispatchRate(5, period_ms=2_000)
    subscribe(bench, again)
    fill(bench, again, 20)
    assert len(bench.outlet.deliveries) == 5


def test_what_is_taken_by_hand_never_waits_but_counts(bench):
    topic = bench.topic()
    subscription = subscribe(bench, topic, rate=DispatchRate(messages=10))
    fill(bench, topic, 100)
    passive = subscription.attach(bench.outlet, Window(0), name="hand", is_passive=True)
    assert len(subscription.take(passive, 30)) == 30
    assert got(bench, 2_000) == 0
    assert got(bench, 2_000) == 10
