"""Delayed messages of all subscriptions share one bound, and nobody starves for others."""

import pytest

from kit.workbench import Workbench
from penstock.engine.host import OWN_MIN, DelayedBudget, SubscriptionOptions
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import Window
from penstock.model.record import neutral_record
from penstock.settings.broker import TopicSettings
from penstock.settings.load import Settings

LATER_MS = 60_000


def test_the_room_is_full_at_its_bound_and_wakes_those_who_wait_when_an_eighth_is_free():
    woken = []
    room = DelayedBudget(80, woken.append)
    for _ in range(80):
        room.add()
    assert room.is_full
    room.wait("a")
    room.wait("b")
    room.forget("b")
    room.remove(9)
    assert room.is_full
    assert woken == []
    room.remove(1)
    assert not room.is_full
    assert woken == ["a"]


def test_taking_out_more_than_was_in_it_is_caught():
    with pytest.raises(AssertionError, match="more"):
        DelayedBudget(10, print).remove()


@pytest.fixture
def bench():
    return Workbench(Settings(topics=TopicSettings(delayed_in_memory_max=400)))


def later(bench, body=b"later"):
    record = neutral_record(body)
    record.reshape(deliver_ms=bench.engine.clock.wall_ms() + LATER_MS)
    return record


def subscribe(bench, topic, name):
    options = SubscriptionOptions(sees_unsynced=True)
    subscription = bench.engine.create_subscription(topic.name, name, options)
    subscription.attach(bench.outlet, Window(0), name=name, unsent=UnsentLimit(0, 0))
    return subscription


def in_memory(topic):
    return sum(each.statistics().delayed for each in topic.subscriptions.values())


def test_many_subscriptions_together_keep_no_more_than_the_bound(bench):
    topic, channel = bench.topic(), bench.channel()
    for number in range(20):
        subscribe(bench, topic, f"s{number}")
    for _ in range(3):
        bench.publish(channel, topic, *[later(bench) for _ in range(100)])
        bench.settle()
    chunk = 256
    assert in_memory(topic) <= 200 + chunk + 20 * OWN_MIN
    bench.advance(LATER_MS)
    for _ in range(40):
        bench.settle()
        bench.advance(100)
    assert len(bench.outlet.deliveries) == 20 * 300
    assert in_memory(topic) == 0


def test_a_subscription_with_few_of_its_own_reads_on_while_others_fill_the_room(bench):
    greedy, modest = bench.topic("greedy"), bench.topic("modest")
    channel = bench.channel()
    subscribe(bench, greedy, "g")
    subscribe(bench, modest, "m")
    bench.publish(channel, greedy, *[later(bench) for _ in range(300)])
    bench.settle()
    bench.publish(channel, modest, *[later(bench) for _ in range(5)], neutral_record(b"now"))
    bench.settle()
    assert bench.outlet.bodies == [b"now"]


def test_a_subscription_that_goes_gives_its_place_to_those_who_wait(bench):
    greedy, waiting = bench.topic("greedy"), bench.topic("waiting")
    channel = bench.channel()
    subscribe(bench, greedy, "g")
    bench.publish(channel, greedy, *[later(bench) for _ in range(300)])
    bench.settle()
    subscribe(bench, waiting, "w")
    bench.publish(channel, waiting, *[later(bench) for _ in range(50)], neutral_record(b"now"))
    bench.settle()
    assert bench.outlet.bodies == []
    bench.engine.delete_subscription(greedy.name, "g")
    bench.settle()
    assert bench.outlet.bodies == [b"now"]
