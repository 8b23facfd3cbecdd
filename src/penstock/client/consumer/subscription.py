"""What a consumer wants of each topic: everything, some tags, or an SQL92 expression.

Brokers compare hashes of tags only, so what arrives is compared again here, by the text; SQL92 is
the broker's alone. A subscription's version is the time it was made: a broker that has an older
one asks for a heartbeat first.

Invariant: of two versions of one topic the later is higher, also within a millisecond.
Not here: asking the broker whether it can compile an expression (``push_consumer.py``).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.client.message import ReceivedMessage
from penstock.wire.rocketmq.bodies import SUBSCRIBE_ALL, SubscriptionData

_log = logging.getLogger(__name__)

TAG: Final = "TAG"
SQL92: Final = "SQL92"
RETRY_PREFIX: Final = "%RETRY%"
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
        """The topic."""
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
        """The subscription of a topic."""
        return self._by_topic.get(topic)

    def all(self) -> list[Subscription]:
        """Every subscription."""
        return list(self._by_topic.values())

    def topics(self) -> set[str]:
        """The topics subscribed to."""
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
