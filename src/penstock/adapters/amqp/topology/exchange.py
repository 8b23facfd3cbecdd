"""Exchanges and bindings of a virtual host, and their rows in the catalog.

``PREDECLARED`` are there in every vhost without being made: the default exchange ``""``, to which
every queue is bound by its name, and ``amq.*``. They are durable and nobody may delete them.

Invariants: a binding's source exists, and so did its destination when it was made; whoever removes
a queue calls ``Bindings.forget``; every change voids what the router remembers.
Not here: the types of exchanges (``matching.py``), following bindings (``router.py``), the commands
of clients (``amqp/exchange_commands.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.adapters.amqp.topology.matching import (
    MATCHERS,
    Binding,
    BindingKey,
    Destination,
    Matcher,
    to_exchange,
)
from penstock.adapters.amqp.topology.policies import NO_POLICY, EffectivePolicy
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import decode_table, encode_table

if TYPE_CHECKING:
    from penstock.adapters.amqp.topology.limits import TopologyLimits
    from penstock.engine.broker import Engine

DEFAULT_EXCHANGE: Final = ""
RESERVED_PREFIX: Final = "amq."
ALTERNATE: Final = "alternate-exchange"
PREDECLARED: Final = (
    (DEFAULT_EXCHANGE, "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)


class Exchange:
    """One exchange of a vhost."""

    __slots__ = (
        "alternate",
        "arguments",
        "bindings",
        "is_auto_delete",
        "is_durable",
        "is_internal",
        "kind",
        "matcher",
        "name",
        "policy",
        "was_bound",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        is_durable: bool = False,
        is_auto_delete: bool = False,
        is_internal: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        self.name: Final = name
        self.kind: Final = kind
        self.is_durable: Final = is_durable
        self.is_auto_delete: Final = is_auto_delete
        """Goes with the last binding of which it is the source, once it had one."""
        self.is_internal: Final = is_internal
        """Only other exchanges may publish to it."""
        self.arguments: Final[dict[str, Any]] = arguments or {}
        self.alternate: str | None = None
        """The exchange that gets what this one has no binding for."""
        self.policy = NO_POLICY
        self.set_policy(NO_POLICY)
        self.matcher: Final[Matcher] = MATCHERS[kind]()
        self.bindings: Final[dict[BindingKey, Binding]] = {}
        """Those of which it is the source; changed by ``Bindings`` only."""
        self.was_bound = False

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.kind}>"

    def set_policy(self, policy: EffectivePolicy) -> bool:
        """Other policies are in effect; True when it may lead elsewhere now."""
        before, self.policy = self.alternate, policy
        alternate = self.arguments.get(ALTERNATE, policy.definition.get(ALTERNATE))
        self.alternate = alternate if isinstance(alternate, str) else None
        return self.alternate != before

    @property
    def is_reserved(self) -> bool:
        """True for the default exchange and ``amq.*``."""
        return not self.name or self.name.startswith(RESERVED_PREFIX)

    @property
    def is_done(self) -> bool:
        """True when it is to be deleted because nothing is bound to it any more."""
        return self.is_auto_delete and self.was_bound and not self.bindings


def predeclared() -> dict[str, Exchange]:
    """The exchanges every vhost begins with."""
    return {name: Exchange(name, kind, is_durable=True) for name, kind in PREDECLARED}


def no_exchange(name: str, vhost: str) -> AmqpError:
    """404 for an exchange that does not exist."""
    return AmqpError(ReplyCode.NOT_FOUND, f"no exchange '{name}' in vhost '{vhost}'")


class Bindings:
    """All bindings of one vhost, by source and by destination.

    ``bind`` and ``unbind`` serve both families, ``exchange.*`` and ``queue.*``: they check that
    both ends exist, keep the row of a durable binding, and let an auto-delete exchange go with its
    last binding. Both are idempotent, as RabbitMQ's are. Bound: ``amqp.bindings_max``.
    """

    def __init__(
        self,
        exchanges: dict[str, Exchange],
        catalog: TopologyCatalog,
        limits: TopologyLimits,
        *,
        is_durable_queue: Callable[[str], bool],
        changed: Callable[[], None],
    ) -> None:
        self._exchanges: Final = exchanges
        self._catalog: Final = catalog
        self._limits: Final = limits
        self._is_durable_queue: Final = is_durable_queue
        """Of a queue by its name; raises 404 when there is none."""
        self._changed: Final = changed
        self._by_destination: Final[dict[Destination, dict[BindingKey, Binding]]] = {}
        self.count = 0

    def bind(
        self,
        source: str,
        destination: Destination,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
    ) -> Binding:
        """Make a binding, or find it; raises 404 for a missing end, 406 for senseless arguments."""
        exchange = self._exchange(source)
        is_durable = self._is_durable(destination) and exchange.is_durable
        binding = Binding(source, destination, routing_key, arguments, is_durable=is_durable)
        known = exchange.bindings.get(binding.key)
        if known is not None:
            return known
        self._limits.check_bindings()
        self._limits.check_arguments(binding.arguments)
        self.restore(binding)
        if is_durable:
            self._catalog.put_binding(binding)
        return binding

    def unbind(
        self,
        source: str,
        destination: Destination,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
    ) -> Binding | None:
        """Remove a binding; None when there was none, or no such exchange."""
        exchange = self._exchanges.get(source)
        key = Binding(source, destination, routing_key, arguments).key
        binding = exchange.bindings.get(key) if exchange is not None else None
        if binding is not None:
            self.remove(binding)
        return binding

    def restore(self, binding: Binding) -> None:
        """Put a binding in that is not there; its row is the caller's business."""
        exchange = self._exchanges[binding.source]
        exchange.matcher.add(binding)
        exchange.bindings[binding.key] = binding
        exchange.was_bound = True
        self.count += 1
        self._by_destination.setdefault(binding.destination, {})[binding.key] = binding
        self._changed()

    def remove(self, binding: Binding) -> None:
        """Remove a binding that is there, and its source if that was its last."""
        exchange = self._exchanges[binding.source]
        exchange.matcher.remove(binding)
        del exchange.bindings[binding.key]
        self.count -= 1
        same = self._by_destination[binding.destination]
        del same[binding.key]
        if not same:
            del self._by_destination[binding.destination]
        if binding.is_durable:
            self._catalog.delete_binding(binding)
        self._changed()
        if exchange.is_done:
            self.drop_exchange(exchange)

    def forget(self, destination: Destination) -> bool:
        """The destination is gone, and its bindings with it; True when a durable one was."""
        gone = list(self._by_destination.get(destination, {}).values())
        for binding in gone:
            # An exchange in a cycle may have gone with one of the others.
            if binding.key in self._by_destination.get(destination, {}):
                self.remove(binding)
        return any(binding.is_durable for binding in gone)

    def drop_exchange(self, exchange: Exchange) -> None:
        """Take an exchange out of the vhost, with everything bound to it and by it."""
        if self._exchanges.get(exchange.name) is not exchange:
            return
        for binding in list(exchange.bindings.values()):
            if binding.key in exchange.bindings:
                self.remove(binding)
        # Its last binding may have taken an auto-delete exchange with it already.
        if self._exchanges.pop(exchange.name, None) is not exchange:
            return
        if exchange.is_durable:
            self._catalog.delete_exchange(exchange)
        self.forget(to_exchange(exchange.name))
        self._changed()

    def to(self, destination: Destination) -> list[Binding]:
        """Those that lead to a queue or exchange."""
        return list(self._by_destination.get(destination, {}).values())

    def __iter__(self) -> Iterator[Binding]:
        for exchange in self._exchanges.values():
            yield from exchange.bindings.values()

    def _exchange(self, name: str) -> Exchange:
        found = self._exchanges.get(name)
        if found is None:
            raise no_exchange(name, self._catalog.vhost)
        return found

    def _is_durable(self, destination: Destination) -> bool:
        if destination.is_queue:
            return self._is_durable_queue(destination.name)
        return self._exchange(destination.name).is_durable


# ---- catalog rows -------------------------------------------------------------------------------

EXCHANGE_KIND: Final = "amqp.exchange"
BINDING_KIND: Final = "amqp.binding"
_NUL: Final = "\0"


class ExchangeRow(msgspec.Struct, array_like=True):
    name: str
    kind: str
    is_auto_delete: bool
    is_internal: bool
    arguments: bytes


class BindingRow(msgspec.Struct, array_like=True):
    source: str
    is_queue: bool
    destination: str
    routing_key: str
    arguments: bytes


class TopologyCatalog:
    """Durable exchanges and bindings of one vhost as rows of the catalog (D6).

    A row's key begins with the vhost and NUL; its body is msgpack, in which arguments are an AMQP
    table, so that every type of value comes back as it was. An exchange is written when it is
    durable, a binding when both of its ends are. ``Engine.define`` puts the row into the next
    transaction; an answer that must not leave before goes through
    ``AmqpChannel.answer_when_durable``.
    """

    def __init__(self, engine: Engine, vhost: str) -> None:
        self._engine: Final = engine
        self.vhost: Final = vhost

    def put_exchange(self, exchange: Exchange) -> None:
        row = ExchangeRow(
            exchange.name,
            exchange.kind,
            exchange.is_auto_delete,
            exchange.is_internal,
            encode_table(exchange.arguments),
        )
        self._engine.define(EXCHANGE_KIND, self._key(exchange.name), msgspec.msgpack.encode(row))

    def delete_exchange(self, exchange: Exchange) -> None:
        self._engine.define(EXCHANGE_KIND, self._key(exchange.name), None)

    def put_binding(self, binding: Binding) -> None:
        row = BindingRow(
            binding.source,
            binding.destination.is_queue,
            binding.destination.name,
            binding.routing_key,
            encode_table(binding.arguments),
        )
        self._engine.define(BINDING_KIND, self._binding_key(binding), msgspec.msgpack.encode(row))

    def delete_binding(self, binding: Binding) -> None:
        self._engine.define(BINDING_KIND, self._binding_key(binding), None)

    def exchanges(self) -> Iterator[Exchange]:
        for body in self._bodies(EXCHANGE_KIND):
            row = msgspec.msgpack.decode(body, type=ExchangeRow)
            yield Exchange(
                row.name,
                row.kind,
                is_durable=True,
                is_auto_delete=row.is_auto_delete,
                is_internal=row.is_internal,
                arguments=decode_table(row.arguments)[0],
            )

    def bindings(self) -> Iterator[Binding]:
        for body in self._bodies(BINDING_KIND):
            row = msgspec.msgpack.decode(body, type=BindingRow)
            yield Binding(
                row.source,
                Destination(row.is_queue, row.destination),
                row.routing_key,
                decode_table(row.arguments)[0],
                is_durable=True,
            )

    def _key(self, *names: str) -> str:
        return _NUL.join((self.vhost, *names))

    def _binding_key(self, binding: Binding) -> str:
        source, destination, routing_key, fingerprint = binding.key
        return self._key(source, destination.kind, destination.name, routing_key, fingerprint)

    def _bodies(self, kind: str) -> list[bytes]:
        prefix = self._key("")
        rows = self._engine.definitions(kind)
        return [body for key, body in rows.items() if key.startswith(prefix)]
