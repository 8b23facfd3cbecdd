"""Created, running, stopped, failed: once each."""

import asyncio

import pytest

from penstock.client.errors import StateError
from penstock.client.states import Lifecycle, StartStop, State


def test_a_life_begins_once():
    life = Lifecycle("producer 'p'")
    life.begin()
    life.started()
    assert life.is_running
    with pytest.raises(StateError, match="producer 'p' runs already"):
        life.begin()


def test_a_start_that_did_not_end_well_is_a_failure_for_good():
    life = Lifecycle("producer 'p'")
    life.begin()
    assert (life.state, life.is_over) == (State.FAILED, True)
    with pytest.raises(StateError, match="failed; make a new one"):
        life.begin()


def test_what_was_not_started_says_how_to_start_it():
    with pytest.raises(StateError, match=r"created; call start\(\) first"):
        Lifecycle("consumer 'c'").check_running()


def test_what_is_stopped_takes_nobody_in():
    life = Lifecycle("client 'c'")
    life.check_open()
    life.state = State.STOPPED
    with pytest.raises(StateError, match="stopped; make a new one"):
        life.check_open()


# ---- contexts -----------------------------------------------------------------------------------
# ``with`` and ``async with``: started on the way in, stopped on the way out.


class Thing(StartStop):
    def __init__(self):
        self.happened = []

    def start(self):
        self.happened.append("start")

    def stop(self):
        self.happened.append("stop")

    async def start_async(self):
        self.start()

    async def stop_async(self):
        self.stop()


def test_a_thing_runs_inside_of_its_with_statement():
    with Thing() as thing:
        assert thing.happened == ["start"]
    assert thing.happened == ["start", "stop"]


def test_it_is_stopped_after_an_error_which_goes_on():
    thing = Thing()
    with pytest.raises(KeyError), thing:
        raise KeyError
    assert thing.happened == ["start", "stop"]


def test_event_loops_have_the_same():
    async def run():
        async with Thing() as thing:
            assert thing.happened == ["start"]
        assert thing.happened == ["start", "stop"]

    asyncio.run(run())
