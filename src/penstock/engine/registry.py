"""The registry: every topic, queue and subscription by name and by id, and their catalog rows (D6).

Durable objects are rows in the catalog, written with the next commit; the others get transient ids
and never leave memory. Ids and incarnations are never used twice (D17).

Invariants: a queue is in exactly one topic; what is deleted is marked so first, because channels,
routes and batches may still hold it.
Not here: what deletion means for batches on their way (``broker.py``), restoring (``restart.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace

from penstock.engine.flow_context import FlowContext
from penstock.engine.host import Host, HostedSubscription, Mode, SubscriptionOptions
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import (
    PolicyOverlay,
    Queue,
    Topic,
    TopicLimits,
    TopicPolicy,
    needs_limits,
)
from penstock.flow.credit import Credit
from penstock.flow.reserve import Reserve
from penstock.log.store import Store
from penstock.model.errors import AlreadyExists, InvariantBroken, NotFound
from penstock.model.ids import QueueId, SubscriptionId, TopicId, is_transient_id
from penstock.model.names import PERSISTENT, TopicName

if TYPE_CHECKING:
    from penstock.engine.commit import Commits

TOPIC_KIND = "topic"
SUBSCRIPTION_KIND = "subscription"
SYSTEM_KINDS = (TOPIC_KIND, SUBSCRIPTION_KIND)
STALE_MAX = 1_000
"""Outdated times of topics that may expire; then they are cleared away."""


class TopicRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic in the catalog; its key is the id."""

    topic_id: int
    space: str
    name: str
    queues: list[int]
    policy: TopicPolicy
    is_terminated: bool = False
    protocol: str = ""


class SubscriptionRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription in the catalog; its key is the id. Filters come back with their adapters."""

    subscription_id: int
    topic_id: int
    name: str
    mode: Mode
    """What its consumers brought last: to be shown, and where the next ones begin."""
    holds_data: bool = True
    sees_unsynced: bool = False
    delivery_limit: int = 0
    is_priority: bool = False
    queues: list[int] | None = None
    """Ids of the queues it reads; None = all of the topic, those to come included."""
    whole_batches: bool = False


class Registry:
    """Everything that has a name."""

    def __init__(self, store: Store, chain: FlowContext) -> None:
        self._store = store
        self._chain = chain
        self._definitions = store.definitions
        self.topics: dict[TopicName, Topic] = {}
        self.queues: dict[QueueId, Queue] = {}
        self.subscriptions: dict[SubscriptionId, Subscription] = {}
        self._reserve = Reserve(chain.topics.reserve_percent)
        self.unused = UnusedTopics()
        """Topics that go when nobody uses them."""
        self.evicting: dict[TopicName, Topic] = {}
        """Topics in which old messages make room for new ones."""

    # Topics.

    def create_topic(
        self,
        name: TopicName,
        *,
        queues: int,
        policy: TopicPolicy,
        is_durable: bool,
        maker: str = "",
        protocol: str = "",
    ) -> Topic:
        """A new topic; a topic with priorities has a queue for each of them (D10)."""
        if name.domain != PERSISTENT:
            raise InvariantBroken(f"'{name}' has no log; see NonPersistentTopics")
        if name in self.topics:
            raise AlreadyExists(f"topic '{name}' exists; delete it first, or use another name")
        if policy.max_priority:
            queues = policy.max_priority + 1
        self._check_room(queues, maker)
        self._reserve.made(maker, queues)
        new_id = self._definitions.new_id if is_durable else self._definitions.new_transient_id
        topic = Topic(TopicId(new_id("topic")), name, policy, is_durable=is_durable)
        topic.protocol = protocol
        topic.touch(self._chain.now_ms)
        for _ in range(queues):
            self._add_queue(topic)
        self.add_topic(topic)
        self.save_topic(topic)
        return topic

    def grow_topic(self, name: TopicName, queues: int) -> Topic:
        """More queues for a topic, up to that number in all; it never has fewer."""
        topic = self.topic(name)
        self._check_room(queues - len(topic.queues))
        # Who reads all of them reads the new ones, from their first message on.
        joining = [each for each in topic.subscriptions.values() if _reads_all(each, topic)]
        while len(topic.queues) < queues:
            queue = self._add_queue(topic)
            self.queues[queue.queue_id] = queue
            for subscription in joining:
                subscription.add_queue(queue)
        self.save_topic(topic)
        return topic

    def set_policy(self, name: TopicName, policy: TopicPolicy) -> Topic:
        """Other rules for a topic, from the next publish on; its priorities cannot change."""
        topic = self.topic(name)
        if policy.max_priority != topic.policy.max_priority:
            raise AlreadyExists(
                f"topic '{name}' has priorities up to {topic.policy.max_priority}; "
                "to change that, delete it and make it anew"
            )
        self.apply_policy(topic, policy)
        self.save_topic(topic)
        return topic

    def terminate(self, topic: Topic) -> None:
        """Nothing more is stored in it, from the next publish on, for good."""
        topic.is_terminated = True
        self._set_limits(topic)
        self.save_topic(topic)

    def apply_policy(self, topic: Topic, policy: TopicPolicy) -> None:
        """The same until the process ends."""
        topic.own_policy = policy
        topic.policy = policy if topic.overlay is None else topic.overlay(policy)
        self._set_limits(topic)

    def overlay_policy(self, topic: Topic, overlay: PolicyOverlay | None) -> None:
        """The same for what is laid over the owner's rules."""
        topic.overlay = overlay
        self.apply_policy(topic, topic.own_policy)

    def topic(self, name: TopicName) -> Topic:
        """The topic of that name; raises ``NotFound``."""
        topic = self.topics.get(name)
        if topic is None:
            raise NotFound(f"there is no topic '{name}'; create it first")
        return topic

    def add_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        for queue in topic.queues:
            self.queues[queue.queue_id] = queue
        self._set_limits(topic)

    def remove_topic(self, topic: Topic) -> None:
        """Forget a topic, its queues and what the catalog knows of them."""
        topic.is_deleted = True
        del self.topics[topic.name]
        self.unused.remove(topic)
        self.evicting.pop(topic.name, None)
        for subscription in list(topic.subscriptions.values()):
            self.remove_subscription(topic, subscription)
        for queue in topic.queues:
            queue.is_deleted = True
            del self.queues[queue.queue_id]
            queue.log_credit.close()
            queue.stage.close()
            self._store.drop_queue(queue.queue_id)
        self._definitions.delete(TOPIC_KIND, str(topic.topic_id))

    def save_topic(self, topic: Topic) -> None:
        """Put a topic's row into the next transaction, if it is durable."""
        if topic.is_durable:
            row = TopicRow(
                topic.topic_id,
                topic.name.space,
                topic.name.name,
                [queue.queue_id for queue in topic.queues],
                topic.own_policy,
                topic.is_terminated,
                topic.protocol,
            )
            self._definitions.put(TOPIC_KIND, str(topic.topic_id), msgspec.json.encode(row))
            self._chain.request_turn()

    def make_queue(self, topic: Topic, queue_id: int) -> Queue:
        """The queue over an index that the store has; it becomes the topic's next one."""
        index = self._store.queue(queue_id)
        number = len(topic.queues)
        name = f"{topic.name}" if number == 0 else f"{topic.name}/{number}"
        stage = self._chain.stage("queue", name, f"queue/{topic.name.id_part}/{number}")
        stage.wake = self._chain.request_turn
        flow = self._chain.flow
        credit = Credit(
            stage, self._chain.log, initial=flow.queue_log_credit, more=flow.queue_log_more
        )
        queue = Queue(topic, number, index, stage=stage, log_credit=credit)
        topic.queues = (*topic.queues, queue)
        return queue

    # Subscriptions.

    def create_subscription(
        self,
        topic: Topic,
        name: str,
        options: SubscriptionOptions,
        host: Host,
        *,
        queues: Sequence[Queue] = (),
    ) -> Subscription:
        """A new subscription of these queues, or of all the topic has and will have.

        A durable one is refused where the topic itself does not last (D6).
        Records of such a topic name queue ids that mean nothing after a restart, so it cannot be
        made durable under those who use it: its owner deletes it and makes it anew.
        """
        if name in topic.subscriptions:
            raise AlreadyExists(f"topic '{topic.name}' has a subscription '{name}' already")
        limit = self._chain.topics.subscriptions_per_topic_max
        if len(topic.subscriptions) >= limit:
            raise AlreadyExists(
                f"topic '{topic.name}' has {limit} subscriptions "
                "(topics.subscriptions_per_topic_max); delete one first"
            )
        if options.is_durable and not topic.is_durable:
            raise AlreadyExists(
                f"topic '{topic.name}' ends with the process and a durable subscription '{name}' "
                "does not; delete the topic and make it durable, or subscribe without durability"
            )
        is_priority = options.is_priority or topic.policy.max_priority > 0
        options = replace(options, is_priority=is_priority)
        is_durable = options.is_durable
        new_id = self._definitions.new_id if is_durable else self._definitions.new_transient_id
        subscription_id = SubscriptionId(new_id("subscription"))
        subscription = Subscription(subscription_id, name, queues or topic.queues, options, host)
        self.add_subscription(topic, subscription)
        self.save_subscription(subscription)
        return subscription

    def subscribe_queue(
        self, topic: Topic, name: str, queue: Queue, options: SubscriptionOptions, *, host: Host
    ) -> Subscription:
        """A subscription of one queue, or one queue more for one that is there.

        Of one that is there the options say only where it begins in that queue.
        """
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            return self.create_subscription(topic, name, options, host, queues=[queue])
        if not subscription.reads(queue.queue_id):
            subscription.subscribe(queue, options.start)
            self.save_subscription(subscription)
        return subscription

    def unsubscribed(self, subscription: Subscription, queue_id: QueueId) -> None:
        """A subscription reads a queue no more: its row and its cursor say so together."""
        subscription_id = subscription.subscription_id
        self.save_subscription(subscription)
        if not is_transient_id(subscription_id):
            self._store.drop_cursor(subscription_id, queue_id)
        self._chain.request_turn()

    def save_subscription(self, hosted: HostedSubscription) -> None:
        """Put a subscription's row into the next transaction, if it is durable."""
        subscription = cast("Subscription", hosted)
        options = subscription.options
        if options.is_durable:
            subscription_id = subscription.subscription_id
            topic = cast("Queue", subscription.lead_queue).topic
            row = SubscriptionRow(
                subscription_id,
                topic.topic_id,
                subscription.name,
                options.mode,
                options.holds_data,
                options.sees_unsynced,
                options.delivery_limit,
                options.is_priority,
                None if _reads_all(subscription, topic) else list(subscription.queue_ids),
                options.whole_batches,
            )
            body = msgspec.json.encode(row)
            self._definitions.put(SUBSCRIPTION_KIND, str(subscription_id), body)
            self._chain.request_turn()

    def subscription(self, subscription_id: int) -> Subscription | None:
        """The subscription with that id, if there is one."""
        return self.subscriptions.get(SubscriptionId(subscription_id))

    def add_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """Make a subscription findable."""
        topic.subscriptions[subscription.name] = subscription
        subscription.is_deleting = topic.is_deleting
        self._limit_unacked(topic, subscription)
        self.subscriptions[subscription.subscription_id] = subscription

    def remove_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """Forget a subscription and what the catalog knows of it."""
        subscription_id = subscription.subscription_id
        topic.subscriptions.pop(subscription.name, None)
        self.subscriptions.pop(subscription_id, None)
        if not is_transient_id(subscription_id):
            self._definitions.delete(SUBSCRIPTION_KIND, str(subscription_id))
            for queue in topic.queues:
                self._store.drop_cursor(subscription_id, queue.queue_id)
        self._chain.request_turn()

    def _add_queue(self, topic: Topic) -> Queue:
        is_durable = topic.is_durable
        new_id = self._definitions.new_id if is_durable else self._definitions.new_transient_id
        queue_id = new_id("queue")
        # Incarnations of queues that do not last come from the same counter: peers may see them.
        self._store.create_queue(queue_id, self._definitions.new_id("incarnation"))
        return self.make_queue(topic, queue_id)

    def _set_limits(self, topic: Topic) -> None:
        if topic.policy.expires_ms:
            self.unused.add(topic, self._chain.now_ms)
        else:
            self.unused.remove(topic)
        topic.limit_dispatch(self._chain.now_ms)
        for subscription in topic.subscriptions.values():
            self._limit_unacked(topic, subscription)
        is_limited = needs_limits(topic)
        topic.limits = TopicLimits(topic, self._chain.now_ms) if is_limited else None
        if topic.limits is not None and topic.limits.evicts:
            self.evicting[topic.name] = topic
        else:
            self.evicting.pop(topic.name, None)

    def _limit_unacked(self, topic: Topic, subscription: Subscription) -> None:
        """The owner's word, or what was there before he said one."""
        wanted = topic.policy.unacked_max
        if wanted < 0:
            own = subscription.options.unacked_max
            wanted = self._chain.flow.unacked_subscription_max if own is None else own
            if not subscription.is_owner_limited:
                return
        subscription.is_owner_limited = topic.policy.unacked_max >= 0
        if subscription.unacked_max != wanted:
            subscription.limit_unacked(wanted)

    def _check_room(self, queues: int, maker: str = "") -> None:
        limit = self._chain.topics.queues_max
        if len(self.queues) + queues > limit:
            raise AlreadyExists(
                f"there are {len(self.queues)} queues and {limit} are allowed "
                "(topics.queues_max); delete some first"
            )
        problem = self._reserve.refusal(maker, len(self.queues), limit, count=queues)
        if problem is not None:
            raise AlreadyExists(f"no more queues (topics.queues_max): {problem}")


def _reads_all(subscription: Subscription, topic: Topic) -> bool:
    return len(subscription.queue_ids) == len(topic.queues)


class UnusedTopics:
    """Topics that go when nobody uses them for a while (``TopicPolicy.expires_ms``).

    Use is: somebody consumes, or touched the topic (declared it, took by hand). Each topic stands
    once in a heap, at a time before which it cannot expire; when that comes it is looked at, and
    goes, or gets a later time. Who consumes is looked at whenever a subscription had its turn:
    whoever leaves makes one, so that is the moment of leaving.

    Invariant: no topic's entry is later than the end of its time. So thousands of them cost nothing
    while nothing happens to them.
    """

    def __init__(self) -> None:
        self.topics: dict[int, Topic] = {}
        """By id; to be looked at only."""
        self._armed: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """(monotonic time, topic id); what is not armed any more is passed over."""

    def add(self, topic: Topic, now_ms: int) -> None:
        """A topic that may expire, or whose time has changed."""
        self.topics[topic.topic_id] = topic
        self._arm(topic, now_ms)

    def remove(self, topic: Topic) -> None:
        """It is gone, or may not expire any more."""
        self.topics.pop(topic.topic_id, None)
        self._armed.pop(topic.topic_id, None)

    def look(self, topic: Topic, now_ms: int) -> None:
        """Somebody may have come or left."""
        if topic.topic_id in self.topics:
            is_used = _is_used(topic)
            if is_used or topic.was_used:
                topic.touch(now_ms)
            topic.was_used = is_used

    def due(self, now_ms: int) -> list[Topic]:
        over: list[Topic] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            at_ms, topic_id = heappop(heap)
            if self._armed.get(topic_id) != at_ms:
                continue
            topic = self.topics[topic_id]
            self.look(topic, now_ms)
            if _end_ms(topic, now_ms) <= now_ms:
                over.append(topic)
                self.remove(topic)
            else:
                self._arm(topic, now_ms)
        return over

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next of them is to be looked at."""
        return self._heap[0][0] if self._heap else None

    def _arm(self, topic: Topic, now_ms: int) -> None:
        at_ms = _end_ms(topic, now_ms)
        if self._armed.get(topic.topic_id) == at_ms:
            return
        self._armed[topic.topic_id] = at_ms
        heappush(self._heap, (at_ms, topic.topic_id))
        if len(self._heap) > 2 * len(self._armed) + STALE_MAX:
            self._heap[:] = [(when_ms, each) for each, when_ms in self._armed.items()]
            heapify(self._heap)


def _end_ms(topic: Topic, now_ms: int) -> int:
    since_ms = now_ms if topic.was_used else topic.last_used_ms
    return since_ms + topic.policy.expires_ms


def _is_used(topic: Topic) -> bool:
    """Whether somebody consumes; who takes by hand says so each time (``Topic.touch``)."""
    for subscription in topic.subscriptions.values():
        for consumer in subscription.consumer_set:
            if not consumer.is_passive:
                return True
    return False


class TopicDeletion:
    """Topics that are to be deleted and have dead letters to make first (law 5).

    Whoever deletes a queue in which thousands wait to be dead-lettered must not hold up everybody
    else; and the catalog must not lose a queue before the disk has those letters. So such a topic
    stays until all of them are written, some in every turn (``subscription/settle.py``), and
    durable; it only hands out nothing any more. After a crash in between it is there still, with
    what was not written.

    Who stops: the topic's subscriptions. What wakes it: the turns that its rejected messages ask
    for, then the sync. A topic goes once, and it does go: nothing is handed out, so nothing new can
    be rejected but what was in flight. Not here: what deletion means (``Engine._remove_topic``).
    """

    def __init__(
        self,
        commits: Commits,
        has_unsafe_dead_letters: Callable[[], bool],
        remove: Callable[[Topic, str], None],
    ) -> None:
        self._commits = commits
        self._has_unsafe_dead_letters = has_unsafe_dead_letters
        self._remove = remove
        # Bounded by the topics there are.
        self.causes: dict[Topic, str] = {}
        """Topics that are to go, and why; to be looked at only."""
        # Those whose dead letters are all written, until they are durable.
        self._written: set[Topic] = set()

    def retire(self, topic: Topic, cause: str) -> None:
        """The topic goes: now if no dead letter is left to write, else as soon as that is so."""
        if topic in self.causes:
            return
        if not has_reject_backlog(topic) and not self._has_unsafe_dead_letters():
            self._remove(topic, cause)
            return
        self.causes[topic] = cause
        topic.is_deleting = True
        for subscription in topic.subscriptions.values():
            subscription.is_deleting = True
        self.look()

    def expire(self, topic: Topic) -> None:
        """Nobody used the topic for as long as its policy allows."""
        self.retire(topic, "expired")

    def look(self) -> None:
        """Some dead letters may have been written."""
        for topic in list(self.causes):
            if topic.is_deleted:
                self.causes.pop(topic, None)
            elif topic not in self._written and not has_reject_backlog(topic):
                self._written.add(topic)
                self._commits.after_durable(partial(self._go, topic))

    def _go(self, topic: Topic) -> None:
        """All dead letters so far are durable."""
        self._written.discard(topic)
        if topic.is_deleted:
            self.causes.pop(topic, None)
        elif not has_reject_backlog(topic) and topic in self.causes:
            self._remove(topic, self.causes.pop(topic))


def has_reject_backlog(topic: Topic) -> bool:
    """True while rejected messages wait to be dead-lettered."""
    return any(each.has_reject_backlog for each in topic.subscriptions.values())
