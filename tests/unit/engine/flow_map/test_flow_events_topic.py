"""penstock.flow: told in the next frame or dropped, and never anybody's burden."""

import pytest

from kit.workbench import Workbench
from penstock.engine.flow_map import FLOW_TOPIC, RATE_PER_S_MAX
from penstock.engine.host import SubscriptionOptions
from penstock.flow.demand import Window
from penstock.model.record import neutral_record
from penstock.settings.broker import TopicSettings
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.testing.storage import FaultKind


@pytest.fixture
def bench():
    return Workbench()


def tell(bench, *bodies):
    bench.engine.flow_topic.offer([neutral_record(body) for body in bodies])


def told(bench):
    topic = bench.engine.topic(FLOW_TOPIC)
    return [] if topic is None else bench.bodies(topic)


def test_the_topic_is_made_when_there_is_something_to_tell_and_is_hidden(bench):
    bench.settle()
    assert bench.engine.topic(FLOW_TOPIC) is None
    tell(bench, b"entered", b"left")
    bench.settle()
    assert told(bench) == [b"entered", b"left"]
    assert bench.engine.topic(FLOW_TOPIC).name.is_hidden


def test_what_was_told_survives_a_restart_and_goes_on_behind_it(bench):
    tell(bench, b"one")
    bench.settle()
    bench.kill()
    tell(bench, b"two")
    bench.settle()
    assert told(bench) == [b"one", b"two"]


def test_it_can_be_switched_off():
    bench = Workbench(Settings(flow=FlowSettings(events_topic=False)))
    tell(bench, b"entered")
    bench.settle()
    assert bench.engine.topic(FLOW_TOPIC) is None
    assert bench.engine.flow_topic.dropped == 0


def test_more_than_so_many_a_second_are_dropped_and_counted(bench):
    topic = bench.engine.flow_topic
    tell(bench, *[b"x"] * (RATE_PER_S_MAX + 20))
    assert topic.dropped == 20
    bench.settle()
    bench.advance(500)
    tell(bench, *[b"y"] * RATE_PER_S_MAX)
    bench.settle()
    assert told(bench).count(b"y") == RATE_PER_S_MAX // 2
    assert topic.appended == RATE_PER_S_MAX + RATE_PER_S_MAX // 2


def test_while_the_log_is_held_they_are_dropped(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a")
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.clock.advance(10_000)
    tell(bench, b"lost")
    assert bench.engine.flow_topic.dropped == 1
    assert not bench.engine.needs_turn
    bench.finish(job)
    bench.settle()
    assert told(bench) == []


def test_a_write_that_fails_drops_them_and_a_failed_store_takes_none(bench):
    tell(bench, b"first")
    bench.settle()
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    tell(bench, b"second")
    bench.settle()
    assert bench.engine.flow_topic.dropped == 1
    bench.publish(bench.channel(), bench.topic(), b"x")
    bench.storage.plan.fail_next("sync", FaultKind.EIO)
    bench.settle()
    tell(bench, b"third")
    bench.settle()
    assert (bench.engine.flow_topic.appended, bench.engine.flow_topic.dropped) == (1, 2)


def test_where_no_queue_more_is_allowed_they_are_dropped():
    bench = Workbench(Settings(topics=TopicSettings(queues_max=1)))
    bench.topic()
    tell(bench, b"x")
    assert bench.engine.flow_topic.dropped == 1
    bench.settle()


def test_telling_makes_no_edges_and_holds_nobody(bench):
    channel = bench.channel()
    for _ in range(50):
        tell(bench, *[b"x"] * RATE_PER_S_MAX)
        bench.turns()
        bench.clock.advance(1000)
    assert bench.engine.take_flow_edges() == []
    assert channel.connection.may_read
    bench.settle()


def test_somebody_may_consume_it_and_a_reader_that_stops_pins_little(bench):
    tell(bench, b"entered")
    bench.settle()
    subscription = bench.engine.create_subscription(FLOW_TOPIC, "spark", SubscriptionOptions())
    subscription.attach(bench.outlet, Window(0), name="c")
    bench.settle()
    assert bench.outlet.bodies == [b"entered"]
    policy = bench.engine.topic(FLOW_TOPIC).policy
    assert policy.retention_ms == 0, "its records keep no segment alive"
    assert 0 < policy.quota_bytes_max <= 16 << 20
