"""All protocol connections that live: made for the listeners, told when the broker stops."""

import asyncio
import itertools
from typing import Final

from penstock.adapters.contract import AdapterFactory, Peer
from penstock.model.ids import ConnectionId
from penstock.server.listener import MakeProtocol
from penstock.server.places import Places
from penstock.server.pump import Pump, Surroundings

LOOK_SECONDS: Final = 0.01
"""How often a stop looks whether the last connection is gone."""


class Pumps:
    """The connections of all protocol listeners together; bounded by their places."""

    def __init__(self, around: Surroundings, places: Places) -> None:
        self.around: Final = around
        self.places: Final = places
        self.live: set[Pump] = set()
        self._ids = itertools.count(1)
        self._is_hurried = False

    def maker(self, factory: AdapterFactory) -> MakeProtocol:
        """What a listener calls for each connection of this protocol."""

        def make(peer: Peer) -> asyncio.Protocol:
            pump = Pump(ConnectionId(next(self._ids)), peer, factory, self.around, self._lost)
            self.live.add(pump)
            return pump

        return make

    def hush(self) -> None:
        """Read nothing more from anybody."""
        for pump in self.live:
            pump.hush()

    async def stop(self, reason: str, seconds_max: float) -> None:
        """Let every connection say goodbye; cut off those that take too long."""
        for pump in list(self.live):
            pump.stop(reason)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds_max
        while self.live and loop.time() < until and not self._is_hurried:
            await asyncio.sleep(LOOK_SECONDS)
        for pump in list(self.live):
            pump.abort(reason)
        # Aborted transports report their loss in the next iterations.
        for _ in range(3):
            await asyncio.sleep(0)

    def hurry(self) -> None:
        """Wait for nobody any longer."""
        self._is_hurried = True

    def _lost(self, pump: Pump) -> None:
        self.live.discard(pump)
        self.places.leave(pump.peer.host)
