"""Drain rate: how fast a Spark query processes, measured from what it acknowledges (F18).

Who grants: the broker, with each batch it hands out. Who spends: the query, by acknowledging it.
Who stops: nobody here; ``brake.py`` slows publishers by this rate. What wakes it: each poll.

A batch counts from the moment it was handed out: time in which there was nothing to read is not
the query's. A batch under way that already takes longer than the rate promised lowers it, so that
a query that hangs does not keep the rate of its better days.
"""

from typing import Final

WEIGHT: Final = 0.5
"""Of the newest batch: rates of jobs change in steps, not slowly."""


class DrainRate:
    """Messages and bytes per second of one query on one topic."""

    __slots__ = ("_bytes_per_s", "_given", "_given_bytes", "_given_ms", "_messages_per_s")

    def __init__(self) -> None:
        self._messages_per_s = -1.0
        self._bytes_per_s = -1.0
        self._given = 0
        self._given_bytes = 0
        self._given_ms = 0

    @property
    def is_known(self) -> bool:
        """False before the first batch was acknowledged."""
        return self._messages_per_s >= 0

    def gave(self, messages: int, size_bytes: int, now_ms: int) -> None:
        """A batch was handed out; the same one again does not start it anew."""
        if messages > 0 and self._given == 0:
            self._given_ms = now_ms
        if messages > 0 or self._given == 0:
            self._given, self._given_bytes = messages, size_bytes

    def took(self, messages: int, size_bytes: int, now_ms: int) -> None:
        """So much of what was handed out is processed for good."""
        if messages <= 0 or self._given == 0:
            return
        seconds = max(1, now_ms - self._given_ms) / 1000
        self._messages_per_s = _mixed(self._messages_per_s, messages / seconds)
        self._bytes_per_s = _mixed(self._bytes_per_s, size_bytes / seconds)
        self._given = self._given_bytes = 0

    def messages_per_s(self, now_ms: int) -> float:
        """The rate now; 0 while it is not known."""
        return self._bounded(self._messages_per_s, self._given, now_ms)

    def bytes_per_s(self, now_ms: int) -> float:
        """The same in bytes."""
        return self._bounded(self._bytes_per_s, self._given_bytes, now_ms)

    def _bounded(self, rate: float, given: int, now_ms: int) -> float:
        if rate < 0:
            return 0.0
        seconds = (now_ms - self._given_ms) / 1000
        return min(rate, given / seconds) if given and seconds > 0 else rate


def _mixed(old: float, new: float) -> float:
    return new if old < 0 else old + WEIGHT * (new - old)
