"""A vhost without sessions: exchanges and bindings over an engine in a test's hands.

``Topology`` has a ``Workbench`` and one ``VirtualHost`` of a house that is only engine, clock and
settings. ``where`` says which queues a publish would go to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kit.workbench import Workbench
from penstock.adapters.amqp.broker import AmqpBroker
from penstock.adapters.amqp.exchange_commands import declare_exchange
from penstock.adapters.amqp.topology.exchange import Exchange
from penstock.adapters.amqp.topology.matching import to_exchange, to_queue
from penstock.adapters.amqp.topology.queue import AmqpQueue
from penstock.adapters.amqp.topology.queue_registry import Declaration
from penstock.adapters.amqp.topology.vhost import VirtualHost
from penstock.model.ids import ConnectionId
from penstock.model.record import Record
from penstock.wire.amqp.methods.method import short_bytes
from penstock.wire.amqp.origin import PublishHead, publish_record
from penstock.wire.amqp.properties import Properties, encode_properties


class _Nobody:
    connection_id = ConnectionId(0)
    maker = ""


_NOBODY = _Nobody()


class Topology:
    """One vhost and words for it."""

    def __init__(self, name: str = "/") -> None:
        self.bench = Workbench()
        self.name = name
        self.vhost = self._open()

    def _open(self) -> VirtualHost:
        bench = self.bench
        return AmqpBroker(bench.engine, bench.clock, bench.settings).make_vhost(self.name)

    def restart(self) -> None:
        """Stop and start: only what is durable is there again."""
        self.bench.stop()
        self.vhost = self._open()

    def exchange(self, name: str, kind: str = "direct", **more: Any) -> Exchange:
        """Declare an exchange."""
        return declare_exchange(self.vhost, Exchange(name, kind, **more))

    def queue(self, name: str, *, is_durable: bool = True, **arguments: int) -> AmqpQueue:
        """Declare a queue; ``x_max_priority=3`` is the argument x-max-priority."""
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        wanted = Declaration(name, is_durable=is_durable, arguments=named)
        return self.vhost.queues.declare(wanted, _NOBODY)

    def bind(
        self, source: str, queue: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        """Bind a queue."""
        self.vhost.bindings.bind(source, to_queue(queue), key, arguments)

    def link(
        self, source: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        """Bind an exchange."""
        self.vhost.bindings.bind(source, to_exchange(exchange), key, arguments)

    def where(
        self, exchange: str, key: str | Sequence[str] = "", headers: dict[str, Any] | None = None
    ) -> list[str]:
        """Names of the queues that a publish goes to, in alphabetical order."""
        router = self.vhost.router
        route = (
            router.route(exchange, key) if isinstance(key, str) else router.route_all(exchange, key)
        )
        first = key if isinstance(key, str) else key[0]
        found = [each.topic.name.name for each in route.targets(message(exchange, first, headers))]
        assert len(found) == len(set(found)), f"a queue would get two copies: {found}"
        return sorted(found)


def message(
    exchange: str, key: str, headers: dict[str, Any] | None = None, priority: int | None = None
) -> Record:
    """A record as a publish would make it."""
    names = short_bytes(exchange) + short_bytes(key)
    head = PublishHead(exchange, key, False, False, names)
    properties = encode_properties(Properties(headers=headers, priority=priority))
    return publish_record(head, properties, b"body", 0)
