"""A clock that moves only when a test says so.

Wall and monotonic time advance together; ``jump_wall`` moves the wall alone, as an operator or NTP
would (T19). Monotonic time never goes back. It satisfies ``model.clock.Clock``.
"""

from typing import Final

START_WALL_MS: Final = 1_700_000_000_000
"""A round moment in 2023: far from zero, so that a mixed-up monotonic time is seen at once."""


class ManualClock:
    """Time in a test's hands."""

    __slots__ = ("_monotonic_ms", "_wall_ms")

    def __init__(self, *, wall_ms: int = START_WALL_MS, monotonic_ms: int = 1_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, as far as this test is concerned."""
        return self._wall_ms

    def monotonic_ms(self) -> int:
        """Milliseconds that only ``advance`` moves."""
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let ``ms`` pass on both clocks."""
        if ms < 0:
            raise ValueError(f"time does not go back: advance({ms}); use jump_wall")
        self._wall_ms += ms
        self._monotonic_ms += ms

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock forward or back by ``ms``; monotonic time does not notice."""
        self._wall_ms += ms
