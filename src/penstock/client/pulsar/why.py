"""Why a producer or a consumer waits: for programs, for people, and for the broker.

    >>> producer.why()
    Why(reason=<Waits.RECEIPTS: 'receipts'>, text="1,000 of 1,000 messages ...", lasted_ms=4100)

``str()`` of it is the sentence; statistics and the ``str()`` of a producer or consumer carry it.
A broker that is Penstock hears why a consumer takes no more (``WaitTeller``), so that its own
diagnosis can say what is the matter behind the permits. Producers tell nothing: what they wait for
is the broker itself, but for messages that gather for a batch, at most as long as they are told to.

Not here: how it is found out (``producer.py``, and what consumers have); when a broker is told
(``connection.py``).
"""

from enum import Enum
from typing import Final

import msgspec

from penstock.wire.pulsar.protocol_pb2 import ConsumerWait


class Waits(Enum):
    """What is waited for."""

    NOTHING = "nothing"
    CONNECTION = "connection"
    """There is none to the broker; one is being made."""
    TURN = "turn"
    """Another producer is the only one; this one is in the line behind it."""
    QUOTA = "quota"
    """The topic's backlog is over its quota: consumers must catch up."""
    RECEIPTS = "receipts"
    """The bound of what is not confirmed is reached, or something is not confirmed yet."""
    BATCH = "batch"
    """Messages gather."""
    MESSAGES = "messages"
    """The broker has none to send, or waits for acks: of these two a consumer knows nothing."""
    APPLICATION = "application"
    """The queue is full: the application must take messages out of it."""
    RESUME = "resume"
    """It is paused."""
    ACTIVE = "active"
    """Another consumer of a failover subscription is the active one."""
    CLOSED = "closed"


class Why(msgspec.Struct, frozen=True):
    """What one producer or consumer waits for now."""

    reason: Waits
    text: str
    lasted_ms: int = 0
    """For how long, where that is known."""

    def __str__(self) -> str:
        return self.text

    @property
    def is_waiting(self) -> bool:
        """False when there is nothing to wait for."""
        return self.reason is not Waits.NOTHING


class Standstill(msgspec.Struct, frozen=True):
    """Why a consumer takes no more, at one moment."""

    cause: ConsumerWait.Cause = ConsumerWait.NOTHING
    waiting: int = 0
    limit: int = 0
    moved: object = None
    """What changes with every step of whoever must do something: with it the time begins anew."""


RUNNING: Final = Standstill()
MOVING_MS: Final = 4_000
"""So long it need not be said that one who is slow has moved again: only when the broker counts 5 s
does it believe that nothing moves (``flow/delivery.py``)."""


class WaitTeller:
    """What of a consumer's standstills its broker is told; looked at every second or so.

    A standstill counts when it is found twice in a row: what is over within a second is nobody's
    business. What has been told is not told again while nothing changes, and of an application that
    is slow but moves only now and then.
    """

    __slots__ = ("_found", "_since_ms", "_told", "_told_since_ms")

    def __init__(self) -> None:
        self._found = self._told = RUNNING
        self._since_ms = self._told_since_ms = 0

    @property
    def is_done(self) -> bool:
        """True when there is nothing that the broker would have to hear of later."""
        return self._found is RUNNING and self._told is RUNNING

    def forget(self) -> None:
        """A new connection: its broker knows nothing."""
        self._found = self._told = RUNNING

    def look(self, found: Standstill, now_ms: int) -> ConsumerWait | None:
        """What is to be told now, without the consumer's id."""
        before, self._found = self._found, found
        if (found.cause, found.moved) != (before.cause, before.moved):
            self._since_ms = now_ms
        is_new = found.cause not in (before.cause, ConsumerWait.NOTHING)
        if is_new or found == self._told:
            return None
        is_known = found.cause == self._told.cause
        if is_known and now_ms - self._told_since_ms < MOVING_MS:
            return None
        self._told, self._told_since_ms = found, self._since_ms
        return ConsumerWait(
            cause=found.cause,
            waiting=found.waiting,
            limit=found.limit,
            lasted_ms=now_ms - self._since_ms,
        )
