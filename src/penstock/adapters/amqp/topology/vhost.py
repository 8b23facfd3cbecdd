"""A virtual host: exchanges, bindings and queues under one name, routed among themselves.

vhost ``/`` is the space ``""`` of topic names, every other vhost the space of its own name (D9).
Exchanges live here and nowhere else: they are never topics.

Invariant: whoever changes exchanges, bindings or the set of queues calls ``changed``; what the
router remembers is then void.
Not here: which vhosts there are (``broker.py``), how they are kept (``topology_rows.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.statistics import DeliveryCounters
from penstock.adapters.amqp.topology.exchange import (
    Bindings,
    Exchange,
    predeclared,
    stored_bindings,
    stored_exchanges,
)
from penstock.adapters.amqp.topology.queue_registry import QueueRegistry
from penstock.adapters.amqp.topology.router import PublishRoutes, Router
from penstock.wire.amqp.codes import AmqpError, ReplyCode

if TYPE_CHECKING:
    from penstock.adapters.amqp.context import AmqpContext

DEFAULT_VHOST: Final = "/"


class VirtualHost:
    """One vhost."""

    __slots__ = (
        "all_vhosts",
        "bindings",
        "context",
        "exchanges",
        "gone",
        "name",
        "queues",
        "router",
        "routes",
        "space",
        "version",
    )

    def __init__(
        self, context: AmqpContext, name: str, all_vhosts: Mapping[str, VirtualHost]
    ) -> None:
        self.name: Final = name
        self.space: Final = space_of(name)
        self.context: Final = context
        self.all_vhosts: Final = all_vhosts
        """Those of the broker, this one included: limits count all of them together."""
        self.gone: Final = DeliveryCounters()
        """What queues counted that are deleted."""
        self.version = 0
        """Grows with every change of topology."""
        self.exchanges: Final[dict[str, Exchange]] = predeclared()
        self.bindings: Final = Bindings(self)
        self.router: Final = Router(self)
        self.routes: Final = PublishRoutes(self)
        """Those that publishers used lately."""
        self.queues: Final = QueueRegistry(self)
        self._restore()

    def __repr__(self) -> str:
        return f"<VirtualHost {self.name!r}>"

    @property
    def exchanges_in_all(self) -> int:
        """Exchanges of all vhosts of the broker."""
        return sum(len(each.exchanges) for each in self.all_vhosts.values())

    @property
    def bindings_in_all(self) -> int:
        return sum(each.bindings.count for each in self.all_vhosts.values())

    def exchange(self, name: str) -> Exchange:
        """The exchange of this name; raises 404 when there is none."""
        found = self.exchanges.get(name)
        if found is None:
            raise AmqpError(ReplyCode.NOT_FOUND, f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def changed(self) -> None:
        """Topology changed: routes must be found again."""
        self.version += 1
        self.router.forget()

    def drop(self) -> None:
        """The vhost is deleted: nothing of its topology may come back with the next of its name."""
        self.queues.drop_all()
        for exchange in list(self.exchanges.values()):
            self.bindings.drop_exchange(exchange)

    def _restore(self) -> None:
        """Exchanges and bindings as the catalog has them; a vhost just made has none."""
        for exchange in stored_exchanges(self):
            self.exchanges[exchange.name] = exchange
        for binding in stored_bindings(self):
            # Rows change in one transaction, but a catalog repaired by hand may lack a source.
            if binding.source in self.exchanges:
                self.bindings.restore(binding)
        self.changed()


def space_of(name: str) -> str:
    """The space of topic names that a vhost is."""
    return "" if name == DEFAULT_VHOST else name
