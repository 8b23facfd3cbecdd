"""What has to be done now and then: snapshots, retention, the idle mark, topics nobody uses.

Each of these names the moment at which it wants to be looked at again; none of them is needed for
a message to be stored or delivered.

Retention (D11): a queue needs everything from the lowest cursor of a subscription that holds data,
and everything its topic's retention time and size still cover. Segments go when no queue needs them
(``log/retention.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.engine.chain import Chain
from penstock.engine.registry import Registry
from penstock.engine.settling import Settling
from penstock.log.format import CursorState
from penstock.log.store import Store
from penstock.model.errors import AppendFailed
from penstock.model.ids import QueueId, SubscriptionId
from penstock.settings.broker import StorageSettings

if TYPE_CHECKING:
    from penstock.engine.queue import Queue
    from penstock.engine.topic import Topic


class Housekeeping:
    """Timed chores of one engine."""

    def __init__(
        self,
        store: Store,
        chain: Chain,
        settings: StorageSettings,
        registry: Registry,
        settling: Settling,
    ) -> None:
        self._store = store
        self._chain = chain
        self._settings = settings
        self._registry = registry
        self._settling = settling
        self._sweep_ms = chain.now_ms + settings.retention_sweep_ms
        self.snapshot_ms: int | None = None
        """When the next snapshot is wanted; None while nothing happened since the last."""
        self._mark_ms: int | None = None
        self.due_ms = self._sweep_ms
        """Neither sweep nor mark is due before; what was put off meanwhile makes it too early."""
        self.kept: Callable[[Queue], int | None] = lambda _queue: None
        """The first offset of a queue that a lease keeps (F18)."""

    def appended(self, now_ms: int) -> None:
        """A frame was written: a snapshot and, once it is quiet, a mark will be wanted."""
        if self.snapshot_ms is None:
            self.snapshot_ms = now_ms + self._settings.snapshot_interval_ms
        mark_ms = now_ms + self._settings.idle_mark_ms
        if self._mark_ms is None:
            self.due_ms = min(self.due_ms, mark_ms)
        self._mark_ms = mark_ms

    def snapshot(self, now_ms: int) -> None:
        """Offer the cursors to the store, if it is time.

        Only right after an append that left nothing unsaved: rows must not run ahead of the log.
        """
        if self.snapshot_ms is None or now_ms < self.snapshot_ms:
            return
        if not self._store.is_snapshot_due():
            self.snapshot_ms = now_ms + self._settings.snapshot_interval_ms
            return
        self.snapshot_ms = None
        states: list[CursorState] = []
        for subscription_id, queue_id in self._settling.take_changed():
            subscription = self._registry.subscriptions.get(SubscriptionId(subscription_id))
            if subscription is not None and QueueId(queue_id) in self._registry.queues:
                states.append(subscription.state(QueueId(queue_id)))
        self._store.offer_snapshot(self._store.end_position, states)

    def final_cursors(self) -> list[CursorState]:
        """Every durable cursor as it stands, for a clean stop."""
        return [
            subscription.state(queue.queue_id, is_final=True)
            for topic in self._registry.topics.values()
            for subscription in topic.subscriptions.values()
            if subscription.options.is_durable
            for queue in topic.queues
        ]

    def run(self, now_ms: int, expire: Callable[[Topic], None]) -> None:
        """Do what is due."""
        if self._mark_ms is not None and now_ms >= self._mark_ms:
            self._mark(now_ms)
        if now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + self._settings.retention_sweep_ms
            self._sweep()
        self.due_ms = self._sweep_ms
        if self._mark_ms is not None:
            self.due_ms = min(self.due_ms, self._mark_ms)
        if self._registry.unused.topics:
            for topic in self._registry.unused.due(now_ms):
                expire(topic)

    def next_deadline_ms(self) -> int:
        """When to look for the next chore."""
        unused = self._registry.unused
        unused_ms = unused.next_deadline_ms if unused.topics else None
        return self.due_ms if unused_ms is None else min(self.due_ms, unused_ms)

    def _mark(self, now_ms: int) -> None:
        if not self._store.is_mark_due:
            # The sync that it is to tell of has not returned yet.
            waits = self._store.unsynced_bytes > 0 and not self._store.is_failed
            self._mark_ms = now_ms + self._settings.idle_mark_ms if waits else None
            return
        self._mark_ms = None
        try:
            self._store.append_mark()
        except AppendFailed:
            self._mark_ms = now_ms + self._settings.idle_mark_ms

    def _sweep(self) -> None:
        wall_ms = self._chain.clock.wall_ms()
        needs = {
            int(queue.queue_id): _lowest_needed(queue, wall_ms, self.kept(queue))
            for queue in self._registry.queues.values()
        }
        self._store.sweep(needs, wall_ms)


def _lowest_needed(queue: Queue, wall_ms: int, kept: int | None) -> int:
    """The first offset of a queue that somebody still needs."""
    index = queue.index
    policy = queue.topic.policy
    lowest = index.next_offset if kept is None else min(kept, index.next_offset)
    if policy.retention_ms:
        recent = index.search_time(wall_ms - policy.retention_ms)
        size = index.bytes_between(recent, index.next_offset)
        if 0 < policy.retention_bytes_max < size:
            recent = _offset_before_end(queue, policy.retention_bytes_max)
        lowest = min(lowest, recent)
    for subscription in queue.topic.subscriptions.values():
        if subscription.options.holds_data:
            lowest = min(lowest, subscription.low_mark(queue.queue_id))
    return max(lowest, index.min_offset)


def _offset_before_end(queue: Queue, size: int) -> int:
    """The first offset from which at most ``size`` bytes follow."""
    index = queue.index
    low, high = index.min_offset, index.next_offset
    while low < high:
        middle = (low + high) // 2
        if index.bytes_between(middle, index.next_offset) > size:
            low = middle + 1
        else:
            high = middle
    return low
