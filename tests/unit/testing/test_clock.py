import pytest

from penstock.testing.clock import ManualClock


def test_time_stands_still_until_it_is_advanced():
    clock = ManualClock(wall_ms=5_000, monotonic_ms=10)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (5_000, 10)
    clock.advance(7)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (5_007, 17)


def test_a_wall_jump_leaves_monotonic_time_alone():
    clock = ManualClock(wall_ms=5_000, monotonic_ms=10)
    clock.jump_wall(-4_000)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (1_000, 10)


def test_time_never_goes_back():
    with pytest.raises(ValueError, match="does not go back"):
        ManualClock().advance(-1)
