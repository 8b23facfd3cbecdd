"""Created, running, stopped, failed: once each."""

import pytest

from penstock.client.errors import StateError
from penstock.client.states import Life, State


def test_a_life_begins_once():
    life = Life("producer 'p'")
    life.begin()
    life.started()
    assert life.is_running
    with pytest.raises(StateError, match="producer 'p' runs already"):
        life.begin()


def test_a_start_that_did_not_end_well_is_a_failure_for_good():
    life = Life("producer 'p'")
    life.begin()
    assert (life.state, life.is_over) == (State.FAILED, True)
    with pytest.raises(StateError, match="failed; make a new one"):
        life.begin()


def test_what_was_not_started_says_how_to_start_it():
    with pytest.raises(StateError, match=r"created; call start\(\) first"):
        Life("consumer 'c'").check_running()


def test_what_is_stopped_takes_nobody_in():
    life = Life("client 'c'")
    life.check_open()
    life.state = State.STOPPED
    with pytest.raises(StateError, match="stopped; make a new one"):
        life.check_open()
