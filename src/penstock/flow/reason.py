"""Why something stands still: the one vocabulary of gates, episodes, metrics and notices.

The value of a reason is the text shown to people and used as the metric label, so it never changes.
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """A named cause of being held; several may hold the same thing at once."""

    FLOW = "flow"
    """Credit towards the next stage is spent (F1), or its byte share is full."""
    MEMORY = "memory"
    """The memory alarm is raised (F3)."""
    DISK = "disk"
    """The disk alarm is raised (F3)."""
    RATE = "rate"
    """A publish or dispatch rate limit is used up (F8)."""
    QUOTA = "quota"
    """A backlog quota is passed (F8)."""
    PENDING = "pending"
    """Too many publishes of this connection are unconfirmed (F9)."""
    HELD = "held"
    """A target is full and its policy is to hold the publisher (length limit with hold)."""
    SPARK = "spark"
    """A Spark query is behind its bound and its topic's policy lets publishers wait (F18)."""
    STAGE = "stage"
    """Rows that sinks have staged and not committed use up their room on disk (D19)."""
    ROOM = "room"
    """The in-flight pool has no room for a publish that is still arriving (D22)."""

    # Members are singletons, so identity is enough, and Enum's own hash is a Python call that every
    # stall would pay for several times.
    __hash__ = object.__hash__

    @property
    def is_resource(self) -> bool:
        """True for an alarm: it concerns publishers only and is announced to them."""
        return self in _RESOURCES


_RESOURCES = frozenset((Reason.MEMORY, Reason.DISK))


class Culprit(str):
    """Who or what holds somebody: words for people, and the id of the thing they mean.

    It is passed on wherever its words are (gates, episodes, events), so that nobody has to find the
    thing by its words again: two things may share them.
    """

    __slots__ = ("id", "limit_id")

    id: str
    limit_id: str
    """Of who refuses, or throws away, by a limit: the id of that; else empty."""

    def __new__(cls, words: str, culprit_id: str, limit_id: str = "") -> Culprit:
        made = super().__new__(cls, words)
        made.id = culprit_id
        made.limit_id = limit_id
        return made


def id_of(culprit: str) -> str:
    """The id of a culprit; empty when only words are known."""
    return culprit.id if isinstance(culprit, Culprit) else ""
