"""What a consumer wants of each topic (everything, some tags, or SQL92), and where it begins.

Brokers compare hashes of tags only, so what arrives is compared again here, by the text; SQL92 is
the broker's alone. A subscription's version is the time it was made: a broker that has an older
one asks for a heartbeat first.

Invariant: of two versions of one topic the later is higher, also within a millisecond.
Not here: asking the broker whether it can compile an expression (``member.py``), where stored
offsets come from (``offsets.py``), pop, whose broker decides by ``initMode`` where to begin.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from penstock.client.message import RETRY_PREFIX, ReceivedMessage
from penstock.client.requests import BrokerRequests
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import SUBSCRIBE_ALL, ConsumeFromWhere, SubscriptionData

_log = logging.getLogger(__name__)

TAG: Final = "TAG"
SQL92: Final = "SQL92"
NOTHING_STORED: Final = -1
TIMESTAMP_AGE_MS: Final = 30 * 60 * 1000
"""TIMESTAMP without a time begins half an hour ago."""
TIMESTAMP_FORMAT: Final = "%Y%m%d%H%M%S"
"""RocketMQ's ``consumeTimestamp``, in local time."""
FilterHook = Callable[[Sequence[ReceivedMessage]], Sequence[ReceivedMessage]]
"""Gets what was pulled, gives what is to be consumed; the others count as consumed."""


def retry_topic(group: str) -> str:
    """The topic in which messages of a group come again."""
    return RETRY_PREFIX + group


class Subscription(msgspec.Struct, frozen=True):
    """What is wanted of one topic."""

    data: SubscriptionData
    tags: frozenset[str]
    """Tags a message must have one of; empty: nothing is compared here."""

    @property
    def topic(self) -> str:
        return self.data.topic

    @property
    def is_sql(self) -> bool:
        """True when the broker evaluates an expression."""
        return self.data.expression_type != TAG

    def matching(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those whose tag is truly wanted: a broker may have been misled by equal hashes."""
        tags = self.tags
        if not tags:
            return messages
        return [message for message in messages if message.tag in tags]


def wanted_of(
    messages: list[ReceivedMessage], subscription: Subscription, filters: Sequence[FilterHook]
) -> list[ReceivedMessage]:
    """Those to consume: by tag, then by each filter; a filter that raises lets all through."""
    wanted = subscription.matching(messages)
    for each in filters:
        try:
            wanted = list(each(wanted))
        except Exception:
            _log.exception("filter hook failed, its messages are consumed")
    return wanted


def subscription(
    topic: str, *, tags: str | Sequence[str] = SUBSCRIBE_ALL, sql: str | None = None, version: int
) -> Subscription:
    """A subscription by tags (``"a || b"`` or a list), or by SQL92."""
    if not topic:
        raise ValueError("a subscription needs a topic")
    if sql is not None:
        if tags != SUBSCRIBE_ALL:
            raise ValueError(f"subscription of {topic!r}: tags or sql, not both")
        if not sql.strip():
            raise ValueError(f"subscription of {topic!r}: the SQL92 expression is empty")
        data = SubscriptionData(
            topic=topic, sub_string=sql, sub_version=version, expression_type=SQL92
        )
        return Subscription(data, frozenset())
    text = tags if isinstance(tags, str) else " || ".join(tags)
    data = SubscriptionData(
        topic=topic, sub_string=text.strip() or SUBSCRIBE_ALL, sub_version=version
    )
    return Subscription(data, frozenset(data.tags_set))


class Subscriptions:
    """The subscriptions of one consumer, by topic."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._by_topic: dict[str, Subscription] = {}
        self._version = 0

    def __contains__(self, topic: object) -> bool:
        return topic in self._by_topic

    def get(self, topic: str) -> Subscription | None:
        return self._by_topic.get(topic)

    def all(self) -> list[Subscription]:
        return list(self._by_topic.values())

    def topics(self) -> set[str]:
        return set(self._by_topic)

    def add(
        self, topic: str, *, tags: str | Sequence[str] = SUBSCRIBE_ALL, sql: str | None = None
    ) -> Subscription:
        """Subscribe, or subscribe otherwise."""
        made = subscription(topic, tags=tags, sql=sql, version=self._next_version())
        self._by_topic[topic] = made
        return made

    def remove(self, topic: str) -> bool:
        """Unsubscribe; False when it was not subscribed."""
        return self._by_topic.pop(topic, None) is not None

    def renew(self, topic: str) -> None:
        """The assignment changed: brokers shall learn the subscription anew."""
        found = self._by_topic.get(topic)
        if found is not None:
            data = msgspec.structs.replace(found.data, sub_version=self._next_version())
            self._by_topic[topic] = Subscription(data, found.tags)

    def _next_version(self) -> int:
        self._version = max(self._version + 1, self._wall_ms())
        return self._version


class ConsumeFrom(StrEnum):
    """Where a group without stored offsets begins."""

    FIRST = "first"
    LAST = "last"
    TIMESTAMP = "timestamp"

    @property
    def wire(self) -> ConsumeFromWhere:
        return _WIRE[self]


_WIRE: Final = {
    ConsumeFrom.FIRST: ConsumeFromWhere.FIRST_OFFSET,
    ConsumeFrom.LAST: ConsumeFromWhere.LAST_OFFSET,
    ConsumeFrom.TIMESTAMP: ConsumeFromWhere.TIMESTAMP,
}


async def first_offset(
    queue: QueueRef,
    stored: int | None,
    where: ConsumeFrom,
    at_ms: int,
    requests: BrokerRequests,
) -> int | None:
    """The offset to begin at; None = leave this queue until the next rebalance.

        stored      >= 0: there, always         below -1: not now, ask again at the next rebalance
        nothing     LAST       retry topic: 0 (its messages are the group's own), else the end
        (None, -1)  FIRST      0; a broker that has removed it answers with its oldest
                    TIMESTAMP  retry topic: the end, else the first message stored at or after it

    A stored -1 is nothing: some clients commit -1 for queues they never read.
    """
    if stored is not None and stored != NOTHING_STORED:
        return stored if stored >= 0 else None
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if where is ConsumeFrom.FIRST or (where is ConsumeFrom.LAST and is_retry):
        return 0
    if where is ConsumeFrom.LAST or is_retry:
        return await requests.max_offset(queue)
    return await requests.search_offset(queue, at_ms)


def timestamp_ms(at: datetime | str | int | None, now_ms: int) -> int:
    """Wall milliseconds of a point in time: a datetime, ``yyyyMMddHHmmss``, milliseconds, None."""
    if at is None:
        return now_ms - TIMESTAMP_AGE_MS
    if isinstance(at, int):
        return at
    if isinstance(at, str):
        try:
            at = datetime.strptime(at, TIMESTAMP_FORMAT)
        except ValueError:
            raise ValueError(
                f"consume_timestamp {at!r} is not like 20240131235959 (local time); "
                "give a datetime or milliseconds since 1970 instead"
            ) from None
    return int(at.timestamp() * 1000)
