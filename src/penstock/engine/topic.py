"""A topic: a name, a policy and one or more queues over the log; subscriptions read it.

Invariants: a topic has at least one queue and never loses one while it lives; queue number i of a
topic with ``max_priority`` holds priority i (D10); limits are of the topic as a whole, not of each
queue. Ids are given by the registry and never reused (D17).

Not here: how limits are judged (``limits.py``), who makes and stores topics (``registry.py``).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.flow.quota import QuotaPolicy
from penstock.model.ids import TopicId
from penstock.model.names import TopicName

if TYPE_CHECKING:
    from penstock.engine.limits import TopicLimits
    from penstock.engine.ports import Graves
    from penstock.engine.queue import Queue
    from penstock.engine.subscription import Subscription


AT_ONCE_MS: Final = -1
"""A time to live of nothing: to a consumer that waits for it, or dead (0 = no such rule)."""

NONE_MAX: Final = -1
"""A length limit of nothing: what no consumer waits for is too much (0 = no such rule)."""


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
    quota_bytes_max: int = 0
    """Backlog of the slowest subscription that holds data (F8)."""
    quota_age_ms_max: int = 0
    quota_policy: QuotaPolicy = QuotaPolicy.HOLD
    """With ``evict`` the slowest subscription loses its oldest messages instead."""
    message_bytes_max: int = 0
    """Largest message; ``topics.message_bytes_max`` holds in any case."""
    is_delaying: bool = False
    """Every future ``deliver_ms`` delays for the whole topic, not only records that ask (D14)."""
    spark_backpressure: str = ""
    """D23: off, soft or hard; "" = as ``spark.backpressure`` says. So is -1 of the following."""
    spark_backlog_messages_max: int = -1
    spark_backlog_bytes_max: int = -1
    spark_backlog_age_ms_max: int = -1

    @property
    def dead_letter(self) -> TopicName | None:
        """Where dead letters go."""
        if not self.dead_letter_topic:
            return None
        return TopicName(self.dead_letter_space, self.dead_letter_topic)


class Topic:
    """One topic as the engine runs it."""

    __slots__ = (
        "graves",
        "is_deleted",
        "is_durable",
        "is_leaving",
        "last_used_ms",
        "limits",
        "name",
        "policy",
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
        self.policy = policy
        self.is_durable = is_durable
        self.queues: tuple[Queue, ...] = ()
        self.subscriptions: dict[str, Subscription] = {}
        self.limits: TopicLimits | None = None
        """None when the policy asks for nothing that a publish must be judged by: the fast way."""
        self.graves: Graves | None = None
        """How its protocol routes dead letters; None = as the policy says."""
        self.last_used_ms = 0
        self.was_used = False
        """True when somebody consumed from it at the last look."""
        self.is_deleted = False
        self.is_leaving = False
        """True when it will be, as soon as its dead are buried (``leaving.py``)."""

    def __repr__(self) -> str:
        return f"<Topic {self.name} {self.topic_id} queues={len(self.queues)}>"

    def touch(self, now_ms: int) -> None:
        """Somebody used it (declared, read, consumed): ``expires_ms`` counts from now."""
        self.last_used_ms = now_ms
