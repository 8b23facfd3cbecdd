"""Whoever stops in the midst of a publish for lack of room is shown, with the one who has it."""

from dataclasses import replace

import pytest

from kit.amqp.peer import AmqpBench
from penstock.adapters.amqp.management.statistics import connection_state
from penstock.flow.diagnosis import diagnose
from penstock.flow.reason import Reason
from penstock.settings.load import Settings
from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods.basic import Publish
from penstock.wire.amqp.methods.queue import Declare

MIB = 1 << 20


@pytest.fixture
def bench():
    flow = replace(Settings().flow, inflight_bytes_max=4 * MIB, connection_bytes_max=3 * MIB)
    bench = AmqpBench(replace(Settings(), flow=flow))
    bench.client().call(1, Declare(0, "q", is_durable=True))
    return bench


def large(peer, size=2 * MIB):
    """A publish that does not fit into one read."""
    frames = content_frames(1, b"\0\0", bytes(size), peer.frame_max)
    return method_frame(1, Publish(0, "", "q")) + frames


def stages(bench):
    views = bench.engine.flow_map(bench.clock.monotonic_ms()).views
    return {view.label: view for view in views}


def label(peer):
    return peer.session.engine_connection.stage.label


def looked_at(*peers):
    """What the pump does at the end of a turn."""
    return [peer.session.is_reading for peer in peers]


def filled_by_contents(bench):
    """Three in the midst of a content: one has most, one is let through, one has to stop."""
    most, through, stopped = (bench.client() for _ in range(3))
    for peer, size in ((most, 2 * MIB), (through, 600_000), (stopped, 300_000)):
        peer.raw(large(peer)[:size])
    for peer in (through, stopped):
        peer.raw(large(peer)[600_000 if peer is through else 300_000 :][:500_000])
    assert looked_at(most, through, stopped) == [True, True, False]
    return most, through, stopped


def test_it_is_held_for_want_of_room_by_the_one_whose_content_fills_the_pool(bench):
    most, through, stopped = filled_by_contents(bench)
    since_ms = bench.clock.monotonic_ms()
    bench.advance(2_000)
    shown = stages(bench)
    view = shown[label(stopped)]
    assert (view.state, view.reason, view.culprit) == ("flow", Reason.ROOM, label(most))
    assert view.since_ms == since_ms
    assert view.share > 0
    assert not shown[label(most)].is_held
    assert not shown[label(through)].is_held
    found = diagnose(list(shown.values()))
    assert (found.kind, found.name) == ("connection", most.session.engine_connection.name)
    assert "in-flight pool" in found.sentence


def test_management_calls_it_flow(bench):
    *_, stopped = filled_by_contents(bench)
    now_ms = bench.clock.monotonic_ms()
    assert connection_state(stopped.session.engine_connection, bench.engine, now_ms) == "flow"


def test_when_those_with_most_wait_themselves_it_is_the_one_that_was_let_through(bench):
    first, second, third = (bench.client() for _ in range(3))
    for peer in (first, second, third):
        peer.raw(large(peer)[:MIB])
    for peer in (first, second, third):
        peer.raw(large(peer)[MIB:][:200_000])
    assert looked_at(first, second, third) == [True, False, False]
    shown = stages(bench)
    assert {shown[label(peer)].culprit for peer in (second, third)} == {label(first)}


def test_it_reads_on_and_is_held_no_more_when_there_is_room(bench):
    most, through, stopped = filled_by_contents(bench)
    most.leave()
    assert looked_at(through, stopped) == [True, True]
    assert stopped.session.engine_connection.gate.is_open
    bench.advance(2_000)
    assert not stages(bench)[label(stopped)].is_held


def test_when_publishes_fill_the_pool_it_is_the_one_with_most_of_them_and_then_the_disk(bench):
    flood, stopped = bench.client(), bench.client()
    flood.publish(1, "", "q", bytes(2 * MIB + MIB // 2))
    bench.turns()
    stopped.raw(large(stopped)[:MIB])
    assert looked_at(stopped) == [False]
    bench.advance(1_000)
    shown = stages(bench)
    assert shown[label(stopped)].culprit == label(flood)


def test_whose_own_publishes_fill_it_waits_for_who_is_to_digest_them(bench):
    peer = bench.client()
    peer.publish(1, "", "q", bytes(2 * MIB + MIB // 2))
    bench.turns()
    peer.raw(large(peer)[:MIB])
    assert looked_at(peer) == [False]
    assert stages(bench)[label(peer)].culprit == "log"


def test_a_connection_that_goes_leaves_no_reason_behind(bench):
    *_, stopped = filled_by_contents(bench)
    connection = stopped.session.engine_connection
    stopped.leave()
    assert connection.gate.is_open
    assert label(stopped) not in stages(bench)
