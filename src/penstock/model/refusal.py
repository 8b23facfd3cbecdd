"""Refusals: what a publisher is told when its message is not taken.

Under load a refusal is an ordinary answer, not an exception: it is made before anything is stored
(law 6) and says what, which and what to do. Adapters translate ``RefusalKind`` into their
protocol's words (RocketMQ code 2, AMQP nack, Pulsar close-producer ...).
"""

from enum import Enum

import msgspec


class RefusalKind(Enum):
    """Why a publish was not stored."""

    BUSY = "busy"
    """Fast failure: waited too long for the store, or the store is held."""
    NO_BUFFER = "no-buffer"
    """Every write buffer is taken by bytes that are not durable yet (F7)."""
    MEMORY_ALARM = "memory-alarm"
    DISK_ALARM = "disk-alarm"
    LENGTH_LIMIT = "length-limit"
    QUOTA = "quota"
    RATE = "rate"
    HELD_TOO_LONG = "held-too-long"
    TOO_LARGE = "too-large"
    NO_ROUTE = "no-route"
    TERMINATED = "terminated"
    """The topic's owner ended it for good; what it has can still be read."""
    WRITE_FAILED = "write-failed"
    """The disk refused the frame; nothing of it is stored."""
    SYNC_FAILED = "sync-failed"
    """The sync of an appended message failed: it may or may not be on disk (P4)."""
    CLOSING = "closing"


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """One refusal: the kind, who or what caused it, and a sentence for a person."""

    kind: RefusalKind
    culprit: str
    """Name of the queue, disk, limit or class that said no."""
    text: str
