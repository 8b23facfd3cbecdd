"""When queues are divided anew: by the clock, on notice, soon again while it does not come out.

Pure: time comes in as monotonic milliseconds. However many notices come, there is at least
``spacing_ms`` between the ends of two divisions and the next start, and none is forgotten.
"""


class RebalanceTimer:
    """Decides when to divide next."""

    __slots__ = ("_interval_ms", "_last_ms", "_spacing_ms", "due_ms")

    def __init__(self, now_ms: int, *, interval_ms: int, spacing_ms: int) -> None:
        self._interval_ms = interval_ms
        self._spacing_ms = spacing_ms
        self._last_ms: int | None = None
        self.due_ms = now_ms + interval_ms
        """When the next division begins."""

    def notice(self, now_ms: int) -> int:
        """Something changed; the time at which to divide, now or when the spacing allows."""
        earliest_ms = now_ms
        if self._last_ms is not None:
            earliest_ms = max(now_ms, self._last_ms + self._spacing_ms)
        self.due_ms = min(self.due_ms, earliest_ms)
        return self.due_ms

    def begin(self) -> None:
        """A division begins; notices from here on ask for another one."""
        self.due_ms = 1 << 62

    def ended(self, now_ms: int, *, is_balanced: bool) -> None:
        """A division is over."""
        is_noticed = self.due_ms < 1 << 62
        self._last_ms = now_ms
        wait_ms = self._interval_ms if is_balanced and not is_noticed else self._spacing_ms
        self.due_ms = now_ms + wait_ms
