"""How much of the last ten seconds was spent standing still.

Stalls may begin and end hundreds of times a second, so they are not kept one by one: the window is
cut into slots and each slot holds the milliseconds stalled in it, and how many stalls ended in it.
Memory is fixed, the answer is exact except in the oldest slot, which counts in proportion to the
part of it still in the window.
"""

from typing import Final

SLOTS: Final = 20
"""Half a second each with the default window: the error is at most one slot in twenty."""


class StallShare:
    """Stalled milliseconds of a sliding window."""

    __slots__ = ("_ended", "_newest", "_slot_ms", "_slots", "window_ms")

    def __init__(self, window_ms: int) -> None:
        self._slot_ms = max(1, -(-window_ms // SLOTS))
        self.window_ms = self._slot_ms * SLOTS
        self._slots = [0] * (SLOTS + 1)
        self._ended = [0] * (SLOTS + 1)
        # Number of the newest slot written; slot k covers [k * slot_ms, (k + 1) * slot_ms).
        self._newest = -1

    def add(self, since_ms: int, until_ms: int) -> None:
        """Count one stall; stalls are added in the order in which they end and do not overlap."""
        slot_ms = self._slot_ms
        since_ms = max(since_ms, until_ms - self.window_ms)
        self._forget(until_ms // slot_ms)
        self._ended[until_ms // slot_ms % len(self._ended)] += 1
        while since_ms < until_ms:
            number = since_ms // slot_ms
            stop_ms = min(until_ms, (number + 1) * slot_ms)
            self._slots[number % len(self._slots)] += stop_ms - since_ms
            since_ms = stop_ms

    def stalled_ms(
        self, now_ms: int, open_since_ms: int | None = None, window_ms: int | None = None
    ) -> int:
        """Milliseconds stalled in the window that ends now, a stall still open included.

        A smaller window than the whole may be asked for.
        """
        slot_ms = self._slot_ms
        window_ms = self.window_ms if window_ms is None else min(window_ms, self.window_ms)
        self._forget(now_ms // slot_ms)
        start_ms = now_ms - window_ms
        oldest = start_ms // slot_ms
        count = len(self._slots)
        total = sum(self._slots[number % count] for number in range(oldest, self._newest + 1))
        # The oldest slot sticks out of the window at its far end: count only the part inside.
        outside_ms = start_ms - oldest * slot_ms
        total -= self._slots[oldest % count] * outside_ms // slot_ms
        if open_since_ms is not None:
            total += max(0, now_ms - max(open_since_ms, start_ms))
        return min(total, window_ms)

    def ended(self, now_ms: int, window_ms: int) -> int:
        """Stalls that ended in about that window, short as they may have been."""
        self._forget(now_ms // self._slot_ms)
        oldest = (now_ms - min(window_ms, self.window_ms)) // self._slot_ms
        count = len(self._ended)
        return sum(self._ended[number % count] for number in range(oldest, self._newest + 1))

    def share(
        self, now_ms: int, open_since_ms: int | None = None, window_ms: int | None = None
    ) -> float:
        """The same as a fraction between 0 and 1."""
        whole_ms = self.window_ms if window_ms is None else min(window_ms, self.window_ms)
        return self.stalled_ms(now_ms, open_since_ms, window_ms) / whole_ms

    def _forget(self, number: int) -> None:
        """Empty the slots that the window has left since the newest one written."""
        if number <= self._newest:
            return
        count = len(self._slots)
        for passed in range(max(self._newest + 1, number - count + 1), number + 1):
            self._slots[passed % count] = self._ended[passed % count] = 0
        self._newest = number
