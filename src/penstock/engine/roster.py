"""The consumers of a subscription: who comes, who goes, and what becomes of what they hold.

A consumer joins the dispatcher of every lane it takes from. One that cancels takes no more but may
still settle what it has; one that is detached loses it to the others.

Invariant: whoever has a message in flight is in the roster.
"""

from collections.abc import Iterator
from typing import Unpack

from penstock.engine.consumer import (
    Consumer,
    ConsumerKeywords,
    ConsumerOutlet,
    ConsumerRefusal,
    RefusalReason,
)
from penstock.engine.host import Awaiting, Host
from penstock.engine.lane import Lane
from penstock.engine.settle import Settler
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import Demand, InflightLimit
from penstock.model.ids import ConsumerId


class Roster:
    """All consumers of one subscription, by id."""

    __slots__ = ("_host", "_last_id", "_members", "_settler", "_subscription")

    def __init__(
        self,
        host: Host,
        subscription: Awaiting,
        settler: Settler,
        members: dict[int, Consumer],
    ) -> None:
        self._host = host
        self._subscription = subscription
        self._settler = settler
        self._members = members
        self._last_id = 0

    def __iter__(self) -> Iterator[Consumer]:
        return iter([member for member in self._members.values() if member.is_attached])

    def __len__(self) -> int:
        return len(self._members)

    def attach(
        self,
        lanes: list[Lane],
        outlet: ConsumerOutlet,
        demand: Demand,
        unsent: UnsentLimit | None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> Consumer | ConsumerRefusal:
        """A new consumer of these lanes, or why not."""
        flow = self._host.flow
        count_max = self._host.topics.consumers_per_subscription_max
        if len(self._members) >= count_max:
            return ConsumerRefusal(
                RefusalReason.TOO_MANY,
                f"the subscription has {count_max} consumers "
                "(topics.consumers_per_subscription_max); no more can join",
            )
        consumer = Consumer(
            ConsumerId(self._last_id + 1),
            outlet,
            demand,
            subscription=self._subscription,
            host=self._host,
            unsent=unsent
            or UnsentLimit(flow.unsent_messages_max, flow.unsent_bytes_max, self._host.unsent_pool),
            owns_unsent=unsent is None,
            inflight=InflightLimit(flow.unacked_consumer_max, flow.unacked_consumer_bytes_max),
            **keywords,
        )
        joined = [lane for lane in lanes if consumer.takes_from(lane.queue_id)]
        if not consumer.is_passive:
            for lane in joined:
                refusal = lane.dispatcher.refusal(consumer)
                if refusal is not None:
                    return refusal
        self._last_id += 1
        demand.wake = consumer.wake
        self._members[consumer.consumer_id] = consumer
        if not consumer.is_passive:
            for lane in joined:
                self.join(lane, consumer)
        return consumer

    def join(self, lane: Lane, consumer: Consumer) -> None:
        """It takes from this lane; whom it displaces loses what it has there, in order."""
        displaced = lane.dispatcher.join(consumer)
        if displaced is not None:
            self._take_back(lane, displaced, is_counted=False)

    def cancel(self, lanes: list[Lane], consumer: Consumer) -> None:
        """It takes no more; what it has stays its own."""
        if not consumer.is_attached:
            return
        consumer.is_attached = False
        consumer.demand.wake = None
        for lane in lanes:
            lane.leave(consumer)
        if not consumer.inflight.messages:
            self._gone(consumer)

    def detach(self, lanes: list[Lane], consumer: Consumer, *, is_counted: bool) -> None:
        """It is gone, and what it has goes back to its place."""
        self.cancel(lanes, consumer)
        for lane in lanes:
            if consumer.inflight.messages:
                self._take_back(lane, consumer, is_counted=is_counted)
        self._gone(consumer)

    def close(self, lanes: list[Lane], cause: str) -> None:
        """Everyone is told that the subscription is gone."""
        for lane in lanes:
            self._settler.throw_out(lane)
        for consumer in list(self._members.values()):
            if consumer.is_attached:
                self.cancel(lanes, consumer)
                consumer.outlet.cancelled(consumer, cause)
        for consumer in list(self._members.values()):
            self._gone(consumer)

    def _gone(self, consumer: Consumer) -> None:
        self._members.pop(consumer.consumer_id, None)
        self._host.unsent_pool.forget(consumer)
        if consumer.owns_unsent:
            consumer.unsent.close()

    def _take_back(self, lane: Lane, consumer: Consumer, *, is_counted: bool) -> None:
        consumer_id = consumer.consumer_id
        held = [at for at, each in lane.pending.entries.items() if each.consumer_id == consumer_id]
        self._settler.requeue(lane, held, is_counted=is_counted)
