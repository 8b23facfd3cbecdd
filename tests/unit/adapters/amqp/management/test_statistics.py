"""Everything is sampled every five seconds, a little at a time."""

from itertools import pairwise

from kit.workbench import Workbench
from penstock.adapters.amqp.management.statistics import (
    OVERVIEW,
    channel_key,
    channel_state,
    connection_key,
    connection_state,
    queue_key,
    queue_state,
    vhost_key,
)
from penstock.engine import sampler as sampler_module
from penstock.engine.sampler import PAUSE_MS, WINDOW_MS
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.wire.amqp.methods.basic import Consume
from penstock.wire.amqp.methods.queue import Declare, Delete


def passed(bench, ms):
    """Time goes on, and the sampler is called as a server would; when it was."""
    sampler, end_ms = bench.broker.engine.sampler, bench.clock.monotonic_ms() + ms
    calls = []
    while True:
        now_ms = bench.clock.monotonic_ms()
        calls.append(now_ms)
        if now_ms >= sampler.next_deadline_ms():
            sampler.due(now_ms)
        if now_ms >= end_ms:
            return calls
        bench.advance(min(end_ms, max(now_ms + 1, sampler.next_deadline_ms())) - now_ms)


def publish(peer, messages, name="q"):
    for _ in range(messages):
        peer.publish(1, "", name, b"x")
    peer.turn()


def test_everything_has_its_rate_after_two_samples(bench, peer):
    peer.call(1, Declare(0, "q"))
    broker = bench.broker
    passed(bench, WINDOW_MS)
    publish(peer, 50)
    passed(bench, WINDOW_MS)
    queue = broker.vhosts["/"].queues.get("q")
    channel = peer.session.channels[1]
    keys = (queue_key(queue), channel_key(channel), connection_key(peer.session), OVERVIEW)
    assert [broker.context.rates.per_second(key)["publish"] for key in keys] == [10.0] * 4
    assert broker.context.rates.per_second(vhost_key(broker.vhosts["/"]))["messages"] == 10.0
    passed(bench, WINDOW_MS)
    assert broker.context.rates.per_second(queue_key(queue))["publish"] == 0.0


def test_what_is_gone_is_forgotten(bench, peer):
    peer.call(1, Declare(0, "q"))
    key = queue_key(bench.broker.vhosts["/"].queues.get("q"))
    passed(bench, 2 * WINDOW_MS)
    assert bench.broker.context.rates.per_second(key) is not None
    peer.call(1, Delete(0, "q"))
    passed(bench, 2 * WINDOW_MS)
    assert bench.broker.context.rates.per_second(key) is None


def test_many_objects_are_sampled_in_small_steps(bench, peer, monkeypatch):
    monkeypatch.setattr(sampler_module, "SLICE_OBJECTS", 3)
    for number in range(10):
        peer.call(1, Declare(0, f"q{number}"))
    broker = bench.broker
    passed(bench, WINDOW_MS)
    calls = passed(bench, 2 * WINDOW_MS)
    pauses = [later - sooner for sooner, later in pairwise(calls)]
    assert pauses.count(PAUSE_MS) >= 2 * 3
    queues = list(broker.vhosts["/"].queues)
    assert len(queues) == 10
    assert all(broker.context.rates.per_second(queue_key(each)) is not None for each in queues)


def test_totals_do_not_go_back_when_a_queue_is_deleted_in_the_midst_of_a_sweep(
    bench, peer, monkeypatch
):
    monkeypatch.setattr(sampler_module, "SLICE_OBJECTS", 3)
    for name in ("a", "b", "c"):
        peer.call(1, Declare(0, name))
        publish(peer, 4, name)
        peer.call(1, Consume(0, name, name, is_no_ack=True))
    broker = bench.broker
    passed(bench, 2 * WINDOW_MS)
    broker.engine.sampler.due(bench.clock.monotonic_ms())
    bench.advance(WINDOW_MS)
    broker.engine.sampler.due(bench.clock.monotonic_ms())
    peer.call(1, Delete(0, "a"))
    peer.call(1, Delete(0, "c"))
    passed(bench, WINDOW_MS)
    rates = broker.context.rates.per_second(OVERVIEW)
    assert rates["deliver_no_ack"] == 0.0
    kind, key = OVERVIEW
    assert broker.engine.sampler._tables[kind].last(key)["deliver_no_ack"] == 12


def test_a_house_without_anything_is_sampled_too(bench):
    passed(bench, 2 * WINDOW_MS)
    assert bench.broker.context.rates.per_second(OVERVIEW)["publish"] == 0.0


# ---- states -------------------------------------------------------------------------------------
# The words running, flow, blocking and blocked, and how long they are remembered.


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
    bench.engine.set_alarm("memory", 1 << 60)
    assert words(bench, publisher, topic)[0] == "blocking"
    bench.publish(publisher, topic, b"x")
    assert words(bench, publisher, topic)[0] == "blocked"
    assert words(bench, idle, topic)[0] == "blocking"
    bench.engine.set_alarm("memory", 0)
    bench.settle()
    assert words(bench, publisher, topic)[0] == "running"


def test_a_channel_that_never_published_runs():
    assert channel_state(None, 0) == "running"
