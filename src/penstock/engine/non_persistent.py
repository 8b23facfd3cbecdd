"""Topics without a log, Pulsar's non-persistent ones: a message is handed out at once, or dropped.

They are no ``topic.Topic``: no queue over the log, no cursor, no settlement, no catalog row. What
they share with the others is who gets a message and how much: the dispatchers of the subscription
types, ``Consumer`` with its demand (permits) and the limit of what its socket has not taken (F14).

A publish takes the common way in as far as its channel's turn (``publish.py``): charged to its
connection, held by an alarm, a part of the turn. Then, in the same turn:

    every subscription   its dispatcher names who has demand now; the rest is dropped and counted
    the publisher        is confirmed, with offset and position -1: nothing of it is kept
    the outlets          get one list per consumer, before the turn ends

Invariants: nothing waits here, so nothing is queued beyond permits and unsent limits, and a grant
of permits wakes nobody. Nothing is in flight: an ack means nothing, nothing comes back, a key goes
to another consumer at once when its owner leaves. A slow consumer loses messages and holds nobody.

Who stops: nobody. Who sees them: whoever asks by a name of their domain; ``Engine.topics`` does not
list them, so the other protocols and Spark never do. A topic goes when nobody consumed from it and
nobody published to it for a while; a route looks it up by name and outlives it.

Not here: partitions' metadata and names, which are Pulsar's adapter's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Unpack

import msgspec
from msgspec.structs import replace

from penstock.engine.host import Host, HostedSubscription, Mode
from penstock.engine.ports import Publication
from penstock.engine.subscription.consumer import (
    Consumer,
    ConsumerKeywords,
    ConsumerOutlet,
    ConsumerRefusal,
    Delivery,
    RefusalReason,
)
from penstock.engine.subscription.dispatch import DispatchBudget, Outbox, deal
from penstock.engine.subscription.dispatchers import (
    Dispatcher,
    KeyShared,
    make_dispatcher,
    other_mode,
)
from penstock.engine.subscription.subscription import (
    A_CONSUMER,
    ConsumerStatistics,
    consumer_statistics,
    consumer_view,
)
from penstock.flow.budgets import UnsentLimit
from penstock.flow.crowd import Crowd
from penstock.flow.demand import Demand, Withheld
from penstock.flow.views import ConsumerView, StageView
from penstock.model.clock import Clock
from penstock.model.errors import AlreadyExists, NotFound
from penstock.model.ids import ConsumerId, QueueId, SubscriptionId
from penstock.model.names import NON_PERSISTENT, TopicName
from penstock.model.record import Record
from penstock.model.settlement import Settlement
from penstock.model.steps import A_QUEUE, Steps
from penstock.settings.flow import FlowSettings

UNUSED_MS: Final = 60_000
"""A topic that nobody used for so long goes; looked at as often. Pulsar's figure."""

NO_OFFSET: Final = -1
"""Of every delivery: it has no place in any queue."""


class NonPersistentTopics:
    """All of them, by name: made, found, deleted, and what they hand out in a turn."""

    def __init__(self, host: Host, new_id: Callable[[str], int]) -> None:
        self._host = host
        self._new_id = new_id
        self._topics: dict[TopicName, NonPersistentTopic] = {}
        self._queues = 0
        self._sweep_ms = 0
        self.outbox: Outbox = {}
        """Handed out in this turn, within what consumers may have; told by ``deliver``."""
        self.published_messages = 0
        """Since the start, in all of them, those that are gone included."""
        self.dropped_messages = 0
        """The same: once for each subscription of which nobody took it, or where there is none."""

    def __iter__(self) -> Iterator[NonPersistentTopic]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: TopicName) -> NonPersistentTopic | None:
        return self._topics.get(name)

    def create(self, name: TopicName, *, queues: int = 1) -> NonPersistentTopic:
        """A new one, gone with the process; raises ``AlreadyExists``."""
        if name.domain != NON_PERSISTENT:
            raise AlreadyExists(f"'{name}' is the name of a topic with a log; name its domain")
        if name in self._topics:
            raise AlreadyExists(f"topic '{name}' exists; delete it first, or use another name")
        limit = self._host.topics.queues_max
        if self._queues + queues > limit:
            raise AlreadyExists(
                f"there are {self._queues} queues without a log and {limit} are allowed "
                "(topics.queues_max); delete some first"
            )
        now_ms = self._host.clock.monotonic_ms()
        if not self._topics:
            self._sweep_ms = now_ms + UNUSED_MS
        ids = [QueueId(self._new_id("queue")) for _ in range(queues)]
        topic = self._topics[name] = NonPersistentTopic(name, ids, self._host, self._new_id)
        topic.last_used_ms = now_ms
        self._queues += queues
        return topic

    def delete(self, name: TopicName, cause: str = "deleted") -> None:
        """It goes with its subscriptions, whose consumers are told; raises ``NotFound``."""
        topic = self._topics.get(name)
        if topic is None:
            raise NotFound(f"there is no topic '{name}'; create it first")
        del self._topics[name]
        self._queues -= len(topic.queue_ids)
        for subscription in list(topic.subscriptions):
            topic.unsubscribe(subscription, cause)

    def route(self, name: TopicName, number: int = 0) -> NonPersistentRoute:
        """The way to one queue of a topic, also of one that is made anew later."""
        return NonPersistentRoute(self, name, number)

    # The turn.

    def hand_out(
        self, name: TopicName, number: int, publications: Sequence[Publication], wall_ms: int
    ) -> bool:
        """Give messages to who has demand now; False when there is no such topic or queue."""
        topic = self._topics.get(name)
        if topic is None or number >= len(topic.queue_ids):
            return False
        topic.last_used_ms = self._host.clock.monotonic_ms()
        records = [publication.record for publication in publications]
        messages = 0
        for record in records:
            record.store_ms = wall_ms
            messages += record.messages
        self.published_messages += messages
        self.dropped_messages += topic.hand_out(number, records, messages, self.outbox)
        return True

    def deliver(self) -> None:
        """Tell the outlets, once per consumer; one of them may end another's consumer."""
        outbox, self.outbox = self.outbox, {}
        for consumer, deliveries in outbox.items():
            if consumer.is_attached:
                consumer.outlet.deliver(consumer, deliveries)

    def next_deadline_ms(self) -> int | None:
        return self._sweep_ms if self._topics else None

    def due(self, now_ms: int) -> None:
        """Topics that nobody used for a while go."""
        if not self._topics or now_ms < self._sweep_ms:
            return
        self._sweep_ms = now_ms + UNUSED_MS
        for topic in list(self._topics.values()):
            if topic.is_consumed:
                topic.last_used_ms = now_ms
            elif now_ms - topic.last_used_ms >= UNUSED_MS:
                self.delete(topic.name, "unused")


class NonPersistentRoute:
    """A ``ports.Route`` to one queue of a topic without a log.

    It names the topic, not the object: topics come and go while a producer lives.
    """

    __slots__ = ("_name", "_number", "_topics")

    is_constant = True

    def __init__(self, topics: NonPersistentTopics, name: TopicName, number: int) -> None:
        self._topics = topics
        self._name = name
        self._number = number

    @property
    def name(self) -> TopicName:
        return self._name

    @property
    def steps(self) -> int:
        """Every subscription gets its own deliveries."""
        topic = self._topics.get(self._name)
        return 1 if topic is None else max(1, len(topic.subscriptions))

    def targets(self, _record: Record, /) -> tuple[()]:
        """No queue over the log."""
        return ()

    def hand_out(self, publications: Sequence[Publication], wall_ms: int) -> bool:
        return self._topics.hand_out(self._name, self._number, publications, wall_ms)


class NonPersistentTopic:
    """A name, queues that hold nothing, and subscriptions."""

    __slots__ = (
        "_host",
        "_new_id",
        "dropped_messages",
        "last_used_ms",
        "name",
        "published_bytes",
        "published_messages",
        "queue_ids",
        "subscriptions",
    )

    def __init__(
        self, name: TopicName, queue_ids: list[QueueId], host: Host, new_id: Callable[[str], int]
    ) -> None:
        self.name = name
        self.queue_ids = tuple(queue_ids)
        """Its partitions, each with its own consumers; one where there are none."""
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.last_used_ms = 0
        self.published_messages = 0
        self.published_bytes = 0
        self.dropped_messages = 0
        """Once for each subscription of which nobody took it, or where there is none."""
        self._host = host
        self._new_id = new_id

    def __repr__(self) -> str:
        return f"<NonPersistentTopic {self.name} queues={len(self.queue_ids)}>"

    @property
    def is_consumed(self) -> bool:
        return any(each.consumers for each in self.subscriptions.values())

    def subscribe(self, name: str, mode: Mode = Mode.SHARED) -> NonPersistentSubscription:
        """The subscription of that name; made, with this type to begin with, if it is not there."""
        found = self.subscriptions.get(name)
        if found is not None:
            return found
        limit = self._host.topics.subscriptions_per_topic_max
        if len(self.subscriptions) >= limit:
            raise AlreadyExists(
                f"topic '{self.name}' has {limit} subscriptions "
                "(topics.subscriptions_per_topic_max); delete one first"
            )
        subscription_id = SubscriptionId(self._new_id("subscription"))
        found = NonPersistentSubscription(subscription_id, name, self, mode, self._host)
        self.subscriptions[name] = found
        return found

    def unsubscribe(self, name: str, cause: str = "unsubscribed") -> None:
        """A subscription goes, its consumers are told; raises ``NotFound``."""
        subscription = self.subscriptions.pop(name, None)
        if subscription is None:
            raise NotFound(f"topic '{self.name}' has no subscription '{name}'")
        subscription.close(cause)

    def hand_out(self, number: int, records: list[Record], messages: int, outbox: Outbox) -> int:
        """To every subscription; returns how many messages were dropped."""
        self.published_messages += messages
        self.published_bytes += sum([len(record.origin) for record in records])
        dropped = 0 if self.subscriptions else messages
        for subscription in self.subscriptions.values():
            dropped += subscription.hand_out(number, records, outbox)
        self.dropped_messages += dropped
        return dropped

    def touch(self) -> None:
        self.last_used_ms = self._host.clock.monotonic_ms()

    def statistics(self) -> NonPersistentStatistics:
        return NonPersistentStatistics(
            name=str(self.name),
            queues=len(self.queue_ids),
            published=self.published_messages,
            published_bytes=self.published_bytes,
            dropped=self.dropped_messages,
            subscriptions=tuple(each.statistics() for each in self.subscriptions.values()),
        )


class NonPersistentSubscription:
    """A named set of consumers; a message goes to who of them has demand when it comes.

    ``attach``, ``detach`` and the types are those of ``Subscription``. It has no place: nothing to
    settle, to seek or to give back.
    """

    __slots__ = (
        "_host",
        "_lanes",
        "_last_id",
        "_quiet",
        "_topic",
        "consumers",
        "dropped_messages",
        "name",
        "subscription_id",
    )

    def __init__(
        self,
        subscription_id: SubscriptionId,
        name: str,
        topic: NonPersistentTopic,
        mode: Mode,
        host: Host,
    ) -> None:
        self.subscription_id = subscription_id
        self.name = name
        self.consumers: dict[ConsumerId, Consumer] = {}
        """To be looked at only."""
        self.dropped_messages = 0
        self._topic = topic
        self._host = host
        self._quiet = _QuietHost(host.clock, host.flow)
        self._last_id = 0
        self._lanes = [
            _Lane(queue_id, topic.name, number, mode, host.clock)
            for number, queue_id in enumerate(topic.queue_ids)
        ]

    def __repr__(self) -> str:
        return f"<NonPersistentSubscription {self.name} {self.subscription_id}>"

    # Consumers

    def attach(
        self,
        outlet: ConsumerOutlet,
        demand: Demand,
        *,
        unsent: UnsentLimit | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> Consumer | ConsumerRefusal:
        """A new consumer, of all queues or of some, or why not.

        Handing over settles, so what it says of unacked messages does not matter. In a failover the
        chosen one is active at once: there are no duplicates to wait for.
        """
        count_max = self._host.topics.consumers_per_subscription_max
        if len(self.consumers) >= count_max:
            return ConsumerRefusal(
                RefusalReason.TOO_MANY,
                f"the subscription has {count_max} consumers "
                "(topics.consumers_per_subscription_max); no more can join",
            )
        failover = keywords.get("failover")
        if failover is not None:
            keywords["failover"] = replace(failover, takeover_ms=0)
        keywords["is_auto_settled"] = True
        keywords["is_passive"] = False
        keywords["visibility_ms"] = keywords["unacked_max"] = keywords["unacked_bytes_max"] = 0
        flow = self._host.flow
        consumer = Consumer(
            ConsumerId(self._last_id + 1),
            outlet,
            demand,
            subscription=self,
            host=self._quiet,
            unsent=unsent
            or UnsentLimit(flow.unsent_messages_max, flow.unsent_bytes_max, self._host.unsent_pool),
            owns_unsent=unsent is None,
            **keywords,
        )
        joined = [lane for lane in self._lanes if consumer.takes_from(lane.queue_id)]
        for lane in joined:
            refusal = lane.refusal(consumer)
            if refusal is not None:
                return refusal
        self._last_id += 1
        self.consumers[consumer.consumer_id] = consumer
        for lane in joined:
            lane.join(consumer)
        self._topic.touch()
        return consumer

    def detach(self, consumer: Consumer) -> None:
        """It is gone; the subscription stays, without it."""
        if self.consumers.pop(consumer.consumer_id, None) is None:
            return
        consumer.is_attached = False
        for lane in self._lanes:
            lane.leave(consumer)
        self._host.unsent_pool.forget(consumer)
        if consumer.owns_unsent:
            consumer.unsent.close()
        self._topic.touch()

    def close(self, cause: str) -> None:
        """The subscription ends; every consumer is told."""
        for consumer in list(self.consumers.values()):
            self.detach(consumer)
            consumer.outlet.cancelled(consumer, cause)

    # Messages

    def hand_out(self, number: int, records: list[Record], outbox: Outbox) -> int:
        """Give these messages of a queue to who has demand; returns how many were dropped."""
        lane = self._lanes[number]
        deliveries = [
            Delivery(record, lane.queue_id, NO_OFFSET, len(record.origin), messages=record.messages)
            for record in records
        ]
        keys = lane.dispatcher
        if isinstance(keys, KeyShared):
            left = self._hand_out_by_key(lane, keys, deliveries, outbox)
        else:
            left = _hand_out_in_turn(lane.dispatcher, deliveries, outbox)
        dropped = sum([delivery.messages for delivery in left])
        self.dropped_messages += dropped
        return dropped

    def _hand_out_by_key(
        self, lane: _Lane, keys: KeyShared, deliveries: list[Delivery], outbox: Outbox
    ) -> list[Delivery]:
        """One by one: the owner of the key takes it, or nobody does; what is left over."""
        left: list[Delivery] = []
        for delivery in deliveries:
            # Without a key any owner will do: as if it had an offset.
            lane.sequence += 1
            slot = keys.slot(self._host.ordering_key(delivery.record), lane.sequence)
            owner = keys.owners.owner(slot)
            if owner is None or not owner.available_messages():
                left.append(delivery)
            else:
                delivery.slot = slot
                _hand_over(owner, [delivery], outbox)
        return left

    # What operators see

    def statistics(self) -> NonPersistentSubscriptionStatistics:
        return NonPersistentSubscriptionStatistics(
            name=self.name,
            dropped=self.dropped_messages,
            each_consumer=tuple(
                consumer_statistics(each, self._withheld(each)) for each in self.consumers.values()
            ),
        )

    def view_steps(self) -> Steps[StageView]:
        """Itself as a stage of the delivery side: it never has anything ready."""
        consumers, crowd = list(self.consumers.values()), Crowd()
        for each in consumers:
            crowd.add(self._consumer_view(each))
            yield A_CONSUMER + A_QUEUE * len(self._lanes)
        shown = crowd.shown(
            lambda names: (self._consumer_view(each) for each in consumers if each.label in names)
        )
        return StageView(
            kind="subscription",
            name=f"{self._topic.name}/{self.name}",
            consumers=shown,
            consumers_left_out=len(consumers) - len(shown),
        )

    def _consumer_view(self, consumer: Consumer) -> ConsumerView:
        return consumer_view(consumer, self._withheld(consumer), self._awaited_by(consumer))

    def _awaited_by(self, consumer: Consumer) -> str:
        """Who is active in its place; empty = nobody."""
        lanes = [lane for lane in self._lanes if consumer.takes_from(lane.queue_id)]
        awaited = [ConsumerId(lane.dispatcher.awaited_by(consumer)) for lane in lanes]
        # It may be gone by now.
        found = [self.consumers[each].label for each in awaited if each in self.consumers]
        return next(iter(found), "")

    def _withheld(self, consumer: Consumer) -> tuple[Withheld, ...]:
        own = consumer.blocked_by()
        lanes = [lane for lane in self._lanes if consumer.takes_from(lane.queue_id)]
        is_inactive = all(
            lane.dispatcher.withheld_from(consumer) is Withheld.INACTIVE for lane in lanes
        )
        return (*own, Withheld.INACTIVE) if is_inactive else own

    # ``HostedSubscription``: never asked, for it wakes nobody (``_QuietHost``).

    @property
    def queue_ids(self) -> list[QueueId]:
        return [lane.queue_id for lane in self._lanes]

    def dispatch(self, messages_max: int) -> int:
        return 0

    def take_settlements(self) -> list[Settlement]:
        return []


class _Lane:
    """One queue of a subscription: who reads it, and how; its type follows them."""

    __slots__ = ("_clock", "_name", "_number", "dispatcher", "mode", "queue_id", "sequence")

    def __init__(
        self, queue_id: QueueId, topic: TopicName, number: int, mode: Mode, clock: Clock
    ) -> None:
        self.queue_id = queue_id
        self.mode = mode
        self.dispatcher = make_dispatcher(mode, clock, number)
        self.sequence = 0
        self._name = f"{topic}/{number}" if number else str(topic)
        self._number = number
        self._clock = clock

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        mode = consumer.mode
        if mode is None or mode is self.mode:
            return self.dispatcher.refusal(consumer)
        if not self.dispatcher.consumers:
            return make_dispatcher(mode, self._clock).refusal(consumer)
        return other_mode(self.mode, self._name, consumer)

    def join(self, consumer: Consumer) -> None:
        if not self.dispatcher.consumers:
            self.mode = consumer.mode or self.mode
            rule = consumer.failover
            self.dispatcher = make_dispatcher(self.mode, self._clock, self._number, rule)
        self.dispatcher.join(consumer)

    def leave(self, consumer: Consumer) -> None:
        if consumer in self.dispatcher.consumers:
            self.dispatcher.leave(consumer)


def _hand_out_in_turn(
    dispatcher: Dispatcher, deliveries: list[Delivery], outbox: Outbox
) -> list[Delivery]:
    """As the type says, while somebody may have more; what is left over."""
    left = deliveries
    while left:
        receivers = dispatcher.receivers(len(left))
        if not receivers:
            break
        is_plain = all(delivery.messages == 1 for delivery in left)
        shares, left = deal(DispatchBudget(receivers), left, is_plain=is_plain)
        for consumer, share in shares:
            _hand_over(consumer, share, outbox)
        if not shares:
            break
        dispatcher.served(shares[-1][0])
    return left


def _hand_over(consumer: Consumer, deliveries: list[Delivery], outbox: Outbox) -> None:
    messages = sum([delivery.messages for delivery in deliveries])
    consumer.taken(messages, sum([delivery.size for delivery in deliveries]))
    waiting = outbox.get(consumer)
    if waiting is None:
        outbox[consumer] = deliveries
    else:
        waiting.extend(deliveries)


class _QuietHost:
    """A ``ConsumerHost`` that nobody can wake: whatever became free, nothing waits for it."""

    __slots__ = ("clock", "flow")

    def __init__(self, clock: Clock, flow: FlowSettings) -> None:
        self.clock = clock
        self.flow = flow

    def wake(self, subscription: HostedSubscription) -> None: ...


class NonPersistentSubscriptionStatistics(msgspec.Struct, frozen=True):
    """One subscription of a topic without a log, at one moment."""

    name: str
    dropped: int
    """Messages of which none of its consumers had demand."""
    each_consumer: tuple[ConsumerStatistics, ...]


class NonPersistentStatistics(msgspec.Struct, frozen=True):
    """One topic without a log, at one moment."""

    name: str
    queues: int
    published: int
    published_bytes: int
    dropped: int
    """Once for each subscription of which nobody took it, or where there is none."""
    subscriptions: tuple[NonPersistentSubscriptionStatistics, ...]
