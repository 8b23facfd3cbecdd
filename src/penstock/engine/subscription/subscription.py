"""A subscription: a named reader of a topic, with a cursor per queue and any number of consumers.

It reads all queues of its topic or some of them. This is the door to the delivery side: everything
that changes a subscription is a method of ``Subscription``. One that may let a message go, or bring
a deadline nearer, asks its host for a dispatch (law 4); one that changes what must survive a
restart announces settlements to it.

Three kinds of reader share it:

* a *pushed* consumer brings a demand (window or permits) and is served by ``dispatch``;
* a consumer that asks by itself is handed messages in the call: ``take`` (AMQP's ``basic.get``) and
  ``pop`` (RocketMQ's, one queue, a filter of its own, for a limited time);
* a *pull* reads the queue by itself (``engine/pull.py``) and only commits its offset here.

What is not settled when a pop's visibility ends has *timed out*: whoever set
``on_visibility_timeout`` says what becomes of it, else it goes back to its place, counted. ``move``
is one such answer: a copy in another queue, the original settled, both in one frame (D5).

Invariants: one stuck consumer holds only its own subscription (law 8). A ``take`` or ``pop`` that
moved nothing wakes nobody, so a waiting pop cannot make turns for ever. Replaying, on top of the
snapshots, every settlement taken after them gives the cursors as they were at the last take (D5).
Not here: the way a message goes out (``dispatch.py``), what consumers say about it (``settle.py``),
where the subscription stands in a queue (``cursor.py``).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Final, Unpack

import msgspec
from msgspec.structs import replace

from penstock.engine.filter.filters import Filter
from penstock.engine.host import (
    EntryIndex,
    Host,
    HostedSubscription,
    Mode,
    Start,
    SubscribedQueue,
    SubscriptionOptions,
)
from penstock.engine.subscription.consumer import (
    Consumer,
    ConsumerKeywords,
    ConsumerOutlet,
    ConsumerRefusal,
    Delivery,
    PendingEntry,
    RefusalReason,
)
from penstock.engine.subscription.cursor import BodyBytesEstimate, QueueCursor, ReadyBodyBytes
from penstock.engine.subscription.dispatch import DeliveryPipeline, Outbox
from penstock.engine.subscription.pick import Picker, expired_backlog
from penstock.engine.subscription.settle import Rewrite, Settler
from penstock.flow.budgets import UnsentLimit
from penstock.flow.crowd import Crowd
from penstock.flow.demand import UNLIMITED, Demand, Permits, Withheld
from penstock.flow.progress import STUCK_MS, UNSETTLED_MIN, Progress
from penstock.flow.rate import DispatchRate
from penstock.flow.reason import Reason
from penstock.flow.views import BURIALS, EXPIRIES, ConsumerView, StageView, UndoneView
from penstock.log.format import CursorState
from penstock.model.errors import NotFound
from penstock.model.ids import ConsumerId, QueueId, SubscriptionId
from penstock.model.settlement import Cause, QueueSettlement, Settlement
from penstock.model.steps import A_QUEUE, A_RECORD, Steps, finished

__all__ = ["Subscription", "SubscriptionOptions"]

_log = logging.getLogger(__name__)

QUEUE_SLICE: Final = 100
"""Messages one of several queues may move before the next one has its turn."""

EXPIRE_ENTRIES_MAX: Final = 300
"""Expired messages settled in one go; the rest follow in the next turn."""

SCAN_MESSAGES_MAX: Final = 800
"""Messages one pop passes over because its filter refuses them; then it is asked again."""

TIMED_OUT_MAX: Final = 200
"""Entries whose visibility ended that are dealt with in one go; the rest follow next turn."""

A_CONSUMER: Final = 0.25
A_GLANCE: Final = 0.005
"""Steps that a view of a consumer is, and a look at what it has."""

CONSUMERS_LOOKED_AT: Final = 1024
"""Consumers whose progress is looked at each second; at the others when somebody asks."""

OnVisibilityTimeout = Callable[[QueueId, list[int]], None]
"""Gets first offsets of timed-out entries; each must be settled, requeued, moved or extended."""


class PopLimits(msgspec.Struct, frozen=True, gc=False):
    """What one pop wants of one queue."""

    messages_max: int
    bytes_max: int
    """The last message may cross it."""
    visibility_ms: int
    wanted: Filter | None = None
    """What it refuses is settled unseen."""


class Subscription:
    """One named reader: its cursors, its consumers, and every way to move or settle its messages.

    It guarantees that every message of its queues is delivered until it is settled, and that what
    it settled stays settled over a restart (if it is durable). It promises an order only as far as
    its mode does. Methods take first offsets of entries or single offsets inside a batch; offsets
    that mean nothing any more are ignored, because peers may be late.

    It is no thread and no task: the engine calls ``dispatch`` and ``due`` in its turns.
    """

    __slots__ = (
        "_body_bytes",
        "_by_queue",
        "_cursors",
        "_delay_slack_ms",
        "_host",
        "_next_cursor",
        "_picker",
        "_pipeline",
        "_ready_body_bytes",
        "_settler",
        "_unserved_ms",
        "_unserved_since_ms",
        "consumer_set",
        "is_closed",
        "is_deleting",
        "is_owner_limited",
        "name",
        "on_ready",
        "on_visibility_timeout",
        "options",
        "progress",
        "subscription_id",
    )

    def __init__(
        self,
        subscription_id: SubscriptionId,
        name: str,
        queues: Sequence[SubscribedQueue],
        options: SubscriptionOptions,
        host: Host,
        *,
        is_new: bool = True,
    ) -> None:
        """``is_new``: its start is saved with the next append; else it is restored from a state."""
        self.subscription_id = subscription_id
        self.name = name
        self.options = options
        self.is_closed = False
        self.is_deleting = False
        """True while its topic is being deleted: only the reject backlog is worked off."""
        self.on_visibility_timeout: OnVisibilityTimeout | None = None
        """None = timed-out entries go back to their places."""
        self.on_ready: Callable[[], None] | None = None
        """Called at the end of a dispatch while anything waits to be delivered."""
        self._host = host
        self._by_queue: dict[QueueId, QueueCursor] = {}
        # In the order in which they are served; ``ConsumerSet`` holds the same list.
        self._cursors: list[QueueCursor] = []
        self._next_cursor = 0
        self._delay_slack_ms = 0
        members: dict[int, Consumer] = {}
        self._picker = Picker(host, options)
        self._settler = Settler(host, options, members, self._picker)
        self._pipeline = DeliveryPipeline(host, options, members, self._picker, self._settler)
        self.consumer_set = ConsumerSet(host, self._settler, self._cursors, members)
        self._ready_body_bytes: dict[QueueId, ReadyBodyBytes] = {}
        self._body_bytes: dict[QueueId, BodyBytesEstimate] = {}
        self._unserved_ms = 0
        self._unserved_since_ms: int | None = None
        self.progress: Final = Progress(host.clock.monotonic_ms())
        self.is_owner_limited = False
        """Its topic's owner says what may be in flight, so its protocol does not."""
        """Its past, for the diagnosis."""
        for queue in queues:
            self.add_queue(queue, _start(options.start, queue), is_new=is_new)

    def __repr__(self) -> str:
        return f"<Subscription {self.name} {self.subscription_id}>"

    # Queues

    def add_queue(self, queue: SubscribedQueue, start: int = 0, *, is_new: bool = True) -> None:
        """It reads one queue more; consumers of the whole topic read it, too."""
        cursor = QueueCursor(
            queue,
            self.options.mode,
            start,
            clock=self._host.clock,
            is_saved=self.options.is_durable,
            sees_unsynced=self.options.sees_unsynced,
            reserve=self._host.topics.delivered_reserve,
            delayed_budget=self._host.delayed_budget,
            owner=self,
        )
        cursor.delay_slack_ms = self._delay_slack_ms
        self._by_queue[cursor.queue_id] = cursor
        # Priorities are numbered upwards and served downwards.
        self._cursors.insert(0 if self.options.is_priority else len(self._cursors), cursor)
        for consumer in self.consumer_set:
            if not consumer.is_passive and not consumer.queue_ids:
                self.consumer_set.join(cursor, consumer)
        if is_new and cursor.is_saved:
            cursor.unsaved.seek(start)
            cursor.mark_delivered(start)
        self._changed()

    def subscribe(self, queue: SubscribedQueue, start: Start | int) -> None:
        """One queue more of its topic, from there on."""
        self.add_queue(queue, _start(start, queue))

    def remove_queue(self, queue_id: QueueId, cause: str) -> None:
        """It reads a queue no more and has another: who read only that one is told.

        As when the subscription itself ends: what was not settled there is nobody's any more.
        """
        cursor = self.cursor(queue_id)
        assert len(self._cursors) > 1, "a subscription of no queue"
        self._settler.reject_backlog.drain()
        self._cursors.remove(cursor)
        del self._by_queue[queue_id]
        self.consumer_set.forget_queue(cursor, cause)
        cursor.redelivery.clear()
        self._ready_body_bytes.pop(queue_id, None)
        self._body_bytes.pop(queue_id, None)
        self._changed()

    def reads(self, queue_id: QueueId) -> bool:
        """Whether it has a cursor in this queue."""
        return queue_id in self._by_queue

    @property
    def queue_ids(self) -> list[QueueId]:
        """The queues it reads, at least one."""
        return list(self._by_queue)

    def cursor(self, queue_id: QueueId) -> QueueCursor:
        """Where it stands in one queue; ``NotFound`` when it does not read that queue."""
        cursor = self._by_queue.get(queue_id)
        if cursor is None:
            raise NotFound(f"subscription {self.name!r} does not read a queue with id {queue_id}")
        return cursor

    def in_flight(self, queue_id: QueueId, offset: int) -> PendingEntry | None:
        """Who has this offset in flight, since which attempt; None = nobody."""
        pending = self.cursor(queue_id).pending
        start = pending.first_offset(offset)
        return None if start is None else pending.spill()[start]

    @property
    def lead_queue(self) -> SubscribedQueue:
        """One of its queues; all are of one topic."""
        return self._cursors[0].queue

    # Consumers

    def attach(
        self,
        outlet: ConsumerOutlet,
        demand: Demand,
        *,
        unsent: UnsentLimit | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> Consumer | ConsumerRefusal:
        """A new consumer, of all queues or of some, or why not.

        One that names a ``mode`` brings it to its queues, if nobody else is attached there; else it
        must be the one they have. Those who name none (AMQP, RocketMQ) read as the subscription was
        made. ``unsent`` may be its connection's: whoever reports what a socket took then wakes them
        all.
        """
        consumer = self.consumer_set.attach(self, outlet, demand, unsent, **keywords)
        if isinstance(consumer, Consumer) and not consumer.is_passive:
            self.note_read()
            self._show_mode(consumer.mode)
        self._changed()
        return consumer

    def _show_mode(self, mode: Mode | None) -> None:
        """The options and the row say what was brought last; it binds nobody."""
        if mode is not None and mode is not self.options.mode:
            self.options = replace(self.options, mode=mode)
            self._host.save_definition(self)

    def note_read(self) -> None:
        """Somebody reads, or asks for something to read: it is not left alone on purpose."""
        self.progress.read_ms = self._host.clock.monotonic_ms()

    def _note_moved(self) -> None:
        """Its head may have moved; one look a second is enough, unless it has caught up."""
        now_ms, progress = self._host.clock.monotonic_ms(), self.progress
        if now_ms >= progress.point_ms or (
            progress.is_late and not any(cursor.ready_messages for cursor in self._cursors)
        ):
            ready, unacked = self.counts()
            behind_ms = self._host.flow.behind_ms
            age_ms = self._age_ms() if ready else 0
            progress.moved(now_ms, age_ms, ready, behind_ms, unacked=unacked)
            for consumer in itertools.islice(self.consumer_set.members, CONSUMERS_LOOKED_AT):
                consumer.unsettled_ms(now_ms, now_ms)

    def _age_ms(self) -> int:
        """Of the oldest message that waits to be delivered."""
        stored = [_ready_since(each) for each in self._cursors if each.ready_messages]
        return self._aged(min(stored, default=NEVER))

    def _aged(self, stored_ms: float) -> int:
        return int(max(0, self._host.clock.wall_ms() - stored_ms))

    def _unacked_age_steps(self) -> Steps[int]:
        """Of the oldest message that somebody has and did not settle."""
        stored_ms = NEVER
        for cursor in list(self._cursors):
            if cursor.pending.messages:
                stored_ms = min(stored_ms, _stored_ms(cursor, cursor.settled.low_mark))
                yield A_RECORD
            yield A_QUEUE
        return self._aged(stored_ms)

    def _note_gone(self, consumer: Consumer) -> None:
        if not consumer.is_passive:
            self.note_read()

    def cancel(self, consumer: Consumer) -> None:
        """It gets nothing more; what it has stays in flight until it is settled or detached."""
        self._note_gone(consumer)
        self.consumer_set.cancel(consumer)
        self._changed()

    def detach(self, consumer: Consumer, *, count: bool = False) -> None:
        """It is gone: what it has goes back to its place and then to others."""
        self._note_gone(consumer)
        self.consumer_set.detach(consumer, is_counted=count)
        self._changed()

    @property
    def consumers(self) -> list[Consumer]:
        return list(self.consumer_set)

    def close(self, cause: str) -> None:
        """The subscription ends; every consumer is told. The reject backlog is drained first."""
        self._settler.reject_backlog.drain()
        self.is_closed = True
        self.consumer_set.close(cause)
        for cursor in self._cursors:
            cursor.redelivery.clear()
            # Nothing refers back to it now: it goes with its last holder. The collector looks at
            # what has lived for long so rarely that thousands of them would stay for good.
            cursor.redelivery.owner = None
        self._host.delayed_budget.forget(self)
        self._pipeline.throttle.close()

    # The engine's turn

    def arrived(self, queue_id: QueueId) -> None:
        """A queue has new visible messages: hand them out, if somebody may take them."""
        cursor = self._by_queue.get(queue_id)
        if cursor is None:
            return
        if len(self.consumer_set) or self.on_ready is not None:
            self._host.wake(self)
            return
        # Readers that pull ask for themselves; a round would move nothing and cost a turn for every
        # commit. What it would note beside that is noted here; only a new deadline needs the host.
        cursor.offered_upto = cursor.end
        if cursor.has_ready:
            self._track_unserved(True)
        before_ms = cursor.head_deadline_ms
        self._picker.watch_head(cursor)
        if cursor.head_deadline_ms != before_ms:
            self._host.wake(self)

    def wake(self) -> None:
        """Something around it changed: its next round is soon."""
        self._host.wake(self)

    def ttl_changed(self) -> None:
        """Messages live longer or shorter from now on: those at the head are looked at again."""
        for cursor in self._cursors:
            cursor.head_offset = -1
        self._host.wake(self)

    def dispatch(self, messages_max: int) -> int:
        """One round: hand out what is ready, at most so many; returns messages moved.

        "Moved" counts what left the backlog for any reason (delivered, expired, unreadable,
        unwanted, delayed): it bounds the work of a turn, not what peers get.
        """
        if self.is_closed:
            return 0
        is_rejecting = self._settler.reject_backlog.turn()
        cursors = self._cursors
        throttle = self._pipeline.throttle
        throttle.begin(cursors[0].queue.topic.dispatch_limit)
        outbox: Outbox = {}
        if is_rejecting or self.is_deleting:
            moved = 0  # nothing new before the rejected are dead letters: they would pile up
        elif len(cursors) == 1:
            moved = self._pipeline.serve(cursors[0], messages_max, outbox)
        else:
            moved = self._serve_queues(cursors, messages_max, outbox)
        # Through: whatever is left now is left because nobody may take it, not because the budget
        # of this turn ended. Only then have all offsets below the end been offered.
        is_through = moved < messages_max and not is_rejecting
        throttle.end()
        is_ready = is_unsaved = False
        for cursor in cursors:
            end = cursor.end
            if is_through:
                cursor.offered_upto = end
            is_unsaved |= not cursor.unsaved.is_empty
            if cursor.redelivery.ready or cursor.next_offset < end:
                is_ready = True
                self._picker.watch_head(cursor)
                if cursor.redelivery.is_full:
                    self._host.delayed_budget.wait(self)
        self._track_unserved(is_ready and is_through, moved)
        if is_unsaved:
            self._host.note_settlement(self)
        if not is_through:
            self._host.wake(self)
        # Last, and with everything in order: an outlet may settle while it is called.
        for consumer, deliveries in outbox.items():
            consumer.outlet.deliver(consumer, deliveries)
        if self.on_ready is not None and any(cursor.has_ready for cursor in cursors):
            self.on_ready()
        return moved

    def _serve_queues(self, cursors: list[QueueCursor], messages_max: int, outbox: Outbox) -> int:
        """Strictly in order where queues are priorities, else a slice of each in turn."""
        moved = 0
        if self.options.is_priority:
            for cursor in cursors:
                moved += self._pipeline.serve(cursor, messages_max - moved, outbox)
            return moved
        idle = 0
        while moved < messages_max and idle < len(cursors):
            cursor = cursors[self._next_cursor % len(cursors)]
            self._next_cursor = (self._next_cursor + 1) % len(cursors)
            here = self._pipeline.serve(cursor, min(QUEUE_SLICE, messages_max - moved), outbox)
            moved += here
            idle = 0 if here else idle + 1
        return moved

    def due(self, now_ms: int) -> None:
        """Monotonic time has come this far: what waits for its time is dealt with."""
        left = TIMED_OUT_MAX
        throttle = self._pipeline.throttle
        if throttle.is_spent and throttle.next_ms <= now_ms:
            throttle.is_spent = False  # until the round that is asked for below finds it so
        for cursor in self._cursors:
            if cursor.dispatcher.takeover_at_ms:
                self.consumer_set.take_over(cursor, now_ms)
            cursor.redelivery.release_due(now_ms)
            timed_out = cursor.pending.overdue(now_ms, left)
            left -= len(timed_out)
            if timed_out and self.on_visibility_timeout is not None:
                self.on_visibility_timeout(cursor.queue_id, timed_out)
            elif timed_out:
                self._settler.requeue(cursor, timed_out, is_counted=True)
            if 0 < cursor.head_deadline_ms <= now_ms:
                self._picker.expire_head(cursor, EXPIRE_ENTRIES_MAX)
        self._changed()

    def next_deadline_ms(self) -> int | None:
        """When ``due`` has something to do; whatever brings it nearer wakes the subscription."""
        throttle = self._pipeline.throttle
        soonest_ms = throttle.next_ms if throttle.is_spent else None
        for cursor in self._cursors:
            at_ms = cursor.next_deadline_ms()
            if at_ms is not None and (soonest_ms is None or at_ms < soonest_ms):
                soonest_ms = at_ms
        return soonest_ms

    # Consumers that ask by themselves

    def take(
        self, consumer: Consumer, messages_max: int, *, is_strict: bool = False
    ) -> list[Delivery]:
        """Hand over at once, beside demand, returning the list instead of calling the outlet.

        ``is_strict``: nothing whose time is up by now, offered to consumers or not.
        """
        taken: list[Delivery] = []
        for cursor in () if self.is_deleting else self._cursors:
            if len(taken) < messages_max and consumer.takes_from(cursor.queue_id):
                self._picker.is_strict = is_strict
                taken += self._pipeline.take(cursor, consumer, messages_max - len(taken))
                self._picker.is_strict = False
        self.note_read()
        self._note_moved()
        self._changed()
        return taken

    def pop(self, consumer: Consumer, queue_id: QueueId, limits: PopLimits) -> list[Delivery]:
        """Hand over messages of one queue for a limited time."""
        if self.is_deleting:
            return []
        self.note_read()
        cursor = self.cursor(queue_id)
        before = (cursor.next_offset, len(cursor.redelivery.ready))
        consumer.visibility_ms = limits.visibility_ms
        own, self._picker.filter = self._picker.filter, limits.wanted
        popped: list[Delivery] = []
        left_bytes = limits.bytes_max
        try:
            while len(popped) < limits.messages_max and cursor.has_ready and left_bytes > 0:
                here = self._pipeline.take(
                    cursor,
                    consumer,
                    limits.messages_max - len(popped),
                    bytes_max=left_bytes,
                    scan_max=SCAN_MESSAGES_MAX,
                )
                if not here:
                    break
                left_bytes -= sum(delivery.size for delivery in here)
                popped += here
        finally:
            self._picker.filter = own
        if popped:
            # Whoever pops has its own connection; no socket's backlog is kept here.
            messages = sum(delivery.messages for delivery in popped)
            consumer.sent(messages, sum(delivery.size for delivery in popped))
        if popped or before != (cursor.next_offset, len(cursor.redelivery.ready)):
            self._note_moved()
            self._changed(cursor)
        return popped

    def tag(self, queue_id: QueueId, offsets: Sequence[int], tag: int) -> None:
        """Write the adapter's number of the hand-over on in-flight entries (first offsets)."""
        entries = self.cursor(queue_id).pending.spill()
        for offset in offsets:
            entries[offset].tag = tag

    def extend(self, queue_id: QueueId, offset: int, deadline_ms: int) -> bool:
        """Move the monotonic moment at which an in-flight entry goes back; 0 = never."""
        is_extended = self.cursor(queue_id).pending.extend(offset, deadline_ms)
        self._host.wake(self)
        return is_extended

    # Settlement

    def settle(self, queue_id: QueueId, offsets: Sequence[int]) -> int:
        """These offsets are done, whoever had them; returns how many were not before."""
        cursor = self.cursor(queue_id)
        settled = self._settler.settle(cursor, offsets)
        self._settled(cursor)
        return settled

    def settle_ranges(self, queue_id: QueueId, ranges: Sequence[tuple[int, int]]) -> int:
        """The same for the offsets of each [start, end): a batch is one step, however large."""
        cursor = self.cursor(queue_id)
        settle_range = self._settler.settle_range
        settled = 0
        for start, end in ranges:
            settled += settle_range(cursor, start, end)
        self._settled(cursor)
        return settled

    def settle_entries(self, queue_id: QueueId, starts: Sequence[int]) -> int:
        """The same for whole entries, named by their first offsets: all messages of a batch."""
        cursor = self.cursor(queue_id)
        settled = self._settler.settle_entries(cursor, starts)
        self._settled(cursor)
        return settled

    def _settled(self, cursor: QueueCursor) -> None:
        self.progress.settled(self._host.clock.monotonic_ms())
        self._note_moved()
        # Free budget alone moves nothing: with one queue and nothing ready in it there is no round
        # to make. What waits for its key is not among the ready.
        is_idle = len(self._cursors) == 1 and cursor.mode is not Mode.KEY_SHARED
        if is_idle and not cursor.has_ready:
            self._save(cursor)
        else:
            self._changed(cursor)

    def settle_upto(self, queue_id: QueueId, offset: int) -> int:
        """Everything below ``offset`` is done."""
        cursor = self.cursor(queue_id)
        settled = self._settler.settle_upto(cursor, offset)
        if settled:
            self.progress.settled(self._host.clock.monotonic_ms())
            self._note_moved()
        self._changed(cursor)
        return settled

    def commit(self, queue_id: QueueId, offset: int) -> None:
        """A reader that counts by itself stands at ``offset``; going back is obeyed, too."""
        low = self.low_mark(queue_id)
        if offset >= low:
            self.settle_upto(queue_id, offset)
            return
        where = {"subscription": self.name, "queue": queue_id, "from": low, "to": offset}
        _log.info("a reader went back", extra=where)
        self.seek(queue_id, offset)

    def requeue(
        self, queue_id: QueueId, offsets: Sequence[int], *, delay_ms: int = 0, count: bool = True
    ) -> int:
        """Back to their original places, counted as an attempt or not; returns how many entries."""
        cursor = self.cursor(queue_id)
        moved = self._settler.requeue(cursor, offsets, delay_ms=delay_ms, is_counted=count)
        if moved:
            self.progress.returned(offsets, self._host.clock.monotonic_ms())
        self._changed(cursor)
        return moved

    def redeliver(
        self,
        consumer: Consumer,
        queue_id: QueueId | None = None,
        offsets: Sequence[int] | None = None,
        *,
        count: bool = True,
    ) -> int:
        """Back to their places, of what this consumer holds only: these offsets, or everything.

        One that was stopped by its unacked messages goes on at once, not only at half, with the
        permits that were kept aside (Pulsar's REDELIVER). Returns how many entries.
        """
        moved = 0
        for cursor in self._cursors if queue_id is None else [self.cursor(queue_id)]:
            own = cursor.pending.held_by(consumer.consumer_id, offsets)
            moved += self._settler.requeue(cursor, own, is_counted=count)
            if own and count:
                self.progress.returned(own, self._host.clock.monotonic_ms())
        consumer.resume()
        self._changed()
        return moved

    def forget_attempts(self, queue_id: QueueId) -> None:
        """How often messages came back is forgotten; what is in flight keeps its count.

        Pulsar's counts live as long as somebody is attached: whoever comes first forgets them. That
        is not saved: a restart ends all who are attached, and so they are forgotten again.
        """
        self.cursor(queue_id).redelivery.counts.clear()

    def limit_dispatch(self, rate: DispatchRate) -> None:
        """Another dispatch rate of its own (F8), which counts at once; all 0 = none."""
        self._pipeline.throttle.resize(rate)
        self._host.wake(self)

    @property
    def dispatch_rate(self) -> DispatchRate:
        """Its own; all 0 = none."""
        own = self._pipeline.throttle.own
        return DispatchRate() if own is None else own.rate

    def ignore_delays(self, upto_ms: int) -> None:
        """Delivery times no farther ahead than this are not waited for; 0 = all are.

        For what is read from now on: what waits already waits for its time.
        """
        self._delay_slack_ms = upto_ms
        for cursor in self._cursors:
            cursor.delay_slack_ms = upto_ms

    @property
    def unacked_max(self) -> int:
        """What all its consumers may have in flight; 0 = no limit."""
        return self._settler.inflight.messages_max

    def limit_unacked(self, messages_max: int) -> None:
        """Another limit for what all its consumers have in flight (F13); 0 = none."""
        self._settler.inflight.resize(messages_max, 0)
        self._host.wake(self)

    def requeue_ranges(
        self,
        queue_id: QueueId,
        ranges: Sequence[tuple[int, int]],
        *,
        delay_ms: int = 0,
        count: bool = True,
    ) -> int:
        """The same for every entry that has a part in one of these [start, end)."""
        cursor = self.cursor(queue_id)
        moved = self._settler.requeue_ranges(cursor, ranges, delay_ms=delay_ms, is_counted=count)
        self._changed(cursor)
        return moved

    def reject(self, queue_id: QueueId, offsets: Sequence[int]) -> int:
        """Refused for good: dead letters, if the topic has a target for them."""
        rejected = self._settler.reject(self.cursor(queue_id), offsets)
        self._changed()  # in any queue: this may have worked off what was rejected before
        return rejected

    def move(self, queue_id: QueueId, offsets: Sequence[int], rewrite: Rewrite) -> int:
        """In-flight entries go to another queue, as copies; settled here in the same frame."""
        cursor = self.cursor(queue_id)
        moved = self._settler.move(cursor, offsets, rewrite)
        self._changed(cursor)
        return moved

    # Moving on purpose

    def seek(self, queue_id: QueueId, offset: int, settled: Sequence[tuple[int, int]] = ()) -> None:
        """Deliver from ``offset`` on, as if nothing at or above had ever been settled.

        But for ``settled``, ranges [start, end): who seeks into a batch may have some of it.
        """
        cursor = self.cursor(queue_id)
        self._settler.seek(cursor, offset, settled)
        self._changed(cursor)

    def read_by(self, queue_id: QueueId, index: EntryIndex | None) -> None:
        """Read a queue, from its low mark on, by an index that leaves some out; None = by its own.

        What is left out counts as settled once it is passed. A restart forgets it.
        """
        cursor = self.cursor(queue_id)
        wanted = cursor.queue.index if index is None else index
        if cursor.index is not wanted:
            cursor.read_by(wanted)
            self._changed(cursor)

    def rewind(self, queue_id: QueueId) -> int:
        """Deliver again what is settled above the low mark; returns how many messages."""
        cursor = self.cursor(queue_id)
        if not cursor.settled.starts:
            return 0
        rewound = self._settler.rewind(cursor)
        self._changed(cursor)
        return rewound

    def seek_time(self, store_ms: int) -> None:
        """Deliver from the first message stored at or after that wall time on, in every queue."""
        for cursor in self._cursors:
            self._settler.seek(cursor, cursor.queue.index.search_time(store_ms))
        self._changed()

    def purge(self, queue_id: QueueId) -> int:
        """Settle everything that is not in flight; returns how many messages."""
        cursor = self.cursor(queue_id)
        purged = self._settler.purge(cursor)
        self._changed(cursor)
        return purged

    def drop_head(self, queue_id: QueueId, messages: int, setting: str = "length_max") -> int:
        """Settle the oldest ready messages, as dead letters; returns how many went.

        ``setting`` is the limit of the topic that wants it.
        """
        cursor = self.cursor(queue_id)
        dropped = self._settler.drop_head(cursor, messages, Cause.DROPPED_HEAD)
        if dropped:
            self.progress.discarded(dropped, self._host.clock.monotonic_ms(), setting)
            self._changed(cursor)
        else:
            # A limit asks in every turn: waking for nothing would make turns without end while
            # what is too much is not durable yet, or in flight.
            self._save(cursor)
        return dropped

    def _changed(self, cursor: QueueCursor | None = None) -> None:
        """After a change: save it (in one queue or in any), and look what can be handed out now."""
        if not self.is_closed:
            self._save(cursor)
            self._host.wake(self)

    def _save(self, cursor: QueueCursor | None) -> None:
        if self.is_closed:
            return
        if self.has_unsaved if cursor is None else not cursor.unsaved.is_empty:
            self._host.note_settlement(self)

    # What survives a restart

    @property
    def has_unsaved(self) -> bool:
        """Whether ``take_settlements`` would give anything."""
        return any(not cursor.unsaved.is_empty for cursor in self._cursors)

    def take_settlements(self) -> list[Settlement]:
        """Everything to be saved since the last call: one settlement per cause."""
        by_cause: dict[Cause, list[QueueSettlement]] = {}
        for cursor in self._cursors:
            if not cursor.unsaved.is_empty:
                for cause, part in cursor.unsaved.take(cursor.queue_id, cursor.settled.low_mark):
                    by_cause.setdefault(cause, []).append(part)
        causes = list(by_cause)
        if len(causes) > 1:
            # A seek comes before whatever was settled after it.
            causes.sort(key=lambda cause: cause is not Cause.SOUGHT)
        return [Settlement(self.subscription_id, int(cause), by_cause[cause]) for cause in causes]

    def restore(self, state: CursorState) -> None:
        """Go on from a snapshot; a queue that is gone is ignored."""
        cursor = self._by_queue.get(state.queue_id)
        if cursor is not None:
            cursor.restore(state)

    def apply(self, settlement: Settlement) -> None:
        """Replay a settlement that came after the snapshot."""
        for part in settlement.queues:
            cursor = self._by_queue.get(part.queue_id)
            if cursor is not None:
                cursor.apply(Cause(settlement.cause), part)

    def state(self, queue_id: QueueId, *, is_final: bool = False) -> CursorState:
        """A snapshot of one queue; ``is_final`` when nothing will be delivered after it."""
        return self.cursor(queue_id).state(self.subscription_id, is_final=is_final)

    # What length limits, operators and the diagnosis ask

    def low_mark(self, queue_id: QueueId) -> int:
        """Everything below is settled."""
        return self.cursor(queue_id).settled.low_mark

    def ready(self, queue_id: QueueId) -> int:
        """Messages that wait to be delivered."""
        return self.cursor(queue_id).ready_messages

    def unacked(self, queue_id: QueueId) -> int:
        return self.cursor(queue_id).pending.messages

    @property
    def settled_messages(self) -> int:
        """How many were settled since the start."""
        return self._settler.settled_messages

    def counts(self) -> tuple[int, int]:
        """Messages that wait to be delivered and messages that are in flight, in all its queues."""
        ready = unacked = 0
        for cursor in self._cursors:
            ready += cursor.ready_messages
            unacked += cursor.pending.messages
        return ready, unacked

    def stamp(self, now_ms: int) -> int:
        """Another number whenever something moved; while consumers take nothing, at any time."""
        found = self._settler.settled_messages + self._pipeline.redelivered_messages
        for cursor in self._cursors:
            settled = cursor.settled
            found = hash(
                (
                    found,
                    settled.low_mark,
                    settled.settled_above,
                    cursor.next_offset,
                    cursor.pending.messages,
                    cursor.queue.durable_end,
                )
            )
        is_idle = self._unserved_since_ms is None or not len(self.consumer_set)
        return found if is_idle else hash((found, now_ms))

    def unsettled(self, queue_id: QueueId) -> int:
        """Messages that are not done; what is in flight and settled by others is no part of it."""
        return self.cursor(queue_id).unsettled_messages

    @property
    def is_blocked(self) -> bool:
        """At its own limit of unsettled messages (F13)."""
        return self._settler.inflight.is_blocked

    def backlog_bytes(self, queue_id: QueueId) -> int:
        """Log bytes from the low mark to the end."""
        return self.cursor(queue_id).backlog_bytes

    def _cursors_of(self, consumer: Consumer) -> list[QueueCursor]:
        """Those it takes from: most take from all, or from one of very many."""
        if not consumer.queue_ids:
            return list(self._cursors)
        by_queue = self._by_queue
        return [by_queue[each] for each in consumer.queue_ids if each in by_queue]

    def withheld_from(self, consumer: Consumer) -> tuple[Withheld, ...]:
        """Everything that keeps messages from a consumer; empty = it would get the next one."""
        return finished(self._withheld_steps(consumer))

    def _withheld_steps(self, consumer: Consumer) -> Steps[tuple[Withheld, ...]]:
        found: dict[Withheld, None] = {}
        for cursor in () if consumer.is_passive else self._cursors_of(consumer):
            reason = self._withheld_in(cursor, consumer)
            if reason is None:
                return consumer.blocked_by()
            found[reason] = None
            yield A_QUEUE
        # That one of its queues is empty says nothing where another has a reason.
        if len(found) > 1:
            found.pop(Withheld.NOTHING_READY, None)
        return (*consumer.blocked_by(), *found)

    def _withheld_in(self, cursor: QueueCursor, consumer: Consumer) -> Withheld | None:
        """Why a consumer with all the demand in the world gets nothing from this queue."""
        reason = cursor.dispatcher.withheld_from(consumer)
        if reason is Withheld.INACTIVE or reason is Withheld.DRAINING:
            return reason
        redelivery = cursor.redelivery
        if not cursor.has_ready:
            has_parked = cursor.dispatcher.has_parked(consumer)
            return None if has_parked else Withheld.NOTHING_READY
        if self._pipeline.throttle.is_spent:
            return Withheld.RATE
        # What comes back goes out below any limit.
        if redelivery.ready:
            return None
        if self._settler.inflight.is_blocked:
            return Withheld.SUBSCRIPTION
        return Withheld.DELAYED_ROOM if redelivery.is_full else reason

    def _awaited_by(self, consumer: Consumer, withheld: tuple[Withheld, ...]) -> str:
        """The consumer that has to settle or to go before this one gets something; empty = none."""
        if Withheld.INACTIVE not in withheld and Withheld.DRAINING not in withheld:
            return ""
        for cursor in self._cursors_of(consumer):
            awaited = self.consumer_set.member(cursor.dispatcher.awaited_by(consumer))
            if awaited is not None:
                return awaited.label
        return ""

    def _consumers_steps(self, consumers: Sequence[Consumer]) -> Steps[tuple[ConsumerView, ...]]:
        """Views of some of them, of each kind the worst; of a few all."""
        crowd = Crowd()
        for each in consumers:
            withheld = yield from self._withheld_steps(each)
            crowd.add(self._consumer_view(each, withheld))
            yield A_CONSUMER

        def views_of(names: Set[str]) -> Iterator[ConsumerView]:
            for each in consumers:
                if each.label in names:
                    yield self._consumer_view(each, self.withheld_from(each))

        shown = crowd.shown(views_of)
        yield A_GLANCE * len(consumers)
        return shown

    def _consumer_view(self, consumer: Consumer, withheld: tuple[Withheld, ...]) -> ConsumerView:
        view = consumer_view(consumer, withheld, self._awaited_by(consumer, withheld))
        now_ms, says = self._host.clock.monotonic_ms(), consumer.says
        return replace(
            view,
            id=f"consumer/{self.subscription_id}-{consumer.consumer_id}",
            unsettled_ms=consumer.unsettled_ms(now_ms, self.progress.settled_ms),
            usual_ms=consumer.usual_ms,
            says=None if says is None else replace(says, lasted_ms=now_ms - says.since_ms),
        )

    @property
    def has_reject_backlog(self) -> bool:
        """True while rejected messages wait to become dead letters."""
        return bool(self._settler.reject_backlog)

    @property
    def unserved_ms(self) -> int:
        """Time, since the start, in which messages were ready and nobody took them."""
        since_ms = self._unserved_since_ms
        if since_ms is None:
            return self._unserved_ms
        return self._unserved_ms + self._host.clock.monotonic_ms() - since_ms

    @property
    def is_unserved(self) -> bool:
        """True while messages are ready and nobody takes them."""
        return self._unserved_since_ms is not None

    def _track_unserved(self, is_unserved: bool, moved: int = 0) -> None:
        """A round is over; whether it left something because nobody could take more."""
        if moved:
            self._note_moved()
        if is_unserved is (self._unserved_since_ms is None):
            now_ms = self._host.clock.monotonic_ms()
            if self._unserved_since_ms is None:
                self._unserved_since_ms = now_ms
            else:
                self._unserved_ms += now_ms - self._unserved_since_ms
                self._unserved_since_ms = None

    @property
    def was_read(self) -> bool:
        """Whether somebody ever read it."""
        return self.progress.read_ms is not None

    def noteworthy_steps(self) -> Steps[int | None]:
        """Messages that are ready, if the diagnosis may have something to say about it."""
        ready = 0
        for cursor in list(self._cursors):
            ready += cursor.ready_messages
            yield A_QUEUE
        if ready or self._settler.inflight.is_blocked or self._settler.reject_backlog:
            return ready
        if self.progress.is_noteworthy(self._host.clock.monotonic_ms()):
            return ready
        for each in self.consumer_set if len(self.consumer_set) else ():
            held = each.inflight.messages
            if held >= UNSETTLED_MIN or (held and each.is_passive):
                age_ms = yield from self._unacked_age_steps()
                return ready if age_ms >= STUCK_MS else None
            yield A_GLANCE
        return None

    def available_messages(self) -> int:
        """Messages its consumers would take at once, as far as one round looks."""
        if self._settler.inflight.is_blocked or self._pipeline.throttle.is_spent:
            return 0
        receivers = self._cursors[0].dispatcher.receivers()
        return sum(consumer.available_messages() for consumer in receivers)

    def body_bytes(self) -> tuple[int, int]:
        """Of what is ready and of what is in flight, as exactly as a look may cost."""
        known = self._body_bytes
        for cursor in self._cursors:
            if cursor.queue_id not in known:
                known[cursor.queue_id] = BodyBytesEstimate(cursor, self._host.read)
        found = [each.look() for each in known.values()]
        # Where a limit asks, somebody counts: that is exact.
        is_counted = bool(self._ready_body_bytes)
        ready = self.ready_body_bytes() if is_counted else sum([each[0] for each in found])
        return ready, sum([each[1] for each in found])

    def ready_body_bytes(self) -> int:
        """Body bytes of what waits, in all queues; the first call reads them."""
        known = self._ready_body_bytes
        for cursor in self._cursors:
            if cursor.queue_id not in known:
                known[cursor.queue_id] = ReadyBodyBytes(
                    cursor, self._host.read, whole_batches=self.options.whole_batches
                )
        return sum(each.total() for each in known.values())

    def statistics(self) -> SubscriptionStatistics:
        """Everything worth knowing, at this moment."""
        return finished(self.statistics_steps())

    def statistics_steps(self) -> Steps[SubscriptionStatistics]:
        """The same in steps: it may read very many queues."""
        settler, picker = self._settler, self._picker
        ready = unacked = delayed = backlog_bytes = 0
        for cursor in list(self._cursors):
            ready += cursor.ready_messages
            unacked += cursor.pending.messages
            delayed += cursor.redelivery.delayed_messages
            if cursor.settled.low_mark < cursor.end:
                backlog_bytes += cursor.backlog_bytes
                yield A_RECORD
            yield A_QUEUE
        return SubscriptionStatistics(
            name=self.name,
            ready=ready,
            unacked=unacked,
            delayed=delayed,
            redelivered=self._pipeline.redelivered_messages,
            settled=settler.settled_messages,
            dead_letters=picker.dead_letters,
            lost=picker.lost,
            skipped=picker.skipped,
            unknown_settles=settler.unknown_settles,
            is_blocked=settler.inflight.is_blocked,
            backlog_bytes=backlog_bytes,
            consumers=len(self.consumers),
        )

    def consumer_statistics(self) -> list[ConsumerStatistics]:
        """Those of each consumer; there may be thousands."""
        return [consumer_statistics(each, self.withheld_from(each)) for each in self.consumers]

    def view(self) -> StageView:
        """Itself as a stage of the delivery side, for the diagnosis."""
        return finished(self.view_steps())

    def view_steps(self) -> Steps[StageView]:
        """The same in steps: it may have thousands of consumers, and very many queues."""
        consumers = self.consumers
        # Who takes by hand now and then always could take more: that says nothing of the others.
        pushed = [consumer for consumer in consumers if not consumer.is_passive]
        yield A_GLANCE * len(consumers)
        shown = yield from self._consumers_steps(pushed or consumers)
        ready = unacked = 0
        ready_since_ms = stored_ms = NEVER
        late: list[UndoneView] = []
        for cursor in list(self._cursors):
            if here := cursor.ready_messages:
                ready += here
                ready_since_ms = min(ready_since_ms, _ready_since(cursor))
                yield A_RECORD
            if here := cursor.pending.messages:
                unacked += here
                stored_ms = min(stored_ms, _stored_ms(cursor, cursor.settled.low_mark))
                yield A_RECORD
            expired = expired_backlog(cursor, self._host)
            if expired is not None:
                late.append(expired)
                yield A_RECORD
            yield A_QUEUE
        is_blocked = self._settler.inflight.is_blocked
        limit = self._settler.inflight.messages_max
        is_set = limit == self._host.flow.unacked_subscription_max and not self.is_owner_limited
        origin = "flow.unacked_subscription_max" if is_set else "its own limit"
        text = f"{limit} unsettled messages ({origin})"
        return StageView(
            kind="subscription",
            name=self.name,
            state="flow" if is_blocked else "running",
            reason=Reason.PENDING if is_blocked else None,
            culprit=text if is_blocked else "",
            waits_for=f"limit/unacked_max/{self.name}" if is_blocked else "",
            ready=ready,
            consumers=shown,
            consumers_left_out=len(pushed or consumers) - len(shown),
            undone=self._undone(late),
            progress=self.progress.view(
                self._host.clock.monotonic_ms(),
                age_ms=self._aged(ready_since_ms),
                ready=ready,
                unacked_age_ms=self._aged(stored_ms),
                is_read=bool(pushed),
                behind_ms=self._host.flow.behind_ms,
                unacked=unacked,
            ),
        )

    def _undone(self, late: Sequence[UndoneView]) -> UndoneView | None:
        """Rejects and expiries that are spread over turns, as far as they are still to come."""
        backlog = self._settler.reject_backlog
        if backlog:
            age_ms = self._host.clock.monotonic_ms() - backlog.since_ms
            return UndoneView(BURIALS, backlog.count, backlog.since_ms, age_ms=age_ms)
        if not late:
            return None
        count = sum(each.count for each in late)
        return UndoneView(EXPIRIES, count, min(each.since_ms for each in late))


NEVER: Final = float("inf")


def _ready_since(cursor: QueueCursor) -> float:
    """When the oldest message was stored that waits to be delivered; ``NEVER`` without one."""
    # What is parked for the keys of somebody is behind the head: from the low mark on.
    return _stored_ms(cursor, cursor.head if cursor.has_ready else cursor.settled.low_mark)


def _stored_ms(cursor: QueueCursor, offset: int) -> float:
    entries = cursor.index.entries(offset, 1)
    return entries[0][3] if entries else NEVER


def _start(start: Start | int, queue: SubscribedQueue) -> int:
    if isinstance(start, int):
        return start
    return queue.index.min_offset if start is Start.EARLIEST else queue.index.next_offset


# ---- consumers ----------------------------------------------------------------------------------


class ConsumerSet:
    """The consumers of one subscription: who comes, who goes, and what becomes of what they hold.

    A consumer joins the dispatcher of every queue it reads. One that cancels takes no more but may
    still settle what it has; one that is detached loses it to the others. So whoever has a message
    in flight is a member; iteration gives the attached ones only.
    """

    __slots__ = ("_cursors", "_host", "_last_id", "_members", "_settler")

    def __init__(
        self,
        host: Host,
        settler: Settler,
        cursors: list[QueueCursor],
        members: dict[int, Consumer],
    ) -> None:
        self._host = host
        self._settler = settler
        self._cursors = cursors
        self._members = members
        self._last_id = 0

    def __iter__(self) -> Iterator[Consumer]:
        return iter([member for member in self._members.values() if member.is_attached])

    def __len__(self) -> int:
        return len(self._members)

    @property
    def members(self) -> Iterable[Consumer]:
        """Everybody, also who has cancelled and still has messages."""
        return self._members.values()

    def member(self, consumer_id: int) -> Consumer | None:
        """Also one that has cancelled and still has messages."""
        return self._members.get(consumer_id)

    def attach(
        self,
        subscription: HostedSubscription,
        outlet: ConsumerOutlet,
        demand: Demand,
        unsent: UnsentLimit | None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> Consumer | ConsumerRefusal:
        """A new consumer, or why not."""
        flow = self._host.flow
        count_max = self._host.topics.consumers_per_subscription_max
        if len(self._members) >= count_max:
            return ConsumerRefusal(
                RefusalReason.TOO_MANY,
                f"the subscription has {count_max} consumers "
                "(topics.consumers_per_subscription_max); no more can join",
            )
        consumer = Consumer(
            ConsumerId(self._last_id + 1),
            outlet,
            demand,
            subscription=subscription,
            host=self._host,
            unsent=unsent
            or UnsentLimit(flow.unsent_messages_max, flow.unsent_bytes_max, self._host.unsent_pool),
            owns_unsent=unsent is None,
            **keywords,
        )
        joined = [each for each in self._cursors if consumer.takes_from(each.queue_id)]
        if consumer.is_passive:
            joined = []
        for cursor in joined:
            refusal = cursor.refusal(consumer)
            if refusal is not None:
                return refusal
        self._last_id += 1
        demand.wake = consumer.wake
        self._members[consumer.consumer_id] = consumer
        for cursor in joined:
            self.join(cursor, consumer)
        return consumer

    def join(self, cursor: QueueCursor, consumer: Consumer) -> None:
        """It reads this queue; whom it displaces loses what it has there, in order."""
        self._displace(cursor, cursor.join(consumer))

    def leave(self, cursor: QueueCursor, consumer: Consumer) -> None:
        """It reads this queue no more; among those who are left another may become active."""
        self._displace(cursor, cursor.leave(consumer))

    def take_over(self, cursor: QueueCursor, now_ms: int) -> None:
        """Another one may become active in this queue, if it is time."""
        self._displace(cursor, cursor.dispatcher.take_over(now_ms))

    def _displace(self, cursor: QueueCursor, displaced: Consumer | None) -> None:
        if displaced is not None:
            self._take_back(cursor, displaced, is_counted=False)

    def cancel(self, consumer: Consumer) -> None:
        """It takes no more; what it has stays its own."""
        if not consumer.is_attached:
            return
        consumer.is_attached = False
        consumer.demand.wake = None
        for cursor in self._cursors:
            self.leave(cursor, consumer)
        if not consumer.inflight.messages:
            self._remove(consumer)

    def detach(self, consumer: Consumer, *, is_counted: bool) -> None:
        """It is gone, and what it has goes back to its place."""
        self.cancel(consumer)
        for cursor in self._cursors:
            if consumer.inflight.messages:
                self._take_back(cursor, consumer, is_counted=is_counted)
        self._remove(consumer)

    def forget_queue(self, cursor: QueueCursor, cause: str) -> None:
        """This queue is read no more: who read nothing else is told that it is gone."""
        self._settler.clear_in_flight(cursor)
        was_active = cursor.dispatcher.disband()
        for consumer in list(self._members.values()):
            if consumer.keeps_reading(cursor.queue_id, [each.queue_id for each in self._cursors]):
                if consumer is was_active and not consumer.active_queues:
                    consumer.outlet.active_changed(consumer, False)
                continue
            was_attached = consumer.is_attached
            self.cancel(consumer)
            self._remove(consumer)
            if was_attached:
                consumer.outlet.cancelled(consumer, cause)

    def close(self, cause: str) -> None:
        """Everyone is told that the subscription is gone."""
        for cursor in self._cursors:
            self._settler.clear_in_flight(cursor)
        for consumer in list(self._members.values()):
            if consumer.is_attached:
                self.cancel(consumer)
                consumer.outlet.cancelled(consumer, cause)
        for consumer in list(self._members.values()):
            self._remove(consumer)

    def _remove(self, consumer: Consumer) -> None:
        self._members.pop(consumer.consumer_id, None)
        self._host.unsent_pool.forget(consumer)
        if consumer.owns_unsent:
            consumer.unsent.close()

    def _take_back(self, cursor: QueueCursor, consumer: Consumer, *, is_counted: bool) -> None:
        own = cursor.pending.held_by(consumer.consumer_id)
        self._settler.requeue(cursor, own, is_counted=is_counted)


# ---- statistics ---------------------------------------------------------------------------------


class ConsumerStatistics(msgspec.Struct, frozen=True):
    """One consumer at one moment."""

    name: str
    demand: int
    """Messages it asks for now; -1 = no limit."""
    unacked: int
    unacked_bytes: int
    unsent: int
    delivered: int
    redelivered: int
    blocked_by: tuple[Withheld, ...]
    """Why it gets nothing (``Withheld``); empty = it would get the next one."""
    last_grant_ms: int | None = None
    """When it was last granted permits (monotonic); None = never, or it has none."""


class SubscriptionStatistics(msgspec.Struct, frozen=True):
    """One subscription at one moment."""

    name: str
    ready: int
    unacked: int
    delayed: int
    redelivered: int
    """Messages handed over a second time or more, since the start."""
    settled: int
    dead_letters: int
    lost: int
    """Records that could not be read (P7)."""
    skipped: int
    """Offsets that no longer existed when their turn came."""
    unknown_settles: int
    """Settlements of offsets that had never been delivered; ignored."""
    is_blocked: bool
    """At its own limit of unsettled messages (F13)."""
    backlog_bytes: int
    """Log bytes from its low marks on."""
    consumers: int


def consumer_statistics(consumer: Consumer, withheld: tuple[Withheld, ...]) -> ConsumerStatistics:
    demand = consumer.demand.available_messages()
    return ConsumerStatistics(
        name=consumer.label,
        demand=-1 if demand >= UNLIMITED else demand,
        unacked=consumer.inflight.messages,
        unacked_bytes=consumer.inflight.bytes,
        unsent=consumer.unsent.messages,
        delivered=consumer.delivered_messages,
        redelivered=consumer.redelivered_messages,
        blocked_by=withheld,
        last_grant_ms=consumer.last_grant_ms,
    )


def consumer_view(
    consumer: Consumer, withheld: tuple[Withheld, ...], waits_for: str = ""
) -> ConsumerView:
    """A consumer as the diagnosis wants it: what binds it is its window or its in-flight limit."""
    unacked = consumer.inflight.messages
    limit = consumer.inflight.messages_max
    window = consumer.window
    if window:
        limit = min(limit, window) if limit else window
    is_full = not (isinstance(consumer.demand, Permits) or consumer.has_demand)
    if consumer.inflight.is_blocked or (is_full and unacked):
        # It holds messages and takes no more: whatever it calls its limit, it has reached it.
        limit = unacked
    return ConsumerView(
        name=consumer.label,
        unacked=unacked,
        unacked_max=limit,
        unacked_bytes=consumer.inflight.bytes,
        unacked_bytes_max=consumer.inflight.bytes_max,
        is_unsent_high=consumer.unsent.is_held,
        has_demand=consumer.has_demand,
        blocked_by=withheld,
        waits_for=waits_for,
        last_grant_ms=consumer.last_grant_ms,
        connection="" if not consumer.connection_id else f"connection/{consumer.connection_id}",
        is_unlimited=consumer.is_unlimited,
        is_passive=consumer.is_passive,
        has_settled=consumer.delivered_messages > unacked,
    )
