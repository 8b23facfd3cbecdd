"""How many messages all subscriptions together may skip until their time (D14, law 2).

A delayed message that a reader passed over is remembered, by its offset, until it is due. Each is
small, but a thousand subscriptions of one topic would each remember all of them: so the bound is
the process's, not each queue's.

Who spends: a lane that puts a message aside. Who grants: the message's time, or its settlement. Who
stops: a lane that has ``OWN_MIN`` aside already reads no further while the room is full; one that
has fewer goes on, so that nobody stands still because of others (law 8). What wakes it: an eighth
of the room being free again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.engine.host import Awaiting

OWN_MIN: Final = 16
"""What a lane may put aside in any case; about as large as the lane itself."""


class DelayedRoom:
    """A count shared by all lanes."""

    __slots__ = ("_low", "_waiting", "_wake", "count", "count_max", "is_full", "own_min")

    def __init__(self, count_max: int, wake: Callable[[Awaiting], None]) -> None:
        self.count = 0
        self.count_max = count_max
        self.own_min = min(OWN_MIN, count_max)
        self.is_full = False
        self._low = count_max - max(1, count_max // 8)
        self._wake = wake
        self._waiting: dict[Awaiting, None] = {}

    def add(self) -> None:
        """One more is put aside."""
        self.count += 1
        if self.count >= self.count_max:
            self.is_full = True

    def remove(self, count: int = 1) -> None:
        """So many are not aside any more."""
        self.count -= count
        assert self.count >= 0, "more taken out of the room than were in it"
        if self.is_full and self.count <= self._low:
            self.is_full = False
            waiting, self._waiting = self._waiting, {}
            for subscription in waiting:
                self._wake(subscription)

    def wait(self, subscription: Awaiting) -> None:
        """Wake it when there is room again."""
        self._waiting[subscription] = None

    def forget(self, subscription: Awaiting) -> None:
        """It is gone."""
        self._waiting.pop(subscription, None)
