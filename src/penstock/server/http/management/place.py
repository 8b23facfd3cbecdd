"""What the handlers of the management API share: the house, and waiting for the disk.

Not here: which path goes where (``api.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.adapters.amqp.operator_desk import OperatorDesk
from penstock.server.http.management.asked import Problem, not_found

if TYPE_CHECKING:
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.vhost import VirtualHost

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
        done = asyncio.get_running_loop().create_future()

        def resolve() -> None:
            if not done.done():
                done.set_result(None)

        self.house.engine.after_durable(resolve)
        self.wake()
        try:
            await asyncio.wait_for(done, DURABLE_SECONDS_MAX)
        except TimeoutError:
            reason = f"not durable after {DURABLE_SECONDS_MAX:.0f} s; it may still become so"
            raise Problem(503, "timeout", reason) from None


Handler = Callable[..., Awaitable[Any]]
Table = dict[tuple[str, tuple[str, ...]], Handler]
"""(method, pattern) -> handler(place, asked, *names)."""
