"""An outlet that remembers everything the engine said to a peer.

It satisfies ``engine.ports.Outlet``: give it to ``Engine.connect`` and read ``events``, or the
views by kind. It never calls back into the engine while the engine is calling it; what a peer would
do afterwards, such as acknowledging, a test says aloud: ``settle_all``, ``requeue_all``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from penstock.engine.connection import Channel, Connection
    from penstock.engine.ports import Confirmation
    from penstock.engine.pull import Pull, PullResult
    from penstock.engine.subscription.consumer import Consumer, Delivery
    from penstock.engine.subscription.subscription import Subscription
    from penstock.flow.reason import Reason
    from penstock.model.ids import QueueId
    from penstock.model.refusal import Refusal


@dataclass(slots=True)
class Confirmed:
    """``Outlet.confirmed`` was called."""

    channel: Channel
    confirmations: list[Confirmation]


@dataclass(slots=True)
class Refused:
    """``Outlet.refused`` was called."""

    channel: Channel
    refusals: list[tuple[int, Refusal]]


@dataclass(slots=True)
class Delivered:
    """``Outlet.deliver`` was called."""

    consumer: Consumer
    deliveries: list[Delivery]


@dataclass(slots=True)
class Cancelled:
    """``Outlet.cancelled`` was called."""

    consumer: Consumer
    cause: str


@dataclass(slots=True)
class ActiveChanged:
    """``Outlet.active_changed`` was called."""

    consumer: Consumer
    is_active: bool


@dataclass(slots=True)
class GateChanged:
    """``Outlet.gate_changed`` was called."""

    is_open: bool
    reasons: dict[Reason, str] = field(default_factory=dict)


@dataclass(slots=True)
class Answered:
    """``Outlet.answered`` was called."""

    pull: Pull
    result: PullResult


Event: TypeAlias = (
    Confirmed | Refused | Delivered | Cancelled | ActiveChanged | GateChanged | Answered
)


class RecordingOutlet:
    """One peer's ears and memory."""

    connection: Connection
    """Its connection and channel, when ``Core.connect`` made them."""
    channel: Channel

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._unsettled: list[tuple[Consumer, Delivery]] = []

    # What the engine calls.

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        self.events.append(Confirmed(channel, list(confirmations)))

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        self.events.append(Refused(channel, list(refusals)))

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Remember deliveries; they stay unsettled until the test says otherwise."""
        self.events.append(Delivered(consumer, list(deliveries)))
        if not consumer.is_auto_settled:
            self._unsettled += [(consumer, delivery) for delivery in deliveries]

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """Remember the end of a consumer; what it held is no longer its to settle."""
        self.events.append(Cancelled(consumer, cause))
        self._unsettled = [item for item in self._unsettled if item[0] is not consumer]

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        self.events.append(ActiveChanged(consumer, is_active))

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """Remember the gate's reasons."""
        self.events.append(GateChanged(is_open, dict(reasons)))

    def answered(self, pull: Pull, result: PullResult) -> None:
        """Remember the answer to a held pull."""
        self.events.append(Answered(pull, result))

    # What a test reads.

    @property
    def confirmed_tokens(self) -> list[int]:
        """Tokens confirmed so far, in order."""
        return [
            confirmation.token
            for event in self.events
            if isinstance(event, Confirmed)
            for confirmation in event.confirmations
        ]

    @property
    def refusals(self) -> list[tuple[int, Refusal]]:
        """(token, why) refused so far, in order."""
        return [
            refusal
            for event in self.events
            if isinstance(event, Refused)
            for refusal in event.refusals
        ]

    @property
    def refused_tokens(self) -> list[int]:
        """Tokens refused so far, in order."""
        return [token for token, _ in self.refusals]

    @property
    def deliveries(self) -> list[Delivery]:
        """Everything delivered so far, in order, to whichever consumer."""
        return [
            delivery
            for event in self.events
            if isinstance(event, Delivered)
            for delivery in event.deliveries
        ]

    @property
    def bodies(self) -> list[bytes]:
        """Bodies of everything delivered so far."""
        return [delivery.record.body for delivery in self.deliveries]

    @property
    def gates(self) -> list[GateChanged]:
        """Every change of the gate so far."""
        return [event for event in self.events if isinstance(event, GateChanged)]

    @property
    def answers(self) -> list[PullResult]:
        """Answers to held pulls so far."""
        return [event.result for event in self.events if isinstance(event, Answered)]

    @property
    def unsettled(self) -> list[Delivery]:
        """Delivered and neither settled, requeued nor rejected by this peer."""
        return [delivery for _, delivery in self._unsettled]

    def clear(self) -> None:
        """Forget the events; deliveries still have to be settled."""
        self.events.clear()

    # What a test makes the peer do.

    def settle_all(self, subscription: Subscription, consumer: Consumer | None = None) -> int:
        """Acknowledge what is unsettled (of one consumer, or of all); says how many deliveries."""
        groups = self._take_unsettled(consumer)
        for queue_id, offsets in groups.items():
            subscription.settle(queue_id, offsets)
        return sum(len(offsets) for offsets in groups.values())

    def requeue_all(
        self,
        subscription: Subscription,
        consumer: Consumer | None = None,
        *,
        delay_ms: int = 0,
        count: bool = True,
    ) -> int:
        """Give what is unsettled back; says how many deliveries."""
        groups = self._take_unsettled(consumer)
        for queue_id, offsets in groups.items():
            subscription.requeue(queue_id, offsets, delay_ms=delay_ms, count=count)
        return sum(len(offsets) for offsets in groups.values())

    def reject_all(self, subscription: Subscription, consumer: Consumer | None = None) -> int:
        """Refuse what is unsettled for good; says how many deliveries."""
        groups = self._take_unsettled(consumer)
        for queue_id, offsets in groups.items():
            subscription.reject(queue_id, offsets)
        return sum(len(offsets) for offsets in groups.values())

    def _take_unsettled(self, consumer: Consumer | None) -> dict[QueueId, list[int]]:
        """Offsets by queue; a batch record covers as many offsets as it has messages."""
        groups: dict[QueueId, list[int]] = {}
        kept: list[tuple[Consumer, Delivery]] = []
        for taker, delivery in self._unsettled:
            if consumer is not None and taker is not consumer:
                kept.append((taker, delivery))
                continue
            end = delivery.offset + delivery.record.messages
            groups.setdefault(delivery.queue_id, []).extend(range(delivery.offset, end))
        self._unsettled = kept
        return groups
