"""How late the event loop is: a timer that should fire every quarter second, and by how much not.

A loop that is late answers everybody late, HTTP included; the figure is the first thing to look at
when latencies grow without a full disk. Kept as a histogram and as the worst of the last windows.
"""

import asyncio
from typing import Final

from penstock.telemetry.statistics import LAG_SECONDS, Histogram

PERIOD_SECONDS: Final = 0.25
WINDOW_SAMPLES: Final = 40
"""The worst lag is remembered for 40 samples, that is the last 10 s, like the share of a stage."""


class LoopLag:
    """Measures the lag for as long as it runs."""

    __slots__ = ("_due", "_loop", "_recent", "_timer", "histogram")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._recent: list[float] = []
        self.histogram = Histogram(LAG_SECONDS)

    def start(self) -> None:
        """Begin measuring."""
        self._due = self._loop.time() + PERIOD_SECONDS
        self._timer = self._loop.call_at(self._due, self._fired)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def worst_seconds(self) -> float:
        """The largest lag of the last 10 s."""
        return max(self._recent, default=0.0)

    def _fired(self) -> None:
        lag = max(0.0, self._loop.time() - self._due)
        self.histogram.observe(lag)
        self._recent.append(lag)
        del self._recent[:-WINDOW_SAMPLES]
        self.start()
