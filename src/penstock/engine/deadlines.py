"""When subscriptions want a turn although nothing happens.

A delay or a visibility ends, or a head expires. Each subscription has one moment, looked up after
each of its dispatches. The heap keeps outdated ones, too; what is not armed any more is passed over
when its time comes.

Invariant: no subscription's entry in the heap is later than the moment it is armed for.
Bound: one entry per subscription, twice, and ``STALE_DEADLINES_MAX``; then they are cleared out.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.engine.subscription import Subscription

STALE_DEADLINES_MAX = 64
"""Outdated deadlines kept beside one per subscription before they are cleared out."""


class Deadlines:
    """The moments of all subscriptions."""

    __slots__ = ("_armed", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int]] = []
        """(monotonic time, subscription id), some outdated; to be looked at only."""
        self._armed: dict[int, int] = {}

    def arm(self, subscription: Subscription) -> None:
        """A subscription had its turn: when it wants the next may have changed."""
        at_ms = subscription.next_deadline_ms()
        subscription_id = subscription.subscription_id
        if at_ms is None:
            self._armed.pop(subscription_id, None)
        elif self._armed.get(subscription_id) != at_ms:
            self._armed[subscription_id] = at_ms
            heappush(self.heap, (at_ms, subscription_id))
            if len(self.heap) > 2 * len(self._armed) + STALE_DEADLINES_MAX:
                self.heap = [(when_ms, each) for each, when_ms in self._armed.items()]
                heapify(self.heap)

    def disarm(self, subscription: Subscription) -> None:
        """A subscription is gone."""
        self._armed.pop(subscription.subscription_id, None)

    def take_due(self, now_ms: int) -> list[int]:
        """Ids of the subscriptions whose moment has come, each once; they are armed no more."""
        due: list[int] = []
        heap = self.heap
        while heap and heap[0][0] <= now_ms:
            at_ms, subscription_id = heappop(heap)
            if self._armed.get(subscription_id) == at_ms:
                del self._armed[subscription_id]
                due.append(subscription_id)
        return due
