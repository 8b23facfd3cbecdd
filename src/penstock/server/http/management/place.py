"""What the handlers of the management API share: the house, and waiting for what takes a while.

Not here: which path goes where (``api.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.adapters.amqp.management.operator_desk import OperatorDesk
from penstock.server.http.management.asked import Problem, not_found

if TYPE_CHECKING:
    from penstock.adapters.amqp.broker import House
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.adapters.amqp.topology.vhost import VirtualHost

ANY: Final = "*"
"""A name, in the pattern of a path."""
DURABLE_SECONDS_MAX: Final = 10.0


class Done(NamedTuple):
    """A change was made; nothing to show."""

    is_new: bool = False
    location: str = ""


class Failed(NamedTuple):
    """A health check that found something: 503."""

    reason: str


class Place:
    """What the handlers share."""

    def __init__(
        self, house: House, wake: Callable[[], None], endpoints: Mapping[str, str]
    ) -> None:
        self.house: Final = house
        self.endpoints: Final = endpoints
        """Listeners of the broker, ``host:port`` by name."""
        self.wake: Final = wake
        """Asks for a turn of the engine."""
        self.started_ms: Final = house.clock.monotonic_ms()
        self.desk: Final = OperatorDesk(house)

    def vhost(self, name: str) -> VirtualHost:
        """The vhost a path names."""
        found = self.house.vhost(name)
        if found is None:
            raise not_found()
        return found

    async def durable(self) -> None:
        """Return once everything changed so far would survive a crash."""
        await self._told_by(self.house.engine.after_durable, "durable")

    async def gone(self, queue: AmqpQueue) -> None:
        """Return once a queue that is to go has buried its dead, and is gone."""
        if not queue.is_deleted:
            await self._told_by(queue.on_gone.append, "gone")

    async def _told_by(self, tell: Callable[[Callable[[], None]], None], what: str) -> None:
        done = asyncio.get_running_loop().create_future()

        def resolve() -> None:
            if not done.done():
                done.set_result(None)

        tell(resolve)
        self.wake()
        try:
            await asyncio.wait_for(done, DURABLE_SECONDS_MAX)
        except TimeoutError:
            reason = f"not {what} after {DURABLE_SECONDS_MAX:.0f} s; it may still become so"
            raise Problem(503, "timeout", reason) from None


Handler = Callable[..., Awaitable[Any]]
Table = dict[tuple[str, tuple[str, ...]], Handler]
"""(method, pattern) -> handler(place, asked, *names)."""
