"""What happened to messages of a subscription: the vocabulary of settle records (D5).

A settlement says, for one subscription, which offsets of which queues are done and why, and what
must be remembered about the ones that are not (delivery counts, the delivered mark).
"""

from enum import IntEnum

import msgspec

from penstock.model.ids import QueueId, QueueOffset, SubscriptionId


class Cause(IntEnum):
    """Why an offset needs no further delivery."""

    ACKED = 0
    COMMITTED = 1
    """Cumulative: everything below an offset, as RocketMQ and Pulsar commit."""
    EXPIRED = 2
    DROPPED_HEAD = 3
    """Removed by a length limit."""
    REJECTED = 4
    """Refused by the consumer without requeue."""
    DELIVERY_LIMIT = 5
    PURGED = 6
    SOUGHT = 7
    """The cursor was moved on purpose; may go backwards."""
    CORRUPT = 8
    """The record cannot be read; counted and reported (P7)."""
    DELIVERED = 9
    """Nothing settled: only delivery counts or the delivered mark changed."""
    MOVED = 10
    """A copy went to another queue, in the same frame."""

    @property
    def is_dead_letter(self) -> bool:
        """True when a dead-letter target, if there is one, gets a copy."""
        return self in _DEAD_LETTER_CAUSES


_DEAD_LETTER_CAUSES = frozenset(
    (Cause.EXPIRED, Cause.DROPPED_HEAD, Cause.REJECTED, Cause.DELIVERY_LIMIT)
)


class QueueSettlement(msgspec.Struct, array_like=True, gc=False):
    """The part of a settlement that concerns one queue."""

    queue_id: QueueId
    low_mark: QueueOffset
    """Everything below is settled; -1 = unchanged. With ``Cause.SOUGHT`` it may go back."""
    ranges: list[tuple[int, int]] = []
    """Half-open [start, end) offsets settled one by one."""
    delivered_mark: int = -1
    """No offset at or above was ever delivered (reserved ahead); -1 = unchanged (D13)."""
    counts: list[tuple[int, int]] = []
    """(offset, deliveries so far) of messages that went back."""


class Settlement(msgspec.Struct, array_like=True, gc=False):
    """One settle record: one subscription, one cause, one turn."""

    subscription_id: SubscriptionId
    cause: int
    queues: list[QueueSettlement]
