"""What an operator may see and change of topics and groups, whatever protocol made them.

A group is every subscription of one name: RocketMQ's consumer group, Pulsar's subscription. Its lag
is what it has not settled: in messages, in bytes of log, and in seconds since the oldest of them
was stored. What only a protocol knows (members, pop or pull, who must be told of a reset) is asked
of its ``ProtocolAdmin``, which owns the subscriptions whose names begin with its prefix; for others
the engine's own view is all there is.

Called on the loop between two turns. Every listing is paged, so none of it grows with the broker.
Not here: HTTP (``http/app.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from penstock.engine.broker import Engine, HopCredit
from penstock.engine.spark.staging import SinkSnapshot
from penstock.engine.spark.views import QuerySnapshot, query_snapshots
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import Overflow, Queue, Topic
from penstock.model.clock import Clock
from penstock.model.errors import AlreadyExists, NotFound, PenstockError, SettingsError
from penstock.model.names import TopicName, topic_name
from penstock.model.steps import Steps, finished
from penstock.server.probes import AlarmLimits
from penstock.settings.protocols import BACKPRESSURES

logger = logging.getLogger(__name__)

QUEUES_PER_CREATE_MAX: Final = 1024
LOOK: Final = 0.2
ROW: Final = 1.0
"""Steps of ``server/view.py`` that a look at a topic is, and a row of a page."""


class Administration:
    """Looks at and changes one broker."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        wake: Callable[[], None],
        protocols: Sequence[ProtocolAdmin] = (),
        alarm_limits: AlarmLimits | None = None,
    ) -> None:
        self.alarm_limits = alarm_limits
        """What raises the alarms, to be seen and changed."""
        self._engine = engine
        self._clock = clock
        self.wake = wake
        self._protocols = protocols

    def after_durable(self, callback: Callable[[], None]) -> None:
        """Call back once what was changed so far would survive a crash."""
        self._engine.after_durable(callback)
        self.wake()

    # Flow.

    def credits(self) -> dict[str, HopCredit]:
        return self._engine.credits()

    def set_credit(self, hop: str, credit: int, more: int) -> None:
        """Change the credit of a hop, on every connection and queue at once."""
        self._engine.set_credit(hop, credit, more)
        extra = {"hop": hop, "credit": credit, "more": more}
        logger.info("the credit of a hop was changed until the next start", extra=extra)
        self.wake()

    # Topics.

    def topics(
        self, *, offset: int = 0, contains: str = "", with_hidden: bool = False
    ) -> Steps[Listing]:
        """A page of topics in order of creation; in steps, for there may be very many."""
        found = []
        for topic in self._engine.topics():
            if (with_hidden or not topic.name.is_hidden) and contains in str(topic.name):
                found.append(topic)
            yield LOOK
        rows = []
        for topic in found[offset : offset + PAGE_ROWS_MAX]:
            rows.append((yield from topic_view_steps(topic)))
            yield ROW
        return Listing(len(found), offset, rows)

    def topic(self, name: str, space: str = "") -> TopicView:
        """One topic with its queues and groups."""
        topic = self._topic(name, space)
        view = topic_view(topic)
        some = list(self._group_subscriptions_of(topic))[:PAGE_ROWS_MAX]
        return msgspec.structs.replace(
            view,
            each_queue=[queue_view(queue) for queue in topic.queues[:PAGE_ROWS_MAX]],
            each_group=[group_view(each, self._clock.wall_ms()) for each in some],
        )

    def create_topic(self, name: str, space: str = "", *, queues: int = 4) -> None:
        if not 1 <= queues <= QUEUES_PER_CREATE_MAX:
            raise SettingsError(f"a topic has 1 to {QUEUES_PER_CREATE_MAX} queues, not {queues}")
        checked = _checked(name, space)
        if self._engine.topic(checked) is not None:
            raise AlreadyExists(f"topic '{checked}' exists; delete it first, or use another name")
        if self._protocols:
            self._protocols[0].create_topic(checked, queues)
        else:
            self._engine.create_topic(checked, queues=queues)

    def delete_topic(self, name: str, space: str = "") -> None:
        """A topic goes with its messages."""
        topic = self._topic(name, space)
        for protocol in self._protocols:
            protocol.delete_topic(topic)
        if not topic.is_deleted:
            self._engine.retire_topic(topic.name)

    def purge_topic(self, name: str, space: str = "") -> int:
        """Settle what waits, for every group; returns how many messages, each group's counted.

        What engine consumers have in flight stays theirs. Protocols whose readers keep their own
        position tell them (``ProtocolAdmin.reset``).
        """
        topic = self._topic(name, space)
        purged = 0
        for entry in list(self._group_subscriptions_of(topic)):
            for queue in _queues(topic, entry.subscription):
                if entry.protocol is None:
                    purged += entry.subscription.purge(queue.queue_id)
                else:
                    purged += entry.subscription.ready(queue.queue_id)
                    entry.protocol.reset(queue, entry.group, queue.index.next_offset)
        self.wake()
        return purged

    def set_topic_policy(self, name: str, space: str = "", **changes: str | int | Overflow) -> None:
        """Length, rates and quota of a topic, and what Spark queries do to its publishers (D23)."""
        topic = self._topic(name, space)
        mode = changes.get("spark_backpressure", "")
        if mode not in ("", *BACKPRESSURES):
            raise SettingsError(f"spark_backpressure is {mode!r}; use off, soft or hard")
        policy = msgspec.structs.replace(topic.own_policy, **changes)
        self._engine.set_policy(topic.name, policy)
        self.wake()

    # Queries.

    def queries(self) -> list[QuerySnapshot]:
        return query_snapshots(
            self._engine.queries, self._clock.monotonic_ms(), self._engine.queries.wall_ms
        )

    def sinks(self) -> list[SinkSnapshot]:
        """What Spark has written, and what is staged (D19)."""
        return self._engine.staged.snapshots()

    def forget_query(self, name: str) -> None:
        """A query goes with its positions; its data is not kept for it any more."""
        if name not in self._engine.queries.registry.queries:
            raise NotFound(f"there is no query '{name}'; `penstock queries` shows them")
        self._engine.queries.release(name, is_final=True)
        self.wake()

    # Groups.

    def groups(
        self, *, offset: int = 0, contains: str = "", with_hidden: bool = False
    ) -> Steps[Listing]:
        """A page of (group, topic) pairs; groups that read nothing come last, without a topic."""
        pairs = []
        for entry in self._group_subscriptions():
            if (with_hidden or not entry.topic.name.is_hidden) and contains in entry.group:
                pairs.append(entry)
            yield LOOK
        seen = {(entry.protocol, entry.group) for entry in pairs}
        idle = [
            (protocol, group)
            for protocol in self._protocols
            for group in protocol.group_names()
            if (protocol, group) not in seen and contains in group
        ]
        rows = []
        for each in pairs[offset : offset + PAGE_ROWS_MAX]:
            rows.append(group_view(each, self._clock.wall_ms()))
            yield ROW
        past = max(0, offset - len(pairs))
        rows += [idle_view(*one) for one in idle[past : past + PAGE_ROWS_MAX - len(rows)]]
        return Listing(len(pairs) + len(idle), offset, rows)

    def group(self, group: str) -> list[GroupView]:
        """One group on every topic it reads, queue by queue."""
        found = [entry for entry in self._group_subscriptions() if entry.group == group]
        rows = [
            group_view(each, self._clock.wall_ms(), with_queues=True)
            for each in found[:PAGE_ROWS_MAX]
        ]
        rows = rows or [idle_view(protocol, group) for protocol in self._protocols_of(group)]
        if not rows:
            raise NotFound(f"there is no group '{group}'; `penstock groups list` shows them")
        return rows

    def reset(
        self, group: str, topic: str, space: str = "", *, to: str | int, queue: int | None = None
    ) -> list[QueueLag]:
        """Move a group: ``earliest``, ``latest``, an offset, or ``time:MS`` of the wall clock."""
        found = self._topic(topic, space)
        entries = [each for each in self._group_subscriptions_of(found) if each.group == group]
        if not entries:
            raise NotFound(f"group '{group}' does not read topic '{topic}'")
        if queue is not None and not 0 <= queue < len(found.queues):
            raise SettingsError(f"topic '{topic}' has queues 0 to {len(found.queues) - 1}")
        chosen = found.queues if queue is None else (found.queues[queue],)
        targets = [(each, _target(to, each)) for each in chosen]
        for entry in entries:
            for each, offset in targets:
                if queue is None and not entry.subscription.reads(each.queue_id):
                    continue
                if entry.protocol is not None:
                    entry.protocol.reset(each, group, offset)
                else:
                    entry.subscription.seek(each.queue_id, offset)
        self.wake()
        return [
            lag
            for entry in entries
            for lag in group_view(entry, self._clock.wall_ms(), with_queues=True).queues
        ]

    def delete_group(self, group: str, topic: str | None = None, space: str = "") -> int:
        """A group goes, from one topic or from all; returns from how many."""
        found = [
            entry
            for entry in self._group_subscriptions()
            if entry.group == group and topic in (None, entry.topic.name.name)
            and (topic is None or entry.topic.name.space == space)
        ]  # fmt: skip
        known = self._protocols_of(group) if topic is None else []
        if not found and not known:
            raise NotFound(f"there is no group '{group}'" + (f" on '{topic}'" if topic else ""))
        for entry in found:
            if entry.protocol is not None:
                entry.protocol.forget(entry.topic, group)
            else:
                self._engine.delete_subscription(entry.topic.name, entry.subscription.name)
        for protocol in known:
            protocol.forget(None, group)
        self.wake()
        return len(found)

    def set_mode(
        self, group: str, topic: str, space: str = "", *, mode: str, share: int = -1
    ) -> None:
        """Pull or pop, for protocols that know the difference."""
        if mode not in ("pull", "pop"):
            raise SettingsError(f"a group reads by pull or by pop, not by {mode!r}")
        found = self._topic(topic, space)
        if not self._protocols:
            raise PenstockError("no protocol of this broker knows modes; start it with --rocketmq")
        for protocol in self._protocols:
            protocol.set_mode(found, group, mode, share)
        self.wake()

    def places(self) -> list[dict[str, str]]:
        """What this broker is to the others of its cluster, by protocol that has clusters."""
        return [protocol.place() for protocol in self._protocols]

    def _topic(self, name: str, space: str) -> Topic:
        found = self._engine.topic(TopicName(space, name))
        if found is None:
            where = f" in space '{space}'" if space else ""
            raise NotFound(f"there is no topic '{name}'{where}; `penstock topics list` shows them")
        return found

    def _group_subscriptions(self) -> Iterator[GroupSubscription]:
        for topic in self._engine.topics():
            yield from self._group_subscriptions_of(topic)

    def _group_subscriptions_of(self, topic: Topic) -> Iterator[GroupSubscription]:
        for name, subscription in list(topic.subscriptions.items()):
            protocol = next(
                (each for each in self._protocols if name.startswith(each.prefix)), None
            )
            group = name.removeprefix(protocol.prefix) if protocol is not None else name
            yield GroupSubscription(topic, subscription, group, protocol)

    def _protocols_of(self, group: str) -> list[ProtocolAdmin]:
        return [protocol for protocol in self._protocols if group in protocol.group_names()]


def _checked(name: str, space: str) -> TopicName:
    try:
        return topic_name(name, space)
    except ValueError as problem:
        raise SettingsError(str(problem)) from None


def _target(to: str | int, queue: Queue) -> int:
    index = queue.index
    if isinstance(to, int):
        if to < 0:
            raise SettingsError(f"offset {to} is below 0")
        return min(max(to, index.min_offset), index.next_offset)
    if to == "earliest":
        return index.min_offset
    if to == "latest":
        return index.next_offset
    kind, _, text = to.partition(":")
    if kind == "time" and text.isdecimal():
        return index.search_time(int(text))
    raise SettingsError(f"cannot reset to {to!r}; use earliest, latest, an offset or time:MS")


# ---- what is shown ------------------------------------------------------------------------------
# Snapshots, made when somebody asks; field names are those of the JSON that HTTP gives out.


PAGE_ROWS_MAX: Final = 1000


class ProtocolAdmin(Protocol):
    """What one protocol knows of its topics and groups, and does for operators."""

    @property
    def prefix(self) -> str:
        """``rocketmq/``: how its subscriptions begin in the engine, before the group."""
        ...

    def place(self) -> dict[str, str]:
        """Name, cluster and address of this broker, and who knows the others of its cluster."""
        ...

    def create_topic(self, name: TopicName, queues: int) -> None:
        """A new topic as this protocol makes them."""
        ...

    def delete_topic(self, topic: Topic) -> None:
        """A topic goes, with whatever the protocol keeps beside it."""
        ...

    def group_names(self) -> Collection[str]:
        """Every group it knows, online or not."""
        ...

    def members(self, group: str) -> Sequence[str]:
        """Client ids, as they are connected now."""
        ...

    def has_offset(self, queue: Queue, group: str) -> bool:
        """Whether the group ever said where it stands in a queue."""
        ...

    def mode(self, topic: Topic, group: str) -> tuple[str, int]:
        """(pull or pop, share) of a group on a topic; share -1 = not set."""
        ...

    def set_mode(self, topic: Topic, group: str, mode: str, share: int) -> None:
        """Change it; raises ``PenstockError`` when it cannot be."""
        ...

    def reset(self, queue: Queue, group: str, offset: int) -> None:
        """Move a group in one queue and see to it that its members notice."""
        ...

    def forget(self, topic: Topic | None, group: str) -> None:
        """The group goes: its offsets of one topic, or (None) all that is known of it."""
        ...


class QueueLag(msgspec.Struct, frozen=True):
    """One queue as one group sees it; offsets are RocketMQ's and ours alike."""

    queue: int
    min_offset: int
    end_offset: int
    offset: int
    """Everything below is settled; -1 = the group never said."""
    lag_messages: int
    lag_bytes: int
    lag_seconds: float
    unacked: int


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """One group on one topic."""

    group: str
    protocol: str
    """``rocketmq``; empty for the engine's own."""
    topic: str
    space: str
    lag_messages: int
    lag_bytes: int
    lag_seconds: float
    unacked: int
    consumers: int
    mode: str
    share: int
    members: Sequence[str] = ()
    queues: Sequence[QueueLag] = ()


class QueueView(msgspec.Struct, frozen=True):
    """One queue."""

    queue: int
    min_offset: int
    end_offset: int
    bytes: int


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    """One topic."""

    name: str
    space: str
    queues: int
    messages: int
    """That can still be read."""
    ready: int
    """That wait for the group that is furthest behind; 0 without groups."""
    bytes: int
    is_durable: bool
    groups: int
    each_queue: Sequence[QueueView] = ()
    each_group: Sequence[GroupView] = ()


class Listing(msgspec.Struct, frozen=True):
    """A part of a listing."""

    total: int
    offset: int
    rows: Sequence[TopicView | GroupView]


class GroupSubscription(NamedTuple):
    """A subscription, and whose group it is."""

    topic: Topic
    subscription: Subscription
    group: str
    protocol: ProtocolAdmin | None


def group_view(entry: GroupSubscription, wall_ms: int, *, with_queues: bool = False) -> GroupView:
    topic, subscription, group, protocol = entry
    lags = [_lag(queue, entry, wall_ms) for queue in _queues(topic, subscription)]
    members = _members(protocol, group)
    mode, share = protocol.mode(topic, group) if protocol is not None else ("push", -1)
    return GroupView(
        group=group,
        protocol=_protocol_name(protocol),
        topic=topic.name.name,
        space=topic.name.space,
        lag_messages=sum(each.lag_messages for each in lags),
        lag_bytes=sum(each.lag_bytes for each in lags),
        lag_seconds=max((each.lag_seconds for each in lags), default=0.0),
        unacked=sum(each.unacked for each in lags),
        consumers=max(len(members), len(subscription.consumers)),
        mode=mode,
        share=share,
        members=members if with_queues else (),
        queues=lags if with_queues else (),
    )


def _protocol_name(protocol: ProtocolAdmin | None) -> str:
    return protocol.prefix.rstrip("/") if protocol is not None else ""


def _members(protocol: ProtocolAdmin | None, group: str) -> Sequence[str]:
    return protocol.members(group)[:PAGE_ROWS_MAX] if protocol is not None else ()


def idle_view(protocol: ProtocolAdmin, group: str) -> GroupView:
    """A group that reads nothing."""
    members = _members(protocol, group)
    return GroupView(
        group=group, protocol=_protocol_name(protocol), topic="", space="", lag_messages=0,
        lag_bytes=0, lag_seconds=0.0, unacked=0, consumers=len(members), mode="", share=-1,
        members=members,
    )  # fmt: skip


def _lag(queue: Queue, entry: GroupSubscription, wall_ms: int) -> QueueLag:
    index, cursor = queue.index, entry.subscription.cursor(queue.queue_id)
    protocol = entry.protocol
    low = max(cursor.settled.low_mark, index.min_offset)
    waiting = max(0, cursor.end - low - cursor.settled.settled_above)
    oldest = index.entries(low, 1) if waiting else []
    has_offset = protocol is None or protocol.has_offset(queue, entry.group)
    return QueueLag(
        queue=queue.number,
        min_offset=index.min_offset,
        end_offset=cursor.end,
        offset=cursor.settled.low_mark if has_offset else -1,
        lag_messages=waiting,
        lag_bytes=cursor.backlog_bytes,
        lag_seconds=max(0, wall_ms - oldest[0][3]) / 1000 if oldest else 0.0,
        unacked=cursor.pending.messages,
    )


def queue_view(queue: Queue) -> QueueView:
    index = queue.index
    size = index.bytes_between(index.min_offset, index.next_offset)
    return QueueView(queue.number, index.min_offset, index.next_offset, size)


def _ready(topic: Topic, subscription: Subscription) -> int:
    return sum(subscription.ready(queue.queue_id) for queue in _queues(topic, subscription))


def _queues(topic: Topic, subscription: Subscription) -> list[Queue]:
    """Those of the topic that the subscription reads."""
    return [queue for queue in topic.queues if subscription.reads(queue.queue_id)]


def topic_view(topic: Topic) -> TopicView:
    return finished(topic_view_steps(topic))


def topic_view_steps(topic: Topic) -> Steps[TopicView]:
    """A topic without its details; in steps, for it may have a thousand subscriptions."""
    views = []
    for queue in topic.queues:
        views.append(queue_view(queue))
        yield LOOK
    ready = 0
    for each in list(topic.subscriptions.values()):
        ready = max(ready, _ready(topic, each))
        yield LOOK
    return TopicView(
        name=topic.name.name,
        space=topic.name.space,
        queues=len(topic.queues),
        messages=sum(each.end_offset - each.min_offset for each in views),
        ready=ready,
        bytes=sum(each.bytes for each in views),
        is_durable=topic.is_durable,
        groups=len(topic.subscriptions),
    )
