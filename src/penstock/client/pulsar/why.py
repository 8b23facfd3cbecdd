"""Why a producer or a consumer waits: a reason for programs, a sentence for people.

    >>> producer.why()
    Why(reason=<Waits.RECEIPTS: 'receipts'>, text="1,000 of 1,000 messages ...", lasted_ms=4100)

``str()`` of it is the sentence; statistics and the ``str()`` of a producer or consumer carry it.
Not here: how it is found out (``producer.py``, and what consumers have).
"""

from enum import Enum

import msgspec


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
    """The broker has none to send."""
    APPLICATION = "application"
    """The queue is full: the application must take messages out of it."""
    ACKS = "acks"
    """The broker sends no more before the application has acknowledged some."""
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
