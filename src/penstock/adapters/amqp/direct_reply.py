"""Direct reply-to: answers to requests go from channel to channel and never touch the log (D6).

A client that consumes ``amq.rabbitmq.reply-to`` (without acks, one consumer per channel) may name
it as reply-to of what it publishes; stored is ``amq.rabbitmq.reply-to.<opaque>``, which nobody can
guess. What is published to the default exchange with that key is delivered at once.

Nothing is kept: a reply whose requester is gone is unroutable (returned when mandatory). So is one
for a requester that does not read what it gets: above the connection's limit of unsent messages
(F14) replies are dropped, and counted, rather than kept (RabbitMQ would let its memory grow).

Not here: consumers of queues (``consumer.py``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.topology.router import DIRECT_REPLY_PREFIX, DIRECT_REPLY_QUEUE
from penstock.model.record import Record
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.basic import Consume
from penstock.wire.amqp.origin import PublishHead, publish_record
from penstock.wire.amqp.properties import edit_properties
from penstock.wire.amqp.serializer import DeliveryEncoder

if TYPE_CHECKING:
    from penstock.adapters.amqp.ports import ChannelPort

OPAQUE_BYTES: Final = 16
_REPLY_TO: Final = DIRECT_REPLY_QUEUE.encode()


class ReplyConsumer:
    """The one on a channel that waits for replies."""

    __slots__ = ("_deliveries", "_skip_tags", "channel", "key", "tag")

    def __init__(
        self, channel: ChannelPort, key: str, tag: str, skip_tags: Callable[[int], int]
    ) -> None:
        """``skip_tags`` uses up delivery tags of the channel and says the first of them."""
        self.channel: Final = channel
        self.key: Final = key
        self.tag: Final = tag
        self._skip_tags: Final = skip_tags
        self._deliveries = DeliveryEncoder(channel.number, tag, channel.connection.frame_max)

    def deliver(self, records: list[Record]) -> int:
        """Send replies; how many of them the requester's backlog allowed."""
        channel = self.channel
        unsent = channel.connection.unsent
        # As for other deliveries: while all sockets together are behind, one at a time.
        is_short = unsent.pool is not None and unsent.pool.is_short
        taken: list[Record] = []
        for record in records:
            if unsent.is_held or (unsent.messages and is_short):
                break
            unsent.queued(1, len(record.origin))
            taken.append(record)
        if len(taken) < len(records):
            channel.context.note_unread_replies(len(records) - len(taken))
        if taken:
            first_tag = self._skip_tags(len(taken))
            size = sum([len(record.origin) for record in taken])
            channel.replies.note_deliveries(len(taken), size)
            channel.send(self._deliveries.encode(taken, first_tag))
        return len(taken)


class DirectReplyRegistry:
    """All waiting requesters of a broker; at most one per open channel."""

    def __init__(self) -> None:
        self._waiting: dict[str, ReplyConsumer] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def find(self, key: str, vhost: str) -> ReplyConsumer | None:
        """Who waits for replies with this routing key."""
        found = self._waiting.get(key)
        return found if found is not None and found.channel.vhost.name == vhost else None

    def exists(self, name: str, vhost: str) -> bool:
        return name == DIRECT_REPLY_QUEUE or self.find(name, vhost) is not None

    def add(self, consumer: ReplyConsumer) -> None:
        self._waiting[consumer.key] = consumer

    def remove(self, consumer: ReplyConsumer) -> None:
        self._waiting.pop(consumer.key, None)


class DirectReplyHandler:
    """One channel's part: its requester, and the reply-to of what it publishes."""

    __slots__ = ("_channel", "_registry", "consumer")

    def __init__(self, channel: ChannelPort, registry: DirectReplyRegistry) -> None:
        self._channel: Final = channel
        self._registry: Final = registry
        self.consumer: ReplyConsumer | None = None

    def exists(self, name: str) -> bool:
        """What queue.declare wants to know of such a name."""
        return self._registry.exists(name, self._channel.vhost.name)

    def consume(self, method: Consume, tag: str, skip_tags: Callable[[int], int]) -> None:
        """basic.consume of the pseudo queue; ``tag`` is the tag the consumer gets."""
        if not method.is_no_ack:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self.consumer is not None:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "reply consumer already set")
        key = DIRECT_REPLY_PREFIX + secrets.token_urlsafe(OPAQUE_BYTES)
        self.consumer = ReplyConsumer(self._channel, key, tag, skip_tags)
        self._registry.add(self.consumer)

    def cancel(self, tag: str) -> None:
        """basic.cancel, if the tag is the requester's."""
        if self.consumer is not None and self.consumer.tag == tag:
            self.close()

    def close(self) -> None:
        """Nobody waits here any more."""
        if self.consumer is not None:
            self._registry.remove(self.consumer)
            self.consumer = None

    def addressed(self, head: PublishHead, records: list[Record], now_ms: int) -> list[Record]:
        """The same messages with the real address in them; raises 406 when nobody waits."""
        if self.consumer is None:
            text = "fast reply consumer does not exist"
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
        change = {"reply_to": self.consumer.key.encode()}
        return [
            publish_record(head, edit_properties(each.properties, change), each.body, now_ms)
            for each in records
        ]


def is_pseudo(reply_to: bytes | None) -> bool:
    """True when the broker must write the real address."""
    return reply_to == _REPLY_TO


def is_pseudo_queue(name: str) -> bool:
    """True for names that queue.declare only looks up."""
    return name == DIRECT_REPLY_QUEUE or name.startswith(DIRECT_REPLY_PREFIX)
