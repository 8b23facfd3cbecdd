"""All bindings of a vhost, by source and by destination.

``bind`` and ``unbind`` serve both families, ``exchange.*`` and ``queue.*``: they check that both
ends exist, keep the row of a durable binding, and let an auto-delete exchange go with its last
binding. Both are idempotent, as RabbitMQ's are.

Invariants: a binding's source exists, and so did its destination when it was made; whoever removes
a queue says ``forget``; every change voids the router's memory. Bound: ``amqp.bindings_max``.
Not here: who may ask (``exchanges.py``, ``queues.py``), the bytes of rows (``topology_rows.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp.binding import Binding, BindingKey, Destination, to_exchange
from penstock.adapters.amqp.topology_bounds import check_arguments, check_bindings
from penstock.adapters.amqp.topology_rows import delete_binding, delete_exchange, put_binding
from penstock.wire.amqp.codes import AmqpError, ReplyCode

if TYPE_CHECKING:
    from penstock.adapters.amqp.exchange import Exchange
    from penstock.adapters.amqp.vhost import VirtualHost


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
        check_bindings(self._vhost.house)
        check_arguments(self._vhost.house, binding.arguments)
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
