"""Queue locks: free, own or expired is granted; only the owner gives back."""

import pytest

from penstock.engine.group.locks import GROUPS_MAX, LOCK_MS, LOCKS_PER_GROUP_MAX, QueueLocks


@pytest.fixture
def locks():
    return QueueLocks()


def test_the_constants_are_those_that_clients_count_on():
    assert LOCK_MS == 60_000
    assert (GROUPS_MAX, LOCKS_PER_GROUP_MAX) == (10_000, 10_000)


def test_a_free_queue_is_granted_and_then_it_is_not_free(locks):
    assert locks.lock("g", ["q1", "q2"], "c1", 0) == ["q1", "q2"]
    assert locks.lock("g", ["q2", "q3"], "c2", 1) == ["q3"]
    assert locks.owner("g", "q2", 1) == "c1"


def test_groups_do_not_see_each_others_locks(locks):
    locks.lock("g", ["q1"], "c1", 0)
    assert locks.lock("other", ["q1"], "c2", 0) == ["q1"]


def test_asking_again_renews(locks):
    locks.lock("g", ["q1"], "c1", 0)
    assert locks.lock("g", ["q1"], "c1", LOCK_MS) == ["q1"]
    assert locks.lock("g", ["q1"], "c2", 2 * LOCK_MS) == []


def test_a_lock_is_anybodys_once_its_owner_was_silent_for_longer_than_a_minute(locks):
    locks.lock("g", ["q1"], "c1", 0)
    assert locks.lock("g", ["q1"], "c2", LOCK_MS) == []
    assert locks.owner("g", "q1", LOCK_MS) == "c1"
    assert locks.owner("g", "q1", LOCK_MS + 1) is None
    assert locks.lock("g", ["q1"], "c2", LOCK_MS + 1) == ["q1"]
    assert locks.lock("g", ["q1"], "c1", LOCK_MS + 2) == []


def test_an_expired_own_lock_is_granted_again(locks):
    locks.lock("g", ["q1"], "c1", 0)
    assert locks.lock("g", ["q1"], "c1", 10 * LOCK_MS) == ["q1"]


def test_only_the_owner_unlocks(locks):
    locks.lock("g", ["q1", "q2"], "c1", 0)
    assert locks.unlock("g", ["q1", "q3"], "c2") == []
    assert locks.unlock("nobody", ["q1"], "c1") == []
    assert locks.unlock("g", ["q1"], "c1") == ["q1"]
    assert locks.lock("g", ["q1", "q2"], "c2", 1) == ["q1"]


def test_holds_any_counts_living_locks_only(locks):
    assert not locks.holds_any("g", 0)
    locks.lock("g", ["q1"], "c1", 0)
    assert locks.holds_any("g", LOCK_MS)
    assert not locks.holds_any("g", LOCK_MS + 1)
    locks.lock("g", ["q2"], "c1", LOCK_MS + 1)
    assert locks.holds_any("g", LOCK_MS + 1)
    locks.forget("g")
    assert not locks.holds_any("g", LOCK_MS + 1)


def test_a_queue_named_twice_is_granted_once(locks):
    assert locks.lock("g", ["q1", "q1"], "c1", 0) == ["q1"]


def test_no_group_holds_more_locks_than_the_limit():
    locks = QueueLocks(per_group_max=2)
    assert locks.lock("g", ["q1", "q2", "q3"], "c1", 0) == ["q1", "q2"]
    assert locks.lock("g", ["q2"], "c1", 1) == ["q2"]
    assert len(locks) == 2


def test_when_all_groups_are_taken_the_expired_make_room():
    locks = QueueLocks(groups_max=2)
    locks.lock("a", ["q"], "c", 0)
    locks.lock("b", ["q"], "c", LOCK_MS)
    assert locks.lock("c", ["q"], "c", LOCK_MS) == []
    assert locks.lock("c", ["q"], "c", LOCK_MS + 1) == ["q"]
    assert len(locks) == 2


def test_sweeping_drops_the_expired_and_says_how_many(locks):
    locks.lock("g", ["q1", "q2"], "c1", 0)
    locks.lock("g", ["q3"], "c1", 5)
    assert (locks.sweep(LOCK_MS + 1), len(locks)) == (2, 1)
    assert (locks.sweep(LOCK_MS + 6), len(locks)) == (1, 0)


def test_asking_for_nothing_leaves_no_trace(locks):
    assert locks.lock("g", [], "c1", 0) == []
    assert len(locks) == 0
    assert not locks.holds_any("g", 0)
