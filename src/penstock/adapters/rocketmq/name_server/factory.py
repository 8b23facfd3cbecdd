"""The name server listener's factory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.name_server import questions, registrations
from penstock.adapters.rocketmq.name_server.session import NameHandler, NameSession
from penstock.model.clock import Clock
from penstock.model.ids import ConnectionId

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.engine.broker import Engine

NAME_SERVER: Final = "rocketmq"

HANDLERS: Final[dict[int, NameHandler]] = {**questions.HANDLERS, **registrations.HANDLERS}


class NameServerFactory:
    """Makes name server sessions; satisfies ``adapters.contract.AdapterFactory``."""

    protocol = NAME_SERVER

    def __init__(self, house: Callable[[], House]) -> None:
        self._house = house

    def make(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        engine: Engine,
        clock: Clock,
        wake: Callable[[], None],
    ) -> NameSession:
        """A session for a connection that was just accepted."""
        del connection_id, engine, clock
        return NameSession(peer, self._house(), HANDLERS, wake)
