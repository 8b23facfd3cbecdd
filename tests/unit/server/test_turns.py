"""Turns: coalesced on the loop, one commit beside them, a failed sync told and final."""

import pytest

from penstock.model.errors import InvariantBroken, SyncFailed
from penstock.testing.turn_scene import StirredConnection, TurnScene


@pytest.fixture
def scene(engine, loop, clock):
    return TurnScene(engine, loop, clock)


def test_many_requests_in_one_iteration_are_one_turn(scene):
    for _ in range(10):
        scene.turns.request()
    scene.loop.run()
    assert scene.engine.turns == 1


def test_a_turn_that_leaves_work_lets_the_loop_poll_before_the_next(scene):
    scene.engine.needs_turn = True
    scene.turns.request()
    scene.loop.step()
    assert scene.engine.turns == 1
    scene.engine.needs_turn = False
    scene.loop.step()
    assert scene.engine.turns == 2
    assert scene.loop.step() == 0


def test_a_stirred_connection_is_flushed_once_after_the_turn(scene):
    order = []
    connection = StirredConnection(lambda: order.append("flush"))
    scene.engine.on_turn = lambda: order.append("turn")
    scene.turns.stir(connection)
    scene.loop.run()
    assert order == ["turn", "flush"]


def test_a_connection_stirred_while_being_flushed_is_looked_at_in_a_turn_of_its_own(scene):
    second = StirredConnection()
    scene.turns.stir(StirredConnection(lambda: scene.turns.stir(second)))
    scene.loop.step()
    assert second.flushes == 0
    scene.loop.step()
    assert second.flushes == 1


def test_the_timer_follows_the_engines_deadline_and_moves_only_forward_in_haste(scene):
    scene.engine.deadline_ms = scene.loop.clock.monotonic_ms() + 500
    scene.turns.request()
    scene.loop.run()
    scene.engine.deadline_ms -= 400
    scene.turns.request()
    scene.loop.run()
    scene.loop.advance(99)
    assert scene.engine.turns == 2
    scene.engine.on_turn = lambda: setattr(scene.engine, "deadline_ms", None)
    scene.loop.advance(1)
    assert scene.engine.turns == 3
    scene.loop.advance(1000)
    assert scene.engine.turns == 3


def test_much_waiting_commits_at_once(scene):
    scene.engine.unsynced_messages = 200
    scene.turns.request()
    scene.loop.run()
    assert scene.commits.under_way


def test_many_bytes_commit_at_once(scene):
    scene.engine.unsynced_messages = 1
    scene.engine.unsynced_bytes = 64 * 1024
    scene.turns.request()
    scene.loop.run()
    assert scene.commits.under_way


def test_little_waiting_lingers_for_company_and_no_longer(scene):
    scene.engine.unsynced_messages = 1
    scene.turns.request()
    scene.loop.run()
    assert not scene.commits.under_way
    scene.loop.advance(1)
    assert scene.commits.under_way


def test_the_linger_counts_from_the_first_waiter(engine, loop, clock):
    scene = TurnScene(engine, loop, clock, commit_linger_ms=3)
    engine.unsynced_messages = 1
    scene.turns.request()
    loop.run()
    loop.advance(2)
    engine.unsynced_messages = 2
    scene.turns.request()
    loop.run()
    assert not scene.commits.under_way
    loop.advance(1)
    assert scene.commits.under_way


def test_company_that_makes_it_much_ends_the_linger(scene):
    scene.engine.unsynced_messages = 1
    scene.turns.request()
    scene.loop.run()
    scene.engine.unsynced_messages = 500
    scene.turns.request()
    scene.loop.run()
    assert len(scene.commits.under_way) == 1
    scene.loop.advance(5)
    assert scene.engine.jobs == 1


def test_a_definition_never_lingers(scene):
    scene.engine.is_durability_awaited = True
    scene.turns.request()
    scene.loop.run()
    assert scene.commits.under_way


def test_one_sync_is_in_flight_and_its_end_starts_the_next_with_all_that_gathered(scene):
    scene.engine.unsynced_messages = 200
    scene.turns.request()
    scene.loop.run()
    scene.engine.unsynced_messages = 700
    scene.turns.request()
    scene.loop.run()
    assert scene.engine.jobs == 1
    scene.commits.end()
    assert scene.engine.jobs == 2
    assert scene.turns.commit_messages.sum == 900


def test_confirms_are_flushed_as_soon_as_the_sync_returned(scene):
    connection = StirredConnection()
    scene.engine.on_synced = lambda: scene.turns.stir(connection)
    scene.engine.unsynced_messages = 200
    scene.turns.request()
    scene.loop.run()
    scene.commits.end()
    assert connection.flushes == 1
    # They have left: there is nothing that a turn could do for them.
    assert scene.loop.step() == 0


def test_who_is_stirred_by_a_turn_is_looked_at_behind_it_without_another_one(scene):
    connection = StirredConnection()
    scene.engine.on_turn = lambda: scene.turns.stir(connection)
    scene.turns.request()
    scene.loop.run()
    assert scene.engine.turns == 1
    assert connection.flushes == 1


def test_a_commit_that_the_store_wants_later_starts_then_and_not_before(scene):
    scene.engine.unsynced_messages = 100_000
    scene.engine.sync_from_ms = scene.loop.clock.monotonic_ms() + 50
    scene.turns.request()
    scene.loop.run()
    scene.loop.advance(49)
    assert not scene.commits.under_way
    scene.loop.advance(1)
    assert scene.commits.under_way


def test_a_failed_sync_is_told_to_clients_first_and_then_ends_the_process(scene):
    order = []
    connection = StirredConnection(lambda: order.append("refusals written"))
    scene.engine.on_synced = lambda: scene.turns.stir(connection)
    scene.turns._failed = lambda error: order.append(type(error))
    scene.engine.unsynced_messages = 200
    scene.turns.request()
    scene.loop.run()
    scene.commits.end(OSError(5, "Input/output error"))
    assert order == ["refusals written", SyncFailed]
    assert isinstance(scene.engine.synced_jobs[0][1], OSError)


def test_an_exception_of_the_engine_stops_all_turns(scene):
    def explode():
        raise InvariantBroken("two and two are five")

    scene.engine.on_turn = explode
    scene.turns.request()
    scene.loop.run()
    scene.turns.request()
    scene.loop.run()
    assert scene.engine.turns == 1
    assert [type(failure) for failure in scene.failures] == [InvariantBroken]


def test_a_foreign_exception_ends_in_a_sentence(scene):
    scene.engine.on_turn = {}.popitem
    scene.turns.request()
    scene.loop.run()
    assert "KeyError" in str(scene.failures[0])


def test_connections_are_fed_before_the_engines_turn_and_stir_no_second_one(scene):
    order = []
    connection = StirredConnection(on_flush=lambda: order.append("flush"))
    connection.on_feed = lambda: (order.append("feed"), scene.turns.request())
    scene.engine.on_turn = lambda: order.append("turn")
    scene.turns.stir(connection)
    scene.loop.run()
    assert order == ["feed", "turn", "flush"]


def test_a_mistake_found_while_feeding_ends_the_turn_before_the_engine_has_it(scene):
    connection = StirredConnection()
    connection.on_feed = lambda: scene.turns.broken(InvariantBroken("credit is negative"))
    scene.turns.stir(connection)
    scene.loop.run()
    assert scene.engine.turns == 0
    assert len(scene.failures) == 1
