"""Takes the samples that rates are made of: everything once in five seconds, a little at a time.

A sweep looks at every connection, channel and queue that is known to AMQP, ``OBJECTS_A_STEP`` of
them at a time with ``PAUSE_MS`` between, so that thousands of queues never hold up a turn: with
more than about ten thousand objects a sweep takes longer than five seconds, and rates are means of
that time. Totals of vhosts and of the house are added up on the way.

Not here: the samples (``rates.py``), the clock that calls (``server/household.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.figures import (
    OVERVIEW,
    QueueFigures,
    channel_figures,
    channel_key,
    connection_figures,
    connection_key,
    gone_figures,
    house_figures,
    queue_figures,
    queue_key,
    vhost_key,
)

if TYPE_CHECKING:
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.queue import AmqpQueue

STEP_MS: Final = 5_000
"""From sample to sample (RabbitMQ: ``collect_statistics_interval``)."""
OBJECTS_A_STEP: Final = 100
PAUSE_MS: Final = 50


class Sampler:
    """A task of the house's timers."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._next_ms = self._began_ms = house.clock.monotonic_ms()
        self._sweep: Iterator[None] | None = None

    def next_deadline_ms(self) -> int | None:
        """The next step, or the next sweep."""
        return self._next_ms

    def due(self, now_ms: int) -> None:
        """One step."""
        if self._sweep is None:
            self._sweep = self._walk()
            self._began_ms = now_ms
        for _ in range(OBJECTS_A_STEP):
            if next(self._sweep, self) is self:
                self._sweep = None
                self._next_ms = max(self._began_ms + STEP_MS, now_ms + PAUSE_MS)
                return
        self._next_ms = now_ms + PAUSE_MS

    def _walk(self) -> Iterator[None]:
        """Sample everything, pausing after each object."""
        house = self._house
        rates, clock = house.rates, house.clock
        for session in list(house.sessions.values()):
            rates.sample(connection_key(session), connection_figures(session), clock.monotonic_ms())
            yield
            for channel in list(session.channels.values()):
                rates.sample(channel_key(channel), channel_figures(channel), clock.monotonic_ms())
                yield
        totals = {vhost: gone_figures(vhost.gone) for vhost in house.vhosts.values()}
        seen: list[tuple[AmqpQueue, QueueFigures]] = []
        for topic in house.engine.topics():
            vhost = house.vhost_of(topic)
            queue = None if vhost is None else vhost.queues.known(topic)
            if queue is not None and queue.vhost in totals:
                figures = queue_figures(queue)
                rates.sample(queue_key(queue), figures, clock.monotonic_ms())
                totals[queue.vhost] = totals[queue.vhost].plus(figures)
                seen.append((queue, figures))
            yield
        for queue, figures in seen:
            if queue.is_deleted:
                totals[queue.vhost] = totals[queue.vhost].plus(figures, -1)
        now_ms = clock.monotonic_ms()
        for vhost, figures in totals.items():
            rates.sample(vhost_key(vhost), figures, now_ms)
        rates.sample(OVERVIEW, house_figures(house, totals.values()), now_ms)
        rates.swept()
