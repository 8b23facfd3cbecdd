"""A consumer: one taker of a subscription, and every reason why it may not take more.

Its room is the least of four: demand (F10 window, F11 permits, F12 one pull), in-flight messages
and bytes (F13), and what its connection's socket has not taken yet (F14). Each belongs to it alone
or to its connection, never to the subscription: a stuck consumer stops itself (law 8). Only when
all sockets together are far behind (D22) does everybody get one message at a time.

What is in flight is held by number, not by body (``pending``), and so weighs nothing in that pool;
F13 bounds it. What is unsent are bytes in memory until the socket takes them.

Whoever changes demand or the unsent figure from outside calls ``wake`` afterwards (law 4).
Not here: which consumer gets a message (``dispatch/``), what it holds (``pending``).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol, Required, TypedDict

import msgspec

from penstock.engine.host import Awaiting, Host
from penstock.engine.pending import Delivery
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import UNLIMITED, Demand, InflightLimit, Permits, Window
from penstock.model.ids import ConsumerId, QueueId

KeyRange = tuple[int, int]
"""Inclusive range of key slots (0..65535) that a sticky consumer claims."""


class ConsumerKeywords(TypedDict, total=False):
    """What ``Subscription.attach`` may be told about a consumer; see the attributes below."""

    name: Required[str]
    priority: int
    key_ranges: Sequence[KeyRange]
    queue_ids: Sequence[QueueId]
    is_auto_settled: bool
    is_passive: bool
    visibility_ms: int


class RefusalReason(Enum):
    """Why a consumer is not taken in."""

    BUSY = "busy"
    """Another one has exclusive use."""
    KEY_RANGE = "key-range"
    TOO_MANY = "too-many"


class ConsumerRefusal(msgspec.Struct, frozen=True):
    """A consumer is not taken in; an answer, not an error."""

    reason: RefusalReason
    text: str


class ConsumerOutlet(Protocol):
    """The part of ``ports.Outlet`` that concerns consumers."""

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Messages for this consumer, within its room."""
        ...

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """It is gone, not by its own will."""
        ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """Failover: it became, or ceased to be, the one that gets messages."""
        ...


class Consumer:
    """One taker; made by ``Subscription.attach``."""

    __slots__ = (
        "_host",
        "_permits",
        "_subscription",
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
        "owns_unsent",
        "priority",
        "queue_ids",
        "redelivered_messages",
        "unsent",
        "visibility_ms",
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
        owns_unsent: bool = True,
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
        self.owns_unsent = owns_unsent
        """False: it is its connection's, whose adapter closes it."""
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
        self._permits = demand if isinstance(demand, Permits) else None

    def __repr__(self) -> str:
        return f"<Consumer {self.name} {self.consumer_id}>"

    def takes_from(self, queue_id: QueueId) -> bool:
        """Whether it wants messages of this queue."""
        return not self.queue_ids or queue_id in self.queue_ids

    def room(self) -> int:
        """Messages it may be handed now; 0 for whichever reason (``blocked_by`` names them)."""
        return self.rooms()[0]

    def rooms(self) -> tuple[int, int]:
        """Messages and bytes it may be handed now, or none of both.

        One entry may cross the line of the bytes, none is ever split.
        """
        unsent, demand = self.unsent, self.demand
        if unsent.is_held:
            return 0, 0
        room, room_bytes = self.inflight.rooms()
        room = min(room, demand.available_messages())
        room_bytes = min(room_bytes, demand.available_bytes())
        if unsent.messages_max:
            room = min(room, unsent.messages_max - unsent.messages)
        if unsent.bytes_max:
            room_bytes = min(room_bytes, unsent.bytes_max - unsent.bytes)
        if unsent.pool is not None and unsent.pool.is_short:
            if unsent.messages:
                unsent.pool.wait(self)
                return 0, 0
            room = min(room, 1)
        return (room, room_bytes) if room > 0 and room_bytes > 0 else (0, 0)

    def shared_limits(self) -> list[tuple[object, int, int]]:
        """Limits it has together with others: messages and bytes that each allows them now."""
        found: list[tuple[object, int, int]] = []
        unsent = self.unsent
        if not self.owns_unsent:
            messages = unsent.messages_max - unsent.messages if unsent.messages_max else UNLIMITED
            size = unsent.bytes_max - unsent.bytes if unsent.bytes_max else UNLIMITED
            found.append((unsent, messages, size))
        channel = self.demand.channel if isinstance(self.demand, Window) else None
        if channel is not None and channel.count:
            found.append((channel, channel.available_messages(), UNLIMITED))
        return found

    def blocked_by(self) -> tuple[str, ...]:
        """The names of everything that keeps it from taking more."""
        reasons = []
        if self.demand.available_messages() <= 0 or self.demand.available_bytes() <= 0:
            reasons.append("demand")
        if self.inflight.is_blocked:
            reasons.append("unsettled")
        pool = self.unsent.pool
        if self.unsent.is_held or (pool is not None and pool.is_short and self.unsent.messages):
            reasons.append("unsent")
        return tuple(reasons)

    def taken(self, messages: int, size: int) -> None:
        """It is about to be handed this much."""
        self.delivered_messages += messages
        self.demand.taken(messages, size)
        self.unsent.queued(messages, size)
        if self.is_auto_settled:
            self.demand.returned(messages, size)
        elif self.inflight.add(messages, size) and self._permits is not None:
            self._permits.block()

    def returned(self, messages: int, size: int) -> None:
        """This much of what it had is settled or goes back."""
        if self.inflight.remove(messages, size) and self._permits is not None:
            self._permits.unblock()
        self.demand.returned(messages, size)

    def wake(self) -> None:
        """Demand grew or the socket took something: dispatch may go on."""
        if self.is_attached:
            self._host.wake(self._subscription)

    def sent(self, messages: int, size: int) -> None:
        """The socket took these deliveries (F14)."""
        if self.unsent.sent(messages, size):
            self.wake()
