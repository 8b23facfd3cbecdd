"""One turn: everything that arrived is moved one stage on, and one frame is appended.

A turn is a function of the state, the clock and the store's answers; it never waits. Its order::

    timers      subscriptions, held pulls, waiting requests, chores whose time has come
    channels    route and admit (publish.py)
    frame       what the queues give (collect.py), releases, settlements, dead letters, own events
    append      one write (commit.py); transient publishes are confirmed
    make room   topics above a length limit or quota let their oldest messages go (limits.py)
    snapshot    cursors are offered while nothing is unsaved (housekeeping.py)
    dispatch    subscriptions that were woken hand out messages (deliver.py)
    answers     refusals and confirms leave, gates open and close

Invariant (law 4): when a turn or a sync ends, it looks at what is left, not at what happened.
Whatever could move now asks for the next turn; whatever waits for time is in ``next_deadline_ms``;
whatever waits for the disk is looked at after a sync. So no wake-up can be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, cast

from penstock.engine.commit import Frame, Settling
from penstock.engine.flow_context import FlowContext
from penstock.engine.registry import Registry
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import Topic
from penstock.log.format import CursorState
from penstock.log.store import Store
from penstock.model.errors import AppendFailed
from penstock.model.ids import QueueId, SubscriptionId
from penstock.settings.broker import StorageSettings

if TYPE_CHECKING:
    from penstock.engine.broker import Parts
    from penstock.engine.topic import Queue

RETRY_MS = 100
"""After a write the disk refused, settlements and dead letters wait this long for the next try."""


class TurnRunner:
    """Runs turns over the parts of an engine."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._chain = parts.chain
        self._woken: dict[Subscription, None] = {}
        self._deadlines = Deadlines()
        self._overfull: dict[Topic, None] = {}
        self._retry_ms = 0
        self._has_drained = False
        self._is_stuffed = False
        self.turns = 0

    def wake(self, subscription: Subscription) -> None:
        """Dispatch this subscription in this turn or the next."""
        self._woken[subscription] = None
        self._chain.is_stirred = True

    def watch(self, topic: Topic) -> None:
        """Look after the next append whether the topic is above a limit."""
        self._overfull[topic] = None

    def forget(self, subscription: Subscription) -> None:
        self._woken.pop(subscription, None)
        self._deadlines.disarm(subscription)

    def run(self) -> None:
        parts, chain, commits = self._parts, self._chain, self._parts.commits
        self.turns += 1
        self._has_drained = False
        chain.is_stirred = False
        now_ms = chain.clock.monotonic_ms()
        chain.journal.tick(now_ms)
        self._timers(now_ms)
        if commits.failure is not None:
            parts.intake.refuse_all(commits.failure)
            parts.refuse_collected(commits.failure)
        else:
            parts.intake.run(self.turns)
            is_saved = self._append(now_ms)
            # Those left over from a frame that could not be written; newer ones are this turn's.
            self._is_stuffed = bool(parts.dead_letters.waiting) and parts.dead_letters.is_crowded
            if is_saved:
                parts.housekeeping.snapshot(now_ms)
                if commits.asked:
                    commits.arm_callbacks()
        self._has_drained |= self._dispatch()
        if parts.leaving.causes:
            parts.leaving.look()
        if self._overfull and commits.failure is None:
            # After the dispatch: what a consumer takes at once is never too much.
            self._make_room()
        if chain.journal.open:
            # Only now are channels free that wait for a queue: what it did took its time.
            chain.journal.tick(chain.now_ms)
        parts.collector.give_back()
        if commits.armed:
            commits.run_idle_callbacks()
        parts.answers.say()
        chain.refresh_gates()
        chain.is_stirred = self._can_move()

    def arrived(self, queue: Queue, *, is_durable: bool) -> None:
        """A queue has new messages; those who may see them now (D7) are told."""
        for subscription in queue.topic.subscriptions.values():
            if subscription.options.sees_unsynced is not is_durable:
                subscription.arrived(queue.queue_id)
        parts = self._parts
        if is_durable and (parts.held_pulls.held or parts.queries.held.held):
            parts.pulls.arrived(queue)
            parts.queries.arrived(queue)

    def durable(self, frame: Frame) -> None:
        """A sync covered a frame: what it stored may be seen by all."""
        for queue in frame.ends:
            if not queue.is_deleted:
                self.arrived(queue, is_durable=True)

    def look_after_sync(self) -> None:
        """A sync has ended: ask for a turn if it may have something to do now (law 4).

        A lone publisher's sync leaves nothing behind: its confirm is on its way already.
        """
        chain, parts = self._chain, self._parts
        is_waiting = self._overfull or parts.collector.held
        is_awaited = parts.commits.asked or parts.commits.armed
        if is_waiting or is_awaited or parts.commits.failure is not None:
            chain.is_stirred = True
        elif not chain.is_stirred:
            chain.is_stirred = self._can_move()

    def next_deadline_ms(self) -> int | None:
        """When the first thing that waits for time is due."""
        parts, journal = self._parts, self._chain.journal
        soonest_ms = parts.housekeeping.next_deadline_ms()
        if self._deadlines.heap:
            soonest_ms = min(soonest_ms, self._deadlines.heap[0][0])
        if self._retry_ms:
            soonest_ms = min(soonest_ms, self._retry_ms)
        elif parts.commits.failure is None and not parts.commits.is_held_at(journal.now_ms):
            # What needs a frame cannot be done before there can be one.
            soonest_ms = min(soonest_ms, parts.delays.next_deadline_ms())
            if parts.housekeeping.snapshot_ms is not None:
                soonest_ms = min(soonest_ms, parts.housekeeping.snapshot_ms)
        if not (journal.open or parts.intake.channels or parts.is_anybody_waiting):
            return soonest_ms
        for at_ms in (
            journal.next_deadline_ms,
            parts.intake.next_deadline_ms(),
            parts.waiting.next_deadline_ms(),
            parts.pulls.next_deadline_ms(),
            parts.queries.next_deadline_ms(),
        ):
            if at_ms is not None and at_ms < soonest_ms:
                soonest_ms = at_ms
        return soonest_ms

    # Parts of a turn.

    def _timers(self, now_ms: int) -> None:
        parts = self._parts
        if self._deadlines.heap:
            self._subscriptions_due(now_ms)
        if self._retry_ms and now_ms >= self._retry_ms:
            self._retry_ms = 0
        if parts.is_anybody_waiting:
            parts.pulls.due(now_ms)
            parts.queries.due(now_ms)
        if now_ms >= parts.housekeeping.due_ms or parts.registry.unused.topics:
            parts.housekeeping.run(now_ms, parts.expire)
        parts.waiting.turn()

    def _subscriptions_due(self, now_ms: int) -> None:
        # Each once: what one of them leaves undone is due at once, in the next turn.
        for subscription_id in self._deadlines.take_due(now_ms):
            subscription = self._parts.registry.subscription(subscription_id)
            if subscription is not None:
                subscription.due(now_ms)
                self._deadlines.arm(subscription)

    def _append(self, now_ms: int) -> bool:
        """Append what there is; True when nothing that was settled is left unsaved."""
        parts = self._parts
        settling, dead_letters, delays = parts.settling, parts.dead_letters, parts.delays
        if parts.commits.is_held_at(now_ms):
            parts.collector.hold(self._chain.log)
            return False
        if parts.collector.held:
            parts.collector.let_go(self._chain.log)
        frame = Frame()
        parts.collector.collect(frame)
        # After a refused write only publishers try the disk at once: they are answered by it.
        if self._retry_ms and not frame.parcels:
            return False
        released = delays.due(frame, self._chain.flow.turn_messages_max, now_ms)
        settled = settling.put(frame)
        buried = dead_letters.put(frame) if dead_letters.waiting else []
        told = parts.flow_topic.put(frame) if parts.flow_topic.waiting else 0
        if not frame.batch:
            return True
        if not parts.commits.append(frame, self._chain.clock.wall_at(now_ms)):
            settling.failed(settled)
            dead_letters.failed(buried)
            delays.failed(released)
            parts.flow_topic.failed(told)
            self._retry_ms = now_ms + RETRY_MS
            self._has_drained = True
            return False
        self._retry_ms = 0
        settling.saved(settled)
        if buried:
            dead_letters.stored(frame.end_position)
        delays.stored(frame)
        parts.housekeeping.appended(now_ms)
        for queue in frame.queues:
            self.arrived(queue, is_durable=False)
            limits = queue.topic.limits
            if limits is not None and limits.evicts:
                self._overfull[queue.topic] = None
        return True

    def _make_room(self) -> None:
        if self._is_stuffed:
            return
        wall_ms = self._chain.clock.wall_ms()
        watched, self._overfull = self._overfull, {}
        for topic in watched:
            if topic.limits is None or topic.is_deleted:
                continue
            if topic.limits.make_room(wall_ms):
                self._has_drained = True
            else:
                # Its readers may not drop what is not durable yet: after the next sync they may.
                self._overfull[topic] = None

    def _dispatch(self) -> bool:
        """Hand out messages; True when any queue has fewer of them ready now."""
        if not self._woken or self._is_stuffed:
            return False
        moved = 0
        woken, self._woken = self._woken, {}
        flow = self._chain.flow
        share = flow.turn_messages_max // len(woken) or 1
        for subscription in woken:
            # The part of a turn that this one leaves is not shared out: it comes again at once.
            here = subscription.dispatch(share)
            moved += here
            if here >= share:
                self._woken[subscription] = None
            self._deadlines.arm(subscription)
        registry = self._parts.registry
        if registry.evicting or registry.unused.topics:
            for subscription in woken:
                topic = cast("Queue", subscription.lead_queue).topic
                # Somebody may have come or left; what came back may be too much.
                registry.unused.look(topic, self._chain.now_ms)
                if topic.name in registry.evicting:
                    self._overfull[topic] = None
        return moved > 0

    def _can_move(self) -> bool:
        """True when the next turn would move something (law 4)."""
        parts = self._parts
        if self._woken and not self._is_stuffed:
            return True
        if parts.commits.failure is not None:
            return False
        if parts.intake.channels and parts.intake.can_move(has_drained=self._has_drained):
            return True
        if parts.waiting.is_used and parts.waiting.can_move:
            return True
        if parts.commits.is_held_at(self._chain.journal.now_ms):
            return False
        return bool(parts.collector.queues and parts.collector.can_move) or self._wants_frame()

    def _wants_frame(self) -> bool:
        """True when something else than publishes is to be appended, and may be tried now."""
        parts = self._parts
        return not self._retry_ms and bool(
            parts.settling.noted
            or parts.settling.again
            or parts.dead_letters.waiting
            or parts.delays.asked
            or parts.commits.asked
            or parts.flow_topic.waiting
        )


# ---- deadlines ----------------------------------------------------------------------------------
# When subscriptions want a turn although nothing happens.
#
# A delay or a visibility ends, or a head expires. Each subscription has one moment, looked up after
# each of its dispatches. The heap keeps outdated ones, too; what is not armed any more is passed
# over when its time comes.
#
# Invariant: no subscription's entry in the heap is later than the moment it is armed for.
# Bound: one entry per subscription, twice, and ``STALE_DEADLINES_MAX``; then they are cleared out.


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


# ---- housekeeping -------------------------------------------------------------------------------
# What has to be done now and then: snapshots, retention, the idle mark, topics nobody uses.
#
# Each of these names the moment at which it wants to be looked at again; none of them is needed for
# a message to be stored or delivered.
#
# Retention (D11): a queue needs everything from the lowest cursor of a subscription that holds
# data, and everything its topic's retention time and size still cover. Segments go when no queue
# needs them (``log/retention.py``).


class Housekeeping:
    """Timed chores of one engine."""

    def __init__(
        self,
        store: Store,
        chain: FlowContext,
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
