"""The gate: named reasons, never a boolean (F2)."""

import pytest

from penstock.flow.episodes import Episodes
from penstock.flow.gate import Gate
from penstock.flow.reason import Reason


def test_a_gate_is_open_only_while_no_reason_remains():
    gate = Gate()
    assert gate.close(Reason.FLOW, "queue orders", 10)
    assert gate.close(Reason.DISK, "disk", 20)
    assert gate.open(Reason.FLOW, 30)
    assert not gate.is_open
    assert gate.reasons == {Reason.DISK: "disk"}
    assert gate.open(Reason.DISK, 40)
    assert gate.is_open


def test_closing_twice_is_one_episode_that_is_opened_once():
    gate = Gate()
    assert gate.close(Reason.MEMORY, "memory", 10)
    assert not gate.close(Reason.MEMORY, "memory, again", 20)
    assert gate.reasons == {Reason.MEMORY: "memory, again"}
    assert gate.open(Reason.MEMORY, 30)
    assert not gate.open(Reason.MEMORY, 40)
    assert gate.is_open


def test_since_is_the_oldest_reason_still_there():
    gate = Gate()
    assert gate.since_ms is None
    gate.close(Reason.FLOW, "a", 10)
    gate.close(Reason.RATE, "b", 25)
    assert gate.since_ms == 10
    gate.open(Reason.FLOW, 30)
    assert gate.since_ms == 25


def test_a_dead_peer_leaves_no_reason_and_no_open_episode_behind():
    episodes = Episodes(memory_ms=0)
    gate = Gate(episodes)
    gate.close(Reason.FLOW, "a", 10)
    gate.close(Reason.PENDING, "b", 20)
    assert gate.clear(50) == [Reason.FLOW, Reason.PENDING]
    assert gate.clear(60) == []
    assert gate.is_open
    assert [(e.reason, e.stalled_ms) for e in episodes.history] == [
        (Reason.FLOW, 40),
        (Reason.PENDING, 30),
    ]


@pytest.mark.parametrize(
    ("reasons", "is_alarmed", "state"),
    [
        ((), False, "running"),
        ((), True, "blocking"),
        ((Reason.FLOW,), False, "flow"),
        ((Reason.FLOW,), True, "blocking"),
        ((Reason.QUOTA, Reason.RATE), False, "flow"),
        ((Reason.FLOW, Reason.DISK), True, "blocked"),
        ((Reason.MEMORY,), True, "blocked"),
    ],
)
def test_the_state_has_the_words_operators_know(reasons, is_alarmed, state):
    gate = Gate()
    for reason in reasons:
        gate.close(reason, "x", 0)
    assert gate.state(is_alarmed=is_alarmed) == state


def test_only_alarms_are_announced_to_the_publisher():
    gate = Gate()
    for reason in Reason:
        gate.close(reason, reason.value, 0)
    assert set(gate.resources) == {Reason.MEMORY, Reason.DISK}
