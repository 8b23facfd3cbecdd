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

from typing import TYPE_CHECKING, cast

from penstock.engine.deadlines import Deadlines
from penstock.engine.frame import Frame
from penstock.engine.subscription import Subscription
from penstock.engine.topic import Topic

if TYPE_CHECKING:
    from penstock.engine.parts import Parts
    from penstock.engine.queue import Queue

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
        """A subscription is gone."""
        self._woken.pop(subscription, None)
        self._deadlines.disarm(subscription)

    def run(self) -> None:
        """One turn."""
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
