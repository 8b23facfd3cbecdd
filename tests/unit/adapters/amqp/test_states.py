"""The words running, flow, blocking and blocked, and how long they are remembered."""

from penstock.adapters.amqp.states import channel_state, connection_state, queue_state
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.testing.workbench import Workbench


def words(bench, channel, topic):
    now_ms = bench.clock.monotonic_ms()
    return (
        connection_state(channel.connection, bench.engine, now_ms),
        channel_state(channel, now_ms),
        queue_state(topic, now_ms),
    )


def test_flow_is_shown_while_it_lasts_and_a_moment_longer():
    bench = Workbench(Settings(flow=FlowSettings(pending_publishes_max=0)))
    topic, channel = bench.topic(), bench.channel()
    assert words(bench, channel, topic) == ("running", "running", "running")
    while channel.connection.may_read:
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.turns()
    assert words(bench, channel, topic) == ("flow", "flow", "flow")
    bench.settle()
    assert words(bench, channel, topic) == ("flow", "flow", "flow")
    bench.advance(1_500)
    assert words(bench, channel, topic) == ("flow", "running", "running")
    bench.advance(4_000)
    assert words(bench, channel, topic) == ("running", "running", "running")


def test_an_alarm_blocks_publishers_and_names_the_others_blocking():
    bench = Workbench()
    topic, publisher, idle = bench.topic(), bench.channel(), bench.channel()
    bench.publish(publisher, topic, b"x")
    bench.settle()
    bench.engine.set_alarm("memory", 1 << 60)
    assert words(bench, publisher, topic)[0] == "blocked"
    assert words(bench, idle, topic)[0] == "blocking"
    bench.engine.set_alarm("memory", 0)
    assert words(bench, publisher, topic)[0] == "running"


def test_a_channel_that_never_published_runs():
    assert channel_state(None, 0) == "running"
