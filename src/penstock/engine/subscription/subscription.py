"""A subscription: a named reader of a topic with one cursor per queue and any number of consumers.

This is the door to the delivery side: everything that changes a subscription is a verb here. A verb
that may let a message go, or bring a deadline nearer, wakes the subscription at its host (law 4); a
verb that changes what must survive a restart announces settlements to it.

Three kinds of customer, one engine: a pushed consumer brings a demand (window or permits); a pop
takes for a limited time, when it asks (``taking.py``); a pull reads by itself (``pull.py``) and
only commits here.

Invariant: law 8, one stuck consumer holds only its own subscription.
Not here: the journey (``deliver.py``), the consumers (``roster.py``), moving cursors
(``moves.py``).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Unpack

import msgspec

from penstock.engine.filter.filters import Filter
from penstock.engine.host import Awaiting, Host, Mode, Start, SubscribedQueue, SubscriptionOptions
from penstock.engine.subscription import settle
from penstock.engine.subscription.consumer import (
    Consumer,
    ConsumerKeywords,
    ConsumerOutlet,
    ConsumerRefusal,
    Delivery,
    Held,
    RefusalReason,
)
from penstock.engine.subscription.cursor import BodyBytes, QueueCursor, ReadyBytes
from penstock.engine.subscription.dispatch import DeliveryPipeline, Outbox
from penstock.engine.subscription.dispatchers import (
    Dispatcher,
    Exclusive,
    Failover,
    KeyShared,
    Shared,
    SingleActive,
)
from penstock.engine.subscription.settle import Rewrite, Settler
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import UNLIMITED, Demand, InflightLimit
from penstock.flow.diagnosis import ConsumerView, StageView
from penstock.flow.reason import Reason
from penstock.log.format import CursorState
from penstock.model.errors import NotFound
from penstock.model.ids import ConsumerId, QueueId, SubscriptionId
from penstock.model.settlement import Cause, QueueSettlement, Settlement

# ---- lanes --------------------------------------------------------------------------------------
# All places of one subscription: what survives a restart, and the numbers of its queues.
#
# Invariant: replaying, on top of the snapshots, every settlement taken after them gives the cursors
# as they were at the last take (D5).
# Not here: anything that moves a message (``subscription.py`` and the journey).


class Lanes:
    """The lanes of one subscription, in the order in which they are served."""

    __slots__ = ("_lanes", "_order", "name", "subscription_id")

    def __init__(self, subscription_id: SubscriptionId, name: str) -> None:
        self.subscription_id = subscription_id
        self.name = name
        self._lanes: dict[QueueId, QueueCursor] = {}
        self._order: list[QueueCursor] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.subscription_id}>"

    def lane(self, queue_id: QueueId) -> QueueCursor:
        """The place in one queue: cursor, in flight, coming back, delayed, unread."""
        lane = self._lanes.get(queue_id)
        if lane is None:
            raise NotFound(f"subscription {self.name!r} does not read a queue with id {queue_id}")
        return lane

    def held(self, queue_id: QueueId, offset: int) -> Held | None:
        """Who has this offset in flight, since which attempt; None = nobody."""
        pending = self.lane(queue_id).pending
        start = pending.first_offset(offset)
        return pending.entries[start] if start is not None else None

    @property
    def has_unsaved(self) -> bool:
        """Whether ``take_settlements`` would give anything."""
        order = self._order
        if len(order) == 1:
            return not order[0].notes.is_empty
        return False in [lane.notes.is_empty for lane in order]

    def take_settlements(self) -> list[Settlement]:
        """Everything to be saved since the last call: one settlement per cause."""
        parts: list[tuple[Cause, QueueSettlement]] = []
        for lane in self._order:
            if not lane.notes.is_empty:
                parts += lane.notes.take(lane.queue_id, lane.cursor.low_mark)
        if len(parts) == 1:
            cause, part = parts[0]
            return [Settlement(self.subscription_id, int(cause), [part])]
        by_cause: dict[Cause, list[QueueSettlement]] = {}
        for cause, part in parts:
            by_cause.setdefault(cause, []).append(part)
        # A seek comes before whatever was settled after it.
        order = sorted(by_cause, key=lambda cause: cause is not Cause.SOUGHT)
        return [Settlement(self.subscription_id, int(cause), by_cause[cause]) for cause in order]

    def restore(self, state: CursorState) -> None:
        """Go on from a snapshot; a queue that is gone is ignored."""
        lane = self._lanes.get(state.queue_id)
        if lane is not None:
            lane.restore(state)

    def apply(self, settlement: Settlement) -> None:
        """Replay a settlement that came after the snapshot."""
        for part in settlement.queues:
            lane = self._lanes.get(part.queue_id)
            if lane is not None:
                lane.apply(Cause(settlement.cause), part)

    def state(self, queue_id: QueueId, *, is_final: bool = False) -> CursorState:
        """A snapshot of one queue; ``is_final`` when nothing will be delivered after it."""
        return self.lane(queue_id).state(self.subscription_id, is_final=is_final)

    def next_deadline_ms(self) -> int | None:
        """When ``due`` has something to do; whatever brings it nearer wakes the subscription."""
        soonest_ms: int | None = None
        for lane in self._order:
            at_ms = lane.next_deadline_ms()
            if at_ms is not None and (soonest_ms is None or at_ms < soonest_ms):
                soonest_ms = at_ms
        return soonest_ms

    def low_mark(self, queue_id: QueueId) -> int:
        """Everything below is settled."""
        return self.lane(queue_id).cursor.low_mark

    def ready(self, queue_id: QueueId) -> int:
        """Messages that wait to be delivered."""
        return self.lane(queue_id).ready_messages

    def unacked(self, queue_id: QueueId) -> int:
        return self.lane(queue_id).pending.messages

    def backlog_bytes(self, queue_id: QueueId) -> int:
        """Log bytes from the low mark to the end."""
        return self.lane(queue_id).backlog_bytes


# ---- taking -------------------------------------------------------------------------------------
# Consumers that ask by themselves: take now, pop with a visibility, move what they hold elsewhere.
#
# A pushed consumer waits for a dispatch; these do not. ``take`` hands over whatever comes next;
# ``pop`` does so from one queue, under a filter of its own, and for a limited time: what is not
# settled by then is *late*, and whoever hung in ``on_late`` says what becomes of it (else it goes
# back to its place, counted). ``move`` is one such answer: a copy in another queue, the original
# settled, both in one frame (D5).
#
# Invariants: a look that moved nothing wakes nobody, so a waiting pop cannot make turns for ever; a
# message is in flight or settled before its copy is on its way.
# Not here: who waits for a pop (the adapter; ``on_ready`` tells it when to look again).


SCAN_MESSAGES_MAX: Final = 800
"""Messages one pop passes over because its filter refuses them; then it is asked again."""

LATE_MAX: Final = 200
"""Late entries dealt with in one go; the rest follow in the next turn."""

Late = Callable[[QueueId, list[int]], None]
"""Takes first offsets whose time is up; each must be settled, requeued, moved or extended."""


class PopOrder(msgspec.Struct, frozen=True, gc=False):
    """What one pop wants of one queue."""

    messages_max: int
    bytes_max: int
    """The last message may cross it."""
    visibility_ms: int
    wanted: Filter | None = None
    """What it refuses is settled unseen."""


class Takes(Lanes, ABC):
    """The part of a subscription that serves them."""

    __slots__ = ("_host", "_journey", "_settler", "is_closed", "is_leaving", "on_late", "on_ready")

    def __init__(
        self, subscription_id: SubscriptionId, name: str, host: Host, journey: DeliveryPipeline
    ) -> None:
        super().__init__(subscription_id, name)
        self.is_closed = False
        self.is_leaving = False
        """True when its topic goes as soon as its dead are buried: nothing is handed out."""
        self._host = host
        self._journey = journey
        self._settler: Settler = journey.settler
        self.on_late: Late | None = None
        """Says what becomes of entries whose time is up; None = back to their places."""
        self.on_ready: Callable[[], None] | None = None
        """Called at the end of a dispatch while anything waits to be delivered."""

    @property
    def has_dying(self) -> bool:
        """True while somebody waits to be buried."""
        return bool(self._settler.dying)

    def take(self, consumer: Consumer, messages_max: int) -> list[Delivery]:
        """Hand over at once, beside demand, returning the list instead of calling the outlet."""
        taken: list[Delivery] = []
        for lane in () if self.is_leaving else self._order:
            if len(taken) < messages_max and consumer.takes_from(lane.queue_id):
                taken += self._journey.take(lane, consumer, messages_max - len(taken))
        self._changed()
        return taken

    def pop(self, consumer: Consumer, queue_id: QueueId, order: PopOrder) -> list[Delivery]:
        """Hand over messages of one queue for a limited time."""
        if self.is_leaving:
            return []
        lane = self.lane(queue_id)
        before = (lane.next_offset, len(lane.redelivery.again))
        consumer.visibility_ms = order.visibility_ms
        own, self._journey.picker.filter = self._journey.picker.filter, order.wanted
        taken: list[Delivery] = []
        room_bytes = order.bytes_max
        try:
            while len(taken) < order.messages_max and lane.has_ready and room_bytes > 0:
                here = self._journey.take(
                    lane,
                    consumer,
                    order.messages_max - len(taken),
                    bytes_max=room_bytes,
                    scan_max=SCAN_MESSAGES_MAX,
                )
                if not here:
                    break
                room_bytes -= sum(delivery.size for delivery in here)
                taken += here
        finally:
            self._journey.picker.filter = own
        if taken:
            # Whoever pops has its own connection; no socket's backlog is kept here.
            messages = sum(delivery.messages for delivery in taken)
            consumer.sent(messages, sum(delivery.size for delivery in taken))
        if taken or before != (lane.next_offset, len(lane.redelivery.again)):
            self._changed(lane)
        return taken

    def tag(self, queue_id: QueueId, offsets: Sequence[int], tag: int) -> None:
        """Write the adapter's number of the hand-over on in-flight entries (first offsets)."""
        entries = self.lane(queue_id).pending.entries
        for offset in offsets:
            entries[offset].tag = tag

    def move(self, queue_id: QueueId, offsets: Sequence[int], rewrite: Rewrite) -> int:
        """In-flight entries go to another queue, as copies; settled here in the same frame."""
        lane = self.lane(queue_id)
        moved = self._settler.move(lane, offsets, rewrite)
        self._changed(lane)
        return moved

    def _expire_visibility(self, lane: QueueCursor, now_ms: int, count_max: int) -> int:
        """Deal with late entries of one queue; how many there were."""
        overdue = lane.pending.overdue(now_ms, count_max)
        if overdue and self.on_late is not None:
            self.on_late(lane.queue_id, overdue)
        elif overdue:
            self._settler.requeue(lane, overdue, is_counted=True)
        return len(overdue)

    def _changed(self, lane: QueueCursor | None = None) -> None:
        """After a verb: save what it changed (in one lane or in any), and look what can go now."""
        if not self.is_closed:
            self._save(lane)
            self._host.wake(self)

    def _save(self, lane: QueueCursor | None) -> None:
        if self.is_closed:
            return
        if self.has_unsaved if lane is None else not lane.notes.is_empty:
            self._host.note_settlement(self)

    @abstractmethod
    def dispatch(self, messages_max: int) -> int:
        """One round: hand out what is ready, at most so many; returns messages moved."""


# ---- measured -----------------------------------------------------------------------------------
# What length limits and operators ask of a subscription: how much waits, how long nobody took it.
#
# Not here: the limits (``limits.py``).


class Measured(Takes, ABC):
    """The part of a subscription that answers them."""

    __slots__ = ("_body_bytes", "_ready_bytes", "_unserved_ms", "_unserved_since_ms")

    def __init__(
        self, subscription_id: SubscriptionId, name: str, host: Host, journey: DeliveryPipeline
    ) -> None:
        super().__init__(subscription_id, name, host, journey)
        self._ready_bytes: dict[QueueId, ReadyBytes] = {}
        self._body_bytes: dict[QueueId, BodyBytes] = {}
        self._unserved_ms = 0
        self._unserved_since_ms: int | None = None

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

    @property
    def is_noteworthy(self) -> bool:
        """True when the diagnosis may have something to say about it."""
        if self._settler.inflight.is_blocked or self._settler.dying:
            return True
        return any(lane.ready_messages for lane in self._order)

    def _note_service(self, is_unserved: bool) -> None:
        """A round is over; whether it left something because nobody could take more."""
        if is_unserved is (self._unserved_since_ms is None):
            now_ms = self._host.clock.monotonic_ms()
            if self._unserved_since_ms is None:
                self._unserved_since_ms = now_ms
            else:
                self._unserved_ms += now_ms - self._unserved_since_ms
                self._unserved_since_ms = None

    @property
    def lead_queue(self) -> SubscribedQueue:
        """One of its queues; all are of one topic."""
        return self._order[0].queue

    def room(self) -> int:
        """Messages its consumers would take at once, as far as one round looks."""
        if self._settler.inflight.is_blocked:
            return 0
        return sum(taker.room() for taker in self._order[0].dispatcher.takers())

    def body_bytes(self) -> tuple[int, int]:
        """Of what is ready and of what is in flight, as exactly as a look may cost."""
        known = self._body_bytes
        for lane in self._order:
            if lane.queue_id not in known:
                known[lane.queue_id] = BodyBytes(lane, self._host.read)
        found = [each.look() for each in known.values()]
        # Where a limit asks, somebody counts: that is exact.
        ready = self.ready_body_bytes() if self._ready_bytes else sum([each[0] for each in found])
        return ready, sum([each[1] for each in found])

    def ready_body_bytes(self) -> int:
        """Body bytes of what waits, in all queues; the first call reads them."""
        known = self._ready_bytes
        for lane in self._order:
            if lane.queue_id not in known:
                known[lane.queue_id] = ReadyBytes(lane, self._host.read)
        return sum(each.total() for each in known.values())


# ---- subscription -------------------------------------------------------------------------------


__all__ = ["Subscription", "SubscriptionOptions"]

_log = logging.getLogger(__name__)

LANE_SLICE: Final = 100
"""Messages one of several queues may move before the next one has its turn."""

EXPIRE_ENTRIES_MAX: Final = 300
"""Expired messages settled in one go; the rest follow in the next turn."""

_KEY_SHARED: Final = Mode.KEY_SHARED
"""Asked for with every settlement, and found faster by this name."""

_DISPATCHERS: Final[dict[Mode, type[Exclusive | Failover | Shared | KeyShared]]] = {
    Mode.EXCLUSIVE: Exclusive,
    Mode.FAILOVER: Failover,
    Mode.SINGLE_ACTIVE: SingleActive,
    Mode.SHARED: Shared,
    Mode.KEY_SHARED: KeyShared,
}


class Subscription(Measured):
    """One named reader."""

    __slots__ = ("_turn", "options", "roster")

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
        members: dict[int, Consumer] = {}
        super().__init__(subscription_id, name, host, DeliveryPipeline(host, options, members))
        self.options = options
        self.roster = ConsumerSet(host, self, self._settler, members)
        self._turn = 0
        for queue in queues:
            self.add_queue(queue, _start(options.start, queue), is_new=is_new)

    def add_queue(self, queue: SubscribedQueue, start: int = 0, *, is_new: bool = True) -> None:
        """The topic has one queue more; consumers of the whole topic take from it too."""
        topics = self._host.topics
        dispatcher: Dispatcher = _DISPATCHERS[self.options.mode]()
        lane = QueueCursor(
            queue,
            dispatcher,
            start,
            is_saved=self.options.is_durable,
            sees_unsynced=self.options.sees_unsynced,
            reserve=topics.delivered_reserve,
            delayed_room=self._host.delayed_room,
        )
        self._lanes[lane.queue_id] = lane
        # Priorities are numbered upwards and served downwards.
        self._order.insert(0 if self.options.is_priority else len(self._order), lane)
        for consumer in self.roster:
            if not consumer.is_passive and not consumer.queue_ids:
                self.roster.join(lane, consumer)
        if is_new and lane.is_saved:
            lane.notes.sought(start)
            lane.mark_delivered(start)
        self._changed()

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

        ``unsent`` may be its connection's: whoever reports what a socket took then wakes them all.
        """
        consumer = self.roster.attach(self._order, outlet, demand, unsent, **keywords)
        self._changed()
        return consumer

    def cancel(self, consumer: Consumer) -> None:
        """It gets nothing more; what it has stays in flight until it is settled or detached."""
        self.roster.cancel(self._order, consumer)
        self._changed()

    def detach(self, consumer: Consumer, *, count: bool = False) -> None:
        """It is gone: what it has goes back to its place and then to others."""
        self.roster.detach(self._order, consumer, is_counted=count)
        self._changed()

    def close(self, cause: str) -> None:
        """The subscription ends; every consumer is told. What was refused has its letters first."""
        self._settler.dying.bury_all()
        self.is_closed = True
        self.roster.close(self._order, cause)
        for lane in self._order:
            lane.redelivery.clear()
        self._host.delayed_room.forget(self)

    # The engine's turn

    def arrived(self, queue_id: QueueId) -> None:
        """A queue has new visible messages."""
        if queue_id in self._lanes:
            self._host.wake(self)

    def dispatch(self, messages_max: int) -> int:
        """One round: hand out what is ready, at most so many; returns messages moved."""
        if self.is_closed:
            return 0
        is_burying = self._settler.dying.turn()
        lanes = self._order
        outbox: Outbox = {}
        if is_burying or self.is_leaving:
            moved = 0  # nothing new before all of them are buried: they would pile up
        elif len(lanes) == 1:
            moved = self._journey.serve(lanes[0], messages_max, outbox)
        else:
            moved = self._serve_in_turn(lanes, messages_max, outbox)
        is_through = moved < messages_max and not is_burying
        is_ready = is_unsaved = False
        for lane in lanes:
            end = lane.end
            if is_through:
                lane.offered_upto = end
            is_unsaved |= not lane.notes.is_empty
            if lane.redelivery.again or lane.next_offset < end:
                is_ready = True
                self._journey.picker.watch_head(lane)
                if lane.redelivery.is_full:
                    self._host.delayed_room.wait(self)
        self._note_service(is_ready and is_through)
        if is_unsaved:
            self._host.note_settlement(self)
        if not is_through:
            self._host.wake(self)
        # Last, and with everything in order: an outlet may settle while it is called.
        for consumer, deliveries in outbox.items():
            consumer.outlet.deliver(consumer, deliveries)
        if self.on_ready is not None and any(lane.has_ready for lane in lanes):
            self.on_ready()
        return moved

    def due(self, now_ms: int) -> None:
        """Monotonic time has come this far: delays end, visibility ends, heads expire."""
        left = LATE_MAX
        for lane in self._order:
            lane.redelivery.ripen(now_ms)
            left -= self._expire_visibility(lane, now_ms, left)
            if 0 < lane.head_deadline_ms <= now_ms:
                self._journey.picker.expire_head(lane, EXPIRE_ENTRIES_MAX)
        self._changed()

    # Settlement: offsets that mean nothing any more are ignored, peers may be late

    def settle(self, queue_id: QueueId, offsets: Sequence[int]) -> int:
        """These offsets are done, whoever had them; returns how many were not before."""
        lane = self.lane(queue_id)
        settled = self._settler.settle(lane, offsets)
        # Room alone moves nothing: with one queue and nothing ready in it there is no round to
        # make. What waits for its key is not among the ready.
        is_idle = len(self._order) == 1 and self.options.mode is not _KEY_SHARED
        if is_idle and not lane.has_ready:
            self._save(lane)
        else:
            self._changed(lane)
        return settled

    def settle_upto(self, queue_id: QueueId, offset: int) -> int:
        """Everything below ``offset`` is done."""
        lane = self.lane(queue_id)
        settled = self._settler.settle_upto(lane, offset)
        self._changed(lane)
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
        lane = self.lane(queue_id)
        moved = self._settler.requeue(lane, offsets, delay_ms=delay_ms, is_counted=count)
        self._changed(lane)
        return moved

    def reject(self, queue_id: QueueId, offsets: Sequence[int]) -> int:
        """Refused for good: dead letters, if the topic has a place for them."""
        lane = self.lane(queue_id)
        rejected = self._settler.reject(lane, offsets)
        self._changed()  # in any lane: who was refused before may be buried by this
        return rejected

    def extend(self, queue_id: QueueId, offset: int, deadline_ms: int) -> bool:
        """Move the monotonic moment at which an in-flight entry goes back; 0 = never."""
        is_extended = self.lane(queue_id).pending.extend(offset, deadline_ms)
        self._host.wake(self)
        return is_extended

    # Moving on purpose

    def seek(self, queue_id: QueueId, offset: int) -> None:
        """Deliver from ``offset`` on, as if nothing at or above had ever been settled."""
        lane = self.lane(queue_id)
        settle.seek(self._settler, lane, offset)
        self._changed(lane)

    def seek_time(self, store_ms: int) -> None:
        """Deliver from the first message stored at or after that wall time on, in every queue."""
        for lane in self._order:
            settle.seek(self._settler, lane, lane.queue.index.search_time(store_ms))
        self._changed()

    def purge(self, queue_id: QueueId) -> int:
        """Settle everything that is not in flight; returns how many messages."""
        lane = self.lane(queue_id)
        purged = settle.purge(lane)
        self._changed(lane)
        return purged

    def drop_head(self, queue_id: QueueId, messages: int, cause: Cause = Cause.DROPPED_HEAD) -> int:
        """Settle the oldest ready messages, as dead letters; returns how many went."""
        lane = self.lane(queue_id)
        dropped = settle.drop_head(self._host, self._journey.picker, lane, messages, cause)
        self._changed(lane)
        return dropped

    @property
    def consumers(self) -> list[Consumer]:
        return list(self.roster)

    def statistics(self) -> SubscriptionStatistics:
        """Everything worth knowing, at this moment."""
        return snapshot(self.name, self._order, self._journey, self.consumers)

    def view(self) -> StageView:
        """Itself as a stage of the delivery side, for the diagnosis."""
        return stage_view(self.name, self._order, self._journey, self.consumers)

    # Parts

    def _serve_in_turn(self, lanes: list[QueueCursor], messages_max: int, outbox: Outbox) -> int:
        moved = 0
        if self.options.is_priority:
            for lane in lanes:
                moved += self._journey.serve(lane, messages_max - moved, outbox)
            return moved
        idle = 0
        while moved < messages_max and idle < len(lanes):
            lane = lanes[self._turn % len(lanes)]
            self._turn = (self._turn + 1) % len(lanes)
            here = self._journey.serve(lane, min(LANE_SLICE, messages_max - moved), outbox)
            moved += here
            idle = 0 if here else idle + 1
        return moved


def _start(start: Start | int, queue: SubscribedQueue) -> int:
    if isinstance(start, int):
        return start
    return queue.index.min_offset if start is Start.EARLIEST else queue.index.next_offset


# ---- roster -------------------------------------------------------------------------------------
# The consumers of a subscription: who comes, who goes, and what becomes of what they hold.
#
# A consumer joins the dispatcher of every lane it takes from. One that cancels takes no more but
# may still settle what it has; one that is detached loses it to the others.
#
# Invariant: whoever has a message in flight is in the roster.


class ConsumerSet:
    """All consumers of one subscription, by id."""

    __slots__ = ("_host", "_last_id", "_members", "_settler", "_subscription")

    def __init__(
        self,
        host: Host,
        subscription: Awaiting,
        settler: Settler,
        members: dict[int, Consumer],
    ) -> None:
        self._host = host
        self._subscription = subscription
        self._settler = settler
        self._members = members
        self._last_id = 0

    def __iter__(self) -> Iterator[Consumer]:
        return iter([member for member in self._members.values() if member.is_attached])

    def __len__(self) -> int:
        return len(self._members)

    def attach(
        self,
        lanes: list[QueueCursor],
        outlet: ConsumerOutlet,
        demand: Demand,
        unsent: UnsentLimit | None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> Consumer | ConsumerRefusal:
        """A new consumer of these lanes, or why not."""
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
            subscription=self._subscription,
            host=self._host,
            unsent=unsent
            or UnsentLimit(flow.unsent_messages_max, flow.unsent_bytes_max, self._host.unsent_pool),
            owns_unsent=unsent is None,
            inflight=InflightLimit(flow.unacked_consumer_max, flow.unacked_consumer_bytes_max),
            **keywords,
        )
        joined = [lane for lane in lanes if consumer.takes_from(lane.queue_id)]
        if not consumer.is_passive:
            for lane in joined:
                refusal = lane.dispatcher.refusal(consumer)
                if refusal is not None:
                    return refusal
        self._last_id += 1
        demand.wake = consumer.wake
        self._members[consumer.consumer_id] = consumer
        if not consumer.is_passive:
            for lane in joined:
                self.join(lane, consumer)
        return consumer

    def join(self, lane: QueueCursor, consumer: Consumer) -> None:
        """It takes from this lane; whom it displaces loses what it has there, in order."""
        displaced = lane.dispatcher.join(consumer)
        if displaced is not None:
            self._take_back(lane, displaced, is_counted=False)

    def cancel(self, lanes: list[QueueCursor], consumer: Consumer) -> None:
        """It takes no more; what it has stays its own."""
        if not consumer.is_attached:
            return
        consumer.is_attached = False
        consumer.demand.wake = None
        for lane in lanes:
            lane.leave(consumer)
        if not consumer.inflight.messages:
            self._gone(consumer)

    def detach(self, lanes: list[QueueCursor], consumer: Consumer, *, is_counted: bool) -> None:
        """It is gone, and what it has goes back to its place."""
        self.cancel(lanes, consumer)
        for lane in lanes:
            if consumer.inflight.messages:
                self._take_back(lane, consumer, is_counted=is_counted)
        self._gone(consumer)

    def close(self, lanes: list[QueueCursor], cause: str) -> None:
        """Everyone is told that the subscription is gone."""
        for lane in lanes:
            self._settler.throw_out(lane)
        for consumer in list(self._members.values()):
            if consumer.is_attached:
                self.cancel(lanes, consumer)
                consumer.outlet.cancelled(consumer, cause)
        for consumer in list(self._members.values()):
            self._gone(consumer)

    def _gone(self, consumer: Consumer) -> None:
        self._members.pop(consumer.consumer_id, None)
        self._host.unsent_pool.forget(consumer)
        if consumer.owns_unsent:
            consumer.unsent.close()

    def _take_back(self, lane: QueueCursor, consumer: Consumer, *, is_counted: bool) -> None:
        consumer_id = consumer.consumer_id
        held = [at for at, each in lane.pending.entries.items() if each.consumer_id == consumer_id]
        self._settler.requeue(lane, held, is_counted=is_counted)


# ---- subscription statistics --------------------------------------------------------------------
# What a subscription looks like from outside: snapshots for operators and for the diagnosis.


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
    blocked_by: tuple[str, ...]
    """Why it gets nothing more: demand, unsettled, unsent; empty = it would take the next one."""


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
    each_consumer: tuple[ConsumerStatistics, ...]


def consumer_statistics(consumer: Consumer) -> ConsumerStatistics:
    demand = consumer.demand.available_messages()
    return ConsumerStatistics(
        name=consumer.name,
        demand=-1 if demand >= UNLIMITED else demand,
        unacked=consumer.inflight.messages,
        unacked_bytes=consumer.inflight.bytes,
        unsent=consumer.unsent.messages,
        delivered=consumer.delivered_messages,
        redelivered=consumer.redelivered_messages,
        blocked_by=consumer.blocked_by(),
    )


def consumer_view(consumer: Consumer) -> ConsumerView:
    """A consumer as the diagnosis wants it: what binds it is its window or its in-flight limit."""
    unacked = consumer.inflight.messages
    available = consumer.demand.available_messages()
    limit = consumer.inflight.messages_max
    if consumer.inflight.is_blocked or (available <= 0 < unacked):
        # It holds messages and takes no more: whatever it calls its limit, it has reached it.
        limit = unacked
    return ConsumerView(
        name=consumer.name,
        unacked=unacked,
        unacked_max=limit,
        is_unsent_high=consumer.unsent.is_held,
        has_demand=available > 0,
    )


def snapshot(
    name: str, lanes: list[QueueCursor], journey: DeliveryPipeline, consumers: list[Consumer]
) -> SubscriptionStatistics:
    """A subscription's snapshot."""
    return SubscriptionStatistics(
        name=name,
        ready=sum(lane.ready_messages for lane in lanes),
        unacked=sum(lane.pending.messages for lane in lanes),
        delayed=sum(lane.redelivery.delayed_messages for lane in lanes),
        redelivered=journey.redelivered_messages,
        settled=journey.settler.settled_messages,
        dead_letters=journey.picker.dead_letters,
        lost=journey.picker.lost,
        skipped=journey.picker.skipped,
        unknown_settles=journey.settler.unknown_settles,
        is_blocked=journey.settler.inflight.is_blocked,
        backlog_bytes=sum(lane.backlog_bytes for lane in lanes),
        consumers=len(consumers),
        each_consumer=tuple(consumer_statistics(consumer) for consumer in consumers),
    )


def stage_view(
    name: str, lanes: list[QueueCursor], journey: DeliveryPipeline, consumers: list[Consumer]
) -> StageView:
    """A subscription as a stage of the delivery side."""
    is_blocked = journey.settler.inflight.is_blocked
    limit = journey.settler.inflight.messages_max
    # Who takes by hand now and then always could take more: that says nothing of the others.
    pushed = [consumer for consumer in consumers if not consumer.is_passive]
    return StageView(
        kind="subscription",
        name=name,
        state="flow" if is_blocked else "running",
        reason=Reason.PENDING if is_blocked else None,
        culprit=f"{limit} unsettled messages (flow.unacked_subscription_max)" if is_blocked else "",
        ready=sum(lane.ready_messages for lane in lanes),
        consumers=tuple(consumer_view(consumer) for consumer in pushed or consumers),
        undone=journey.undone(lanes),
    )
