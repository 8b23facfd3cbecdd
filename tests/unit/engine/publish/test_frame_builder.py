"""How queues give their batches to a frame: together or not at all, and nobody is starved."""

import pytest

from kit.workbench import Workbench
from penstock.engine.topic import FanoutRoute
from penstock.settings.broker import StorageSettings
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings

KIB = 1024


@pytest.fixture
def bench():
    flow = FlowSettings(queue_log_credit=4, queue_log_more=2, pending_publishes_max=0)
    return Workbench(Settings(flow=flow))


def test_a_fan_out_waits_for_its_slowest_queue_and_holds_nobody_else(bench):
    slow, fast = bench.topic("slow"), bench.topic("fast")
    flooder, fan, other = bench.channel(), bench.channel(), bench.channel()
    bench.publish(flooder, slow, *[b"flood"] * 4)
    bench.turns()
    assert slow.queues[0].stage.is_blocked
    bench.publish(fan, FanoutRoute((slow.queues[0], fast.queues[0])), b"both")
    bench.publish(fan, fast, b"after both")
    bench.publish(other, fast, b"beside")
    bench.turns()
    assert bench.bodies(fast) == [b"beside"]
    bench.settle()
    assert bench.bodies(fast) == [b"beside", b"both", b"after both"]
    assert bench.bodies(slow) == [b"flood"] * 4 + [b"both"]


def test_fan_outs_that_cross_do_not_wait_for_each_other_for_ever(bench):
    first, second = bench.topic("first"), bench.topic("second")
    one, two = bench.channel(), bench.channel()
    there = FanoutRoute((first.queues[0], second.queues[0]))
    back = FanoutRoute((second.queues[0], first.queues[0]))
    for number in range(20):
        bench.publish(one, there, b"1:%d" % number)
        bench.publish(two, back, b"2:%d" % number)
    bench.settle()
    assert len(bench.outlet.confirmed_tokens) == 40
    for topic in (first, second):
        for publisher in (b"1:", b"2:"):
            mine = [body for body in bench.bodies(topic) if body.startswith(publisher)]
            assert mine == [publisher + b"%d" % number for number in range(20)]


def test_a_message_larger_than_all_buffers_is_not_stuck():
    storage = StorageSettings(write_buffers_max=1, write_buffer_bytes=64 * KIB)
    bench = Workbench(Settings(storage=storage))
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"x" * 50 * KIB, b"y" * 200 * KIB, b"z")
    bench.settle()
    assert [len(body) for body in bench.bodies(topic)] == [50 * KIB, 200 * KIB, 1]


def test_appends_stop_while_no_buffer_is_free_and_protocols_are_told():
    storage = StorageSettings(write_buffers_max=1, write_buffer_bytes=64 * KIB)
    bench = Workbench(Settings(storage=storage))
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"x" * 64 * KIB)
    bench.turns()
    assert bench.engine.log_is_held
    assert bench.engine.refuse_now().culprit == "write buffers"
    bench.publish(channel, topic, b"y")
    bench.turns()
    assert len(bench.bodies(topic)) == 1
    bench.settle()
    assert len(bench.bodies(topic)) == 2
    assert bench.engine.refuse_now() is None


def test_a_publish_that_waits_for_a_buffer_counts_against_the_pool():
    storage = StorageSettings(write_buffers_max=1, write_buffer_bytes=64 * KIB)
    bench = Workbench(Settings(storage=storage))
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"x" * 40 * KIB)
    bench.turns()
    assert bench.engine.refuse_now() is None
    bench.publish(channel, topic, b"y" * 40 * KIB)
    bench.turns()
    assert bench.engine.refuse_now().culprit == "write buffers"
    bench.settle()
    assert bench.engine.refuse_now() is None
    assert len(bench.bodies(topic)) == 2
