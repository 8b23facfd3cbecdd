"""Heartbeats: every broker of every route hears who this client is, and says which version it is.

All brokers are told at the same time, so that a dead one delays nobody. Without consumers only
masters are told. A broker whose connection broke is told again as soon as it can be reached: it
forgot this client when the connection closed.

Invariant: what members say is read when the heartbeat is sent, never before.
Not here: the timer (``instance.py``), subscriptions (``consumer/subscription.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.client.errors import ClientError
from penstock.client.routes import MASTER_ID
from penstock.wire.rocketmq.bodies import HeartbeatData

if TYPE_CHECKING:
    from penstock.client.calls import Calls
    from penstock.client.routes import RouteCache

_log = logging.getLogger(__name__)

SQL92_VERSION_MIN: Final = 232
"""V4_1_0_SNAPSHOT: older brokers do not filter by SQL92."""


class Heartbeats:
    """The heartbeats of one instance."""

    def __init__(
        self, calls: Calls, routes: RouteCache, compose: Callable[[], HeartbeatData | None]
    ) -> None:
        self._calls = calls
        self._routes = routes
        self._compose = compose
        self._lock = asyncio.Lock()
        self._failing: set[str] = set()
        self.versions: Final[dict[str, int]] = {}
        """Of each broker address that answered; brokers in no route are forgotten."""

    def version_of(self, broker: str) -> int:
        """The version a broker said; 0 while it is not known."""
        address = self._routes.address(broker)
        return 0 if address is None else self.versions.get(address, 0)

    async def send_to_all(self) -> None:
        """Tell every broker now; failures are logged, once in a row."""
        async with self._lock:
            data = self._compose()
            if data is None:
                return
            addresses = self.addresses(masters_only=not data.consumer_data_set)
            for gone in set(self.versions) - set(self._all_addresses()):
                del self.versions[gone]
            self._failing &= set(addresses)
            await asyncio.gather(*(self.send_to(address) for address in addresses))

    async def send_to(self, address: str) -> bool:
        """Tell one broker; True when it heard."""
        # Read here, in the step that sends: a member that left meanwhile is not told as present.
        data = self._compose()
        if data is None:
            return False
        try:
            self.versions[address] = await self._calls.heartbeat(address, data)
        except ClientError as problem:
            if address not in self._failing:
                self._failing.add(address)
                _log.warning("heartbeat failed", extra={"to": address, "why": str(problem)})
            return False
        self._failing.discard(address)
        return True

    def addresses(self, *, masters_only: bool) -> list[str]:
        """Every broker of every route."""
        brokers = self._routes.brokers().values()
        found = (
            address
            for known in brokers
            for number, address in known.items()
            if number == MASTER_ID or not masters_only
        )
        return list(dict.fromkeys(found))

    def is_known(self, address: str) -> bool:
        """True when some route names a broker there."""
        return address in self._all_addresses()

    def _all_addresses(self) -> list[str]:
        return self.addresses(masters_only=False)
