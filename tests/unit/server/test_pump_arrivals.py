"""The pump: bytes wait for the turn, the gate and slow peers stop the socket."""

import pytest

from penstock.server.pump import ARRIVED_BYTES_MAX, UNTAKEN_BYTES_MAX
from penstock.settings.flow import FlowSettings


@pytest.fixture
def scene(pump_scene):
    return pump_scene


def test_bytes_stir_the_connection_once_and_reach_the_adapter_joined_by_the_turn(scene):
    scene.pump.data_received(b"ab")
    scene.pump.data_received(b"c")
    assert scene.turns.scheduled == [scene.pump]
    assert scene.adapter.received == []
    scene.turns.turn()
    assert scene.adapter.received == [b"abc"]


def test_a_turn_that_keeps_its_distance_hears_of_every_arrival(scene):
    scene.pump.data_received(b"one")
    assert scene.turns.arrivals == 0
    scene.turns.delayed = object()
    scene.pump.data_received(b"two")
    scene.pump.data_received(b"three")
    assert scene.turns.arrivals == 2


def test_many_bytes_do_not_wait_for_the_turn(scene):
    scene.pump.data_received(b"a")
    scene.pump.data_received(b"b" * ARRIVED_BYTES_MAX)
    assert scene.adapter.received == [b"a" + b"b" * ARRIVED_BYTES_MAX]


def test_confirms_that_leave_between_two_turns_leave_the_bytes_to_the_next_one(scene):
    scene.pump.data_received(b"x")
    scene.adapter.to_send = [b"confirm"]
    scene.turns.end_of_turn()
    assert scene.transport.written == [b"confirm"]
    assert scene.adapter.received == []
    assert scene.turns.scheduled == [scene.pump], "or nobody would feed it"
    scene.turns.turn()
    assert scene.adapter.received == [b"x"]
    assert scene.turns.scheduled == []


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda pump: pump.connection_lost(None), id="lost"),
        pytest.param(lambda pump: pump.eof_received(), id="eof"),
        pytest.param(lambda pump: pump.stop("the broker stops"), id="stop"),
    ],
)
def test_what_came_before_the_end_is_heard_before_it(scene, end):
    scene.pump.data_received(b"last words")
    end(scene.pump)
    assert scene.adapter.received == [b"last words"]


def test_nothing_is_heard_after_an_abort(scene):
    scene.pump.data_received(b"x")
    scene.pump.abort("test")
    scene.turns.turn()
    scene.pump.connection_lost(None)
    assert scene.adapter.received == []


def test_a_closed_gate_stops_the_socket_at_once_and_an_open_one_starts_it(scene):
    scene.adapter.close_gate_at = b"x"
    scene.pump.data_received(b"x")
    for connection in scene.turns.scheduled:
        connection.feed()
    assert not scene.transport.is_reading
    scene.turns.end_of_turn()
    assert not scene.transport.is_reading
    scene.adapter.is_reading = True
    scene.adapter.wake()
    scene.turns.turn()
    assert scene.transport.is_reading


@pytest.mark.parametrize("size", [1, ARRIVED_BYTES_MAX])
def test_bytes_that_find_the_gate_closed_wait_for_it_without_a_turn_of_their_own(scene, size):
    scene.adapter.is_reading = False
    scene.pump.data_received(b"x" * size)
    scene.turns.turn()
    assert not scene.transport.is_reading
    assert scene.adapter.received == []
    assert scene.turns.scheduled == []
    scene.adapter.is_reading = True
    scene.adapter.wake()
    scene.turns.end_of_turn()  # the gate was opened by the engine's turn, behind the feeding
    assert scene.turns.scheduled == [scene.pump]
    scene.turns.turn()
    assert scene.adapter.received == [b"x" * size]
    assert scene.transport.is_reading


def test_bytes_are_not_forgotten_when_the_gate_opens_while_answers_are_collected(scene):
    scene.adapter.is_reading = False
    scene.pump.data_received(b"x")
    scene.turns.turn()
    scene.adapter.opens_gate_when_asked = True
    scene.adapter.wake()
    scene.turns.turn()
    scene.turns.turn()
    assert scene.adapter.received == [b"x"]


def test_a_peer_that_does_not_take_bytes_is_told_to_the_adapter_until_it_did(scene):
    scene.transport.takes_bytes = 10
    scene.adapter.to_send = [b"x" * 100]
    scene.adapter.wake()
    scene.turns.end_of_turn()
    assert scene.adapter.flushes == [90]
    assert scene.transport.is_reading, "its acks must still be heard"
    scene.transport.drain()
    assert scene.adapter.flushes == [90, 0]
    assert scene.turns.scheduled == [scene.pump]


def test_deliveries_alone_never_stop_a_socket_from_being_read():
    assert FlowSettings().unsent_bytes_max < UNTAKEN_BYTES_MAX


def test_a_peer_that_never_takes_its_answers_is_not_read_any_more(scene):
    scene.transport.takes_bytes = 0
    scene.adapter.to_send = [b"x" * (UNTAKEN_BYTES_MAX + 1)]
    scene.adapter.wake()
    scene.turns.end_of_turn()
    assert not scene.transport.is_reading
    scene.transport.drain()
    scene.turns.end_of_turn()
    assert scene.transport.is_reading
