"""How long to wait before the next attempt (B16): 100 ms, doubled up to 60 s, a little random.

A mandatory stop is a moment, counted from the first failure, at which one attempt is made whatever
the doubling says: a producer has it shortly before its first send times out. Consumers have none.
"""

from collections.abc import Callable
from random import random
from typing import Final

from penstock.model.clock import Clock

INITIAL_MS: Final = 100
MAX_MS: Final = 60_000
JITTER: Final = 0.1
"""Up to this part of a wait is taken off, so that a thousand clients do not come back at once."""


class Backoff:
    """The waits of one producer, consumer or look-up."""

    __slots__ = (
        "_clock", "_first_ms", "_initial_ms", "_is_stop_made", "_max_ms", "_next_ms", "_random",
        "_stop_ms",
    )  # fmt: skip

    def __init__(
        self,
        clock: Clock,
        *,
        initial_ms: int = INITIAL_MS,
        max_ms: int = MAX_MS,
        mandatory_stop_ms: int = 0,
        random: Callable[[], float] = random,
    ) -> None:
        self._clock = clock
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._stop_ms = mandatory_stop_ms
        self._random = random
        self.reset()

    def reset(self) -> None:
        """It succeeded: the next failure is a first one."""
        self._next_ms = self._initial_ms
        self._first_ms: int | None = None
        self._is_stop_made = False

    def next_ms(self) -> int:
        """How long to wait now; the next wait is twice as long."""
        wait_ms = self._next_ms
        self._next_ms = min(wait_ms * 2, self._max_ms)
        if self._stop_ms and not self._is_stop_made:
            now_ms = self._clock.monotonic_ms()
            if self._first_ms is None:
                self._first_ms = now_ms
            elapsed_ms = now_ms - self._first_ms
            if elapsed_ms + wait_ms > self._stop_ms:
                wait_ms = max(self._initial_ms, self._stop_ms - elapsed_ms)
                self._is_stop_made = True
        wait_ms -= int(wait_ms * JITTER * self._random())
        return max(self._initial_ms, wait_ms)
