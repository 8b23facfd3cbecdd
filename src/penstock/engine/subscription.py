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

import logging
from collections.abc import Sequence
from typing import Final, Unpack

from penstock.engine import moves
from penstock.engine.consumer import Consumer, ConsumerKeywords, ConsumerOutlet, ConsumerRefusal
from penstock.engine.deliver import Journey, Outbox
from penstock.engine.dispatch.dispatcher import Dispatcher
from penstock.engine.dispatch.exclusive import Exclusive
from penstock.engine.dispatch.failover import Failover
from penstock.engine.dispatch.key_shared import KeyShared
from penstock.engine.dispatch.shared import Shared
from penstock.engine.dispatch.single_active import SingleActive
from penstock.engine.host import Host, SubscribedQueue
from penstock.engine.lane import Lane
from penstock.engine.measured import Measured
from penstock.engine.roster import Roster
from penstock.engine.subscription_options import Mode, Start, SubscriptionOptions
from penstock.engine.subscription_statistics import SubscriptionStatistics, snapshot, stage_view
from penstock.engine.taking import LATE_MAX
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import Demand
from penstock.flow.diagnosis import StageView
from penstock.model.ids import QueueId, SubscriptionId
from penstock.model.settlement import Cause

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
        super().__init__(subscription_id, name, host, Journey(host, options, members))
        self.options = options
        self.roster = Roster(host, self, self._settler, members)
        self._turn = 0
        for queue in queues:
            self.add_queue(queue, _start(options.start, queue), is_new=is_new)

    def add_queue(self, queue: SubscribedQueue, start: int = 0, *, is_new: bool = True) -> None:
        """The topic has one queue more; consumers of the whole topic take from it too."""
        topics = self._host.topics
        dispatcher: Dispatcher = _DISPATCHERS[self.options.mode]()
        lane = Lane(
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
        moves.seek(self._settler, lane, offset)
        self._changed(lane)

    def seek_time(self, store_ms: int) -> None:
        """Deliver from the first message stored at or after that wall time on, in every queue."""
        for lane in self._order:
            moves.seek(self._settler, lane, lane.queue.index.search_time(store_ms))
        self._changed()

    def purge(self, queue_id: QueueId) -> int:
        """Settle everything that is not in flight; returns how many messages."""
        lane = self.lane(queue_id)
        purged = moves.purge(lane)
        self._changed(lane)
        return purged

    def drop_head(self, queue_id: QueueId, messages: int, cause: Cause = Cause.DROPPED_HEAD) -> int:
        """Settle the oldest ready messages, as dead letters; returns how many went."""
        lane = self.lane(queue_id)
        dropped = moves.drop_head(self._host, self._journey.picker, lane, messages, cause)
        self._changed(lane)
        return dropped

    @property
    def consumers(self) -> list[Consumer]:
        """Those who are attached."""
        return list(self.roster)

    def statistics(self) -> SubscriptionStatistics:
        """Everything worth knowing, at this moment."""
        return snapshot(self.name, self._order, self._journey, self.consumers)

    def view(self) -> StageView:
        """Itself as a stage of the delivery side, for the diagnosis."""
        return stage_view(self.name, self._order, self._journey, self.consumers)

    # Parts

    def _serve_in_turn(self, lanes: list[Lane], messages_max: int, outbox: Outbox) -> int:
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
