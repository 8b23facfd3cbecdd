"""What brokers answer to administrators: statistics of topics and groups, connections.

Tables by queue come from Java with objects as keys, ``{{"queueId":0,...}:{...}}``; here they are
dictionaries by ``QueueRef``.

Not here: who is asked (``admin.py``), the requests themselves (``admin_calls.py``).
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import Body, MessageQueue, SubscriptionData
from penstock.wire.rocketmq.lenient_json import decode_body

TABLE_BYTES_MAX: Final = 16 << 20
"""The largest frame: a table of 50,000 queues. Ours is the asking side, so it may take long."""


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
    """Where its reader asked last."""
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


class GroupConnections(msgspec.Struct, gc=False, frozen=True):
    """Who reads for a group, and what."""

    connections: list[ClientConnection]
    subscriptions: dict[str, SubscriptionData]
    consume_type: str
    message_model: str
    consume_from: str


class _Connections(Body, gc=False, kw_only=True, rename="camel"):
    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


class _Table(Body, gc=False, kw_only=True, rename="camel"):
    offset_table: dict[str, Any] = {}


def topic_stats(body: bytes) -> dict[QueueRef, QueueStats]:
    """Answer to GET_TOPIC_STATS_INFO."""
    return _by_queue(body, QueueStats)


def consume_stats(body: bytes) -> dict[QueueRef, QueueProgress]:
    """Answer to GET_CONSUME_STATS."""
    return _by_queue(body, QueueProgress)


def offset_table(body: bytes) -> dict[QueueRef, int]:
    """Answer to INVOKE_BROKER_TO_RESET_OFFSET; empty where a broker says nothing."""
    return _by_queue(body, int) if body else {}


def connections(body: bytes) -> GroupConnections:
    """Answer to GET_CONSUMER_CONNECTION_LIST and GET_PRODUCER_CONNECTION_LIST."""
    found = decode_body(body, _Connections, bytes_max=TABLE_BYTES_MAX)
    return GroupConnections(
        found.connection_set,
        found.subscription_table,
        found.consume_type,
        found.message_model,
        found.consume_from_where,
    )


def _by_queue(body: bytes, kind: Any) -> dict[QueueRef, Any]:
    # A quarter of the limit may be rewritten, and all of these tables have to be.
    table = decode_body(body, _Table, bytes_max=4 * TABLE_BYTES_MAX).offset_table
    return {
        queue_of(key): msgspec.convert(row, kind, strict=False) for key, row in _rows(table).items()
    }


def _rows(table: Mapping[str, Any]) -> dict[MessageQueue, Any]:
    return {decode_body(key.encode(), MessageQueue): row for key, row in table.items()}


def queue_of(queue: MessageQueue) -> QueueRef:
    """The same queue, as the client names it."""
    return QueueRef(queue.topic, queue.broker_name, queue.queue_id)
