"""Looks now and then whether a consumer forgot what it was given (``amqp.consumer_timeout_ms``).

A delivery that stays unsettled for longer costs its channel: 406, and everything is requeued. Only
the oldest run of each channel is looked at, once a minute at most: RabbitMQ does it as rarely.
Not here: the look at one channel (``Consuming.due``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.adapters.amqp.house import House

LOOK_MS: Final = 60_000
"""A delivery is found to be late by at most this."""


class ConsumerTimeouts:
    """A task of the house's timers."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._next_ms = house.clock.monotonic_ms() + self._pause_ms

    @property
    def _pause_ms(self) -> int:
        return min(LOOK_MS, self._house.settings.consumer_timeout_ms)

    def next_deadline_ms(self) -> int | None:
        """The next look; never without a limit."""
        return self._next_ms if self._house.settings.consumer_timeout_ms else None

    def due(self, now_ms: int) -> None:
        """Look at every channel."""
        self._next_ms = now_ms + self._pause_ms
        for session in list(self._house.sessions.values()):
            for channel in list(session.channels.values()):
                channel.consuming.due(now_ms)
