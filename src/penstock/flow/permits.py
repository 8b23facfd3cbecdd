"""Permits: a consumer says how many more messages it will take (F11).

Who grants: the client, with each FLOW, additively. Who spends: the dispatcher, one per message. Who
stops: that consumer, at zero or below. What wakes it: a grant that makes the permits positive.

A batch is never split, so permits may go negative; the next grants make up for it. Availability is
always this consumer's own figure: a total over several consumers can be negative while one of them
still has credit, a stall Pulsar's users know well. Grants that arrive while the consumer is blocked
on unsettled messages are kept aside and added when it is unblocked. Settling returns nothing: the
client grants anew. Permits die with the consumer.
"""

from collections.abc import Callable
from typing import Final

from penstock.flow.demand import UNLIMITED

PERMITS_MAX: Final = (1 << 31) - 1
"""No receiver queue is larger; what a peer grants beyond it is dropped, not remembered."""


class Permits:
    """One consumer's permits."""

    __slots__ = ("aside", "is_blocked", "permits", "permits_max", "wake")

    def __init__(self, permits: int = 0, *, permits_max: int = PERMITS_MAX) -> None:
        self.permits = permits
        self.permits_max = permits_max
        self.aside = 0
        """Granted while blocked, not counted yet."""
        self.is_blocked = False
        self.wake: Callable[[], None] | None = None

    def add(self, n: int) -> None:
        """FLOW: n more messages."""
        if n <= 0:
            raise ValueError(f"a grant of {n} permits; it must be at least 1")
        if self.is_blocked:
            self.aside = min(self.aside + n, self.permits_max)
            return
        self._grant(n)

    def available_messages(self) -> int:
        """Messages it takes now."""
        return 0 if self.is_blocked or self.permits < 0 else self.permits

    def available_bytes(self) -> int:
        """Permits count messages only."""
        return UNLIMITED

    def taken(self, messages: int, _size_bytes: int = 0, /) -> None:
        """Delivered; a whole batch counts even where fewer permits were left."""
        self.permits -= messages

    def returned(self, messages: int, _size_bytes: int = 0, /) -> None:
        """Settling grants nothing."""

    def block(self) -> None:
        """The consumer has too many unsettled messages (F13)."""
        self.is_blocked = True

    def unblock(self) -> None:
        """It has settled enough: what was kept aside counts now."""
        if not self.is_blocked:
            return
        self.is_blocked = False
        aside, self.aside = self.aside, 0
        was_available = self.permits > 0
        self.permits = min(self.permits + aside, self.permits_max)
        # Being unblocked is itself the change from nothing to something.
        if (was_available or self.permits > 0) and self.wake is not None:
            self.wake()

    def _grant(self, n: int) -> None:
        was_available = self.permits > 0
        self.permits = min(self.permits + n, self.permits_max)
        if not was_available and self.permits > 0 and self.wake is not None:
            self.wake()
