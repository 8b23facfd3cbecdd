"""Between the append and the sync: who may see what, and what a confirm is worth (D6, D7, P3)."""

import pytest

from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.engine.pull import Pull, PullStatus
from penstock.flow.demand import Window
from penstock.settings.broker import StorageSettings
from penstock.settings.load import Settings


@pytest.fixture
def bench():
    return Workbench()


@pytest.mark.parametrize("durability", ["os", "interval:50"])
def test_where_written_is_enough_a_confirm_comes_with_the_append(durability):
    bench = Workbench(Settings(storage=StorageSettings(durability=durability)))
    topic, channel = bench.topic(), bench.channel()
    tokens = bench.publish(channel, topic, b"a", b"b")
    bench.engine.turn()
    assert bench.outlet.confirmed_tokens == tokens
    assert topic.queues[0].durable_end == 2
    bench.settle()
    bench.kill()
    assert bench.bodies(bench.engine.topics()[0]) == [b"a", b"b"]


def test_a_reader_that_shows_offsets_gets_only_what_is_durable(bench):
    topic, channel = bench.topic(), bench.channel()
    careful = bench.engine.create_subscription(topic.name, "careful", SubscriptionOptions())
    eager = bench.reader(topic, "eager")
    for subscription in (careful, eager):
        subscription.attach(bench.outlet, Window(0), name=subscription.name)
    bench.publish(channel, topic, b"a")
    bench.turns()
    assert [event.consumer.name for event in bench.outlet.events] == ["eager"]
    bench.sync()
    bench.turns()
    delivered = [event for event in bench.outlet.events if hasattr(event, "consumer")]
    assert [event.consumer.name for event in delivered] == ["eager", "careful"]


def test_a_held_pull_is_answered_by_the_sync_and_not_by_the_append(bench):
    topic, channel = bench.topic(), bench.channel()
    deadline_ms = bench.clock.monotonic_ms() + 10_000
    pull = Pull(bench.outlet, topic.queues[0], 0, deadline_ms=deadline_ms)
    assert bench.engine.pulls.pull(pull) is None
    bench.publish(channel, topic, b"a")
    bench.turns()
    assert bench.outlet.answers == []
    bench.sync()
    (answer,) = bench.outlet.answers
    assert answer.status is PullStatus.FOUND


def test_a_commit_that_found_the_disk_full_is_tried_again_and_nothing_is_refused(bench):
    topic, channel = bench.topic(), bench.channel()
    called = []
    bench.engine.after_durable(lambda: called.append(True))
    tokens = bench.publish(channel, topic, b"a")
    bench.turns()
    bench.catalog.is_full = True
    bench.sync()
    assert (bench.outlet.events, called) == ([], [])
    assert not bench.engine.is_failed
    bench.catalog.is_full = False
    bench.clock.advance(1_000)
    bench.settle()
    assert (bench.outlet.confirmed_tokens, called) == (tokens, [True])


def test_bytes_and_messages_wait_until_the_sync_covers_them(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a", b"b")
    bench.turns()
    assert bench.engine.unsynced_messages == 2
    assert bench.engine.unsynced_bytes > 0
    bench.settle()
    assert (bench.engine.unsynced_messages, bench.engine.unsynced_bytes) == (0, 0)


def test_a_sync_of_what_was_handed_out_already_asks_for_no_turn(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.reader(topic).attach(bench.outlet, Window(0), name="eager")
    bench.publish(channel, topic, b"a")
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.finish(job)
    assert not bench.engine.needs_turn


def test_queues_that_wait_for_a_slow_sync_of_settlements_go_on_after_it(bench):
    topic, channel = bench.topic(), bench.channel()
    reader = bench.reader(topic)
    reader.attach(bench.outlet, Window(0), name="eager")
    bench.publish(channel, topic, b"a")
    bench.settle()
    reader.settle(topic.queues[0].queue_id, [0])
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.clock.advance(bench.settings.storage.sync_hold_ms + 1)
    bench.publish(channel, topic, b"b")
    bench.turns()
    assert topic.queues[0].index.next_offset == 1
    bench.finish(job)
    bench.turns()
    assert topic.queues[0].index.next_offset == 2


def failing_since_ms(bench):
    (log,) = [each for each in bench.engine.flow_map(0).views if each.kind == "log"]
    return log.since_ms


def test_since_when_writes_fail_is_not_told_of_an_earlier_time_that_nobody_wrote_after(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.settle()
    bench.storage.capacity_bytes = bench.storage.used_bytes
    bench.publish(channel, topic, b"a")
    bench.turns()
    assert failing_since_ms(bench) == bench.clock.monotonic_ms()
    bench.clock.advance(3_600_000)
    bench.publish(channel, topic, b"a")
    bench.turns()
    began_ms = bench.clock.monotonic_ms()
    assert failing_since_ms(bench) == began_ms
    bench.clock.advance(500)
    bench.publish(channel, topic, b"a")
    bench.turns()
    assert failing_since_ms(bench) == began_ms
