"""The pump: bytes out, the ends of a connection, handshakes, deadlines and mistakes."""

import pytest

from penstock.model.errors import InvariantBroken
from penstock.server.pump import CLOSE_MS_MAX


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
