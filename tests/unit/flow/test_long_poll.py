"""Held pulls (F12)."""

import pytest

from penstock.flow.long_poll import HeldPulls


class Pull:
    """Deliberately equal to every other pull and not hashable, as a message struct is."""

    def __init__(self, tag=""):
        self.tag = tag

    def __eq__(self, other):
        return isinstance(other, Pull)

    __hash__ = None


@pytest.fixture
def pulls():
    return HeldPulls(total_max=4, per_key_max=2)


def test_an_arrival_answers_everything_held_for_its_key_oldest_first(pulls):
    first, second, other = Pull(), Pull(), Pull()
    assert pulls.hold("q1", first, 100)
    assert pulls.hold("q1", second, 50)
    assert pulls.hold("q2", other, 100)
    woken = pulls.arrived("q1")
    assert [id(pull) for pull in woken] == [id(first), id(second)]
    assert pulls.arrived("q1") == []
    assert (len(pulls), other in pulls) == (1, True)


def test_an_arrival_that_does_not_match_leaves_the_pull_with_its_old_deadline(pulls):
    pulls.hold("q", Pull("a"), 100)
    pulls.hold("q", Pull("b"), 200)
    woken = pulls.arrived("q", lambda pull: pull.tag == "b")
    assert [pull.tag for pull in woken] == ["b"]
    assert pulls.next_deadline_ms == 100


def test_a_deadline_answers_once_earliest_first(pulls):
    late, early, later = Pull("late"), Pull("early"), Pull("later")
    pulls.hold("a", late, 100)
    pulls.hold("b", early, 50)
    pulls.hold("c", later, 101)
    assert pulls.next_deadline_ms == 50
    assert pulls.due(49) == []
    assert [pull.tag for pull in pulls.due(100)] == ["early", "late"]
    assert pulls.due(100) == []
    assert pulls.next_deadline_ms == 101


def test_a_pull_answered_by_arrival_is_not_due_later_even_when_held_again(pulls):
    pull = Pull()
    pulls.hold("q", pull, 100)
    pulls.arrived("q")
    pulls.hold("q", pull, 500)
    assert pulls.due(100) == []
    assert pulls.next_deadline_ms == 500


@pytest.mark.parametrize(
    ("keys", "taken"),
    [("aaa", [True, True, False]), ("aabbc", [True, True, True, True, False])],
    ids=["per key", "in total"],
)
def test_the_table_is_bounded(pulls, keys, taken):
    held = [Pull() for _ in keys]
    assert [pulls.hold(key, pull, 9) for key, pull in zip(keys, held, strict=True)] == taken


def test_room_comes_back_when_a_pull_leaves(pulls):
    held = [Pull(), Pull(), Pull()]
    pulls.hold("a", held[0], 9)
    pulls.hold("a", held[1], 9)
    assert pulls.cancel(held[0])
    assert not pulls.cancel(held[0])
    assert pulls.hold("a", held[2], 9)


def test_a_dead_peer_takes_its_pulls_with_it(pulls):
    mine, alike, theirs = Pull(), Pull(), Pull()
    pulls.hold("a", mine, 9, owner=1)
    pulls.hold("b", alike, 9, owner=1)
    pulls.hold("a", theirs, 9, owner=2)
    assert len(pulls.cancel_owner(1)) == 2
    assert pulls.cancel_owner(1) == []
    assert [id(pull) for pull in pulls.arrived("a")] == [id(theirs)]
    assert pulls.arrived("b") == []
    assert pulls.next_deadline_ms is None


def test_a_dropped_queue_hands_back_what_waits_for_it(pulls):
    pulls.hold("a", Pull(), 9)
    assert len(pulls.cancel_key("a")) == 1
    assert len(pulls) == 0


def test_deadlines_of_answered_pulls_do_not_pile_up():
    pulls = HeldPulls()
    for _ in range(10_000):
        pulls.hold("q", Pull(), 15_000)
        pulls.arrived("q")
    assert len(pulls._deadlines) <= 66
