"""A wall time that nobody can set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.clock import (
    FOLLOW_PER_S_MS,
    STALE_DEADLINES_MAX,
    Deadlines,
    SteadyClock,
    steady,
)
from penstock.testing.clock import ManualClock

HOUR_MS = 3_600_000


@pytest.fixture
def wall():
    return ManualClock()


@pytest.fixture
def clock(wall):
    return SteadyClock(wall)


def test_an_honest_clock_is_shown_as_it_is(wall, clock):
    for ms in (0, 1, 999, 60_000):
        wall.advance(ms)
        assert clock.wall_ms() == wall.wall_ms()
        assert clock.monotonic_ms() == wall.monotonic_ms()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, 24 * HOUR_MS])
def test_a_jump_is_not_followed_but_slowly(wall, clock, jump_ms):
    wall.advance(HOUR_MS)
    before_ms = clock.wall_ms()
    wall.jump_wall(jump_ms)
    assert clock.wall_ms() == before_ms
    assert clock.behind_ms == jump_ms
    for _ in range(100):
        wall.advance(1000)
        clock.wall_ms()
    followed_ms = 100 * FOLLOW_PER_S_MS
    sign = 1 if jump_ms > 0 else -1
    assert clock.wall_ms() == before_ms + 100_000 + sign * followed_ms


def test_a_pause_before_a_jump_does_not_make_it_larger(wall, clock):
    wall.advance(HOUR_MS)
    wall.jump_wall(HOUR_MS)
    assert clock.wall_ms() <= wall.wall_ms() - HOUR_MS + FOLLOW_PER_S_MS


def test_a_small_step_is_made_up_for_and_then_forgotten(wall, clock):
    wall.jump_wall(-500)
    for _ in range(600):
        wall.advance(100)
        clock.wall_ms()
    assert clock.wall_ms() == wall.wall_ms()
    assert clock.behind_ms == 0


def test_a_jump_is_told_once(wall, clock, caplog):
    wall.jump_wall(HOUR_MS)
    for _ in range(50):
        wall.advance(10)
        clock.wall_ms()
    assert [record.message for record in caplog.records] == [
        "the wall clock was set; what is due and what is old does not jump with it"
    ]


def test_a_steady_clock_is_not_made_twice(wall, clock):
    assert steady(clock) is clock
    assert steady(wall).wall_ms() == wall.wall_ms()


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(-(10**8), 10**8)), max_size=40))
def test_it_never_goes_back_and_never_runs_away(script):
    wall = ManualClock()
    clock = SteadyClock(wall)
    before_ms = clock.wall_ms()
    for ms, jump_ms in script:
        wall.advance(ms)
        wall.jump_wall(jump_ms)
        now_ms = clock.wall_ms()
        assert now_ms >= before_ms
        assert abs(now_ms - before_ms - ms) <= ms * FOLLOW_PER_S_MS // 1000 + 1
        before_ms = now_ms


# ---- deadlines ----------------------------------------------------------------------------------


@pytest.fixture
def deadlines():
    return Deadlines()


def test_those_whose_moment_has_come_are_told_once_and_earliest_first(deadlines):
    for key, at_ms in (("a", 30), ("b", 10), ("c", 40)):
        deadlines.arm(key, at_ms)
    assert deadlines.take_due(9) == []
    assert len(deadlines) == 3
    assert "b" in deadlines
    assert deadlines.take_due(30) == ["b", "a"]
    assert len(deadlines) == 1
    assert "b" not in deadlines
    assert deadlines.take_due(30) == []
    assert deadlines.take_due(40) == ["c"]


def test_of_one_moment_who_was_armed_first_is_first_and_need_not_be_comparable(deadlines):
    keys = [object() for _ in range(5)]
    for key in keys:
        deadlines.arm(key, 10)
    assert deadlines.take_due(10) == keys


def test_a_moment_that_moved_counts_where_it_is_now(deadlines):
    deadlines.arm("a", 10)
    deadlines.arm("a", 20)
    assert deadlines.take_due(10) == []
    deadlines.arm("a", 5)
    assert deadlines.heap[0][0] == 5
    assert deadlines.take_due(50) == ["a"]


def test_who_wants_nothing_any_more_or_is_gone_is_not_told(deadlines):
    for key in ("idle", "gone", "cleared"):
        deadlines.arm(key, 10)
    deadlines.arm("idle", None)
    deadlines.disarm("gone")
    assert deadlines.take_due(10) == ["cleared"]
    deadlines.arm("cleared", 20)
    deadlines.clear()
    assert deadlines.take_due(50) == []


def test_moments_moved_again_and_again_do_not_pile_up(deadlines):
    for at_ms in range(1000):
        deadlines.arm("a", at_ms)
    assert len(deadlines.heap) <= STALE_DEADLINES_MAX + 3
    assert deadlines.take_due(1000) == ["a"]
