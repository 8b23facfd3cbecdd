"""A virtual host: exchanges, bindings and queues under one name, routed among themselves.

vhost ``/`` is the space ``""`` of topic names, every other vhost the space of its own name (D9).
Exchanges live here and nowhere else: they are never topics.

Parts know what they use and not the vhost; this is where they are put together, in the order of
their dependence: ``matching``, ``policies``, ``exchange``, ``queue``, ``router``, ``dead_letter``,
``queue_registry``.
Not here: which vhosts there are (``adapters/amqp/broker.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.statistics import DeliveryCounters
from penstock.adapters.amqp.topology.exchange import (
    Bindings,
    Exchange,
    TopologyCatalog,
    no_exchange,
    predeclared,
)
from penstock.adapters.amqp.topology.matching import to_queue
from penstock.adapters.amqp.topology.policies import (
    EXCHANGE,
    PolicySweep,
    PolicyTable,
    PreparedPolicy,
    check_patterns,
)
from penstock.adapters.amqp.topology.queue import AmqpQueue, no_queue
from penstock.adapters.amqp.topology.queue_registry import QueueRegistry
from penstock.adapters.amqp.topology.router import PublishRoutes, Router

if TYPE_CHECKING:
    from penstock.adapters.amqp.context import AmqpContext
    from penstock.adapters.amqp.topology.limits import TopologyLimits

DEFAULT_VHOST: Final = "/"


class VirtualHost:
    """One vhost.

    Invariant: whoever changes exchanges, bindings or the set of queues makes the router forget.
    """

    def __init__(self, context: AmqpContext, name: str, limits: TopologyLimits) -> None:
        self.name: Final = name
        self.space: Final = space_of(name)
        self.context: Final = context
        self.limits: Final = limits
        """Those of the broker, all vhosts together."""
        self.gone: Final = DeliveryCounters()
        """What queues counted that are deleted."""
        self._catalog: Final = TopologyCatalog(context.engine, name)
        self.policies: Final = PolicyTable(context.engine, name)
        """To be looked at; ``put_policies`` and ``delete_policy`` change it."""
        self.exchanges: Final[dict[str, Exchange]] = predeclared()
        self.router: Final = Router(name, self.exchanges, self._find_queue)
        self.routes: Final = PublishRoutes(self.router)
        """Those that publishers used lately."""
        self.bindings: Final = Bindings(
            self.exchanges,
            self._catalog,
            limits,
            is_durable_queue=self._is_durable_queue,
            changed=self.router.forget,
        )
        self.queues: Final = QueueRegistry(
            context,
            name,
            self.space,
            self.router,
            policies=self.policies,
            limits=limits,
            on_removed=self._queue_removed,
        )
        self.sweep: Final = PolicySweep[AmqpQueue | Exchange](self.policies, self._apply_policies)
        """Puts changed policies into effect."""
        self._restore()

    def __repr__(self) -> str:
        return f"<VirtualHost {self.name!r}>"

    @property
    def exchange_count(self) -> int:
        return len(self.exchanges)

    @property
    def binding_count(self) -> int:
        return self.bindings.count

    @property
    def policy_count(self) -> int:
        return len(self.policies)

    def exchange(self, name: str) -> Exchange:
        """The exchange of this name; raises 404 when there is none."""
        found = self.exchanges.get(name)
        if found is None:
            raise no_exchange(name, self.name)
        return found

    def add_exchange(self, exchange: Exchange) -> None:
        """A new exchange; there must be none of its name."""
        if exchange.is_durable:
            # First, because arguments that are no field values are found out here.
            self._catalog.put_exchange(exchange)
        self.exchanges[exchange.name] = exchange
        self._apply_policies([exchange])
        self.router.forget()

    def put_policies(self, policies: Sequence[PreparedPolicy]) -> None:
        """All of these at once, new or changed; raises when there cannot be so many.

        In effect for what lives once ``sweep`` is done, for what is declared from now on at once.
        """
        check_patterns(policies, self.policies)
        names = [(is_operator, rule.policy.name) for is_operator, rule, _ in policies]
        self.limits.check_policies(self.policies.new_names(names))
        self.policies.put(policies)
        self._sweep()

    def delete_policy(self, name: str, *, is_operator: bool) -> bool:
        """One goes; False when there is none."""
        is_deleted = self.policies.delete(name, is_operator=is_operator)
        if is_deleted:
            self._sweep()
        return is_deleted

    def _sweep(self) -> None:
        self.sweep.begin([*self.exchanges.values(), *self.queues.living])

    def _apply_policies(self, objects: list[AmqpQueue | Exchange]) -> None:
        is_changed = False
        queues: list[AmqpQueue] = []
        for each in objects:
            if isinstance(each, Exchange):
                is_changed |= each.set_policy(self.policies.effective(EXCHANGE, each.name))
            else:
                queues.append(each)
        self.queues.apply_policies(queues)
        if is_changed:
            self.router.forget()

    def drop(self) -> None:
        """The vhost is deleted: nothing of its topology may come back with the next of its name."""
        self.queues.drop_all()
        self.policies.drop()
        self.sweep.stop()
        for exchange in list(self.exchanges.values()):
            self.bindings.drop_exchange(exchange)

    def _restore(self) -> None:
        """Exchanges and bindings as the catalog has them; a vhost just made has none."""
        for exchange in self._catalog.exchanges():
            self.exchanges[exchange.name] = exchange
        self._apply_policies(list(self.exchanges.values()))
        for binding in self._catalog.bindings():
            # Rows change in one transaction, but a catalog repaired by hand may lack a source.
            if binding.source in self.exchanges:
                self.bindings.restore(binding)
        self.router.forget()

    def _find_queue(self, name: str) -> AmqpQueue | None:
        return self.queues.get(name)

    def _is_durable_queue(self, name: str) -> bool:
        queue = self.queues.get(name)
        if queue is None:
            raise no_queue(name, self.name)
        return queue.is_durable

    def _queue_removed(self, queue: AmqpQueue) -> None:
        self.gone.add(queue.counters)
        self.bindings.forget(to_queue(queue.name))
        self.router.forget()


def space_of(name: str) -> str:
    """The space of topic names that a vhost is."""
    return "" if name == DEFAULT_VHOST else name
