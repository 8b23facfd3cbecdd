"""What brokers answer to administrators, typed: statistics of topics and groups, connections.

Not here: who is asked (``admin_topics.py``, ``admin_groups.py``), the bytes (``calls_admin.py``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import Body, SubscriptionData


class QueueStats(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    """How much is in one queue."""

    min_offset: int
    max_offset: int
    """That of the next message."""
    changed_at_ms: int = msgspec.field(name="lastUpdateTimestamp", default=0)

    @property
    def messages(self) -> int:
        """How many there are."""
        return self.max_offset - self.min_offset


class QueueProgress(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    """How far a group is in one queue."""

    broker_offset: int
    """That of the next message."""
    committed: int = msgspec.field(name="consumerOffset")
    pull_offset: int = 0
    """Where its reader asked last; 0 from brokers that do not say."""
    committed_at_ms: int = msgspec.field(name="lastTimestamp", default=0)
    """When the last message before ``committed`` was stored."""

    @property
    def lag(self) -> int:
        """Messages to go."""
        return max(self.broker_offset - max(self.committed, 0), 0)

    @property
    def in_flight(self) -> int:
        """Messages that were read and are not settled."""
        return max(self.pull_offset - max(self.committed, 0), 0)


class ClientConnection(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    """One client that is connected."""

    client_id: str
    address: str = msgspec.field(name="clientAddr", default="")
    language: str = ""
    version: int = 0


class GroupConnections(msgspec.Struct, frozen=True):
    """Who is connected for a group, and what it reads; the rest is empty for producers."""

    connections: list[ClientConnection] = []
    subscriptions: dict[str, SubscriptionData] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from: str = ""

    @property
    def client_ids(self) -> list[str]:
        """Ids of the connected clients, sorted as brokers sort them."""
        return sorted({each.client_id for each in self.connections})


class _Connections(Body, gc=False, kw_only=True, rename="camel"):
    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


def topic_stats(rows: Mapping[QueueRef, Any]) -> dict[QueueRef, QueueStats]:
    """Of GET_TOPIC_STATS_INFO, sorted by queue."""
    return {queue: _read(rows[queue], QueueStats) for queue in sorted(rows)}


def consume_stats(rows: Mapping[QueueRef, Any]) -> dict[QueueRef, QueueProgress]:
    """Of GET_CONSUME_STATS, sorted by queue."""
    return {queue: _read(rows[queue], QueueProgress) for queue in sorted(rows)}


def connections(answers: Iterable[Mapping[str, Any]]) -> GroupConnections:
    """Of one or several brokers: a client is connected to each, and is listed once."""
    found: dict[str, ClientConnection] = {}
    subscriptions: dict[str, SubscriptionData] = {}
    last = _Connections()
    for answer in answers:
        last = _read(answer, _Connections)
        found |= {each.client_id: each for each in last.connection_set}
        subscriptions |= last.subscription_table
    return GroupConnections(
        [found[client_id] for client_id in sorted(found)],
        subscriptions,
        last.consume_type,
        last.message_model,
        last.consume_from_where,
    )


def _read(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, strict=False)
