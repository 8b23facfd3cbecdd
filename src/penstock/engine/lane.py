"""One subscription's place in one queue: what is settled, in flight, coming back, delayed, unread.

Invariant: every offset below the queue's end is exactly one of these five (settled wins where a
message is settled while it waits to be delivered again). ``next_offset`` parts the unread from the
rest: nothing at or above it was ever looked at.

The delivered mark is reserved ahead and saved before it is reached, so that after an unclean stop
everything below it is delivered as "possibly again" (D13).
Not here: choosing consumers (``dispatch/``), reading records (``pick``), limits (``consumer``).
"""

from typing import Final

from penstock.engine.consumer import Consumer
from penstock.engine.cursor import Cursor
from penstock.engine.delayed_room import DelayedRoom
from penstock.engine.dispatch.dispatcher import Dispatcher
from penstock.engine.host import SubscribedQueue
from penstock.engine.notes import Notes
from penstock.engine.pending import Pending
from penstock.engine.redelivery import Redelivery
from penstock.log.format import CursorState
from penstock.model.ids import QueueId, QueueOffset, SubscriptionId
from penstock.model.settlement import Cause, QueueSettlement

COUNTS_KEPT: Final = 1000
"""Delivery counts a replay collects before it looks which of them are still wanted."""


class Lane:
    """The state of one subscription in one queue."""

    __slots__ = (
        "_counts_max",
        "cursor",
        "delivered_mark",
        "dispatcher",
        "flagged_below",
        "head_deadline_ms",
        "head_offset",
        "is_saved",
        "next_offset",
        "notes",
        "offered_upto",
        "pending",
        "queue",
        "queue_id",
        "redelivery",
        "reserve",
        "sees_unsynced",
    )

    def __init__(
        self,
        queue: SubscribedQueue,
        dispatcher: Dispatcher,
        low_mark: int,
        *,
        is_saved: bool,
        sees_unsynced: bool,
        reserve: int,
        delayed_room: DelayedRoom,
    ) -> None:
        self.queue = queue
        self.queue_id: QueueId = queue.queue_id
        self.dispatcher = dispatcher
        self.is_saved = is_saved
        self.sees_unsynced = sees_unsynced
        self.reserve = reserve
        self.cursor = Cursor(low_mark)
        self.pending = Pending()
        self.redelivery = Redelivery(delayed_room)
        self.notes = Notes(low_mark)
        self.next_offset = low_mark
        self.delivered_mark = low_mark
        """No offset at or above was delivered; -1 with nothing reserved yet."""
        self.offered_upto = queue.index.next_offset
        """Offsets at or above had no dispatch yet: a consumer that waits gets them, however short
        their time to live is."""
        self._counts_max = COUNTS_KEPT
        self.flagged_below = 0
        """Offsets below may have been delivered by a process that is gone."""
        self.head_offset = -1
        """The head whose expiry is known (``expiry``)."""
        self.head_deadline_ms = 0
        """Monotonic time at which that head expires; 0 = never."""

    @property
    def end(self) -> int:
        """The end of what this subscription may see."""
        queue = self.queue
        return queue.index.next_offset if self.sees_unsynced else queue.durable_end

    @property
    def has_ready(self) -> bool:
        """Whether something waits to be delivered (or to be skipped)."""
        queue = self.queue
        end = queue.index.next_offset if self.sees_unsynced else queue.durable_end
        return self.next_offset < end or bool(self.redelivery.again)

    @property
    def ready_at_most(self) -> int:
        """No more than so many messages could be delivered now; cheap, and never too few."""
        return max(0, self.end - self.next_offset) + len(self.redelivery.again)

    @property
    def ready_messages(self) -> int:
        """Messages that could be delivered now, given demand."""
        cursor = self.cursor
        unsettled = self.end - cursor.low_mark - cursor.settled_above
        return max(0, unsettled - self.pending.messages - self.redelivery.delayed_messages)

    @property
    def backlog_bytes(self) -> int:
        """Log bytes from the low mark to the end."""
        return self.queue.index.bytes_between(self.cursor.low_mark, self.end)

    def floor(self) -> int:
        """The first offset of the oldest entry that is not wholly settled."""
        low = self.cursor.low_mark
        found = self.queue.index.entries(low, 1)
        return min(low, found[0][1]) if found else low

    def settle(self, cause: Cause, start: int, end: int) -> int:
        """[start, end) is done; returns how many offsets were not before."""
        fresh = self.cursor.settle(start, end)
        if fresh and self.is_saved:
            self.notes.settled(cause, start, end)
        return fresh

    def settle_runs(self, cause: Cause, runs: list[tuple[int, int]]) -> int:
        """Ascending, disjoint ranges are done; returns how many offsets were not before."""
        fresh = self.cursor.settle_runs(runs)
        if fresh and self.is_saved:
            self.notes.settled_runs(cause, runs)
        return fresh

    def settle_upto(self, cause: Cause, end: int) -> int:
        """Everything below ``end`` is done."""
        return self.settle(cause, self.cursor.low_mark, end)

    def remember(self, offset: int, attempts: int, *, is_counted: bool) -> None:
        """A delivered entry will be delivered again; from now on it is flagged as such."""
        self.redelivery.counts[offset] = attempts
        if is_counted and self.is_saved:
            self.notes.counted(offset, attempts)

    def back(self, offset: int, slot: int) -> None:
        """An entry waits for its turn in its original place, among its key if it has one."""
        if slot and self.dispatcher.consumers:
            self.dispatcher.park(offset, slot)
        else:
            self.redelivery.back(offset)

    def leave(self, consumer: Consumer) -> None:
        """A consumer takes no more; when it was the last, nothing waits for its key any longer.

        Whoever takes by hand finds it in its place then, and so does the next who joins.
        """
        if consumer in self.dispatcher.consumers:
            self.dispatcher.leave(consumer)
            if not self.dispatcher.consumers:
                self.redelivery.put_back(self.dispatcher.unpark())

    def mark_delivered(self, end: int) -> None:
        """Offsets below ``end`` are about to be handed over."""
        # Renewed at half, so that the new mark is usually durable before it is needed.
        if self.is_saved and end > self.delivered_mark - self.reserve // 2:
            self.delivered_mark = end + self.reserve
            self.notes.marked(self.delivered_mark)

    def next_deadline_ms(self) -> int | None:
        """The first of: a visibility ends, a delay ends, the head expires."""
        soonest_ms = self.head_deadline_ms or None
        if not (self.pending.deadlines or self.redelivery.delayed):
            return soonest_ms
        for at_ms in (self.pending.next_deadline_ms(), self.redelivery.next_due_ms()):
            if at_ms is not None and (soonest_ms is None or at_ms < soonest_ms):
                soonest_ms = at_ms
        return soonest_ms

    def seek(self, offset: int) -> None:
        """Start over at ``offset``; the caller has taken everything out of flight."""
        assert not self.pending.entries, "a seek while messages are in flight"
        self.cursor.seek(offset)
        self.redelivery.clear()
        self.dispatcher.unpark()
        self.next_offset = offset
        self.head_offset = -1
        if self.is_saved:
            self.notes.sought(offset)

    # Recovery and snapshots

    def restore(self, state: CursorState) -> None:
        """Go on from a snapshot."""
        self.cursor.restore(state.low_mark, state.ranges)
        self.redelivery.counts = dict(state.counts)
        self.delivered_mark = state.delivered_mark
        self._restored()

    def apply(self, cause: Cause, part: QueueSettlement) -> None:
        """Replay one settlement on top of what was restored."""
        cursor, redelivery = self.cursor, self.redelivery
        if cause is Cause.SOUGHT:
            cursor.seek(part.low_mark)
            redelivery.counts.clear()
        elif part.low_mark > cursor.low_mark:
            cursor.settle_upto(part.low_mark)
        for start, end in part.ranges:
            cursor.settle(start, end)
        redelivery.counts.update(part.counts)
        if len(redelivery.counts) > self._counts_max:
            # Now and then only: a replay of a million settlements must stay linear.
            redelivery.forget_below(self.floor())
            self._counts_max = 2 * len(redelivery.counts) + COUNTS_KEPT
        self.delivered_mark = max(self.delivered_mark, part.delivered_mark)
        self._restored()

    def state(self, subscription_id: SubscriptionId, *, is_final: bool) -> CursorState:
        """A snapshot; a final one knows exactly what was delivered and reserves nothing."""
        mark = self.delivered_mark
        counts = self.redelivery.counts
        floor = self.floor() if counts else 0
        if is_final:
            mark = max(self.next_offset, self.flagged_below)
        return CursorState(
            subscription_id,
            self.queue_id,
            QueueOffset(self.cursor.low_mark),
            self.cursor.ranges,
            mark,
            [(at, count) for at, count in counts.items() if count and at >= floor],
        )

    def _restored(self) -> None:
        self.next_offset = self.cursor.low_mark
        end = self.offered_upto = self.queue.index.next_offset
        # The mark was reserved ahead. Who sees only what is durable never had what is stored from
        # now on; others may have had what the crash undid and what then happens again: a dead
        # letter, or a delayed message let go. So for them new messages are flagged for a while.
        self.flagged_below = (
            self.delivered_mark if self.sees_unsynced else min(self.delivered_mark, end)
        )
        self.notes.reset(self.cursor.low_mark)
