"""Short polling: pulls that found nothing are looked at every second, and only then (sheet 2.2).

The alternative to long polling, for whoever wants few wake-ups at the price of latency: an arrival
wakes nobody; each sweep reads for every held pull and answers those that found something, and those
whose time is up. Long polling needs nothing of this: the engine's ``PullDesk`` holds (F12).

Invariants: a held pull is answered exactly once, unless its peer goes first; at most ``HOLDS_MAX``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.engine.pull import Pull, PullResult, PullStatus

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session
    from penstock.engine.topic import Queue

HOLDS_MAX: Final = 100_000

Answered = Callable[[Pull, PullResult], None]

_CANCELLED: Final = PullResult(PullStatus.CANCELLED, [], [], 0, 0, 0)
_NOTHING: Final = (PullStatus.NO_NEW, PullStatus.FILTERED)


class Held(NamedTuple):
    """One pull that waits."""

    session: Session
    queue: Queue
    pull: Pull
    deadline_ms: int
    answered: Answered


class ShortHolds:
    """Pulls that wait for a sweep."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._held: list[Held] = []
        self._sweep_ms: int | None = None
        house.timers.add(self)

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, held: Held) -> bool:
        """Keep a pull until a sweep finds something for it; False when there are too many."""
        if len(self._held) >= HOLDS_MAX:
            return False
        self._held.append(held)
        if self._sweep_ms is None:
            now_ms = self._house.clock.monotonic_ms()
            self._sweep_ms = now_ms + self._house.settings.short_polling_ms
            self._house.timers.stir()
        return True

    def next_deadline_ms(self) -> int | None:
        """The next sweep; None while nobody waits."""
        return self._sweep_ms

    def due(self, now_ms: int) -> None:
        """Look at all of them."""
        if self._sweep_ms is None or now_ms < self._sweep_ms:
            return
        held, self._held = self._held, []
        read = self._house.engine.pulls.read
        for each in held:
            if each.session.is_closed:
                continue
            if each.queue.is_deleted:
                each.answered(each.pull, _CANCELLED)
                continue
            result = read(each.pull)
            if result.status in _NOTHING and now_ms < each.deadline_ms:
                self._held.append(each)
            else:
                each.answered(each.pull, result)
        step_ms = self._house.settings.short_polling_ms
        self._sweep_ms = now_ms + step_ms if self._held else None
