"""The pump: bytes out, the ends of a connection, handshakes, deadlines and mistakes."""

import pytest

from penstock.adapters.contract import UNTAKEN_BYTES_MAX
from penstock.model.errors import InvariantBroken
from penstock.server.pump import ARRIVED_BYTES_MAX, CLOSE_MS_MAX
from penstock.settings.flow import FlowSettings


@pytest.fixture
def scene(pump_scene):
    return pump_scene


def test_everything_outgoing_leaves_in_one_write(scene):
    scene.adapter.to_send = [b"one ", b"two ", b"three"]
    scene.adapter.wake()
    scene.adapter.wake()
    assert scene.turns.end_of_turn() == 1
    assert scene.transport.written == [b"one two three"]
    assert scene.adapter.flushes == [0]


def test_nothing_outgoing_is_no_write(scene):
    scene.adapter.wake()
    scene.turns.end_of_turn()
    assert scene.transport.written == []


def test_an_adapter_that_speaks_first_is_heard(scene):
    original = scene.factory.make

    def make(*arguments):
        adapter = original(*arguments)
        adapter.to_send = [b"hello"]
        adapter.wake()
        return adapter

    scene.factory.make = make
    pump = scene.connect(2)
    assert pump._transport.written == [b"hello"]


def test_a_protocol_violation_is_answered_before_the_close(scene):
    scene.adapter.to_send = [b"503 no"]
    scene.adapter.wants_close = True
    scene.adapter.wake()
    scene.turns.end_of_turn()
    assert scene.transport.written == [b"503 no"]
    assert scene.transport.is_closed
    assert not scene.transport.is_aborted


def test_a_peer_that_does_not_take_the_farewell_is_cut_off(scene):
    scene.adapter.wants_close = True
    scene.adapter.wake()
    scene.turns.end_of_turn()
    scene.loop.advance(CLOSE_MS_MAX)
    assert scene.transport.is_aborted


def test_closed_is_told_once_and_the_engine_gets_a_turn(scene):
    scene.pump.connection_lost(None)
    assert scene.adapter.ends == ["the connection was closed"]
    assert scene.lost == [scene.pump]
    assert scene.turns.requests == 1


def test_a_reset_connection_names_the_error(scene):
    scene.pump.connection_lost(ConnectionResetError("reset by peer"))
    assert "reset by peer" in scene.adapter.ends[0]


def test_an_end_of_the_peers_sending_closes_when_the_adapter_agrees(scene):
    assert scene.pump.eof_received() is True
    scene.turns.end_of_turn()
    assert scene.transport.is_closed


def test_an_adapters_mistake_costs_only_its_own_connection(scene, caplog):
    other = scene.connect(2)
    scene.adapter.error = ValueError("oops")
    scene.pump.data_received(b"x")
    other.data_received(b"fine")
    scene.turns.turn()
    assert scene.transport.is_aborted
    assert scene.factory.adapters[1].received == [b"fine"]
    assert scene.turns.broken_by == []
    assert caplog.records[0].connection == 1


def test_a_broken_invariant_of_the_engine_goes_up(scene):
    scene.adapter.error = InvariantBroken("credit is negative")
    scene.pump.data_received(b"x")
    scene.turns.turn()
    assert scene.turns.broken_by == [scene.adapter.error]


def test_an_aborted_connection_is_not_flushed_any_more(scene):
    scene.adapter.to_send = [b"late"]
    scene.adapter.wake()
    scene.pump.abort("test")
    scene.turns.end_of_turn()
    assert scene.transport.written == []


def test_a_handshake_that_takes_too_long_is_cut_off(scene):
    scene.factory.is_established = False
    pump = scene.connect(2)
    scene.loop.advance(9_999)
    assert not pump._transport.is_aborted
    scene.loop.advance(1)
    assert pump._transport.is_aborted


def test_a_handshake_done_in_time_is_not_cut_off(scene):
    scene.factory.is_established = False
    pump = scene.connect(2)
    scene.factory.adapters[1].is_established = True
    scene.loop.advance(10_000)
    assert not pump._transport.is_aborted


def test_a_handshake_of_too_many_bytes_is_cut_off(scene):
    scene.factory.is_established = False
    pump = scene.connect(2)
    pump.data_received(b"x" * 16 * 1024)
    scene.turns.turn()
    assert not pump._transport.is_aborted
    pump.data_received(b"x")
    scene.turns.turn()
    assert pump._transport.is_aborted


def test_an_adapter_with_large_first_requests_has_a_limit_of_its_own(scene):
    scene.factory.is_established = False
    pump = scene.connect(2)
    scene.factory.adapters[1].handshake_bytes_max = 17 * 1024
    pump.data_received(b"x" * 17 * 1024)
    scene.turns.turn()
    assert not pump._transport.is_aborted
    pump.data_received(b"x")
    scene.turns.turn()
    assert pump._transport.is_aborted


def test_large_reads_are_fine_after_the_handshake(scene):
    scene.pump.data_received(b"x" * 256 * 1024)
    scene.turns.turn()
    assert not scene.transport.is_aborted


def test_a_deadline_of_the_adapter_is_kept(scene):
    scene.adapter.deadline_ms = scene.clock.monotonic_ms() + 30
    scene.adapter.wake()
    scene.turns.end_of_turn()
    scene.loop.advance(29)
    assert scene.adapter.dues == []
    scene.loop.advance(1)
    assert scene.adapter.dues == [scene.clock.monotonic_ms()]
    assert scene.turns.scheduled == [scene.pump]


def test_a_deadline_that_moved_away_is_not_kept_at_the_old_time(scene):
    scene.adapter.deadline_ms = scene.clock.monotonic_ms() + 30
    scene.adapter.wake()
    scene.turns.end_of_turn()
    scene.adapter.deadline_ms += 1000
    scene.loop.advance(30)
    assert scene.adapter.dues == []
    scene.loop.advance(1000)
    assert len(scene.adapter.dues) == 1


def test_a_hushed_connection_is_not_read_but_still_answered(scene):
    scene.pump.drain()
    scene.adapter.to_send = [b"confirm"]
    scene.turns.end_of_turn()
    assert not scene.transport.is_reading
    assert scene.transport.written == [b"confirm"]


def test_a_stopping_broker_lets_the_adapter_say_goodbye_without_another_turn(scene):
    scene.pump.stop("the broker stops")
    assert scene.transport.written == [b"the broker stops"]
    assert scene.transport.is_closed
    scene.pump.connection_lost(None)
    assert scene.adapter.ends == ["the broker stops"]


# ---- bytes that wait for the turn ---------------------------------------------------------------


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
