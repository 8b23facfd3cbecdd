"""What operators see of topics, queues and groups, and what protocols add to it.

Snapshots, made when somebody asks; field names are those of the JSON that HTTP gives out.
Not here: finding and changing them (``administration.py``).
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import Queue, Topic
from penstock.model.names import TopicName

PAGE_ROWS_MAX: Final = 1000


class Desk(Protocol):
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
    bytes: int
    is_durable: bool
    groups: int
    each_queue: Sequence[QueueView] = ()
    each_group: Sequence[GroupView] = ()


class Page(msgspec.Struct, frozen=True):
    """A part of a listing."""

    total: int
    offset: int
    rows: Sequence[TopicView | GroupView]


class Reading(NamedTuple):
    """A subscription, and whose group it is."""

    topic: Topic
    subscription: Subscription
    group: str
    desk: Desk | None


def group_view(reading: Reading, wall_ms: int, *, with_queues: bool = False) -> GroupView:
    """A group on a topic."""
    topic, subscription, group, desk = reading
    lags = [_lag(queue, reading, wall_ms) for queue in topic.queues]
    members = _members(desk, group)
    mode, share = desk.mode(topic, group) if desk is not None else ("push", -1)
    return GroupView(
        group=group,
        protocol=_protocol(desk),
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


def _protocol(desk: Desk | None) -> str:
    return desk.prefix.rstrip("/") if desk is not None else ""


def _members(desk: Desk | None, group: str) -> Sequence[str]:
    return desk.members(group)[:PAGE_ROWS_MAX] if desk is not None else ()


def idle_view(desk: Desk, group: str) -> GroupView:
    """A group that reads nothing."""
    members = _members(desk, group)
    return GroupView(
        group=group, protocol=_protocol(desk), topic="", space="", lag_messages=0, lag_bytes=0,
        lag_seconds=0.0, unacked=0, consumers=len(members), mode="", share=-1, members=members,
    )  # fmt: skip


def _lag(queue: Queue, reading: Reading, wall_ms: int) -> QueueLag:
    index, lane = queue.index, reading.subscription.lane(queue.queue_id)
    desk = reading.desk
    low = max(lane.cursor.low_mark, index.min_offset)
    waiting = max(0, lane.end - low - lane.cursor.settled_above)
    oldest = index.entries(low, 1) if waiting else []
    has_offset = desk is None or desk.has_offset(queue, reading.group)
    return QueueLag(
        queue=queue.number,
        min_offset=index.min_offset,
        end_offset=lane.end,
        offset=lane.cursor.low_mark if has_offset else -1,
        lag_messages=waiting,
        lag_bytes=lane.backlog_bytes,
        lag_seconds=max(0, wall_ms - oldest[0][3]) / 1000 if oldest else 0.0,
        unacked=lane.pending.messages,
    )


def queue_view(queue: Queue) -> QueueView:
    """A queue."""
    index = queue.index
    size = index.bytes_between(index.min_offset, index.next_offset)
    return QueueView(queue.number, index.min_offset, index.next_offset, size)


def topic_view(topic: Topic) -> TopicView:
    """A topic without its details."""
    views = [queue_view(queue) for queue in topic.queues]
    return TopicView(
        name=topic.name.name,
        space=topic.name.space,
        queues=len(topic.queues),
        messages=sum(each.end_offset - each.min_offset for each in views),
        bytes=sum(each.bytes for each in views),
        is_durable=topic.is_durable,
        groups=len(topic.subscriptions),
    )
