"""The AMQP listener's factory, and the one place where an ``AmqpBroker`` is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.broker import AmqpBroker, ConsumerTimeouts
from penstock.adapters.amqp.connection import AmqpConnection
from penstock.adapters.amqp.management.statistics import AmqpWalk
from penstock.adapters.contract import Peer
from penstock.adapters.timers import Timers
from penstock.model.clock import Clock
from penstock.model.errors import InvariantBroken
from penstock.model.ids import ConnectionId
from penstock.settings.load import Settings

if TYPE_CHECKING:
    from penstock.engine.broker import Engine

AMQP: Final = "amqp"


def open_broker(engine: Engine, clock: Clock, settings: Settings) -> AmqpBroker:
    """What all connections share, with its timers; tests use it directly."""
    broker = AmqpBroker(engine, clock, settings)
    broker.timers.add(ConsumerTimeouts(broker))
    AmqpWalk(broker)
    return broker


class AmqpFactory:
    """Makes connections; satisfies ``adapters.contract.AdapterFactory``."""

    protocol = AMQP

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._broker: AmqpBroker | None = None

    def open(self, engine: Engine, clock: Clock, endpoints: Mapping[str, str]) -> Timers:
        """The listeners are open, nobody is connected yet; what has to be driven from now on."""
        del endpoints
        self._broker = open_broker(engine, clock, self._settings)
        return self._broker.timers

    @property
    def broker(self) -> AmqpBroker:
        if self._broker is None:
            raise InvariantBroken("an AMQP client came before the broker was open")
        return self._broker

    def make(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        engine: Engine,
        clock: Clock,
        wake: Callable[[], None],
    ) -> AmqpConnection:
        """A connection for a connection that was just accepted."""
        del engine, clock
        return AmqpConnection(connection_id, peer, self.broker, wake)
