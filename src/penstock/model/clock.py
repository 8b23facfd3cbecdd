"""Where time comes from.

Nothing below ``server/`` reads a clock of its own: it is given one of these. Wall time goes on disk
and to peers; monotonic time decides when something is due, so a clock jump expires nothing (T19).
A broker's own clock is a ``steady_clock.SteadyClock``: its wall time does not jump either.
"""

from typing import Protocol


class Clock(Protocol):
    """Both kinds of time, in whole milliseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back; meaningless across processes."""
        ...
