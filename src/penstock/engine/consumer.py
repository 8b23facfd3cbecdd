"""A consumer: one taker of a subscription, and every reason why it may not take more.

Its room is the least of four: demand (F10 window, F11 permits, F12 one pull), in-flight messages
and bytes (F13), and what its connection's socket has not taken yet (F14). Each belongs to it alone
or to its connection, never to the subscription: a stuck consumer stops itself (law 8).

Whoever changes demand or the unsent figure from outside calls ``wake`` afterwards (law 4).
Not here: which consumer gets a message (``dispatch/``), what it holds (``pending``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.engine.host import Awaiting, Host
from penstock.engine.pending import Delivery
from penstock.flow.demand import Demand
from penstock.flow.inflight import InflightLimit
from penstock.flow.unsent import UnsentLimit
from penstock.model.position import ConsumerId, QueueId

KeyRange = tuple[int, int]
"""Inclusive range of key slots (0..65535) that a sticky consumer claims."""


class ConsumerOutlet(Protocol):
    """The part of ``ports.Outlet`` that concerns consumers."""

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None: ...

    def cancelled(self, consumer: Consumer, cause: str) -> None: ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None: ...


class Consumer:
    """One taker; made by ``Subscription.attach``."""

    __slots__ = (
        "active_lanes",
        "consumer_id",
        "delivered_messages",
        "demand",
        "inflight",
        "is_attached",
        "is_auto_settled",
        "is_passive",
        "key_ranges",
        "name",
        "outlet",
        "priority",
        "queue_ids",
        "redelivered_messages",
        "unsent",
        "visibility_ms",
        "_host",
        "_subscription",
    )

    def __init__(
        self,
        consumer_id: ConsumerId,
        outlet: ConsumerOutlet,
        demand: Demand,
        *,
        name: str,
        subscription: Awaiting,
        host: Host,
        unsent: UnsentLimit,
        inflight: InflightLimit,
        priority: int = 0,
        key_ranges: Sequence[KeyRange] = (),
        queue_ids: Sequence[QueueId] = (),
        is_auto_settled: bool = False,
        is_passive: bool = False,
        visibility_ms: int = 0,
    ) -> None:
        self.consumer_id = consumer_id
        self.outlet = outlet
        self.demand = demand
        self.name = name
        self.unsent = unsent
        self.inflight = inflight
        self.priority = priority
        """Higher is served first."""
        self.key_ranges = tuple(key_ranges)
        self.queue_ids = tuple(queue_ids)
        """The queues it takes from; empty = all of the topic."""
        self.is_auto_settled = is_auto_settled
        """Handing over settles: nothing is in flight for it."""
        self.is_passive = is_passive
        """Never chosen by dispatch; takes by ``Subscription.take``."""
        self.visibility_ms = visibility_ms
        """Its deliveries go back by themselves after this time; 0 = never."""
        self.is_attached = True
        self.active_lanes = 0
        self.delivered_messages = 0
        self.redelivered_messages = 0
        self._host = host
        self._subscription = subscription

    def __repr__(self) -> str:
        return f"<Consumer {self.name} {self.consumer_id}>"

    def wake(self) -> None:
        """Demand grew or the socket took something: dispatch may go on."""
        if self.is_attached:
            self._host.wake(self._subscription)

    def sent(self, messages: int, size: int) -> None:
        """The socket took these deliveries (F14)."""
        was_held = self.unsent.is_held
        self.unsent.sent(messages, size)
        if was_held and not self.unsent.is_held:
            self.wake()
