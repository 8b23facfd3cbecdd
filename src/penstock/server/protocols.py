"""The protocols a broker speaks: which adapter listens on which port, and who keeps its deadlines.

Adding a protocol is one line in ``built_in``: its factory and the setting of its port. Ports of
protocols that are not built yet have settings already; they are simply not in the list. A protocol
whose connections share something opens it once all ports are known (``open``), before anybody is
accepted; deadlines of what they share belong to no connection and are driven here. How a wire's
stored bytes are read and its dead letters are made is given to the engine (D15), also when its
listener is off. Its paths on the HTTP port, and a second HTTP port, are a protocol's own, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.adapters.contract import AdapterFactory
from penstock.adapters.timers import Timers
from penstock.engine.broker import Engine
from penstock.engine.ports import DeadLetterFormat, FactsReader
from penstock.model.clock import Clock
from penstock.model.record import Facts, Record, Wire
from penstock.settings.load import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import Route

    from penstock.server.admin import ProtocolAdmin
    from penstock.server.join import NameServerRegistration
    from penstock.wire.pulsar.facts import PulsarFacts

NO_VIP: Final = (
    "RocketMQ clients up to 4.4 that use the VIP channel cannot send; free the port and start "
    "again, or set rocketmq.is_vip_open=false"
)

Open = Callable[[Engine, Clock, Mapping[str, str]], Timers]
"""Called with the endpoints of all listeners; what it returns is driven until the broker stops."""


MakeRoutes = Callable[[Callable[[], None], Mapping[str, str]], "Sequence[Route]"]
"""A protocol's HTTP paths, made after ``open`` by the first who asks over HTTP: from what asks for
a turn of the engine, and the endpoints of all listeners. Each bounds the bodies it reads
(``http.app.read_body``)."""


class HttpPort(NamedTuple):
    """A second HTTP listener, of one protocol: its paths, health and metrics."""

    name: str
    """In settings, ready file, logs and metrics: ``pulsar_http``."""
    port: int
    """0 = any free one."""
    routes: MakeRoutes


class ProtocolBinding(NamedTuple):
    """A protocol and its port; 0 = any free one."""

    factory: AdapterFactory
    port: int
    when_taken: str = ""
    """Of an optional listener: if its port is taken it is absent, and the log says this. Empty: the
    broker does not start."""
    open: Open | None = None
    join: Callable[[], NameServerRegistration] | None = None
    """Made after ``open``: tells another process that this broker is here (D20)."""
    admin: Callable[[], ProtocolAdmin] | None = None
    """Made after ``open``: what operators see and do of this protocol's topics and groups."""
    routes: MakeRoutes | None = None
    """Its paths on the broker's HTTP port."""
    http: HttpPort | None = None
    """An HTTP port of its own beside that."""


def fact_readers() -> dict[int, FactsReader]:
    """Who reads the stored bytes of which wire, also when its listener is off."""
    from penstock.wire.amqp.origin import AmqpFacts
    from penstock.wire.rocketmq.stored import RocketmqFacts

    return {
        int(Wire.ROCKETMQ): RocketmqFacts(),
        int(Wire.AMQP): AmqpFacts(),
        int(Wire.PULSAR): DeferredPulsarFacts(),
    }


class DeferredPulsarFacts:
    """``PulsarFacts``, imported with the first record of Pulsar: protobuf costs a start 20 ms."""

    @cached_property
    def _reader(self) -> PulsarFacts:
        from penstock.wire.pulsar.facts import PulsarFacts

        return PulsarFacts()

    def keys(self, record: Record) -> Sequence[bytes]:
        return self._reader.keys(record)

    def properties(self, record: Record) -> dict[str, str]:
        return self._reader.properties(record)

    def facts(self, record: Record) -> Facts:
        return self._reader.facts(record)

    def body(self, record: Record, bytes_max: int) -> bytes:
        return self._reader.body(record, bytes_max)

    def ordering_key(self, record: Record) -> bytes:
        return self._reader.ordering_key(record)

    def open_batch(self, record: Record, bytes_max: int) -> list[Record] | str:
        return self._reader.open_batch(record, bytes_max)


def dead_letter_formats() -> dict[int, DeadLetterFormat]:
    """Who makes dead letters of which wire."""
    from penstock.adapters.rocketmq.present import RocketmqDeadLetterFormat

    return {int(Wire.ROCKETMQ): RocketmqDeadLetterFormat()}


def built_in(settings: Settings) -> list[ProtocolBinding]:
    """Every protocol that is built and not switched off."""
    return [*_rocketmq(settings), *_amqp(settings), *_pulsar(settings)]


def _amqp(settings: Settings) -> list[ProtocolBinding]:
    port = settings.listeners.port("amqp")
    if port is None:
        return []
    from penstock.adapters.amqp.factory import AmqpFactory

    factory = AmqpFactory(settings)

    def management(wake: Callable[[], None], endpoints: Mapping[str, str]) -> Sequence[Route]:
        # Imported only when somebody asks: a start does not pay for it.
        from penstock.server.management.api import ManagementApi

        return ManagementApi(factory.broker, wake, endpoints).routes()

    return [ProtocolBinding(factory, port, open=factory.open, routes=management)]


def _pulsar(settings: Settings) -> list[ProtocolBinding]:
    port = settings.listeners.port("pulsar")
    if port is None:
        return []
    from penstock.adapters.pulsar.factory import PulsarFactory

    factory = PulsarFactory(settings)

    def rest(wake: Callable[[], None], endpoints: Mapping[str, str]) -> Sequence[Route]:
        from penstock.server.pulsar_rest.api import PulsarRestApi

        return PulsarRestApi(factory.broker, wake, endpoints).routes()

    http_port = settings.listeners.port("pulsar_http")
    http = None if http_port is None else HttpPort("pulsar_http", http_port, rest)
    return [ProtocolBinding(factory, port, open=factory.open, routes=rest, http=http)]


def _rocketmq(settings: Settings) -> list[ProtocolBinding]:
    listeners = settings.listeners
    name_port, broker_port = listeners.port("rocketmq"), listeners.port("rocketmq_broker")
    if name_port is None and broker_port is None:
        return []
    # Imported only here: a broker without RocketMQ does not pay for it.
    from penstock.adapters.rocketmq.admin import RocketmqOperatorService
    from penstock.adapters.rocketmq.factory import (
        VIP,
        VIP_DISTANCE,
        BrokerFactory,
        RocketmqStartup,
    )
    from penstock.adapters.rocketmq.name_server.server import NameServerFactory

    startup = RocketmqStartup(settings)
    found: list[ProtocolBinding] = []
    if broker_port is not None:
        found.append(ProtocolBinding(BrokerFactory(startup), broker_port))
        # With 0 the port is any free one, and nobody asked for that minus 2.
        if settings.rocketmq.is_vip_open and broker_port > VIP_DISTANCE:
            vip = BrokerFactory(startup, VIP)
            found.append(ProtocolBinding(vip, broker_port - VIP_DISTANCE, when_taken=NO_VIP))
    if name_port is not None:
        found.append(ProtocolBinding(NameServerFactory(lambda: startup.broker), name_port))
    # The first to listen opens what all share.
    found[0] = found[0]._replace(
        open=startup.open, admin=lambda: RocketmqOperatorService(startup.broker)
    )
    if settings.rocketmq.join and broker_port is not None:
        from penstock.server.join import NameServerRegistration

        found[0] = found[0]._replace(
            join=lambda: NameServerRegistration(startup.broker, settings.rocketmq.join)
        )
    return found


# ---- deadlines ----------------------------------------------------------------------------------


LOOK_MS: Final = 1000
"""A deadline that came nearer without a word is late by no more than this."""


class DeadlineDriver:
    """Calls ``due`` in time; ``turn`` asks for a turn of the engine afterwards."""

    def __init__(
        self,
        timers: Timers,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        turn: Callable[[], None],
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._loop = loop
        self._turn = turn
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_scheduled = False
        self._is_stopped = False
        timers.on_reschedule = self._reschedule
        self._arm()

    def stop(self) -> None:
        self._is_stopped = True
        self._timers.on_reschedule = lambda: None
        if self._timer is not None:
            self._timer.cancel()

    def _reschedule(self) -> None:
        """Look again, once, after whatever runs now; many calls are one look."""
        if not self._is_scheduled and not self._is_stopped:
            self._is_scheduled = True
            self._loop.call_soon(self._arm)

    def _arm(self) -> None:
        self._is_scheduled = False
        if self._is_stopped:
            return
        now_ms = self._clock.monotonic_ms()
        deadline_ms = self._timers.next_deadline_ms()
        at_ms = now_ms + LOOK_MS if deadline_ms is None else min(deadline_ms, now_ms + LOOK_MS)
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return  # it looks early enough, and again after that
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = self._loop.call_later(max(0, at_ms - now_ms) / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        deadline_ms = self._timers.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self._timers.due(now_ms)
            self._turn()
        self._arm()
