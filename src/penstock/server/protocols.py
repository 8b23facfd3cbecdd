"""The protocols a broker speaks: which adapter listens on which port.

Adding a protocol is one line in ``built_in``: its factory and the setting of its port. Ports of
protocols that are not built yet have settings already; they are simply not in the list. A protocol
whose connections share something opens it once all ports are known (``Listening.open``), before
anybody is accepted; its readers of stored bytes and its burials are given to the engine (D15).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.adapters.contract import AdapterFactory
from penstock.engine.ports import Burial, FactsReader
from penstock.model.clock import Clock
from penstock.model.record import Wire
from penstock.server.household import Ticking
from penstock.settings.load import Settings

if TYPE_CHECKING:
    from penstock.adapters.amqp.broker import House
    from penstock.engine.broker import Engine
    from penstock.server.admin_views import Desk
    from penstock.server.join import Join

Open = Callable[["Engine", Clock, Mapping[str, str]], Ticking]
"""Called with the endpoints of all listeners; what it returns is driven until the broker stops."""


class Listening(NamedTuple):
    """A protocol and its port; 0 = any free one."""

    factory: AdapterFactory
    port: int
    open: Open | None = None
    join: Callable[[], Join] | None = None
    """Made after ``open``: tells another process that this broker is here (D20)."""
    desk: Callable[[], Desk] | None = None
    """Made after ``open``: what operators see and do of this protocol's topics and groups."""
    house: Callable[[], House] | None = None
    """Known after ``open``: what RabbitMQ's management API shows."""


def readers() -> dict[int, FactsReader]:
    """Who reads the stored bytes of which wire, also when its listener is off."""
    from penstock.wire.amqp.origin import AmqpFacts
    from penstock.wire.rocketmq.stored import RocketmqFacts

    return {int(Wire.ROCKETMQ): RocketmqFacts(), int(Wire.AMQP): AmqpFacts()}


def burials() -> dict[int, Burial]:
    """Who makes dead letters of which wire."""
    from penstock.adapters.rocketmq.retry import RocketmqBurial

    return {int(Wire.ROCKETMQ): RocketmqBurial()}


def built_in(settings: Settings) -> list[Listening]:
    """Every protocol that is built and not switched off."""
    return [*_rocketmq(settings), *_amqp(settings)]


def _amqp(settings: Settings) -> list[Listening]:
    port = settings.listeners.port("amqp")
    if port is None:
        return []
    from penstock.adapters.amqp.factory import AmqpFactory

    factory = AmqpFactory(settings)
    return [Listening(factory, port, open=factory.open, house=lambda: factory.house)]


def _rocketmq(settings: Settings) -> list[Listening]:
    listeners = settings.listeners
    name_port, broker_port = listeners.port("rocketmq"), listeners.port("rocketmq_broker")
    if name_port is None and broker_port is None:
        return []
    # Imported only here: a broker without RocketMQ does not pay for it.
    from penstock.adapters.rocketmq.admin import OperatorDesk
    from penstock.adapters.rocketmq.factory import BrokerFactory, Household
    from penstock.adapters.rocketmq.name_server.server import NameServerFactory

    household = Household(settings)
    found: list[Listening] = []
    if broker_port is not None:
        found.append(Listening(BrokerFactory(household), broker_port))
    if name_port is not None:
        found.append(Listening(NameServerFactory(lambda: household.house), name_port))
    # The first to listen opens what both share.
    found[0] = found[0]._replace(open=household.open, desk=lambda: OperatorDesk(household.house))
    if settings.rocketmq.join and broker_port is not None:
        from penstock.server.join import Join

        found[0] = found[0]._replace(join=lambda: Join(household.house, settings.rocketmq.join))
    return found
