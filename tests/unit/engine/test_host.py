"""Delayed messages of all subscriptions share one bound, and nobody starves for others."""

import pytest

from kit.workbench import Workbench
from penstock.engine.host import OWN_MIN, DelayedBudget, Mode, SubscriptionOptions
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
    topics = TopicSettings(delayed_in_memory_max=400, delayed_on_disk_max=0)
    return Workbench(Settings(topics=topics))


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


# ---- beyond memory ------------------------------------------------------------------------------


HOURS_MS = 3 * 3_600_000


def spilling(in_memory=400, on_disk=100_000, **settings):
    topics = TopicSettings(delayed_in_memory_max=in_memory, delayed_on_disk_max=on_disk, **settings)
    return Workbench(Settings(topics=topics))


def publish_later(bench, topic, count, *, ms=LATER_MS, step_ms=0):
    channel = bench.channel()
    for start in range(0, count, 100):
        records = []
        for at in range(start, start + 100):
            record = neutral_record(b"%d" % at)
            record.reshape(deliver_ms=bench.engine.clock.wall_ms() + ms + at * step_ms)
            records.append(record)
        bench.publish(channel, topic, *records)
        bench.settle()


def spill_files(bench):
    return bench.storage.list("spill") if bench.storage.exists("spill") else []


def budget(bench):
    return bench.engine._host.delayed_budget


def spin(bench, ms=LATER_MS):
    bench.advance(ms)
    bench.settle()


@pytest.mark.parametrize("ms", [LATER_MS, HOURS_MS])
@pytest.mark.parametrize("step_ms", [0, 7])
def test_more_delayed_messages_than_memory_holds_do_not_hold_one_that_is_due(ms, step_ms):
    bench = spilling()
    topic = bench.topic()
    subscription = subscribe(bench, topic, "s")
    publish_later(bench, topic, 2000, ms=ms, step_ms=step_ms)
    bench.publish(bench.channel(), topic, b"now")
    bench.settle()
    assert bench.outlet.bodies == [b"now"]
    assert subscription.statistics().delayed == 2000
    assert budget(bench).count <= 200
    spin(bench, ms - 1_000)
    assert bench.outlet.bodies == [b"now"]
    spin(bench, 1_000 + 2000 * step_ms)
    assert len(bench.outlet.deliveries) == 2001
    assert len(set(bench.outlet.bodies)) == 2001
    assert subscription.statistics().delayed == 0
    assert subscription.ready(topic.queues[0].queue_id) == 0


def test_each_comes_in_time_however_many_wait_before_and_behind_it():
    bench = spilling(delay_horizon_ms=5_000)
    topic = bench.topic()
    subscribe(bench, topic, "s")
    publish_later(bench, topic, 1000, ms=10_000, step_ms=50)
    for second in range(60):
        due = max(0, min(1000, (second * 1000 - 10_000) // 50 + 1))
        assert len(bench.outlet.deliveries) == due, f"at {second} s"
        spin(bench, 1_000)


def test_a_clock_that_jumps_over_hours_leaves_none_behind():
    bench = spilling()
    topic = bench.topic()
    subscribe(bench, topic, "s")
    publish_later(bench, topic, 1000, ms=HOURS_MS, step_ms=10_000)
    bench.clock.advance(4 * HOURS_MS)
    spin(bench, 1_000)
    assert len(bench.outlet.deliveries) == 1000


def test_after_a_kill_the_files_are_gone_and_every_delayed_message_comes_once():
    bench = spilling(in_memory=40)
    topic = bench.topic()
    subscribe(bench, topic, "s")
    publish_later(bench, topic, 4000, ms=HOURS_MS)
    assert spill_files(bench)
    bench.kill()
    assert spill_files(bench) == []
    again = bench.engine.topic(topic.name)
    subscription = again.subscriptions["s"]
    subscription.attach(bench.outlet, Window(0), name="s", unsent=UnsentLimit(0, 0))
    bench.settle()
    assert bench.outlet.bodies == []
    assert subscription.statistics().delayed == 4000
    spin(bench, HOURS_MS)
    assert len(bench.outlet.bodies) == len(set(bench.outlet.bodies)) == 4000


def test_files_go_with_their_subscription_and_with_their_hour():
    bench = spilling()
    topic = bench.topic()
    subscribe(bench, topic, "brief")
    subscribe(bench, topic, "stays")
    publish_later(bench, topic, 4000, ms=HOURS_MS)
    bench.engine.delete_subscription(topic.name, "brief")
    bench.settle()
    assert len(spill_files(bench)) == 1
    assert budget(bench).count == 0
    spin(bench, HOURS_MS)
    assert len(bench.outlet.deliveries) == 4000
    publish_later(bench, topic, 100, ms=HOURS_MS)
    spin(bench, HOURS_MS)
    bench.settle()
    assert spill_files(bench) == []


def test_with_no_room_on_disk_the_reader_waits_and_goes_on_when_there_is_some():
    bench = spilling(on_disk=300)
    topic = bench.topic()
    subscription = subscribe(bench, topic, "s")
    publish_later(bench, topic, 2000, ms=HOURS_MS, step_ms=1)
    bench.publish(bench.channel(), topic, b"now")
    bench.settle()
    cursor = subscription.cursor(topic.queues[0].queue_id)
    assert cursor.redelivery.is_full
    assert bench.outlet.bodies == []
    assert budget(bench).count < 1000
    spin(bench, HOURS_MS + 3_000_000)
    for _ in range(20):
        spin(bench, 600_000)
    assert len(bench.outlet.deliveries) == 2001
    assert not cursor.redelivery.is_full


def test_a_disk_that_takes_nothing_stops_the_reader_and_not_the_memory(monkeypatch):
    monkeypatch.setattr("penstock.log.delayed.SPILL_UNWRITTEN_MAX", 24 * 500)
    monkeypatch.setattr("penstock.log.delayed.FLUSH_BYTES", 24 * 100)
    bench = spilling()
    topic = bench.topic()
    subscription = subscribe(bench, topic, "s")
    files = bench.store._side_files
    files.run = lambda steps: 0
    publish_later(bench, topic, 2000, ms=HOURS_MS)
    cursor = subscription.cursor(topic.queues[0].queue_id)
    assert cursor.redelivery.is_full
    assert subscription.statistics().delayed < 1300
    del files.run
    spin(bench, 1_000)
    assert not cursor.redelivery.is_full
    assert subscription.statistics().delayed == 2000


def test_what_rests_and_is_settled_before_its_time_is_neither_counted_nor_delivered():
    bench = spilling()
    topic = bench.topic()
    subscription = subscribe(bench, topic, "s")
    publish_later(bench, topic, 1000, ms=HOURS_MS)
    queue_id = topic.queues[0].queue_id
    subscription.settle(queue_id, [900])
    assert subscription.statistics().delayed == 999
    subscription.settle_upto(queue_id, 500)
    assert subscription.statistics().delayed == 499
    bench.settle()
    spin(bench, HOURS_MS)
    assert len(bench.outlet.deliveries) == 499


def test_a_seek_puts_aside_anew_and_a_type_that_waits_for_no_time_gets_all_at_once():
    bench = spilling()
    topic = bench.topic()
    subscription = subscribe(bench, topic, "s")
    publish_later(bench, topic, 1000, ms=HOURS_MS)
    queue_id = topic.queues[0].queue_id
    subscription.seek(queue_id, 0)
    bench.settle()
    assert subscription.statistics().delayed == 1000
    subscription.detach(subscription.consumers[0])
    subscription.attach(
        bench.outlet, Window(0), name="e", unsent=UnsentLimit(0, 0), mode=Mode.EXCLUSIVE
    )
    bench.settle()
    assert bench.outlet.bodies == [b"%d" % at for at in range(1000)]
    assert subscription.statistics().delayed == 0
