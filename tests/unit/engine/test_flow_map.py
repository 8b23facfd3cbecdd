"""The flow map names who waits for whom."""

import pytest

from penstock.engine.subscription_options import SubscriptionOptions
from penstock.engine.topic import Overflow, TopicPolicy
from penstock.flow.diagnosis import diagnose
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.testing.workbench import Workbench

KIB = 1024


@pytest.fixture
def bench():
    return Workbench()


def test_the_flow_map_names_the_disk_while_a_sync_hangs(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a")
    bench.turns()
    bench.engine.take_sync_job()
    while channel.connection.may_read:
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.clock.advance(50)
        bench.turns()
    found = diagnose(bench.engine.flow_views(bench.clock.monotonic_ms()))
    assert (found.kind, found.side) == ("log", "publish")


def test_the_flow_map_follows_the_chain_to_the_log():
    bench = Workbench(Settings(flow=FlowSettings(pending_publishes_max=0)))
    topic, channel = bench.topic(), bench.channel()
    while channel.connection.may_read:
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.turns()
    views = bench.engine.flow_views(bench.clock.monotonic_ms())
    held = {view.kind: view.culprit for view in views if view.is_held}
    assert held == {
        "connection": "channel c1/1",
        "channel": "queue orders",
        "queue": "log",
    }
    assert diagnose(views).kind == "log"
    bench.settle()
    bench.advance(5_000)
    views = bench.engine.flow_views(bench.clock.monotonic_ms())
    assert not any(view.is_held for view in views)
    edges = bench.engine.take_flow_edges()
    assert [edge.kind for edge in edges if edge.episode is None].count("queue") == 1


def test_the_flow_map_names_a_full_topic_and_an_alarm(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions(sees_unsynced=True))
    channel = bench.channel()
    bench.publish(channel, topic, b"a", b"b")
    bench.settle()
    views = {view.kind: view for view in bench.engine.flow_views(bench.clock.monotonic_ms())}
    assert "length_max" in views["channel"].culprit
    assert views["connection"].state == "flow"
    bench.engine.set_alarm("disk", 0)
    views = {view.kind: view for view in bench.engine.flow_views(bench.clock.monotonic_ms())}
    assert views["connection"].state == "blocked"
