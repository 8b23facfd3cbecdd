"""A wall time that nobody can set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.clock import FOLLOW_PER_S_MS, SteadyClock, steady
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
