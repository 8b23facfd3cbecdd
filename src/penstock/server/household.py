"""Drives the deadlines of a protocol's shared state, which belong to no connection.

One loop timer for the nearest deadline; at least one look a second, so that a deadline which came
nearer without a word is late by no more than that.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from penstock.model.clock import Clock

LOOK_MS: Final = 1000


class Ticking(Protocol):
    """What an adapter's shared state offers (``adapters/timers.py``)."""

    on_stir: Callable[[], None]
    """Set here; to be called when a deadline came nearer."""

    def next_deadline_ms(self) -> int | None:
        """Monotonic time of the nearest deadline."""
        ...

    def due(self, now_ms: int) -> None:
        """Do what is due."""
        ...


class Housekeeper:
    """Calls ``due`` in time; ``turn`` asks for a turn of the engine afterwards."""

    def __init__(
        self,
        ticking: Ticking,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        turn: Callable[[], None],
    ) -> None:
        self._ticking = ticking
        self._clock = clock
        self._loop = loop
        self._turn = turn
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_stirred = False
        self._is_stopped = False
        ticking.on_stir = self._stir
        self._arm()

    def stop(self) -> None:
        """Call nobody any more."""
        self._is_stopped = True
        self._ticking.on_stir = lambda: None
        if self._timer is not None:
            self._timer.cancel()

    def _stir(self) -> None:
        """Look again, once, after whatever runs now; many stirs are one look."""
        if not self._is_stirred and not self._is_stopped:
            self._is_stirred = True
            self._loop.call_soon(self._arm)

    def _arm(self) -> None:
        self._is_stirred = False
        if self._is_stopped:
            return
        now_ms = self._clock.monotonic_ms()
        deadline_ms = self._ticking.next_deadline_ms()
        at_ms = now_ms + LOOK_MS if deadline_ms is None else min(deadline_ms, now_ms + LOOK_MS)
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return  # it looks early enough, and again after that
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = self._loop.call_later(max(0, at_ms - now_ms) / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        deadline_ms = self._ticking.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self._ticking.due(now_ms)
            self._turn()
        self._arm()
