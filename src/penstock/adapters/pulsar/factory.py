"""The Pulsar listener's factory, and the one place where a ``PulsarBroker`` is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.adapters.contract import Peer
from penstock.adapters.pulsar.broker import PulsarBroker
from penstock.adapters.pulsar.connection import MakeGroup, PulsarConnection
from penstock.adapters.pulsar.consumer import ConsumerCommands
from penstock.adapters.pulsar.lookup import LookupCommands
from penstock.adapters.pulsar.producer import ProducerCommands
from penstock.adapters.pulsar.schemas import SchemaCommands
from penstock.adapters.pulsar.topic_watch import WatchCommands
from penstock.adapters.timers import Timers
from penstock.model.clock import Clock
from penstock.model.errors import InvariantBroken
from penstock.model.ids import ConnectionId
from penstock.settings.load import Settings

if TYPE_CHECKING:
    from penstock.engine.broker import Engine

PULSAR: Final = "pulsar"

COMMAND_GROUPS: Final[tuple[MakeGroup, ...]] = (
    LookupCommands,
    ProducerCommands,
    ConsumerCommands,
    SchemaCommands,
    WatchCommands,
)
"""Who serves which commands of a connection."""


class PulsarFactory:
    """Makes connections; satisfies ``adapters.contract.AdapterFactory``."""

    protocol = PULSAR

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._broker: PulsarBroker | None = None

    def open(self, engine: Engine, clock: Clock, endpoints: Mapping[str, str]) -> Timers:
        """The listeners are open, nobody is connected yet; what has to be driven from now on."""
        del endpoints
        self._broker = PulsarBroker(engine, clock, self._settings)
        return self._broker.timers

    @property
    def broker(self) -> PulsarBroker:
        if self._broker is None:
            raise InvariantBroken("a Pulsar client came before the broker was open")
        return self._broker

    def make(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        engine: Engine,
        clock: Clock,
        wake: Callable[[], None],
    ) -> PulsarConnection:
        """The protocol's side of a connection that was just accepted."""
        del engine, clock
        return PulsarConnection(connection_id, peer, self.broker, COMMAND_GROUPS, wake)
