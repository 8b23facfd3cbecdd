"""Consumers that ask by themselves: take now, pop with a visibility, move what they hold elsewhere.

A pushed consumer waits for a dispatch; these do not. ``take`` hands over whatever comes next;
``pop`` does so from one queue, under a filter of its own, and for a limited time: what is not
settled by then is *late*, and whoever hung in ``on_late`` says what becomes of it (else it goes
back to its place, counted). ``move`` is one such answer: a copy in another queue, the original
settled, both in one frame (D5).

Invariants: a look that moved nothing wakes nobody, so a waiting pop cannot make turns for ever; a
message is in flight or settled before its copy is on its way.
Not here: who waits for a pop (the adapter; ``on_ready`` tells it when to look again).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.engine.consumer import Consumer
from penstock.engine.deliver import Journey
from penstock.engine.filter_port import Filter
from penstock.engine.host import Host
from penstock.engine.lane import Lane
from penstock.engine.lanes import Lanes
from penstock.engine.pending import Delivery
from penstock.engine.settle import Rewrite, Settler
from penstock.model.ids import QueueId, SubscriptionId

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
        self, subscription_id: SubscriptionId, name: str, host: Host, journey: Journey
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

    def _expire_visibility(self, lane: Lane, now_ms: int, count_max: int) -> int:
        """Deal with late entries of one queue; how many there were."""
        overdue = lane.pending.overdue(now_ms, count_max)
        if overdue and self.on_late is not None:
            self.on_late(lane.queue_id, overdue)
        elif overdue:
            self._settler.requeue(lane, overdue, is_counted=True)
        return len(overdue)

    def _changed(self, lane: Lane | None = None) -> None:
        """After a verb: save what it changed (in one lane or in any), and look what can go now."""
        if not self.is_closed:
            self._save(lane)
            self._host.wake(self)

    def _save(self, lane: Lane | None) -> None:
        if self.is_closed:
            return
        if self.has_unsaved if lane is None else not lane.notes.is_empty:
            self._host.note_settlement(self)

    @abstractmethod
    def dispatch(self, messages_max: int) -> int:
        """One round: hand out what is ready, at most so many; returns messages moved."""
