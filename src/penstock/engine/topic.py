"""A topic: a name, a policy and one or more queues over the log; subscriptions read it.

Invariants: a topic has at least one queue and never loses one while it lives; queue number i of a
topic with ``max_priority`` holds priority i (D10); limits are of the topic as a whole, not of each
queue. Ids are given by the registry and never reused (D17).

Also here: what its limits say to a publish (``TopicLimits``, ``Hold``) and the plain routes to it.
Not here: who makes and stores topics (``registry.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

import msgspec

from penstock.engine.ports import DeadLetterRouter, Route
from penstock.engine.publish_batch import Inbox
from penstock.flow.credit import Credit, Stage
from penstock.flow.quota import BacklogQuota, QuotaDecision, QuotaPolicy
from penstock.flow.rate import DispatchLimit, DispatchRate, RateLimit
from penstock.flow.reason import Culprit, Reason
from penstock.log.index import QueueIndex
from penstock.model.ids import QueueId, TopicId
from penstock.model.names import TopicName
from penstock.model.record import Record, neutral_record
from penstock.model.refusal import Refusal, RefusalKind
from penstock.model.steps import A_QUEUE, A_RECORD, Steps

if TYPE_CHECKING:
    from penstock.engine.subscription.subscription import Subscription

AT_ONCE_MS: Final = -1
"""A time to live of nothing: to a consumer that waits for it, or dead (0 = no such rule)."""

NONE_MAX: Final = -1
"""A length limit of nothing: what no consumer waits for is too much (0 = no such rule)."""


DROPPED_MAX = 2000
"""Heads that are dropped for one subscription in one turn; not fewer than a turn can bring."""


class Overflow(Enum):
    """What happens to a publish that a length limit does not allow."""

    DROP_HEAD = "drop_head"
    """It is stored and the oldest ready messages go (dead-lettered if there is a target)."""
    REJECT = "reject"
    REJECT_DEAD_LETTER = "reject_dead_letter"
    """Refused, and a copy goes to the dead-letter target."""
    HOLD = "hold"
    """The publisher waits until there is room, at most ``hold_ms_max``."""


class TopicPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an owner may say about a topic; 0 = no limit, "" = none."""

    retention_ms: int = 0
    """Messages stay this long after they were stored, settled or not (D11)."""
    retention_bytes_max: int = 0
    """With ``retention_ms``: at most this much of what no subscription needs is kept."""
    message_ttl_ms: int = 0
    """A message expires this long after it was stored (a shorter time of its own wins);
    ``AT_ONCE_MS`` = when nobody takes it on arrival."""
    expires_ms: int = 0
    """The topic goes when nobody used it for this long."""
    length_max: int = 0
    """Ready messages, all queues together; ``NONE_MAX`` = not one."""
    bytes_max: int = 0
    """Body bytes of ready messages, all queues together; ``NONE_MAX`` = not one."""
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_space: str = ""
    dead_letter_topic: str = ""
    max_priority: int = 0
    """Highest priority; the topic has one queue more than this (D10)."""
    delivery_limit: int = 0
    """A message that came back more often than this is a dead letter: at most one delivery more
    than the limit, as RabbitMQ's quorum queues count. What came back uncounted does not count."""
    publish_messages_per_s: int = 0
    publish_bytes_per_s: int = 0
    dispatch_rate: DispatchRate = DispatchRate()
    """What its subscriptions together hand out (F8)."""
    quota_bytes_max: int = 0
    """Backlog of the slowest subscription that holds data (F8)."""
    quota_age_ms_max: int = 0
    quota_policy: QuotaPolicy = QuotaPolicy.HOLD
    """With ``evict`` the slowest subscription loses its oldest messages instead."""
    quota_age_policy: QuotaPolicy | None = None
    """When it is the age that is passed; None = as ``quota_policy``."""
    message_bytes_max: int = 0
    """Largest message; ``topics.message_bytes_max`` holds in any case."""
    is_delaying: bool = False
    """Every future ``deliver_ms`` delays for the whole topic, not only records that ask (D14)."""
    spark_backpressure: str = ""
    """D23: off, soft or hard; "" = as ``spark.backpressure`` says. So is -1 of the following."""
    spark_backlog_messages_max: int = -1
    spark_backlog_bytes_max: int = -1
    spark_backlog_age_ms_max: int = -1
    unacked_max: int = -1
    """What all consumers of one of its subscriptions may have in flight (F13); 0 = no limit, -1 =
    as their protocol or ``flow.unacked_subscription_max`` says."""

    @property
    def dead_letter(self) -> TopicName | None:
        if not self.dead_letter_topic:
            return None
        return TopicName(self.dead_letter_space, self.dead_letter_topic)


PolicyOverlay = Callable[[TopicPolicy], TopicPolicy]
"""Rules that somebody lays over those of a topic's owner: from his to those in effect."""


class Topic:
    """One topic as the engine runs it."""

    __slots__ = (
        "dead_letter_router",
        "dispatch_limit",
        "is_deleted",
        "is_deleting",
        "is_durable",
        "is_terminated",
        "last_used_ms",
        "limits",
        "name",
        "overlay",
        "own_policy",
        "policy",
        "protocol",
        "queues",
        "subscriptions",
        "topic_id",
        "was_used",
    )

    def __init__(
        self, topic_id: TopicId, name: TopicName, policy: TopicPolicy, *, is_durable: bool
    ) -> None:
        self.topic_id = topic_id
        self.name = name
        self.own_policy = policy
        """As its owner and its operators have it: what is stored."""
        self.overlay: PolicyOverlay | None = None
        self.policy = policy
        """In effect: its own, and what is laid over that (``Engine.overlay_policies``)."""
        self.is_durable = is_durable
        self.protocol = ""
        """Whose clients made it, if that matters to their adapter; stored."""
        self.queues: tuple[Queue, ...] = ()
        self.subscriptions: dict[str, Subscription] = {}
        self.limits: TopicLimits | None = None
        """None when the policy asks for nothing that a publish must be judged by: the fast way."""
        self.dispatch_limit: DispatchLimit | None = None
        """What is left of its dispatch rate; None = it has none."""
        self.dead_letter_router: DeadLetterRouter[Queue] | None = None
        """How its protocol routes dead letters; None = as the policy says."""
        self.last_used_ms = 0
        self.was_used = False
        """True when somebody consumed from it at the last look."""
        self.is_deleted = False
        self.is_deleting = False
        """True when it will be, as soon as its dead letters are durable (``TopicDeletion``)."""
        self.is_terminated = False
        """True for good once its owner ended it (``Engine.terminate_topic``): what it has can be
        read, nothing more is stored."""

    def __repr__(self) -> str:
        return f"<Topic {self.name} {self.topic_id} queues={len(self.queues)}>"

    def limit_dispatch(self, now_ms: int) -> None:
        """The policy may have another dispatch rate: who waits for the old one is woken."""
        rate = self.policy.dispatch_rate
        limit = self.dispatch_limit
        if (limit.rate if limit is not None else DispatchRate()) == rate:
            return
        if not rate.is_set:
            self.dispatch_limit = None
        elif limit is not None:
            limit.resize(rate, now_ms)
        else:
            self.dispatch_limit = DispatchLimit(rate, now_ms)
        for subscription in self.subscriptions.values():
            subscription.wake()

    def touch(self, now_ms: int) -> None:
        """Somebody used it (declared, read, consumed): ``expires_ms`` counts from now."""
        self.last_used_ms = now_ms


class Queue:
    """One ordered lane of a topic over the log, and the last stage before it.

    It owns the credit towards the log and the inbox of batches that channels routed to it. Offsets
    below ``durable_end`` survive a crash; ``durable_end <= index.next_offset``. Not here: who reads
    (``subscription/``), where entries are kept (``log/index.py``).
    """

    __slots__ = (
        "durable_end",
        "inbox",
        "index",
        "is_deleted",
        "kept_from",
        "log_credit",
        "number",
        "queue_id",
        "stage",
        "synced_end",
        "target",
        "topic",
    )

    def __init__(
        self,
        topic: Topic,
        number: int,
        index: QueueIndex,
        *,
        stage: Stage,
        log_credit: Credit,
    ) -> None:
        self.topic = topic
        self.number = number
        self.index = index
        self.target = (index,)
        """Itself as the targets of a record that goes nowhere else: one object for all of them."""
        self.queue_id = QueueId(index.queue_id)
        self.stage = stage
        self.log_credit = log_credit
        self.inbox: Inbox[Queue] = Inbox()
        self.durable_end: int = index.next_offset
        self.kept_from: int | None = None
        """Its records from here on stay, whoever has settled them; None = nobody asks for that. A
        restart forgets it: whoever sets it does so again."""
        self.synced_end: int = index.next_offset
        """Offsets below are durable; ahead of ``durable_end`` while entries of staged rows are
        made, for those of a commit are shown together (D19)."""
        self.is_deleted = False

    def __repr__(self) -> str:
        return f"<Queue {self.name} {self.queue_id}>"

    @property
    def name(self) -> str:
        """What people and other stages call it."""
        return self.stage.name

    @property
    def incarnation(self) -> int:
        """Unlike its number, never used again when a topic of that name is made anew (D4)."""
        return self.index.incarnation

    def visible_end(self, sees_unsynced: bool) -> int:
        """First offset a reader may not have yet: appended, or durable (D7)."""
        return self.index.next_offset if sees_unsynced else self.durable_end


_REJECTING = frozenset((Overflow.REJECT, Overflow.REJECT_DEAD_LETTER))


class SparkPressure(Protocol):
    """What a Spark query asks of each publish (F18)."""

    @property
    def query(self) -> str:
        """Which one it is; empty while none brakes."""
        ...

    def begin(self, arriving: int, arriving_bytes: int) -> None:
        """A turn begins; so much is routed to the topic and not appended yet."""
        ...

    def judge(self, messages: int, size_bytes: int, now_ms: int) -> Hold | None: ...

    def admit(self, messages: int, size_bytes: int, now_ms: int) -> None:
        """The publish is on its way in."""
        ...


class TopicLimits:
    """The limits of one topic as a publish meets them: size, length, backlog quota, rate (F8).

    Who spends: every message admitted. Who grants: consumers, by settling (length, quota), or time
    (rate). Who stops: publishers of this topic, or nobody where the oldest messages go instead.
    What wakes them: settling and time both make a turn, and every turn looks again.

    Figures are taken once per turn and kept up to date by what is admitted in it, so that a list of
    a hundred publishes is judged one by one but counted once. What consumers take at once never
    waits and does not count. A length limit is kept exactly for readers that may see what is not
    durable yet (D7), and for the others as soon as it is.
    """

    __slots__ = (
        "_age_ms",
        "_backlogs",
        "_messages",
        "_quota",
        "_rate",
        "_ready_bytes",
        "_room",
        "_topic",
        "_turn",
        "_unread",
        "full_by",
        "spark",
    )

    def __init__(self, topic: Topic, now_ms: int) -> None:
        policy = topic.policy
        self._topic = topic
        self._rate = RateLimit(policy.publish_messages_per_s, policy.publish_bytes_per_s, now_ms)
        self._quota = BacklogQuota(
            policy.quota_bytes_max,
            policy.quota_age_ms_max,
            policy.quota_policy,
            policy.quota_age_policy,
        )
        self.spark: SparkPressure | None = None
        """Set while a query may slow or hold publishers (``spark/query.py``)."""
        self.full_by = ""
        """The id of the limit by which a dead letter found no place last."""
        self._turn = -1
        self._messages = 0
        self._ready_bytes = 0
        self._room = 0
        self._unread: set[QueueId] = set()
        """Queues that nobody reads while others are read: what arrives there waits for nobody."""
        self._backlogs: dict[frozenset[QueueId], int] = {}
        """What its quota is held against (``_backlogs``); empty = nothing is, or it has none."""
        self._age_ms = 0

    @property
    def evicts(self) -> bool:
        """True when old messages make room for new ones, so that appends must be looked at."""
        policy = self._topic.policy
        drops = bool(policy.length_max or policy.bytes_max)
        return (drops and policy.overflow is Overflow.DROP_HEAD) or self._quota.is_set

    @property
    def rejects(self) -> bool:
        """True when what is too much is refused for good, or everything is."""
        if self._topic.is_terminated:
            return True
        policy = self._topic.policy
        return bool(policy.length_max or policy.bytes_max) and policy.overflow in _REJECTING

    def begin(self, turn: int, wall_ms: int) -> None:
        """Take the figures of this turn, if they are not taken yet."""
        if turn == self._turn:
            return
        self._turn = turn
        topic = self._topic
        policy = topic.policy
        if (policy.length_max or policy.bytes_max) and policy.overflow is not Overflow.DROP_HEAD:
            self._look(topic, policy)
        if self._quota.is_set:
            self._backlogs = _backlogs(topic)
            self._age_ms = oldest_age_ms(topic, wall_ms)
        if self.spark is not None:
            self.spark.begin(*arriving_at(topic))

    def _look(self, topic: Topic, policy: TopicPolicy) -> None:
        """Count what waits, and what consumers would take before it had to wait."""
        self._messages = self._ready_bytes = 0
        rooms: list[int] = []
        holding = holders(topic)
        self._unread = {queue.queue_id for queue in topic.queues} if holding else set()
        for holder in holding:
            self._unread.difference_update(holder.queue_ids)
            arriving, arriving_bytes = _arriving_bodies(holder, topic)
            messages = _ready(holder, topic) + arriving
            room = holder.available_messages()
            rooms.append(max(0, room - messages))
            if messages > room:
                self._messages = max(self._messages, messages - room)
                if policy.bytes_max:
                    size = holder.ready_body_bytes() + arriving_bytes
                    self._ready_bytes = max(self._ready_bytes, size)
        self._room = min(rooms, default=0)

    def judge(self, record: Record, now_ms: int) -> Refusal | Hold | None:
        """What speaks against admitting the record now."""
        if self._topic.is_terminated:
            return terminated(self._topic)
        policy = self._topic.policy
        size = len(record.origin)
        if policy.message_bytes_max and size > policy.message_bytes_max:
            return too_large(self._topic.name, size, policy.message_bytes_max)
        full = self._full(record, policy)
        if full:
            limit = self._culprit(full)
            if policy.overflow is Overflow.HOLD:
                return Hold(Reason.HELD, limit)
            refuser = topic_culprit(self._topic.name, limit.id)
            return Refusal(RefusalKind.LENGTH_LIMIT, refuser, full)
        found = self._over_quota(self._backlogs, self._age_ms) or self._too_fast(now_ms)
        if found is None and self.spark is not None:
            return self.spark.judge(record.messages, size, now_ms)
        return found

    def hold_batch(
        self, turn: int, wall_ms: int, now_ms: int, exempt: Collection[str]
    ) -> Refusal | Hold | None:
        """What a batch of staged rows has to wait for (D19).

        It cannot be cut, so it may pass a limit that is not reached yet by all it has; and since
        nobody could do anything with a refusal, it waits where a publish would be refused. The
        brakes of ``exempt`` queries are not for it: they wait for this very batch.
        """
        if self._topic.is_terminated:
            return terminated(self._topic)
        self.begin(turn, wall_ms)
        full = self._full(_ONE_MORE, self._topic.policy)
        if full:
            return Hold(Reason.HELD, self._culprit(full))
        found = self._over_quota(self._backlogs, self._age_ms)
        if isinstance(found, Refusal):
            backlog = max(self._backlogs.values())
            return Hold(Reason.QUOTA, self._quota_culprit(found.text, backlog))
        found = found or self._too_fast(now_ms)
        if found is None and self.spark is not None and self.spark.query not in exempt:
            return self.spark.judge(1, 1, now_ms)
        return found

    def admit_batch(self, rows: int, size: int, now_ms: int) -> None:
        """A batch of staged rows is on its way in: what limits a rate is told all of it."""
        if self._rate.is_set:
            self._rate.charge(rows, size, now_ms)
        if self.spark is not None:
            self.spark.admit(rows, size, now_ms)

    def verdict(self, wall_ms: int) -> Refusal | Hold | None:
        """What any publish would be told now, for whoever is about to begin (a new producer).

        What depends on the message, or passes within moments (a rate), is not asked.
        """
        topic = self._topic
        if topic.is_terminated:
            return terminated(topic)
        if not self._quota.is_set:
            return None
        return self._over_quota(_backlogs(topic), oldest_age_ms(topic, wall_ms))

    def _over_quota(
        self, backlogs: dict[frozenset[QueueId], int], age_ms: int
    ) -> Refusal | Hold | None:
        if not backlogs:
            return None
        backlog = max(backlogs.values())
        verdict = self._quota.judge(backlog, age_ms)
        if verdict in (QuotaDecision.HOLD, QuotaDecision.REFUSE):
            text = self._quota.explain(str(self._topic.name), backlog, age_ms)
            slowest = max(holders(self._topic), key=lambda each: _backlog(each, self._topic))
            text += f"; subscription {slowest.name} has not settled it"
            limit = self._quota_culprit(text, backlog)
            if verdict is QuotaDecision.HOLD:
                return Hold(Reason.QUOTA, limit)
            refuser = topic_culprit(self._topic.name, limit.id)
            return Refusal(RefusalKind.QUOTA, refuser, text)
        return None

    def _too_fast(self, now_ms: int) -> Hold | None:
        wait_ms = self._rate.wait_ms(now_ms) if self._rate.is_set else 0
        if wait_ms:
            text = f"publish rate of topic '{self._topic.name}' is used up"
            is_bytes = self._rate.is_short_of_bytes(now_ms)
            setting = "publish_bytes_per_s" if is_bytes else "publish_messages_per_s"
            culprit = Culprit(text, limit_id(setting, self._topic.name))
            return Hold(Reason.RATE, culprit, now_ms + wait_ms)
        return None

    def _quota_culprit(self, text: str, backlog: int) -> Culprit:
        is_bytes = self._quota.judge(backlog, 0) in (QuotaDecision.HOLD, QuotaDecision.REFUSE)
        setting = "quota_bytes_max" if is_bytes else "quota_age_ms_max"
        return Culprit(text, limit_id(setting, self._topic.name))

    def _culprit(self, full: str) -> Culprit:
        setting = "bytes_max" if full.endswith("(bytes_max)") else "length_max"
        return Culprit(full, limit_id(setting, self._topic.name))

    def admit(self, record: Record, queue: Queue, now_ms: int) -> None:
        """The record is on its way into a queue: count it for those who read it."""
        size = len(record.origin)
        if self._room >= record.messages:
            self._room -= record.messages
        elif queue.queue_id not in self._unread:
            self._messages += record.messages
            self._ready_bytes += record.shape.body_len
        for queue_ids in self._backlogs:
            if queue.queue_id in queue_ids:
                self._backlogs[queue_ids] += size
        if self._rate.is_set:
            self._rate.charge(record.messages, size, now_ms)
        if self.spark is not None:
            self.spark.admit(record.messages, size, now_ms)

    def _full(self, record: Record, policy: TopicPolicy) -> str:
        """Why a length limit does not allow the record; empty when it does.

        What a consumer takes at once does not wait; but a message that is too much by itself is
        refused even then, as RabbitMQ does. One that may be held is not: it would be for ever.
        """
        if policy.overflow is Overflow.DROP_HEAD:
            return ""
        is_awaited = self._room >= record.messages
        if is_awaited and policy.overflow is Overflow.HOLD:
            return ""
        name = self._topic.name
        messages = 0 if is_awaited else self._messages
        limit = max(0, policy.length_max)
        if policy.length_max and messages + record.messages > limit:
            return f"topic '{name}' holds {messages} messages, limit {limit} (length_max)"
        size = 0 if is_awaited else self._ready_bytes
        limit = max(0, policy.bytes_max)
        if policy.bytes_max and size + record.shape.body_len > limit:
            return f"topic '{name}' holds {size} bytes, limit {limit} (bytes_max)"
        return ""

    def has_place(self, letter: Record, coming: int, coming_bytes: int) -> bool:
        """False for a dead letter that is too much, beside so many messages and body bytes.

        Only where ``rejects``: nobody could hold it or be told.
        """
        if self._topic.is_terminated:
            self.full_by = ""
            return False
        policy = self._topic.policy
        self._look(self._topic, policy)
        taken = min(self._room, coming)
        self._room -= taken
        self._messages += coming - taken
        self._ready_bytes += coming_bytes
        full = self._full(letter, policy)
        self.full_by = self._culprit(full).id if full else ""
        return not full

    def make_room(self, wall_ms: int) -> bool:
        """Let the oldest messages go where the policy says so; False while more has to go.

        What a subscription may not see yet (D7) it cannot drop yet: then the next sync's turn
        comes here again. What its consumers are about to take is left to them.
        """
        topic, policy = self._topic, self._topic.policy
        is_done = True
        for subscription in holders(topic):
            if policy.overflow is Overflow.DROP_HEAD:
                is_done &= _keep_short(subscription, topic, policy)
            if self._quota.judge(_unsettled_bytes(subscription, topic), 0) is QuotaDecision.EVICT:
                is_done &= _drop_backlog(subscription, topic, self._quota.evict_to_bytes)
            age_ms = _age_ms(subscription, topic, wall_ms)
            if self._quota.judge(0, age_ms) is QuotaDecision.EVICT:
                oldest_ms = wall_ms - self._quota.evict_to_age_ms
                is_done &= _drop_older(subscription, topic, oldest_ms)
        return is_done


_ONE_MORE: Final = neutral_record(b"x")


def topic_culprit(name: TopicName, by_limit: str = "") -> Culprit:
    """A topic as what refuses, or is full, and the id of the limit by which it does."""
    return Culprit(str(name), name.id, by_limit)


def limit_id(setting: str, topic: TopicName) -> str:
    """The id of a limit of a topic: it names what it limits."""
    return f"limit/{setting}/{topic.id}"


def needs_limits(topic: Topic) -> bool:
    """False when no publish can be refused, held or make room: the fast way."""
    policy = topic.policy
    return bool(
        topic.is_terminated
        or policy.length_max
        or policy.bytes_max
        or policy.publish_messages_per_s
        or policy.publish_bytes_per_s
        or policy.quota_bytes_max
        or policy.quota_age_ms_max
        or policy.message_bytes_max
    )


def too_large(name: TopicName, size: int, size_max: int) -> Refusal:
    """The refusal of a message above a size limit."""
    text = f"message of {size} bytes for topic '{name}', limit {size_max} (message_bytes_max)"
    return Refusal(RefusalKind.TOO_LARGE, topic_culprit(name), text)


def terminated(topic: Topic) -> Refusal:
    """The refusal of every message for a topic that its owner ended."""
    text = f"topic '{topic.name}' is terminated and takes no more messages; use another topic"
    return Refusal(RefusalKind.TERMINATED, topic_culprit(topic.name), text)


def holders(topic: Topic) -> list[Subscription]:
    """The subscriptions whose unsettled messages count: those that hold data (D11)."""
    return [each for each in topic.subscriptions.values() if each.options.holds_data]


def ready_messages(topic: Topic) -> int:
    """Messages that the slowest holder has not been given yet."""
    return max((_ready(each, topic) for each in holders(topic)), default=0)


def oldest_age_ms(topic: Topic, wall_ms: int) -> int:
    """Age of the oldest message that some holder has not settled; 0 when there is none."""
    return max((_age_ms(each, topic, wall_ms) for each in holders(topic)), default=0)


def furthest_behind_steps(topic: Topic, wall_ms: int) -> Steps[tuple[int, int, int]]:
    """Of the slowest holder: messages not given to it, log bytes from its low mark to the end.

    And the age of the oldest message that some holder has not settled. In steps: a topic may have a
    thousand holders, and a thousand queues.
    """
    ready = size = age_ms = 0
    for holder in holders(topic):
        its_ready = its_size = 0
        for queue in list(topic.queues):
            # Most have settled all there is, most of the time.
            if not _is_done(holder, queue):
                its_ready += _ready_in(holder, queue)
                its_size += _backlog_in(holder, queue)
                age_ms = max(age_ms, wall_ms - _stored_ms(holder, queue, wall_ms))
                yield A_RECORD
            yield A_QUEUE
        ready, size = max(ready, its_ready), max(size, its_size)
        yield A_HOLDER
    return ready, size, age_ms


A_HOLDER: Final = 0.3
"""Steps that a look at what one has not settled is, beside its queues."""


def _is_done(subscription: Subscription, queue: Queue) -> bool:
    """Whether it has settled all there is, or does not read it."""
    if not subscription.reads(queue.queue_id):
        return True
    return subscription.low_mark(queue.queue_id) >= queue.index.next_offset


def _queues(subscription: Subscription, topic: Topic) -> list[Queue]:
    """Those it reads: the others wait for nobody."""
    return [queue for queue in topic.queues if subscription.reads(queue.queue_id)]


def _ready(subscription: Subscription, topic: Topic) -> int:
    return sum(_ready_in(subscription, queue) for queue in _queues(subscription, topic))


def _ready_in(subscription: Subscription, queue: Queue) -> int:
    unseen = queue.index.next_offset - queue.visible_end(subscription.options.sees_unsynced)
    return subscription.ready(queue.queue_id) + unseen


def _backlog(subscription: Subscription, topic: Topic) -> int:
    return sum(_backlog_in(subscription, queue) for queue in _queues(subscription, topic))


def _backlog_in(subscription: Subscription, queue: Queue) -> int:
    low = subscription.low_mark(queue.queue_id)
    return queue.index.bytes_between(low, queue.index.next_offset)


def _unsettled_bytes(subscription: Subscription, topic: Topic) -> int:
    """Log bytes of what it has not settled, where settled messages are as large as the others.

    Behind a message that somebody has in flight everything may be settled: that is no backlog, and
    evicting more would not make it less.
    """
    found = 0
    for queue in _queues(subscription, topic):
        queue_id, end = queue.queue_id, queue.index.next_offset
        low = subscription.low_mark(queue_id)
        unseen = end - queue.visible_end(subscription.options.sees_unsynced)
        if end > low:
            unsettled = subscription.unsettled(queue_id) + unseen
            found += queue.index.bytes_between(low, end) * unsettled // (end - low)
    return found


def _age_ms(subscription: Subscription, topic: Topic, wall_ms: int) -> int:
    stored = [_stored_ms(subscription, each, wall_ms) for each in _queues(subscription, topic)]
    return wall_ms - min(stored, default=wall_ms)


def _stored_ms(subscription: Subscription, queue: Queue, wall_ms: int) -> int:
    """When the oldest message was stored that it has not settled; now, if there is none."""
    entries = queue.index.entries(subscription.low_mark(queue.queue_id), 1)
    return min(wall_ms, entries[0][3]) if entries else wall_ms


def arriving_at(topic: Topic) -> tuple[int, int]:
    """Messages and bytes that are routed to the topic and not appended yet."""
    messages = size = 0
    for queue in topic.queues:
        for batch in queue.inbox:
            messages += sum(each.record.messages for each in batch.publications)
            size += batch.size
    return messages, size


def _backlogs(topic: Topic) -> dict[frozenset[QueueId], int]:
    """Log bytes that the slowest of those is behind with who read the same queues, by queues.

    What waits for the log since an earlier turn is on its way into the backlog, but only into that
    of whoever reads its queue. Most topics have one set of queues that all read: all of them.
    """
    arriving = {
        queue.queue_id: sum([batch.size for batch in queue.inbox])
        for queue in topic.queues
        if queue.inbox
    }
    found: dict[frozenset[QueueId], int] = {}
    for holder in holders(topic):
        queue_ids = frozenset(holder.queue_ids)
        coming = sum([size for queue_id, size in arriving.items() if queue_id in queue_ids])
        found[queue_ids] = max(found.get(queue_ids, 0), _backlog(holder, topic) + coming)
    return found


def _arriving_bodies(subscription: Subscription, topic: Topic) -> tuple[int, int]:
    """What is routed to its queues and not appended yet: messages, and bytes of their bodies."""
    records = [
        each.record
        for queue in _queues(subscription, topic)
        for batch in queue.inbox
        for each in batch.publications
    ]
    return sum(each.messages for each in records), sum(each.shape.body_len for each in records)


def _drop_order(subscription: Subscription, topic: Topic) -> list[Queue]:
    """Lowest priority first; without priorities the fullest queue first."""
    if topic.policy.max_priority:
        return _queues(subscription, topic)
    queues = _queues(subscription, topic)
    return sorted(queues, key=lambda queue: -subscription.ready(queue.queue_id))


def _drop(subscription: Subscription, topic: Topic, messages: int, setting: str) -> int:
    dropped = 0
    for queue in _drop_order(subscription, topic):
        if dropped >= messages:
            break
        dropped += subscription.drop_head(queue.queue_id, messages - dropped, setting)
    return dropped


def _keep_short(subscription: Subscription, topic: Topic, policy: TopicPolicy) -> bool:
    """Drop the oldest ready messages above the length limits; False when some stay for now.

    Many may have come back at once: no more go in one turn than one can bring (law 5). Whoever
    drops some asks for the next turn.
    """
    if not policy.length_max and not policy.bytes_max:
        return True
    is_done = True
    left = DROPPED_MAX
    room = subscription.available_messages()
    if policy.length_max:
        over = _ready(subscription, topic) - max(0, policy.length_max)
        dropped = _drop(subscription, topic, min(over - room, left), "length_max")
        is_done = dropped >= over
        left -= dropped
    if policy.bytes_max:
        limit = max(0, policy.bytes_max)
        while subscription.ready_body_bytes() > limit:
            if room > 0 or left <= 0 or _drop(subscription, topic, 1, "bytes_max") == 0:
                return False
            left -= 1
    return is_done


def _drop_backlog(subscription: Subscription, topic: Topic, bytes_max: int) -> bool:
    left = DROPPED_MAX
    while _unsettled_bytes(subscription, topic) > bytes_max:
        if not left or _drop(subscription, topic, 1, "quota_bytes_max") == 0:
            return False
        left -= 1
    return True


def _drop_older(subscription: Subscription, topic: Topic, store_ms: int) -> bool:
    """Those before a time, as far as nobody has them in flight."""
    left = DROPPED_MAX
    for queue in _queues(subscription, topic):
        upto = queue.index.search_time(store_ms)
        cursor = subscription.cursor(queue.queue_id)
        while cursor.head < min(upto, cursor.end):
            # Beside what is in flight one by one: several could be younger than they may be.
            count = 1 if cursor.pending.messages else min(left, upto - cursor.head)
            if not left:
                return False
            dropped = subscription.drop_head(queue.queue_id, count, "quota_age_ms_max")
            if not dropped:
                return False
            left -= min(dropped, left)
    return True


REFUSAL_KINDS: Final = {
    Reason.MEMORY: RefusalKind.MEMORY_ALARM,
    Reason.DISK: RefusalKind.DISK_ALARM,
    Reason.RATE: RefusalKind.RATE,
    Reason.QUOTA: RefusalKind.QUOTA,
    Reason.HELD: RefusalKind.LENGTH_LIMIT,
    Reason.SPARK: RefusalKind.QUOTA,
}
"""What a publish is told that may not wait, or waited under an alarm for too long."""


class Hold(msgspec.Struct, frozen=True):
    """Why a channel's next publish is not admitted now (D23).

    Who holds: an alarm, a rate, a quota, a full topic. Who waits: that channel, with everything
    behind the publish, because order within a channel is promised. What ends it: the reason
    passing, which is looked at in every turn; or ``hold_ms_max``, after which it is refused.
    """

    reason: Reason
    culprit: str
    """Name of the alarm, or of the topic and its limit."""
    until_ms: int | None = None
    """Monotonic time at which it passes by itself, if it does."""

    @property
    def refusal(self) -> Refusal:
        """For a publisher that does not want to wait."""
        return Refusal(REFUSAL_KINDS[self.reason], self.culprit, f"{self.culprit}; publish refused")

    def overdue(self, held_ms: int, setting: str = "flow.hold_ms_max") -> Refusal:
        """For a publish that was held as long as it may be, which ``setting`` says."""
        kind = REFUSAL_KINDS[self.reason] if self.reason.is_resource else RefusalKind.HELD_TOO_LONG
        text = f"{self.culprit}; publish held for {held_ms} ms ({setting}) and refused"
        return Refusal(kind, self.culprit, text)


# The plain routes. Protocols with richer routing bring their own ``ports.Route``; they end in
# queues all the same. Invariant: the tuple a route returns names every queue at most once.


class DirectRoute:
    """Everything goes to one queue: the route of a client that chose the queue itself."""

    __slots__ = ("_targets", "queue")

    steps = 1
    is_constant = True

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._targets = (queue,)

    def targets(self, _record: Record, /) -> tuple[Queue, ...]:
        return self._targets


class FanoutRoute:
    """Everything goes to each of several queues: stored once, indexed many times."""

    __slots__ = ("_targets", "steps")

    is_constant = True

    def __init__(self, queues: tuple[Queue, ...]) -> None:
        self._targets = tuple(dict.fromkeys(queues))
        self.steps = max(1, len(self._targets))

    def targets(self, _record: Record, /) -> tuple[Queue, ...]:
        return self._targets


class KeyRoute:
    """One queue of a topic, by hash of the key; without a key, one after the other (D10)."""

    __slots__ = ("_next", "topic")

    steps = 1
    is_constant = False

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._next = 0

    def targets(self, record: Record, /) -> tuple[Queue, ...]:
        """The queue of the record's key."""
        queues = self.topic.queues
        if record.shape.key_len:
            return (queues[crc32(record.key) % len(queues)],)
        self._next = (self._next + 1) % len(queues)
        return (queues[self._next],)


class PriorityRoute:
    """One queue of a topic, by priority: queue i holds priority i (D10)."""

    __slots__ = ("topic",)

    steps = 1
    is_constant = False

    def __init__(self, topic: Topic) -> None:
        self.topic = topic

    def targets(self, record: Record, /) -> tuple[Queue, ...]:
        """The queue of the record's priority, capped at the topic's highest."""
        queues = self.topic.queues
        return (queues[min(record.shape.priority, len(queues) - 1)],)


def route_to(topic: Topic) -> Route[Queue]:
    """The natural route to a topic as a whole: by priority, by key, or straight."""
    if topic.policy.max_priority:
        return PriorityRoute(topic)
    if len(topic.queues) > 1:
        return KeyRoute(topic)
    return DirectRoute(topic.queues[0])
