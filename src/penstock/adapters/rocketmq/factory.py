"""The broker listener's factory, and the one place where a house is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq import admin, groups, offsets, pull, retry, send, transactions
from penstock.adapters.rocketmq.broker import RocketmqBroker
from penstock.adapters.rocketmq.connection import RocketmqConnection
from penstock.adapters.rocketmq.group_registry import GroupRegistry, OffsetRegistry
from penstock.adapters.rocketmq.name_server.server import NAME_SERVER
from penstock.adapters.rocketmq.pop import settle, take
from penstock.adapters.rocketmq.pop.reader import PopCounts
from penstock.adapters.rocketmq.requests import Handler
from penstock.adapters.timers import Timers
from penstock.model.clock import Clock
from penstock.model.errors import InvariantBroken
from penstock.model.ids import ConnectionId
from penstock.settings.load import Settings

if TYPE_CHECKING:
    from penstock.engine.broker import Engine

BROKER: Final = "rocketmq_broker"


def open_house(
    engine: Engine,
    clock: Clock,
    settings: Settings,
    *,
    broker_port: int = 10911,
    name_server: str = "",
) -> RocketmqBroker:
    """A house with everything in it; tests use it directly."""
    broker = RocketmqBroker(
        engine, clock, settings, broker_port=broker_port, name_server=name_server
    )
    open_parts(broker)
    return broker


class Household:
    """Opens the house once the ports are known; shared by the factories of both listeners."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._broker: RocketmqBroker | None = None

    def open(self, engine: Engine, clock: Clock, endpoints: Mapping[str, str]) -> Timers:
        """The listeners are open, nobody is connected yet; what has to be driven from now on."""
        port = int(endpoints.get(BROKER, ":0").rpartition(":")[2])
        names = endpoints.get(NAME_SERVER, "")
        self._broker = open_house(
            engine, clock, self._settings, broker_port=port, name_server=names
        )
        return self._broker.timers

    @property
    def broker(self) -> RocketmqBroker:
        if self._broker is None:
            raise InvariantBroken("a RocketMQ client came before the broker was open")
        return self._broker


class BrokerFactory:
    """Makes sessions; satisfies ``adapters.contract.AdapterFactory``."""

    protocol = BROKER

    def __init__(self, household: Household) -> None:
        self._household = household

    def make(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        engine: Engine,
        clock: Clock,
        wake: Callable[[], None],
    ) -> RocketmqConnection:
        """A session for a connection that was just accepted."""
        del engine, clock
        return RocketmqConnection(connection_id, peer, self._household.broker, HANDLERS, wake)


# ---- families -----------------------------------------------------------------------------------
# Which handler serves which request code: the families of requests, put together.
#
# A family is a module with ``HANDLERS: dict[int, Handler]``; a new one is one import and one line
# here. ``PARTS`` are the shared parts that must exist from the start on (``broker.part``), because
# they have deadlines or something to recover.


HANDLERS: Final[dict[int, Handler]] = {
    **send.HANDLERS,
    **retry.HANDLERS,
    **transactions.HANDLERS,
    **admin.LOOKUP_HANDLERS,
    **admin.TOPIC_HANDLERS,
    **groups.CLIENT_HANDLERS,
    **groups.GROUP_HANDLERS,
    **groups.LOCK_HANDLERS,
    **offsets.OFFSET_HANDLERS,
    **pull.HANDLERS,
    **take.POP_HANDLERS,
    **settle.ACK_HANDLERS,
    **settle.INVISIBLE_HANDLERS,
    **take.PEEK_HANDLERS,
    **take.NOTIFICATION_HANDLERS,
    **groups.ASSIGNMENT_HANDLERS,
    **groups.MODE_HANDLERS,
    **admin.RELAY_HANDLERS,
    **offsets.RESET_HANDLERS,
    **admin.STATISTICS_HANDLERS,
}
"""The broker's requests."""

PARTS: Final[tuple[Callable[[RocketmqBroker], object], ...]] = (
    GroupRegistry,
    OffsetRegistry,
    groups.Clients,
    pull.Pulls,
    groups.Modes,
    PopCounts,
    retry.install,
    transactions.Transactions,
)
"""Made when the house is opened, in this order."""


def open_parts(broker: RocketmqBroker) -> None:
    """Make every part that must not wait for its first use."""
    for maker in PARTS:
        broker.part(maker)
