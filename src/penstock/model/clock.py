"""Where time comes from.

Nothing below ``server/`` reads a clock of its own: it is given one of these. Wall time goes on disk
and to peers; monotonic time decides when something is due, so a clock jump expires nothing (T19).
A broker's own clock is a ``steady_clock.SteadyClock``: its wall time does not jump either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, Protocol, TypeVar


class Clock(Protocol):
    """Both kinds of time, in whole milliseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back; meaningless across processes."""
        ...


# ---- steady clock -------------------------------------------------------------------------------
# Wall time without jumps: what is old or due is decided by this, never by the clock on the wall.
#
# Operators and NTP set clocks. A broker that took the new time at its word would expire every
# message with a time to live, or free every delayed one, in the next turn (T19). So the wall time
# is read once, and from then on monotonic time moves it; where the two part, the difference is made
# up for slowly: ``FOLLOW_PER_S_MS`` for each second. A step of a second is gone after two minutes,
# one of an hour after four days, or with the next start.
#
# Store times come from here, too: the age of a message is the difference of two times of one clock.
#
# Invariants: never goes back; never runs faster or slower than monotonic time by more than that
# rate.


logger = logging.getLogger(__name__)

FOLLOW_PER_S_MS: Final = 10
"""One per cent: the error of a time to live while a step is made up for."""

JUMP_MS: Final = 1000
"""From here on a difference is worth a line in the log."""

_EVERY_MS: Final = 1000 // FOLLOW_PER_S_MS


class SteadyClock:
    """A clock whose wall time cannot be moved from outside; satisfies ``Clock``."""

    __slots__ = ("_clock", "_followed_ms", "_offset_ms", "_told_ms", "monotonic_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.monotonic_ms: Callable[[], int] = clock.monotonic_ms
        """Milliseconds that never go back: the clock's own, asked for many times a turn."""
        self._followed_ms = clock.monotonic_ms()
        """Up to this monotonic time the difference was made up for."""
        self._offset_ms = clock.wall_ms() - self._followed_ms
        self._told_ms = 0

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, at a steady pace."""
        return self.wall_at(self.monotonic_ms())

    def wall_at(self, now_ms: int) -> int:
        """The same, for whoever knows the monotonic time."""
        # Before that nothing can be made up for: the clock on the wall need not be asked.
        if now_ms - self._followed_ms >= _EVERY_MS:
            self._follow(now_ms)
        return now_ms + self._offset_ms

    @property
    def behind_ms(self) -> int:
        """How far the clock on the wall is ahead of this one; negative when it was set back."""
        return self._clock.wall_ms() - self._clock.monotonic_ms() - self._offset_ms

    def _follow(self, now_ms: int) -> None:
        behind_ms = self._clock.wall_ms() - now_ms - self._offset_ms
        if not behind_ms:
            self._followed_ms = now_ms
            return
        # At most a second's worth at a time: a pause before the jump earns no right to a leap.
        self._followed_ms = max(self._followed_ms, now_ms - 1000)
        steps = (now_ms - self._followed_ms) // _EVERY_MS
        self._followed_ms += steps * _EVERY_MS
        self._offset_ms += max(-steps, min(steps, behind_ms))
        if abs(behind_ms - self._told_ms) >= JUMP_MS:
            self._told_ms = behind_ms
            logger.warning(
                "the wall clock was set; what is due and what is old does not jump with it",
                extra={"ahead_s": behind_ms / 1000, "followed_per_s_ms": FOLLOW_PER_S_MS},
            )


def steady(clock: Clock) -> SteadyClock:
    """The clock itself if it is steady, else one that follows it."""
    return clock if isinstance(clock, SteadyClock) else SteadyClock(clock)


# ---- deadlines ----------------------------------------------------------------------------------


STALE_DEADLINES_MAX: Final = 64
"""Outdated entries kept beside one per key before they are cleared out."""

KeyT = TypeVar("KeyT", bound=Hashable)


class Deadlines(Generic[KeyT]):
    """One moment per key, however often it moves, and whose moment has come.

    The heap keeps outdated entries, too: one that its key is not armed for any more is passed over
    when its time comes, so arming anew costs no search.

    Invariant: no key's entry in the heap is later than the moment it is armed for.
    Bound: two entries per key and ``STALE_DEADLINES_MAX``; then it is rebuilt.
    """

    __slots__ = ("_armed", "_numbers", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, KeyT]] = []
        """(monotonic time, which came first, key), some outdated; to be looked at only."""
        self._armed: dict[KeyT, int] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._armed)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._armed

    def arm(self, key: KeyT, at_ms: int | None) -> None:
        """From now on that is its moment; None = it has none."""
        if at_ms is None:
            self._armed.pop(key, None)
        elif self._armed.get(key) != at_ms:
            self._armed[key] = at_ms
            self._numbers += 1
            heappush(self.heap, (at_ms, self._numbers, key))
            if len(self.heap) > 2 * len(self._armed) + STALE_DEADLINES_MAX:
                self.heap = [
                    (when_ms, number, each)
                    for number, (each, when_ms) in enumerate(self._armed.items())
                ]
                heapify(self.heap)

    def disarm(self, key: KeyT) -> None:
        self._armed.pop(key, None)

    def clear(self) -> None:
        self._armed.clear()
        self.heap.clear()

    def take_due(self, now_ms: int, count_max: int | None = None) -> list[KeyT]:
        """Those whose moment has come, each once and the earliest first; they are armed no more.

        Of more than ``count_max`` the others stay, and are due still.
        """
        due: list[KeyT] = []
        heap = self.heap
        while heap and heap[0][0] <= now_ms and len(due) != count_max:
            at_ms, _, key = heappop(heap)
            if self._armed.get(key) == at_ms:
                del self._armed[key]
                due.append(key)
        return due
