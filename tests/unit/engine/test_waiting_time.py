"""How long a stage waits for the next one is measured where the work is done."""

from kit.workbench import Workbench
from penstock.engine.ports import Publication
from penstock.flow.diagnosis import diagnose
from penstock.flow.reason import Reason
from penstock.model.record import neutral_record
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings

WORK_MS = 30


def bench_with_slow_appends(**flow):
    bench = Workbench(Settings(flow=FlowSettings(pending_publishes_max=0, **flow)))
    bench.engine.watch_appends(lambda _batch: bench.clock.advance(WORK_MS))
    return bench


def test_a_channel_without_credit_waits_as_long_as_its_queue_works():
    bench = bench_with_slow_appends(channel_queue_credit=10, channel_queue_more=5)
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, *[b"x"] * 10)
    bench.turns()
    now_ms = bench.clock.monotonic_ms()
    assert not channel.stage.is_blocked
    assert channel.stage.episodes.stalled_ms(Reason.FLOW, now_ms) == WORK_MS
    assert channel.stage.episodes.stalls(now_ms, 2000) == 1


def test_a_channel_with_credit_left_does_not_wait():
    bench = bench_with_slow_appends(channel_queue_credit=11, channel_queue_more=5)
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, *[b"x"] * 10)
    bench.turns()
    assert channel.stage.episodes.seen == ()


def test_many_small_messages_for_one_queue_are_blamed_on_the_queue():
    bench = bench_with_slow_appends(channel_queue_credit=10, channel_queue_more=5)
    topic, channel = bench.topic(), bench.channel()
    for _ in range(12):
        bench.publish(channel, topic, *[b"x"] * 500)
        bench.turns()
        bench.settle()
    found = diagnose(bench.engine.flow_map(bench.clock.monotonic_ms()).views)
    assert (found.kind, found.name) == ("queue", "orders")


def test_large_messages_that_the_disk_does_not_have_yet_are_blamed_on_the_log():
    kib = 1024
    bench = Workbench(
        Settings(flow=FlowSettings(connection_bytes_max=64 * kib, inflight_bytes_max=4096 * kib))
    )
    topic, channel = bench.topic(), bench.channel()
    while channel.connection.may_read:
        bench.publish(channel, topic, b"x" * 20 * kib)
        bench.turns()
    assert channel.connection.gate.reasons == {Reason.FLOW: "log"}
    assert diagnose(bench.engine.flow_map(bench.clock.monotonic_ms()).views).kind == "log"
    bench.settle()
    assert channel.connection.may_read


def test_bytes_that_no_turn_has_taken_yet_are_blamed_on_their_channel():
    kib = 1024
    bench = Workbench(
        Settings(flow=FlowSettings(connection_bytes_max=64 * kib, inflight_bytes_max=4096 * kib))
    )
    topic, channel = bench.topic(), bench.channel()
    while channel.connection.may_read:
        bench.publish(channel, topic, b"x" * 20 * kib)
    assert channel.connection.gate.reasons == {Reason.FLOW: channel.stage.label}
    bench.settle()
    assert channel.connection.may_read


def test_a_channel_that_fills_turns_with_one_queue_waits_for_it_whatever_its_credit():
    bench = bench_with_slow_appends(
        channel_queue_credit=10_000, channel_queue_more=10, turn_channel_messages_max=400
    )
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, *[b"x"] * 1000)
    bench.turns()
    now_ms = bench.clock.monotonic_ms()
    # Three turns, and after the last one nothing was left that could wait.
    assert channel.stage.episodes.stalled_ms(Reason.FLOW, now_ms) == 2 * WORK_MS
    views = {view.kind: view for view in bench.engine.flow_map(now_ms).views}
    assert (views["channel"].state, views["channel"].culprit) == ("flow", "queue orders")


def test_a_channel_that_copies_to_many_queues_is_slow_itself():
    bench = bench_with_slow_appends(
        channel_queue_credit=10_000, channel_queue_more=10, turn_channel_messages_max=400
    )
    topics, channel = [bench.topic("a"), bench.topic("b")], bench.channel()
    route = ToAll([topic.queues[0] for topic in topics])
    channel.publish([Publication(neutral_record(b"x"), route=route) for _ in range(1000)])
    bench.turns()
    assert channel.stage.episodes.seen == ()


class ToAll:
    """A copy for every queue."""

    is_constant = True

    def __init__(self, queues):
        self.steps = len(queues)
        self._queues = tuple(queues)

    def targets(self, _record):
        return self._queues
