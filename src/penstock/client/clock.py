"""The machine's clock, as the client reads it; tests use ``testing.ManualClock``."""

import time


class MachineClock:
    """Both kinds of time from the operating system; satisfies ``model.clock.Clock``."""

    __slots__ = ()

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""
        return time.monotonic_ns() // 1_000_000
