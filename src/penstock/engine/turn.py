"""One turn: everything that arrived is moved one stage on, and one frame is appended.

A turn is a function of the state, the clock and the store's answers; it never waits. Its order::

    timers      subscriptions, held pulls, waiting requests, chores whose time has come
    channels    route and admit (publish.py)
    frame       what the queues give (publish.py), releases, settlements, dead letters, own events
    append      one write (commit.py); transient publishes are confirmed
    staged      a slice of what Spark's sinks commit, in a frame of its own (spark/staging.py)
    snapshot    cursors are offered while nothing is unsaved
    dispatch    what topics without a log gave to consumers is told (non_persistent.py);
                subscriptions that were woken hand out messages (subscription/dispatch.py)
    make room   topics above a length limit or quota let their oldest messages go (topic.py)
    answers     refusals and confirms leave, gates open and close

Invariant (law 4): when a turn or a sync ends, it looks at what is left, not at what happened.
Whatever could move now asks for the next turn; whatever waits for time is in ``next_deadline_ms``;
whatever waits for the disk is looked at after a sync. So no wake-up can be lost.

Also here: who is told of new messages (``Arrivals``), who is to be dispatched (``DispatchQueue``)
and the timed chores (``Housekeeping``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import cast

from penstock.engine.commit import Commits, Frame, PublisherReplies, SettlementBuffer
from penstock.engine.dead_letter import DeadLetters
from penstock.engine.delay import Delays
from penstock.engine.flow_context import FlowContext
from penstock.engine.flow_map import FlowEventsTopic
from penstock.engine.non_persistent import NonPersistentTopics
from penstock.engine.publish import FrameBuilder, PublishPipeline
from penstock.engine.pull import Pull, PullService
from penstock.engine.registry import Registry, TopicDeletion
from penstock.engine.request_queue import RequestQueue
from penstock.engine.spark.query_service import QueryService
from penstock.engine.spark.staging import StagedWrites
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import Queue, Topic
from penstock.flow.long_poll import HeldPulls
from penstock.log.format import CursorState
from penstock.log.segment import Segment
from penstock.log.store import Store
from penstock.model.clock import Deadlines
from penstock.model.errors import AppendFailed
from penstock.model.ids import QueueId, SubscriptionId
from penstock.settings.broker import StorageSettings

SHORT_SWEEP_MS = 1_000
"""Between two sweeps while the disk is short of room: a sweep may look at every queue there is."""

SWEEP_STEPS_MAX = 500
"""Queues that a sweep looks at in one go: some 2 ms."""
SWEEP_PIECE_MS = 20
"""Between two pieces of a sweep: it may take a tenth of a core, and no more."""

SNAPSHOT_CURSORS_MAX = 500
"""Cursors that are put into words for a snapshot in one go: some 2 ms."""

RETRY_MS = 100
"""After a write the disk refused, settlements and dead letters wait this long for the next try."""


class TurnRunner:
    """Runs the turns of one engine; it owns nothing but what a turn leaves for the next."""

    def __init__(
        self,
        chain: FlowContext,
        *,
        registry: Registry,
        pipeline: PublishPipeline,
        frame_builder: FrameBuilder,
        delays: Delays,
        settlements: SettlementBuffer,
        dead_letters: DeadLetters,
        flow_topic: FlowEventsTopic,
        commits: Commits,
        replies: PublisherReplies,
        arrivals: Arrivals,
        dispatch_queue: DispatchQueue,
        held_pulls: HeldPulls[Pull],
        pulls: PullService,
        queries: QueryService,
        request_queue: RequestQueue,
        housekeeping: Housekeeping,
        deletion: TopicDeletion,
        non_persistent: NonPersistentTopics,
        staged: StagedWrites,
    ) -> None:
        self._chain = chain
        self._registry = registry
        self._pipeline = pipeline
        self._frame_builder = frame_builder
        self._delays = delays
        self._settlements = settlements
        self._dead_letters = dead_letters
        self._flow_topic = flow_topic
        self._commits = commits
        self._replies = replies
        self._arrivals = arrivals
        self._dispatch_queue = dispatch_queue
        self._held_pulls = held_pulls
        self._pulls = pulls
        self._queries = queries
        self._request_queue = request_queue
        self._housekeeping = housekeeping
        self._deletion = deletion
        self._non_persistent = non_persistent
        self._staged = staged
        self._overfull: dict[Topic, None] = {}
        """Topics that may be above a limit: looked at after the next dispatch."""
        self._retry_ms = 0
        self._has_drained = False
        self._is_stuffed = False
        """True while so many dead letters wait for the disk that nothing may be handed out."""
        self.turns = 0

    def watch(self, topic: Topic) -> None:
        """Look after the next append whether the topic is above a limit."""
        self._overfull[topic] = None

    def run(self) -> None:
        chain, commits = self._chain, self._commits
        self.turns += 1
        self._has_drained = False
        chain.is_turn_requested = False
        now_ms = chain.clock.monotonic_ms()
        chain.journal.tick(now_ms)
        self._timers(now_ms)
        if commits.failure is not None:
            self._pipeline.refuse_all(commits.failure)
            self._staged.run(is_log_free=False)
        else:
            self._pipeline.run(self.turns)
            is_saved = self._append(now_ms)
            # Those left over from a frame that could not be written; newer ones are this turn's.
            self._is_stuffed = bool(self._dead_letters.waiting) and self._dead_letters.is_crowded
            if self._staged.is_waiting:
                self._staged.run(is_log_free=self._is_log_free(now_ms))
            if is_saved:
                self._housekeeping.snapshot(now_ms)
                if commits.asked:
                    commits.arm_callbacks()
        if self._non_persistent.outbox:
            self._non_persistent.deliver()
        self._has_drained |= self._dispatch()
        if self._deletion.causes:
            self._deletion.look()
        if self._overfull and commits.failure is None:
            # After the dispatch: what a consumer takes at once is never too much.
            self._make_room()
        if chain.journal.open:
            # Only now are channels free that wait for a queue: what it did took its time.
            chain.journal.tick(chain.now_ms)
        self._frame_builder.give_back()
        if commits.armed:
            commits.run_idle_callbacks()
        self._replies.flush()
        chain.refresh_gates()
        chain.is_turn_requested = self._can_move()

    def look_after_sync(self) -> None:
        """A sync has ended: ask for a turn if it may have something to do now (law 4).

        A lone publisher's sync leaves nothing behind: its confirm is on its way already.
        """
        chain, commits = self._chain, self._commits
        is_waiting = self._overfull or self._frame_builder.held
        is_awaited = commits.asked or commits.armed
        if is_waiting or is_awaited or commits.failure is not None:
            chain.is_turn_requested = True
        elif not chain.is_turn_requested:
            chain.is_turn_requested = self._can_move()

    @property
    def is_making_room(self) -> bool:
        """True while a topic may be above a limit, or dead letters are not stored."""
        if self._overfull or self._dead_letters.waiting:
            return True
        evicting = self._registry.evicting
        return bool(evicting) and any(
            cast("Queue", each.lead_queue).topic.name in evicting
            for each in self._dispatch_queue.woken
        )

    def next_deadline_ms(self) -> int | None:
        """When the first thing that waits for time is due."""
        journal, commits, housekeeping = self._chain.journal, self._commits, self._housekeeping
        soonest_ms = housekeeping.next_deadline_ms()
        deadlines = self._dispatch_queue.deadlines.heap
        if deadlines:
            soonest_ms = min(soonest_ms, deadlines[0][0])
        unused_ms = self._non_persistent.next_deadline_ms() if self._non_persistent else None
        if unused_ms is not None:
            soonest_ms = min(soonest_ms, unused_ms)
        staged_ms = self._staged.next_deadline_ms() if self._staged.is_waiting else None
        if staged_ms is not None:
            soonest_ms = min(soonest_ms, staged_ms)
        if self._retry_ms:
            soonest_ms = min(soonest_ms, self._retry_ms)
        elif commits.failure is None and not commits.is_held_at(journal.now_ms):
            # What needs a frame cannot be done before there can be one.
            soonest_ms = min(soonest_ms, self._delays.next_deadline_ms())
            if housekeeping.snapshot_ms is not None:
                soonest_ms = min(soonest_ms, housekeeping.snapshot_ms)
        if not (journal.open or self._pipeline.has_publishes or self._is_anybody_waiting()):
            return soonest_ms
        for at_ms in (
            journal.next_deadline_ms,
            self._pipeline.next_deadline_ms(),
            self._request_queue.next_deadline_ms(),
            self._pulls.next_deadline_ms(),
            self._queries.next_deadline_ms(),
        ):
            if at_ms is not None and at_ms < soonest_ms:
                soonest_ms = at_ms
        return soonest_ms

    # Parts of a turn.

    def _timers(self, now_ms: int) -> None:
        if self._dispatch_queue.deadlines.heap:
            self._subscriptions_due(now_ms)
        if self._retry_ms and now_ms >= self._retry_ms:
            self._retry_ms = 0
        if self._is_anybody_waiting():
            self._pulls.due(now_ms)
            self._queries.due(now_ms)
        if self._non_persistent:
            self._non_persistent.due(now_ms)
        if self._staged.is_waiting:
            self._staged.due(now_ms)
        if now_ms >= self._housekeeping.due_ms or self._registry.unused.topics:
            self._housekeeping.run(now_ms, self._deletion.expire)
        self._request_queue.turn()

    def _is_anybody_waiting(self) -> bool:
        """True when a request is held, or queries are to be looked after: mostly there are none."""
        return bool(
            self._request_queue.is_used or self._held_pulls.held or self._queries.is_waiting
        )

    def _subscriptions_due(self, now_ms: int) -> None:
        # Each once: what one of them leaves undone is due at once, in the next turn.
        deadlines = self._dispatch_queue.deadlines
        for subscription in deadlines.take_due(now_ms):
            subscription.due(now_ms)
            deadlines.arm(subscription, subscription.next_deadline_ms())

    def _append(self, now_ms: int) -> bool:
        """Append what there is; True when nothing that was settled is left unsaved."""
        chain, commits, frame_builder = self._chain, self._commits, self._frame_builder
        settlements, dead_letters, delays = self._settlements, self._dead_letters, self._delays
        flow_topic = self._flow_topic
        if commits.is_held_at(now_ms):
            frame_builder.hold(chain.log)
            return False
        if frame_builder.held:
            frame_builder.let_go(chain.log)
        frame = Frame()
        frame_builder.collect(frame)
        # After a refused write only publishers try the disk at once: they are answered by it.
        if self._retry_ms and not frame.batches:
            return False
        released = delays.due(frame, chain.flow.turn_messages_max, now_ms)
        settled = settlements.put(frame)
        dead = dead_letters.put(frame) if dead_letters.waiting else []
        told = flow_topic.put(frame) if flow_topic.waiting else 0
        if not frame.appendings:
            return True
        if not commits.append(frame, chain.clock.wall_at(now_ms)):
            settlements.failed(settled)
            dead_letters.failed(dead)
            delays.failed(released)
            flow_topic.failed(told)
            self._retry_ms = now_ms + RETRY_MS
            self._has_drained = True
            return False
        self._retry_ms = 0
        settlements.saved(settled)
        if dead:
            dead_letters.stored(frame.end_position)
        delays.stored(frame)
        self._housekeeping.appended(now_ms)
        self._arrivals.appended(frame.queues)
        for queue in frame.queues:
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
        dispatch_queue, chain = self._dispatch_queue, self._chain
        if not dispatch_queue.woken or self._is_stuffed:
            return False
        moved = 0
        woken, dispatch_queue.woken = dispatch_queue.woken, {}
        share = chain.flow.turn_messages_max // len(woken) or 1
        for subscription in woken:
            # The part of a turn that this one leaves is not shared out: it comes again at once.
            here = subscription.dispatch(share)
            moved += here
            if here >= share:
                dispatch_queue.woken[subscription] = None
            dispatch_queue.deadlines.arm(subscription, subscription.next_deadline_ms())
        registry = self._registry
        if registry.evicting or registry.unused.topics:
            for subscription in woken:
                topic = cast("Queue", subscription.lead_queue).topic
                # Somebody may have come or left; what came back may be too much.
                registry.unused.look(topic, chain.now_ms)
                if topic.name in registry.evicting:
                    self._overfull[topic] = None
        return moved > 0

    def _can_move(self) -> bool:
        """True when the next turn would move something (law 4)."""
        commits, frame_builder, pipeline = self._commits, self._frame_builder, self._pipeline
        is_dispatching = self._dispatch_queue.woken and not self._is_stuffed
        if is_dispatching or self._queries.can_move or self._chain.unseen:
            return True
        if commits.failure is not None:
            return False
        is_channel_free = pipeline.has_publishes and pipeline.can_move(
            has_drained=self._has_drained
        )
        if (
            is_channel_free
            or (self._request_queue.is_used and self._request_queue.can_move)
            or (self._staged.commits_waiting and self._can_commit_staged())
        ):
            return True
        wants_frame = self._wants_frame()
        if not (frame_builder.queues or wants_frame):
            return False
        if commits.is_held_at(self._chain.journal.now_ms):
            return False
        # Asked in any case: it also notes whether somebody waits for a write buffer.
        return frame_builder.can_move or wants_frame

    def _can_commit_staged(self) -> bool:
        is_log_free = self._is_log_free(self._chain.journal.now_ms)
        return self._staged.can_move(is_log_free=is_log_free)

    def _is_log_free(self, now_ms: int) -> bool:
        """True when something beside the turn's frame may be written."""
        return not self._retry_ms and not self._commits.is_held_at(now_ms)

    def _wants_frame(self) -> bool:
        """True when something else than publishes is to be appended, and may be tried now."""
        # Asked at the end of every turn and sync: lists that are looked at cost no call each.
        return not self._retry_ms and bool(
            self._settlements.noted
            or self._settlements.again
            or self._dead_letters.waiting
            or self._delays.asked
            or self._commits.asked
            or self._flow_topic.waiting
        )


class Arrivals:
    """Tells readers of new messages, each at the moment from which it may see them (D7)."""

    def __init__(
        self,
        chain: FlowContext,
        held_pulls: HeldPulls[Pull],
        pulls: PullService,
        queries: QueryService,
    ) -> None:
        self._chain = chain
        self._held_pulls = held_pulls
        self._pulls = pulls
        self._queries = queries

    def appended(self, queues: Iterable[Queue]) -> None:
        """These have new messages that are not durable yet."""
        for queue in queues:
            for subscription in queue.topic.subscriptions.values():
                if subscription.options.sees_unsynced:
                    subscription.arrived(queue.queue_id)

    def durable(self, queues: Iterable[Queue]) -> None:
        """A sync covered what these had got: it may be seen by all."""
        for queue in queues:
            if queue.is_deleted:
                continue
            for subscription in queue.topic.subscriptions.values():
                if not subscription.options.sees_unsynced:
                    subscription.arrived(queue.queue_id)
            if self._held_pulls.held or self._queries.held.held:
                self._pulls.arrived(queue)
                self._queries.arrived(queue)
            if queue.topic in self._queries.registry.pressures.by_topic:
                # Whom a query that fell behind brakes is judged anew with what is durable now.
                self._chain.is_turn_requested = True


class DispatchQueue:
    """Subscriptions that are to hand out messages: in this turn or the next, or at a deadline."""

    def __init__(self, chain: FlowContext) -> None:
        self._chain = chain
        self.woken: dict[Subscription, None] = {}
        self.deadlines: Deadlines[Subscription] = Deadlines()
        """When they want a turn although nothing happens: a delay ends, a head expires. Each has
        one moment, looked up after each of its dispatches."""

    def wake(self, subscription: Subscription) -> None:
        self.woken[subscription] = None
        self._chain.is_turn_requested = True

    def forget(self, subscription: Subscription) -> None:
        self.woken.pop(subscription, None)
        self.deadlines.disarm(subscription)


class Housekeeping:
    """Timed chores: snapshots, retention, the idle mark, topics nobody uses.

    Each names the moment at which it wants to be looked at again; none of them is needed for a
    message to be stored or delivered.

    Retention (D11): a queue needs everything from the lowest cursor of a subscription that holds
    data, everything that a lease or an adapter keeps (``Queue.kept_from``), and everything its
    topic's retention time and size still cover. Segments go when no queue needs them
    (``log/retention.py``). Queues are asked in pieces of ``SWEEP_STEPS_MAX``, and others have their
    turns between two of them, however many queues there are. While the disk is short of room
    (``shortage_bytes`` of its alarm) sweeps come every ``SHORT_SWEEP_MS``, with a snapshot that
    lets them have what was settled last, and take what is kept only if there is room.
    """

    def __init__(
        self,
        store: Store,
        chain: FlowContext,
        settings: StorageSettings,
        registry: Registry,
        settlements: SettlementBuffer,
        *,
        lowest_kept: Callable[[Queue], int | None],
    ) -> None:
        self._store = store
        self._chain = chain
        self._settings = settings
        self._registry = registry
        self._settlements = settlements
        self._swept_ms = chain.now_ms
        self._sweep: Generator[int, None, list[Segment]] | None = None
        """A sweep that is under way."""
        self._is_sweep_short = False
        """The disk was short of room when it began."""
        self._sweep_ms = chain.now_ms + settings.retention_sweep_ms
        self.snapshot_ms: int | None = None
        """When the next snapshot is wanted; None while nothing happened since the last."""
        # Of the snapshot that is being made; bounded by the durable cursors there are.
        self._states: dict[tuple[int, int], CursorState] = {}
        self._pieces_left = 0
        self._mark_ms: int | None = None
        self.due_ms = self._sweep_ms
        """Neither sweep nor mark is due before; what was put off meanwhile makes it too early."""
        self._lowest_kept = lowest_kept
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
        Very many are put into words piece by piece. Rows must be of one moment, too: what changes
        meanwhile is among the changed again, and the last piece takes all of those, so that a busy
        broker gets its snapshot.
        """
        if self.snapshot_ms is None or now_ms < self.snapshot_ms:
            return
        if not self._store.is_snapshot_due(is_urgent=self._shortage_bytes > 0):
            self.snapshot_ms = now_ms + self._settings.snapshot_interval_ms
            return
        changed = self._settlements.changed
        if not self._states:
            self._pieces_left = len(changed) // SNAPSHOT_CURSORS_MAX
        for key in list(islice(changed, SNAPSHOT_CURSORS_MAX) if self._pieces_left else changed):
            del changed[key]
            subscription = self._reader(key)
            if subscription is not None:
                self._states[key] = subscription.state(QueueId(key[1]))
        if self._pieces_left:
            self._pieces_left -= 1
            self.snapshot_ms = now_ms + SWEEP_PIECE_MS
            return
        self.snapshot_ms = None
        made, self._states = self._states, {}
        states = [state for key, state in made.items() if self._reader(key) is not None]
        self._store.offer_snapshot(self._store.end_position, states)

    def _reader(self, key: tuple[int, int]) -> Subscription | None:
        """The subscription that still has this cursor (subscription id, queue id)."""
        subscription = self._registry.subscriptions.get(SubscriptionId(key[0]))
        is_there = subscription is not None and subscription.reads(QueueId(key[1]))
        return subscription if is_there else None

    def final_cursors(self) -> list[CursorState]:
        """Every durable cursor as it stands, for a clean stop."""
        return [
            subscription.state(queue_id, is_final=True)
            for topic in self._registry.topics.values()
            for subscription in topic.subscriptions.values()
            if subscription.options.is_durable
            for queue_id in subscription.queue_ids
        ]

    @property
    def _shortage_bytes(self) -> int:
        return self._chain.alarms.disk.shortage_bytes

    def disk_looked(self) -> None:
        """The disk was looked at: while it is short of room the next sweep does not wait long."""
        if self._shortage_bytes:
            self._sweep_ms = min(self._sweep_ms, self._swept_ms + SHORT_SWEEP_MS)
            self.due_ms = min(self.due_ms, self._sweep_ms)

    def run(self, now_ms: int, expire: Callable[[Topic], None]) -> None:
        if self._mark_ms is not None and now_ms >= self._mark_ms:
            self._mark(now_ms)
        if now_ms >= self._sweep_ms:
            self._go_on_sweeping(now_ms)
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

    def _go_on_sweeping(self, now_ms: int) -> None:
        """The next piece of a sweep, or the first."""
        shortage_bytes = self._shortage_bytes
        if self._sweep is None or self._is_sweep_short != (shortage_bytes > 0):
            # Begun while the disk was short it would take what may stay now, and the other way.
            self._swept_ms, self._is_sweep_short = now_ms, shortage_bytes > 0
            wall_ms = self._chain.clock.wall_ms()
            self._sweep = self._store.sweep(self._lowest_needed, wall_ms, shortage_bytes)
        steps = 0
        for step in self._sweep:
            steps += step
            if steps >= SWEEP_STEPS_MAX:
                self._sweep_ms = now_ms + SWEEP_PIECE_MS
                return
        self._sweep = None
        self._sweep_ms = now_ms + self._settings.retention_sweep_ms
        if shortage_bytes and self._store.end_position > self._store.snapshot_position:
            self.snapshot_ms = now_ms  # the next sweep may only have what a snapshot covers

    def _lowest_needed(self, queue_id: int) -> int | None:
        queue = self._registry.queues.get(QueueId(queue_id))
        if queue is None:
            return None
        return _lowest_needed(queue, self._chain.clock.wall_ms(), self._lowest_kept(queue))


def _lowest_needed(queue: Queue, wall_ms: int, kept: int | None) -> int:
    """The first offset of a queue that somebody still needs."""
    index = queue.index
    policy = queue.topic.policy
    lowest = index.next_offset if kept is None else min(kept, index.next_offset)
    if queue.kept_from is not None:
        lowest = min(lowest, queue.kept_from)
    if policy.retention_ms:
        recent = index.search_time(wall_ms - policy.retention_ms)
        size = index.bytes_between(recent, index.next_offset)
        if 0 < policy.retention_bytes_max < size:
            recent = _offset_before_end(queue, policy.retention_bytes_max)
        lowest = min(lowest, recent)
    for subscription in queue.topic.subscriptions.values():
        if subscription.options.holds_data and subscription.reads(queue.queue_id):
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
