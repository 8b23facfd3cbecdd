"""Turns and syncs that keep their distance, and those that do not."""

import pytest

from kit.turn_scene import CountingConnection, TurnScene
from penstock.server.pacing import PACE_MAX_US


@pytest.fixture
def busy(engine, loop, clock):
    """Much comes in small pieces, a sync is out, and the turn before it has just begun."""
    scene = TurnScene(engine, loop, clock, is_paced=True)
    engine.unsynced_messages, engine.unsynced_bytes = 200, 40_000
    scene.turns.request_turn()
    loop.step()
    assert scene.commits.under_way
    engine.unsynced_messages = 5
    return scene


def test_at_a_high_rate_a_turn_keeps_its_distance_to_the_last_one(busy):
    before = busy.engine.turns
    for _ in range(3):
        busy.turns.request_turn()
        busy.loop.run()
    busy.loop.advance(1)
    assert busy.engine.turns == before
    assert busy.turns.turns_delayed == 1
    busy.loop.advance(1)
    assert busy.engine.turns == before + 1


def test_what_arrives_after_the_pace_does_not_wait_for_the_timer(busy):
    before = busy.engine.turns
    busy.turns.request_turn()
    busy.now_us += PACE_MAX_US - 1
    busy.turns.data_arrived()
    busy.loop.run()
    assert busy.engine.turns == before
    busy.now_us += 1
    busy.turns.data_arrived()
    busy.turns.data_arrived()
    busy.loop.run()
    assert busy.engine.turns == before + 1
    busy.loop.advance(5)
    assert busy.engine.turns == before + 1


def test_confirms_leave_while_the_next_turn_keeps_its_distance(busy):
    before = busy.engine.turns
    connection = CountingConnection()
    busy.turns.schedule(connection)
    busy.loop.run()
    assert not connection.flushes
    busy.commits.end()
    assert connection.flushes == 1
    assert busy.engine.turns == before


def test_a_turn_with_much_in_it_or_long_after_the_last_does_not_wait(busy):
    before = busy.engine.turns
    busy.engine.unsynced_messages = 200
    busy.turns.request_turn()
    busy.loop.run()
    assert busy.engine.turns == before + 1
    busy.engine.unsynced_messages = 5
    busy.now_us += PACE_MAX_US
    busy.turns.request_turn()
    busy.loop.run()
    assert busy.engine.turns == before + 2


def test_at_a_low_rate_turns_come_as_they_are_asked_for(engine, loop, clock):
    scene = TurnScene(engine, loop, clock, commits=0, is_paced=True)
    for count in (1, 2, 3):
        scene.turns.request_turn()
        loop.run()
        assert engine.turns == count


def test_the_rate_is_known_without_any_commit(engine, loop, clock):
    """With durability ``os`` there are none."""
    scene = TurnScene(engine, loop, clock, commits=0, is_paced=True)

    def bring():
        engine.appended_messages += 10

    engine.on_turn = bring
    for _ in range(10):
        scene.now_us += PACE_MAX_US
        scene.turns.request_turn()
        loop.run()
        loop.advance(1)
    assert engine.turns == 10
    assert not engine.jobs
    scene.turns.request_turn()
    loop.run()
    assert engine.turns == 10
    assert scene.turns.turns_delayed == 1


@pytest.fixture
def middling(engine, loop, clock):
    """4 messages a millisecond, and a sync that has just come back."""
    scene = TurnScene(engine, loop, clock, each=2, is_paced=True)
    engine.unsynced_messages = 3
    scene.turns.request_turn()
    loop.run()
    scene.commits.end()
    assert engine.jobs == 1
    return scene


def another_turn(scene, after_us):
    scene.engine.unsynced_messages += 3
    scene.now_us += after_us
    scene.turns.request_turn()
    scene.loop.run()


def test_at_a_middling_rate_the_turn_that_finds_the_time_come_begins_the_sync(middling):
    for _ in range(2):
        another_turn(middling, 1_000)
        assert middling.engine.jobs == 1
    another_turn(middling, 1_000)
    assert middling.engine.jobs == 2


def test_when_no_turn_comes_a_timer_begins_the_sync(middling):
    another_turn(middling, 1_000)
    middling.loop.advance(2)
    assert middling.engine.jobs == 1
    middling.loop.advance(1)
    assert middling.engine.jobs == 2


def test_a_definition_and_much_at_once_do_not_keep_the_distance(middling):
    middling.engine.is_durability_awaited = True
    another_turn(middling, 1_000)
    assert middling.engine.jobs == 2
    middling.commits.end()
    middling.engine.is_durability_awaited = False
    middling.engine.unsynced_messages = 500
    another_turn(middling, 1_000)
    assert middling.engine.jobs == 3


def test_at_a_middling_rate_the_loop_gives_way_to_the_sync(middling):
    another_turn(middling, 5_000)
    assert middling.commits.under_way
    assert middling.commits.has_given_way


def test_at_a_high_rate_it_does_not(busy):
    assert not busy.commits.has_given_way
