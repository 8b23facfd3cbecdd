"""All places of one subscription: what survives a restart, and the numbers of its queues.

Invariant: replaying, on top of the snapshots, every settlement taken after them gives the cursors
as they were at the last take (D5).
Not here: anything that moves a message (``subscription.py`` and the journey).
"""

from penstock.engine.lane import Lane
from penstock.engine.pending import Held
from penstock.log.format import CursorState
from penstock.model.errors import NotFound
from penstock.model.ids import QueueId, SubscriptionId
from penstock.model.settlement import Cause, QueueSettlement, Settlement


class Lanes:
    """The lanes of one subscription, in the order in which they are served."""

    __slots__ = ("_lanes", "_order", "name", "subscription_id")

    def __init__(self, subscription_id: SubscriptionId, name: str) -> None:
        self.subscription_id = subscription_id
        self.name = name
        self._lanes: dict[QueueId, Lane] = {}
        self._order: list[Lane] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.subscription_id}>"

    def lane(self, queue_id: QueueId) -> Lane:
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
        """Messages in flight."""
        return self.lane(queue_id).pending.messages

    def backlog_bytes(self, queue_id: QueueId) -> int:
        """Log bytes from the low mark to the end."""
        return self.lane(queue_id).backlog_bytes
