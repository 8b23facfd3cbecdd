"""An exchange: a name, a type, and the bindings of which it is the source.

``PREDECLARED`` are there in every vhost without being made: the default exchange ``""``, to which
every queue is bound by its name, and ``amq.*``. They are durable and nobody may delete them.

Not here: making and deleting (``exchanges.py``), following bindings (``router.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.adapters.amqp.topology.matching import (
    MATCHERS,
    Binding,
    BindingKey,
    Destination,
    Matcher,
    check_arguments,
    check_bindings,
    to_exchange,
)
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import decode_table, encode_table

if TYPE_CHECKING:
    from penstock.adapters.amqp.topology.vhost import VirtualHost

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
        alternate = self.arguments.get(ALTERNATE)
        self.alternate: Final = alternate if isinstance(alternate, str) else None
        """The exchange that gets what this one has no binding for."""
        self.matcher: Final[Matcher] = MATCHERS[kind]()
        self.bindings: Final[dict[BindingKey, Binding]] = {}
        """Those of which it is the source; changed by ``Bindings`` only."""
        self.was_bound = False

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.kind}>"

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


# ---- bindings -----------------------------------------------------------------------------------
# All bindings of a vhost, by source and by destination.
#
# ``bind`` and ``unbind`` serve both families, ``exchange.*`` and ``queue.*``: they check that both
# ends exist, keep the row of a durable binding, and let an auto-delete exchange go with its last
# binding. Both are idempotent, as RabbitMQ's are.
#
# Invariants: a binding's source exists, and so did its destination when it was made; whoever
# removes a queue says ``forget``; every change voids the router's memory. Bound:
# ``amqp.bindings_max``. Not here: who may ask (``exchanges.py``, ``queues.py``), the bytes of rows
# (``topology_rows.py``).


class Bindings:
    """The bindings of one vhost."""

    __slots__ = ("_by_destination", "_vhost", "count")

    def __init__(self, vhost: VirtualHost) -> None:
        self._vhost: Final = vhost
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
        exchange = self._vhost.exchange(source)
        is_durable = self._is_durable(destination) and exchange.is_durable
        binding = Binding(source, destination, routing_key, arguments, is_durable=is_durable)
        known = exchange.bindings.get(binding.key)
        if known is not None:
            return known
        settings = self._vhost.context.settings
        check_bindings(settings, self._vhost.bindings_in_all)
        check_arguments(settings, binding.arguments)
        self.restore(binding)
        if is_durable:
            put_binding(self._vhost, binding)
        return binding

    def unbind(
        self,
        source: str,
        destination: Destination,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
    ) -> Binding | None:
        """Remove a binding; None when there was none, or no such exchange."""
        exchange = self._vhost.exchanges.get(source)
        key = Binding(source, destination, routing_key, arguments).key
        binding = exchange.bindings.get(key) if exchange is not None else None
        if binding is not None:
            self.remove(binding)
        return binding

    def restore(self, binding: Binding) -> None:
        """Put a binding in that is not there; its row is the caller's business."""
        exchange = self._vhost.exchanges[binding.source]
        exchange.matcher.add(binding)
        exchange.bindings[binding.key] = binding
        exchange.was_bound = True
        self.count += 1
        self._by_destination.setdefault(binding.destination, {})[binding.key] = binding
        self._vhost.changed()

    def remove(self, binding: Binding) -> None:
        """Remove a binding that is there, and its source if that was its last."""
        exchange = self._vhost.exchanges[binding.source]
        exchange.matcher.remove(binding)
        del exchange.bindings[binding.key]
        self.count -= 1
        same = self._by_destination[binding.destination]
        del same[binding.key]
        if not same:
            del self._by_destination[binding.destination]
        if binding.is_durable:
            delete_binding(self._vhost, binding)
        self._vhost.changed()
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
        if self._vhost.exchanges.get(exchange.name) is not exchange:
            return
        for binding in list(exchange.bindings.values()):
            if binding.key in exchange.bindings:
                self.remove(binding)
        if self._vhost.exchanges.pop(exchange.name, None) is not exchange:
            return
        if exchange.is_durable:
            delete_exchange(self._vhost, exchange)
        self.forget(to_exchange(exchange.name))
        self._vhost.changed()

    def to(self, destination: Destination) -> list[Binding]:
        """Those that lead to a queue or exchange."""
        return list(self._by_destination.get(destination, {}).values())

    def __iter__(self) -> Iterator[Binding]:
        for exchange in self._vhost.exchanges.values():
            yield from exchange.bindings.values()

    def _is_durable(self, destination: Destination) -> bool:
        vhost = self._vhost
        if not destination.is_queue:
            return vhost.exchange(destination.name).is_durable
        queue = vhost.queues.get(destination.name)
        if queue is None:
            raise AmqpError(
                ReplyCode.NOT_FOUND, f"no queue '{destination.name}' in vhost '{vhost.name}'"
            )
        return queue.is_durable


# ---- topology rows ------------------------------------------------------------------------------
# Durable exchanges and bindings as rows of the catalog (D6).
#
# A row's key begins with the vhost and NUL; its body is msgpack, in which arguments are an AMQP
# table, so that every type of value comes back as it was. An exchange is written when it is
# durable, a binding when both of its ends are. ``Engine.define`` puts the row into the next
# transaction; an answer that must not leave before goes through
# ``AmqpChannel.answer_when_durable``.
#
# Not here: queues (``queue_book.py``), users (``users.py``), vhosts (``broker.py``).


EXCHANGE_KIND: Final = "amqp.exchange"
BINDING_KIND: Final = "amqp.binding"
_NUL: Final = "\0"


class ExchangeRow(msgspec.Struct, array_like=True):
    """One exchange."""

    name: str
    kind: str
    is_auto_delete: bool
    is_internal: bool
    arguments: bytes


class BindingRow(msgspec.Struct, array_like=True):
    """One binding."""

    source: str
    is_queue: bool
    destination: str
    routing_key: str
    arguments: bytes


def put_exchange(vhost: VirtualHost, exchange: Exchange) -> None:
    row = ExchangeRow(
        exchange.name,
        exchange.kind,
        exchange.is_auto_delete,
        exchange.is_internal,
        encode_table(exchange.arguments),
    )
    key = _exchange_key(vhost, exchange)
    vhost.context.engine.define(EXCHANGE_KIND, key, msgspec.msgpack.encode(row))


def delete_exchange(vhost: VirtualHost, exchange: Exchange) -> None:
    vhost.context.engine.define(EXCHANGE_KIND, _exchange_key(vhost, exchange), None)


def put_binding(vhost: VirtualHost, binding: Binding) -> None:
    row = BindingRow(
        binding.source,
        binding.destination.is_queue,
        binding.destination.name,
        binding.routing_key,
        encode_table(binding.arguments),
    )
    vhost.context.engine.define(
        BINDING_KIND, _binding_key(vhost, binding), msgspec.msgpack.encode(row)
    )


def delete_binding(vhost: VirtualHost, binding: Binding) -> None:
    vhost.context.engine.define(BINDING_KIND, _binding_key(vhost, binding), None)


def stored_exchanges(vhost: VirtualHost) -> Iterator[Exchange]:
    for body in _bodies(vhost, EXCHANGE_KIND):
        row = msgspec.msgpack.decode(body, type=ExchangeRow)
        yield Exchange(
            row.name,
            row.kind,
            is_durable=True,
            is_auto_delete=row.is_auto_delete,
            is_internal=row.is_internal,
            arguments=decode_table(row.arguments)[0],
        )


def stored_bindings(vhost: VirtualHost) -> Iterator[Binding]:
    for body in _bodies(vhost, BINDING_KIND):
        row = msgspec.msgpack.decode(body, type=BindingRow)
        yield Binding(
            row.source,
            Destination(row.is_queue, row.destination),
            row.routing_key,
            decode_table(row.arguments)[0],
            is_durable=True,
        )


def _exchange_key(vhost: VirtualHost, exchange: Exchange) -> str:
    return _NUL.join((vhost.name, exchange.name))


def _binding_key(vhost: VirtualHost, binding: Binding) -> str:
    source, destination, routing_key, fingerprint = binding.key
    return _NUL.join(
        (vhost.name, source, destination.kind, destination.name, routing_key, fingerprint)
    )


def _bodies(vhost: VirtualHost, kind: str) -> list[bytes]:
    prefix = vhost.name + _NUL
    rows = vhost.context.engine.definitions(kind)
    return [body for key, body in rows.items() if key.startswith(prefix)]
