"""Where a subscription stands in one queue: settled, in flight, coming back, delayed, unread.

Invariant: every offset below the queue's end is exactly one of these five (settled wins where a
message is settled while it waits to be delivered again). ``next_offset`` parts the unread from the
rest: nothing at or above it was ever looked at.

* ``QueueCursor``: all of it, and what goes into snapshots;
* ``SettledOffsets``: a low mark and the ranges settled above it;
* ``Redelivery``: what must be delivered before the cursor reads on, and what is delayed, in memory
  or, beyond that, by a bit and a note in a file;
* ``PendingSettlements``: what changed since it was last saved;
* ``BodyBytesEstimate``, ``ReadyBodyBytes``: how many body bytes wait, for operators and for limits.

Not here: what is in flight (``consumer.py``), choosing consumers (``dispatchers.py``), reading
records (``pick.py``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from penstock.engine.host import (
    DelayedBudget,
    EntryIndex,
    FailoverRule,
    HostedSubscription,
    IndexEntry,
    Mode,
    SubscribedQueue,
)
from penstock.engine.subscription.consumer import (
    Consumer,
    ConsumerRefusal,
    PendingEntries,
)
from penstock.engine.subscription.dispatchers import make_dispatcher, other_mode
from penstock.flow.demand import UNLIMITED
from penstock.log.delayed import SpillNote
from penstock.log.format import CursorState
from penstock.model.clock import Clock
from penstock.model.ids import QueueId, QueueOffset, SubscriptionId
from penstock.model.record import Record
from penstock.model.settlement import Cause, QueueSettlement

COUNTS_KEPT: Final = 1000
"""Delivery counts a replay collects before it looks which of them are still wanted."""


class QueueCursor:
    """The state of one subscription in one queue.

    The delivered mark is reserved ahead and saved before it is reached, so that after an unclean
    stop everything below it is delivered as "possibly again" (D13).

    The mode is the cursor's, not the subscription's: Pulsar's consumers subscribe partition by
    partition, and each partition is read as those attached to it want.
    """

    __slots__ = (
        "_clock",
        "_counts_max",
        "delay_slack_ms",
        "delivered_mark",
        "dispatcher",
        "flagged_below",
        "head_deadline_ms",
        "head_offset",
        "honours_delay",
        "index",
        "is_saved",
        "messages_per_entry",
        "mode",
        "next_offset",
        "offered_upto",
        "pending",
        "queue",
        "queue_id",
        "redelivery",
        "reserve",
        "sees_unsynced",
        "settled",
        "unsaved",
    )

    def __init__(
        self,
        queue: SubscribedQueue,
        mode: Mode,
        low_mark: int,
        *,
        clock: Clock,
        is_saved: bool,
        sees_unsynced: bool,
        reserve: int,
        delayed_budget: DelayedBudget,
        owner: HostedSubscription,
    ) -> None:
        self.queue = queue
        self.queue_id: QueueId = queue.queue_id
        self.index: EntryIndex = queue.index
        """By which it reads: the queue's own, or one that leaves some of it out (``read_by``)."""
        self.mode = mode
        self.honours_delay = mode.honours_delay
        """Of the mode; every message with a delivery time asks."""
        self.delay_slack_ms = 0
        """Delivery times no farther ahead than this are not waited for."""
        self._clock = clock
        self.dispatcher = make_dispatcher(mode, clock, queue.number)
        self.is_saved = is_saved
        self.sees_unsynced = sees_unsynced
        self.reserve = reserve
        self.settled = SettledOffsets(low_mark)
        self.pending = PendingEntries()
        self.redelivery = Redelivery(delayed_budget, owner)
        self.unsaved = PendingSettlements(low_mark)
        self.next_offset = low_mark
        self.delivered_mark = low_mark
        """No offset at or above was delivered; -1 with nothing reserved yet."""
        self.offered_upto = queue.index.next_offset
        """Offsets at or above had no dispatch yet: a consumer that waits gets them, however short
        their time to live is."""
        self._counts_max = COUNTS_KEPT
        self.flagged_below = 0
        """Offsets below may have been delivered by a process that is gone."""
        self.messages_per_entry = 1.0
        """Running mean of what was read last: how large the batches are."""
        self.head_offset = -1
        """The head whose expiry is known (``Picker.watch_head``)."""
        self.head_deadline_ms = 0
        """Monotonic time at which that head expires; 0 = never."""

    @property
    def end(self) -> int:
        """The end of what this subscription may see."""
        queue = self.queue
        return queue.index.next_offset if self.sees_unsynced else queue.durable_end

    @property
    def head(self) -> int:
        """The next offset to deliver; ``end`` when there is none."""
        ready = self.redelivery.ready
        return ready[0] if ready else self.next_offset

    @property
    def has_ready(self) -> bool:
        """Whether something waits to be delivered (or to be skipped)."""
        queue = self.queue
        end = queue.index.next_offset if self.sees_unsynced else queue.durable_end
        return self.next_offset < end or bool(self.redelivery.ready)

    @property
    def ready_at_most(self) -> int:
        """No more than so many messages could be delivered now; cheap, and never too few."""
        return max(0, self.end - self.next_offset) + len(self.redelivery.ready)

    @property
    def unsettled_messages(self) -> int:
        """Everything that is not done: waiting, in flight or delayed."""
        settled = self.settled
        return max(0, self.end - settled.low_mark - settled.settled_above)

    @property
    def ready_messages(self) -> int:
        """Messages that could be delivered now, given demand."""
        delayed = self.redelivery.delayed_messages
        return max(0, self.unsettled_messages - self.pending.messages - delayed)

    @property
    def backlog_bytes(self) -> int:
        """Log bytes from the low mark to the end."""
        return self.index.bytes_between(self.settled.low_mark, self.end)

    def floor(self) -> int:
        """The first offset of the oldest entry that is not wholly settled."""
        low = self.settled.low_mark
        found = self.index.entries(low, 1)
        return min(low, found[0][1]) if found else low

    def read_by(self, index: EntryIndex) -> None:
        """Go on by another index of the same offsets.

        What it does not have is passed over, and settled then. Whoever has something in flight
        keeps it: nothing of that may look otherwise in the other one.
        """
        self.index = index
        if not self.pending.messages:
            # Entries may have other bounds now: what waited to be delivered again is read again.
            self.redelivery.clear()
            self.next_offset = self.settled.low_mark
            self.head_offset = -1

    def settle(self, cause: Cause, start: int, end: int) -> int:
        """[start, end) is done; returns how many offsets were not before."""
        fresh = self.settled.settle(start, end)
        if fresh and self.is_saved:
            self.unsaved.add_range(cause, start, end)
        return fresh

    def settle_runs(self, cause: Cause, runs: list[tuple[int, int]]) -> int:
        """Ascending, disjoint ranges are done; returns how many offsets were not before."""
        fresh = self.settled.settle_runs(runs)
        if fresh and self.is_saved:
            self.unsaved.add_ranges(cause, runs)
        return fresh

    def settle_upto(self, cause: Cause, end: int) -> int:
        """Everything below ``end`` is done."""
        return self.settle(cause, self.settled.low_mark, end)

    def remember(self, offset: int, attempts: int, *, is_counted: bool) -> None:
        """A delivered entry will be delivered again; from now on it is flagged as such."""
        self.redelivery.counts[offset] = attempts
        if is_counted and self.is_saved:
            self.unsaved.set_attempts(offset, attempts)

    def put_back(self, offset: int, slot: int) -> None:
        """An entry waits for its turn in its original place, among its key if it has one."""
        if slot and self.mode is Mode.KEY_SHARED and self.dispatcher.consumers:
            self.dispatcher.park(offset, slot)
        else:
            self.redelivery.add(offset)

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Why a consumer may not read this queue; None = it may."""
        mode = consumer.mode
        if mode is None or mode is self.mode:
            return self.dispatcher.refusal(consumer)
        if not self.dispatcher.consumers:
            return make_dispatcher(mode, self._clock).refusal(consumer)
        return other_mode(self.mode, self.queue.name, consumer)

    def join(self, consumer: Consumer) -> Consumer | None:
        """A consumer reads this queue, as it wants; returns whom it displaced, if anybody."""
        mode = consumer.mode or self.mode
        is_first = not self.dispatcher.consumers
        if mode is not self.mode or (is_first and consumer.failover is not None):
            self._change_mode(mode, consumer.failover)
        return self.dispatcher.join(consumer)

    def _change_mode(self, mode: Mode, rule: FailoverRule | None) -> None:
        """Nobody is attached: what was settled, came back and was counted stays as it is.

        Nothing is parked (``leave``), but who cancelled may still hold messages of a key.
        """
        assert not self.dispatcher.consumers, "another mode under those who read"
        self.pending.forget_slots()
        self.mode = mode
        self.honours_delay = mode.honours_delay
        self.dispatcher = make_dispatcher(mode, self._clock, self.queue.number, rule)
        if not self.honours_delay:
            self.redelivery.release_all()

    def leave(self, consumer: Consumer) -> Consumer | None:
        """A consumer takes no more; returns the other one that thereby is no longer active, if any.

        When it was the last, nothing waits for its key any longer: whoever takes by hand finds it
        in its place then, and so does the next who joins.
        """
        if consumer not in self.dispatcher.consumers:
            return None
        displaced = self.dispatcher.leave(consumer)
        if not self.dispatcher.consumers:
            self.redelivery.add_all(self.dispatcher.unpark())
        return displaced

    def mark_delivered(self, end: int) -> None:
        """Offsets below ``end`` are about to be handed over."""
        # Renewed at half, so that the new mark is usually durable before it is needed.
        if self.is_saved and end > self.delivered_mark - self.reserve // 2:
            self.delivered_mark = end + self.reserve
            self.unsaved.set_delivered_mark(self.delivered_mark)

    def next_deadline_ms(self) -> int | None:
        """The first of: a visibility ends, a delay ends, the head expires, another takes over."""
        soonest_ms = self.head_deadline_ms or None
        takeover_at_ms = self.dispatcher.takeover_at_ms
        if takeover_at_ms and (soonest_ms is None or takeover_at_ms < soonest_ms):
            soonest_ms = takeover_at_ms
        if not (self.pending.deadlines or self.redelivery.delayed_messages):
            return soonest_ms
        for at_ms in (self.pending.next_deadline_ms(), self.redelivery.next_due_ms()):
            if at_ms is not None and (soonest_ms is None or at_ms < soonest_ms):
                soonest_ms = at_ms
        return soonest_ms

    def seek(self, offset: int) -> None:
        """Start over at ``offset``; the caller has taken everything out of flight."""
        assert not self.pending.messages, "a seek while messages are in flight"
        self.settled.seek(offset)
        self.redelivery.clear()
        self.dispatcher.unpark()
        self.next_offset = offset
        self.head_offset = -1
        if self.is_saved:
            self.unsaved.seek(offset)

    # Recovery and snapshots

    def restore(self, state: CursorState) -> None:
        self.settled.restore(state.low_mark, state.ranges)
        self.redelivery.counts = dict(state.counts)
        self.delivered_mark = state.delivered_mark
        self._restored()

    def apply(self, cause: Cause, part: QueueSettlement) -> None:
        """Replay one settlement on top of what was restored."""
        settled, redelivery = self.settled, self.redelivery
        if cause is Cause.SOUGHT:
            settled.seek(part.low_mark)
            redelivery.counts.clear()
        elif part.low_mark > settled.low_mark:
            settled.settle_upto(part.low_mark)
        for start, end in part.ranges:
            settled.settle(start, end)
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
            QueueOffset(self.settled.low_mark),
            self.settled.ranges,
            mark,
            [(at, count) for at, count in counts.items() if count and at >= floor],
        )

    def _restored(self) -> None:
        self.next_offset = self.settled.low_mark
        end = self.offered_upto = self.queue.index.next_offset
        # The mark was reserved ahead. Who sees only what is durable never had what is stored from
        # now on; others may have had what the crash undid and what then happens again: a dead
        # letter, or a delayed message let go. So for them new messages are flagged for a while.
        self.flagged_below = (
            self.delivered_mark if self.sees_unsynced else min(self.delivered_mark, end)
        )
        self.unsaved.reset(self.settled.low_mark)


# ---- settled offsets ----------------------------------------------------------------------------


SPARSE: Final = 8
"""Ranges in reach, for each one added to them, from which on they are added one by one."""


class SettledOffsets:
    """What is settled in one queue: everything below a low mark, and ranges above it (D13).

    Settling the offset at the low mark absorbs the ranges that then touch it. Offsets count
    messages, so single messages inside a batch record are settled like any others (D4).

    Invariants: low_mark < starts[0] < ends[0] < starts[1] < ... : ranges neither touch each other
    nor the low mark. Their number is bounded by the holes between them, which are messages in
    flight, coming back, delayed or skipped, each with its own limit.
    """

    __slots__ = ("ends", "low_mark", "settled_above", "starts")

    def __init__(self, low_mark: int = 0) -> None:
        self.low_mark = low_mark
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.settled_above = 0
        """Settled offsets above the low mark."""

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The settled ranges above the low mark, sorted."""
        return list(zip(self.starts, self.ends, strict=True))

    def is_settled(self, offset: int) -> bool:
        """Whether the offset needs no further delivery."""
        if offset < self.low_mark:
            return True
        at = bisect_right(self.starts, offset)
        return at > 0 and offset < self.ends[at - 1]

    def next_unsettled(self, offset: int) -> int:
        """The first offset at or above that is not settled."""
        offset = max(offset, self.low_mark)
        at = bisect_right(self.starts, offset) - 1
        return max(offset, self.ends[at]) if at >= 0 else offset

    def settled_in(self, start: int, end: int) -> int:
        """How many offsets of [start, end) are settled."""
        total = max(0, min(end, self.low_mark) - start)
        for at in range(bisect_right(self.ends, start), len(self.starts)):
            if self.starts[at] >= end:
                break
            total += min(end, self.ends[at]) - max(start, self.starts[at])
        return total

    def unsettled_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """The gaps in [start, end): half-open ranges of offsets that are not settled."""
        gaps = []
        at = max(start, self.low_mark)
        for index in range(bisect_right(self.ends, at), len(self.starts)):
            if at >= end or self.starts[index] >= end:
                break
            if self.starts[index] > at:
                gaps.append((at, self.starts[index]))
            at = self.ends[index]
        if at < end:
            gaps.append((at, end))
        return gaps

    def settle(self, start: int, end: int) -> int:
        """Settle [start, end); returns how many of them were not settled before."""
        low = self.low_mark
        if start <= low:
            return self._raise_low(end) if end > low else 0
        if end <= start:
            return 0
        starts, ends = self.starts, self.ends
        # Acks come mostly in order: the new range begins at or behind the last one.
        if not ends or start > ends[-1]:
            starts.append(start)
            ends.append(end)
            fresh = end - start
        elif start == ends[-1]:
            ends[-1] = end
            fresh = end - start
        else:
            fresh = self._merge(start, end)
        self.settled_above += fresh
        return fresh

    def settle_runs(self, runs: list[tuple[int, int]]) -> int:
        """Settle ascending, disjoint ranges at once; returns how many were not settled before."""
        fresh = at = 0
        while at < len(runs) and runs[at][0] <= self.low_mark:
            fresh += self.settle(*runs[at])
            at += 1
        runs = runs[at:]
        if not runs:
            return fresh
        first = bisect_left(self.ends, runs[0][0])
        last = bisect_right(self.starts, runs[-1][1])
        # Rebuilding the ranges in reach pays only while they are not many more than what is added.
        if last - first > SPARSE * len(runs):
            return fresh + sum([self.settle(start, end) for start, end in runs])
        there = list(zip(self.starts[first:last], self.ends[first:last], strict=True))
        joined = joined_ranges(there + runs)
        before = sum([end - start for start, end in there])
        added = sum([end - start for start, end in joined]) - before
        self.starts[first:last] = [start for start, _ in joined]
        self.ends[first:last] = [end for _, end in joined]
        self.settled_above += added
        return fresh + added

    def settle_upto(self, end: int) -> int:
        """Settle everything below ``end``; returns how many were not settled before."""
        return self._raise_low(end) if end > self.low_mark else 0

    def seek(self, offset: int) -> None:
        """Settle exactly what is below ``offset``, backwards or forwards."""
        self.low_mark = offset
        self.starts.clear()
        self.ends.clear()
        self.settled_above = 0

    def restore(self, low_mark: int, ranges: list[tuple[int, int]]) -> None:
        self.seek(low_mark)
        for start, end in ranges:
            self.settle(start, end)

    def _raise_low(self, end: int) -> int:
        fresh = end - self.low_mark
        starts, ends = self.starts, self.ends
        if starts and starts[0] <= end:
            absorbed = bisect_right(starts, end)
            for at in range(absorbed):
                self.settled_above -= ends[at] - starts[at]
                fresh -= min(end, ends[at]) - starts[at]
            end = max(end, ends[absorbed - 1])
            del starts[:absorbed], ends[:absorbed]
        self.low_mark = end
        return fresh

    def _merge(self, start: int, end: int) -> int:
        starts, ends = self.starts, self.ends
        first = bisect_left(ends, start)  # first range that ends at or behind our start
        last = bisect_right(starts, end)  # one past the last range that begins within reach
        covered = 0
        new_start, new_end = start, end
        if first < last:
            for at in range(first, last):
                covered += max(0, min(end, ends[at]) - max(start, starts[at]))
            new_start = min(start, starts[first])
            new_end = max(end, ends[last - 1])
        starts[first:last] = [new_start]
        ends[first:last] = [new_end]
        return end - start - covered


def joined_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets as sorted ranges that do not touch."""
    joined: list[tuple[int, int]] = []
    last_start = last_end = -1
    for start, end in sorted(ranges):
        if start == last_end:
            last_end = end
        elif start < last_end:
            last_end = max(end, last_end)
        else:
            if last_end >= 0:
                joined.append((last_start, last_end))
            last_start, last_end = start, end
    if last_end >= 0:
        joined.append((last_start, last_end))
    return joined


# ---- what is to be saved ------------------------------------------------------------------------


class PendingSettlements:
    """What changed in one cursor since it was last saved (D5).

    Collected during a turn, taken once before the append, so that a hundred single acks become one
    range, or just a higher low mark, in one settle record. Invariant: replaying what ``take`` gave,
    in the order it was given, onto the previously saved state makes the state at that moment. The
    encoding is the log's (``log/format.py``).
    """

    __slots__ = ("_counts", "_mark", "_ranges", "_saved_low", "_sought", "is_empty")

    def __init__(self, low_mark: int) -> None:
        self._saved_low = low_mark
        self._ranges: dict[Cause, list[tuple[int, int]]] = {}
        self._counts: dict[int, int] = {}
        self._mark = -1
        self._sought = -1
        self.is_empty = True
        """True when there is nothing to save."""

    def add_range(self, cause: Cause, start: int, end: int) -> None:
        self.is_empty = False
        ranges = self._ranges.get(cause)
        if ranges is None:
            self._ranges[cause] = [(start, end)]
        elif ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))

    def add_ranges(self, cause: Cause, runs: list[tuple[int, int]]) -> None:
        self.is_empty = False
        self._ranges.setdefault(cause, []).extend(runs)

    def set_attempts(self, offset: int, attempts: int) -> None:
        """A message came back, for the ``attempts``-th time."""
        self.is_empty = False
        self._counts[offset] = attempts

    def set_delivered_mark(self, delivered_mark: int) -> None:
        """Nothing at or above the mark has been delivered so far."""
        self.is_empty = False
        self._mark = delivered_mark

    def seek(self, low_mark: int) -> None:
        """The cursor was moved: whatever was noted before no longer counts."""
        self._ranges.clear()
        self._counts.clear()
        self._sought = low_mark
        self.is_empty = False

    def reset(self, low_mark: int) -> None:
        """The saved state is the present one."""
        self._saved_low = low_mark
        self._ranges.clear()
        self._counts.clear()
        self._mark = self._sought = -1
        self.is_empty = True

    def take(self, queue_id: QueueId, low_mark: int) -> list[tuple[Cause, QueueSettlement]]:
        """Everything noted, one part per cause, and start anew."""
        parts: list[tuple[Cause, QueueSettlement]] = []
        if self._sought >= 0:
            self._saved_low = self._sought
            parts.append((Cause.SOUGHT, QueueSettlement(queue_id, QueueOffset(self._sought))))
        for cause, ranges in self._ranges.items():
            is_raised = low_mark != self._saved_low
            part = QueueSettlement(queue_id, QueueOffset(low_mark if is_raised else -1))
            if len(ranges) > 1 or ranges[0][1] > low_mark:
                part.ranges = joined_ranges([each for each in ranges if each[1] > low_mark])
            self._saved_low = low_mark
            if is_raised or part.ranges:
                parts.append((cause, part))
        if self._mark >= 0 or self._counts:
            if not parts:
                parts.append((Cause.DELIVERED, QueueSettlement(queue_id, QueueOffset(-1))))
            parts[-1][1].delivered_mark = self._mark
            # Also below the low mark: it may stand inside a batch that came back.
            parts[-1][1].counts = list(self._counts.items())
        self.reset(low_mark)
        return parts


# ---- redelivery ---------------------------------------------------------------------------------


HEAP_STEPS: Final = 16
"""What putting one offset into a long heap costs, compared with looking once at each in it."""

RELEASED_MAX: Final = 2_000
"""Delayed entries that become ready in one go: all of a campaign may be due in one millisecond."""


class Redelivery:
    """What one subscription must deliver before it reads on in one queue, in original order.

    * ``ready``: a min-heap of first offsets, served before the next unread one, so a message that
      comes back takes its original place (D13).
    * ``counts``: how often a message came back; being in it marks the message as redelivered.
    * ``delayed``: skipped until a moment; wall time became monotonic when it was armed, so a clock
      jump fires nothing (D14). When the moment comes they move to ``ready``.
    * *resting*: the same, but due so late, or so many, that only a bit says so here; when it is due
      is in files of all subscriptions together (``DelayedBudget``). They come back in time.

    Invariants: an offset is in ``ready``, ``delayed`` or resting at most once, and in none while in
    flight. An offset that is settled while it waits here is skipped when its turn comes. Bounds:
    ``ready`` and ``counts`` hold what was in flight (F13) or looked ahead at, and what was aside;
    who puts aside stops reading when what all subscriptions together may delay is used up.
    """

    __slots__ = (
        "_batches",
        "_due",
        "_number",
        "_resting",
        "budget",
        "counts",
        "delayed",
        "delayed_messages",
        "owner",
        "ready",
    )

    def __init__(self, budget: DelayedBudget, owner: HostedSubscription | None = None) -> None:
        self.ready: list[int] = []
        self.counts: dict[int, int] = {}
        self.delayed: dict[int, tuple[int, int, bool]] = {}
        """First offset -> (monotonic due time, messages, whether files have it noted as well)."""
        self.delayed_messages = 0
        """Delayed and resting."""
        self.budget = budget
        """What all cursors together may put aside."""
        self.owner = owner
        # (due time, first offset), a heap; entries that are not in ``delayed`` any more are stale.
        self._due: list[tuple[int, int]] = []
        self._number = 0
        """In the budget and its files; 0 while nothing is aside."""
        self._resting = OffsetSet()
        # First offset -> messages, of what rests and is more than one.
        self._batches: dict[int, int] = {}

    @property
    def look_max(self) -> int:
        """How many unread messages may be looked at: each of them may have to be put aside."""
        budget = self.budget
        return budget.own_min - len(self.delayed) if budget.is_full else UNLIMITED

    @property
    def is_full(self) -> bool:
        """True when no further delayed message may be skipped: the reader waits."""
        return self.look_max <= 0

    @property
    def is_empty(self) -> bool:
        """True when nothing waits and nothing is remembered."""
        return not (self.ready or self.counts or self.delayed or self._resting.count)

    @property
    def is_resting(self) -> bool:
        """True when something is aside that only the files know the time of."""
        return self._resting.count > 0

    def add(self, offset: int) -> None:
        """An entry waits in its original place."""
        heappush(self.ready, offset)

    def add_all(self, offsets: list[int]) -> None:
        ready = self.ready
        if len(offsets) * HEAP_STEPS < len(ready):
            for offset in offsets:
                heappush(ready, offset)
        elif offsets:
            ready += offsets
            heapify(ready)

    def delay(self, offset: int, due_ms: int, messages: int) -> None:
        """An entry is skipped until ``due_ms`` (monotonic)."""
        if not self._number:
            self._number = self.budget.enrol(self)
        self.delayed_messages += messages
        if self.budget.rests((due_ms, self._number, offset, messages)):
            self._rest(offset, messages)
            return
        self.delayed[offset] = (due_ms, messages, False)
        heappush(self._due, (due_ms, offset))
        self.budget.add()

    def cancel_delay(self, offset: int) -> bool:
        """A delayed entry is settled before its time; True if it was one."""
        found = self.delayed.pop(offset, None)
        if found is not None:
            self.delayed_messages -= found[1]
            self.budget.remove()
        elif self._resting.remove(offset):
            self.delayed_messages -= self._batches.pop(offset, 1)
        else:
            return False
        return True

    def is_delayed(self, offset: int) -> bool:
        """Whether an entry that begins here waits for its time."""
        return offset in self.delayed or offset in self._resting

    def delayed_in(self, start: int, end: int) -> list[int]:
        """First offsets of the delayed entries that begin in [start, end), wherever they wait."""
        if not self.delayed_messages:
            return []
        return [at for at in self.delayed if start <= at < end] + self._resting.within(start, end)

    def release_due(self, now_ms: int) -> int:
        """Move what is due to ``ready``, at most ``RELEASED_MAX``; returns how many entries.

        The rest stays due, so the next turn goes on with it (law 5).
        """
        moved = self._release_due(now_ms)
        if moved < RELEASED_MAX and self._resting.count and now_ms >= self.budget.refill_ms:
            self.budget.refill(now_ms)
            moved += self._release_due(now_ms)
        return moved

    def _release_due(self, now_ms: int) -> int:
        moved = 0
        due = self._due
        while due and due[0][0] <= now_ms and moved < RELEASED_MAX:
            due_ms, offset = heappop(due)
            found = self.delayed.get(offset)
            if found is not None and found[0] == due_ms:
                self.cancel_delay(offset)
                heappush(self.ready, offset)
                moved += 1
        return moved

    def release_all(self) -> None:
        """Nobody waits for delivery times any more: everything delayed is ready."""
        self.add_all([*self.delayed, *self._resting])
        self._forget_delayed()

    def next_due_ms(self) -> int | None:
        """When ``release_due`` may next move something, or ask the files for more."""
        due = self._due
        soonest_ms: int | None = None
        while due and soonest_ms is None:
            due_ms, offset = due[0]
            found = self.delayed.get(offset)
            if found is not None and found[0] == due_ms:
                soonest_ms = due_ms
            else:
                heappop(due)
        if self._resting.count and (soonest_ms is None or self.budget.refill_ms < soonest_ms):
            return self.budget.refill_ms
        return soonest_ms

    def pop(self, count_max: int) -> list[int]:
        """The lowest offsets that wait, in order; they belong to the caller now."""
        ready = self.ready
        return [heappop(ready) for _ in range(min(count_max, len(ready)))]

    def forget_below(self, offset: int) -> None:
        """Everything below is settled: drop what is remembered about it."""
        if self.counts:
            self.counts = {at: count for at, count in self.counts.items() if at >= offset}
        for at in [at for at in self.delayed if at < offset]:
            self.cancel_delay(at)
        for at in [at for at in self._batches if at < offset]:
            self.cancel_delay(at)
        self.delayed_messages -= self._resting.remove_below(offset)
        if self.ready and self.ready[0] < offset:
            # A sorted list is a valid heap.
            self.ready = sorted(at for at in self.ready if at >= offset)

    def clear(self) -> None:
        self._forget_delayed()
        self.ready.clear()
        self.counts.clear()

    def _forget_delayed(self) -> None:
        count = len(self.delayed)
        self.delayed.clear()
        self._due.clear()
        self._resting.clear()
        self._batches.clear()
        self.delayed_messages = 0
        if self._number:
            # Also because notes of this number are void: whatever is aside next has another one.
            self.budget.dismiss(self._number)
            self._number = 0
        self.budget.remove(count)

    # Between memory and the files, at the budget's word.

    def in_memory(self) -> list[SpillNote]:
        number = self._number
        return [(each[0], number, offset, each[1]) for offset, each in self.delayed.items()]

    def rest_from(self, first: SpillNote) -> None:
        going = [note for note in self.in_memory() if note >= first]
        for note in going:
            offset, messages = note[2], note[3]
            is_noted = self.delayed.pop(offset)[2]
            self._rest(offset, messages)
            if not is_noted:
                self.budget.put_back(note)
        if going:
            self._due = [(each[0], offset) for offset, each in self.delayed.items()]
            heapify(self._due)
            self.budget.remove(len(going))

    def come_back(self, note: SpillNote) -> bool:
        due_ms, _, offset, _ = note
        if not self._resting.remove(offset):
            return False
        self.delayed[offset] = (due_ms, self._batches.pop(offset, 1), True)
        heappush(self._due, (due_ms, offset))
        return True

    def _rest(self, offset: int, messages: int) -> None:
        self._resting.add(offset)
        if messages > 1:
            self._batches[offset] = messages


PAGE_BITS: Final = 256
"""Offsets of one page of an ``OffsetSet``: neighbours share one, a lone offset is not dear."""


class OffsetSet:
    """Offsets, of which mostly many are neighbours: a bit each, in pages."""

    __slots__ = ("_pages", "count")

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        for page in sorted(self._pages):
            yield from self._page(page)

    def __contains__(self, offset: int) -> bool:
        page, bit = divmod(offset, PAGE_BITS)
        return bool(self._pages.get(page, 0) >> bit & 1)

    def has_some(self, start: int, end: int) -> bool:
        """Whether any is in [start, end)."""
        page, bit = divmod(start, PAGE_BITS)
        if end - start <= PAGE_BITS - bit:
            return bool(self._pages.get(page, 0) >> bit & (1 << end - start) - 1)
        if self._pages.get(page, 0) >> bit:
            return True
        last, bit = divmod(end, PAGE_BITS)
        if self._pages.get(last, 0) & (1 << bit) - 1:
            return True
        return any(each in self._pages for each in range(page + 1, last))

    def within(self, start: int, end: int) -> list[int]:
        """Those in [start, end)."""
        pages: Collection[int] = range(start // PAGE_BITS, -(-end // PAGE_BITS))
        if len(pages) > len(self._pages):
            pages = self._pages
        return [at for page in pages for at in self._page(page) if start <= at < end]

    def _page(self, page: int) -> Iterator[int]:
        bits = self._pages.get(page, 0)
        while bits:
            lowest = bits & -bits
            yield page * PAGE_BITS + lowest.bit_length() - 1
            bits ^= lowest

    def add(self, offset: int) -> None:
        page, bit = divmod(offset, PAGE_BITS)
        self._pages[page] = self._pages.get(page, 0) | 1 << bit
        self.count += 1

    def remove(self, offset: int) -> bool:
        """False when it is not in it."""
        page, bit = divmod(offset, PAGE_BITS)
        bits = self._pages.get(page, 0)
        if not bits >> bit & 1:
            return False
        self._replace(page, bits, bits ^ 1 << bit)
        return True

    def remove_below(self, offset: int) -> int:
        """Everything below goes; how many that were."""
        before = self.count
        last, bit = divmod(offset, PAGE_BITS)
        for page in [page for page in self._pages if page <= last]:
            bits = self._pages[page]
            self._replace(page, bits, bits >> bit << bit if page == last else 0)
        return before - self.count

    def clear(self) -> None:
        self._pages.clear()
        self.count = 0

    def _replace(self, page: int, bits: int, left: int) -> None:
        self.count -= bits.bit_count() - left.bit_count()
        if left:
            self._pages[page] = left
        else:
            del self._pages[page]


# ---- body bytes ---------------------------------------------------------------------------------
# The index knows what records weigh in the log; their bodies are known to whoever reads them. So
# there are two answers: a cheap one for operators, and an exact one where a limit asks.


ALL_MESSAGES_MAX: Final = 32
ALL_BYTES_MAX: Final = 128 * 1024
EDGE_MESSAGES: Final = 4
RECORD_BYTES_MAX: Final = 32 * 1024

Read = Callable[[Sequence[tuple[int, int]]], list[Record | None]]


class BodyBytesEstimate:
    """Body bytes of what is ready in a queue and of what is in flight, for operators.

    A few messages are all read, and the numbers are exact. Of more, the oldest and the newest are
    read, which are the ones at hand, and the numbers are their mean times the messages: exact when
    bodies have one size. It is remembered while nothing comes or goes. So a look costs the same
    however much waits.

    Bounds: ``ALL_MESSAGES_MAX`` messages and ``ALL_BYTES_MAX`` are read for an exact number, twice
    ``EDGE_MESSAGES`` for a mean; a record above ``RECORD_BYTES_MAX`` is not read, but taken for its
    log bytes, of which the body is all but some hundred.
    """

    __slots__ = ("_between", "_cursor", "_mean", "_read")

    def __init__(self, cursor: QueueCursor, read: Read) -> None:
        self._cursor = cursor
        self._read = read
        self._between = (-1, -1)
        """The offsets that the mean is of."""
        self._mean = 0.0

    def look(self) -> tuple[int, int]:
        """Of the ready messages, and of those in flight."""
        cursor = self._cursor
        ready = cursor.ready_messages + cursor.redelivery.delayed_messages
        in_flight = cursor.pending.messages
        if not ready + in_flight:
            return 0, 0
        low, end = cursor.settled.low_mark, cursor.end
        index = cursor.index
        if end - low <= ALL_MESSAGES_MAX and index.bytes_between(low, end) <= ALL_BYTES_MAX:
            sizes = self._sizes(index.entries(cursor.floor(), ALL_MESSAGES_MAX))
            held = sum([size for at, size in sizes.items() if cursor.pending.holds(at)])
            return sum(sizes.values()) - held, held
        if self._between != (low, end):
            self._between = low, end
            # The entry of the low mark is not wholly settled, so there is something in it.
            edges = {
                entry[1]: entry
                for at in (cursor.floor(), max(low, end - EDGE_MESSAGES))
                for entry in index.entries(at, EDGE_MESSAGES)
            }
            sizes = self._sizes(list(edges.values()))
            messages = sum([edges[at][5] for at in sizes])
            self._mean = sum(sizes.values()) / max(1, messages)
        return round(self._mean * ready), round(self._mean * in_flight)

    def _sizes(self, entries: list[IndexEntry]) -> dict[int, int]:
        """First offset -> body bytes, of those that are not settled."""
        is_settled = self._cursor.settled.is_settled
        left = [
            entry
            for entry in entries
            if not all(map(is_settled, range(entry[1], entry[1] + entry[5])))
        ]
        sizes = {entry[1]: entry[4] for entry in left}
        small = [entry for entry in left if entry[4] <= RECORD_BYTES_MAX]
        records = self._read([(entry[0], entry[4]) for entry in small])
        for entry, record in zip(small, records, strict=True):
            sizes[entry[1]] = 0 if record is None else record.shape.body_len
        return sizes


READ_ENTRIES: Final = 512
"""Records looked at in one go."""

TRIM_MIN: Final = 4096
"""Offsets below the low mark that are kept before they are cut off."""


class ReadyBodyBytes:
    """Body bytes of what is ready in a queue, exactly, for topics that limit them.

    Four bytes per offset from the low mark on, kept only for cursors somebody asks about. The sum
    of the unread is carried along: each offset is added once, when it is stored, and taken away
    once, when it is read; what waits to be delivered again is summed up when asked. Settled offsets
    count nothing. A seek starts over, and so does a restart: then the records from the low mark on
    are read once, which the limit itself keeps few.
    """

    __slots__ = ("_base", "_cursor", "_is_shared_out", "_read", "_read_upto", "_sizes", "_unread")

    def __init__(self, cursor: QueueCursor, read: Read, *, whole_batches: bool = False) -> None:
        self._cursor = cursor
        self._read = read
        self._is_shared_out = not whole_batches
        """Messages of a batch come and go one by one, each with its share of the bytes."""
        self._base = self._read_upto = cursor.floor()
        self._sizes = array("I")
        self._unread = 0

    def total(self) -> int:
        """Body bytes of the ready messages, those not yet visible included."""
        cursor = self._cursor
        if cursor.next_offset < self._read_upto:
            self._start_over()
        self._extend()
        passed = cursor.next_offset - self._base
        self._unread -= sum(self._sizes[self._read_upto - self._base : passed])
        self._read_upto = cursor.next_offset
        self._trim()
        base, sizes = self._base, self._sizes
        return self._unread + sum(sizes[at - base] for at in cursor.redelivery.ready if at >= base)

    def _start_over(self) -> None:
        self._base = self._read_upto = self._cursor.floor()
        self._sizes = array("I")
        self._unread = 0

    def _extend(self) -> None:
        """Learn the sizes of what was stored since the last look."""
        index = self._cursor.index
        is_settled = self._cursor.settled.is_settled
        end = index.next_offset
        while (start := self._base + len(self._sizes)) < end:
            entries = index.entries(start, READ_ENTRIES)
            if not entries:
                self._fill(end)
                return
            records = self._read([(entry[0], entry[4]) for entry in entries])
            for entry, record in zip(entries, records, strict=True):
                # Offsets that nothing was stored under, and all but the first of a whole batch.
                self._fill(entry[1])
                if entry[5] > 1 and self._is_shared_out:
                    self._share_out(entry, 0 if record is None else record.shape.body_len)
                    continue
                size = 0 if record is None or is_settled(entry[1]) else record.shape.body_len
                self._sizes.append(size)
                self._unread += size
                self._fill(entry[1] + entry[5])

    def _share_out(self, entry: IndexEntry, size: int) -> None:
        is_settled, (share, rest) = self._cursor.settled.is_settled, divmod(size, entry[5])
        shares = [
            0 if is_settled(entry[1] + number) else share + (number < rest)
            for number in range(entry[5])
        ]
        self._sizes.extend(shares)
        self._unread += sum(shares)

    def _fill(self, end: int) -> None:
        self._sizes.extend([0] * (end - self._base - len(self._sizes)))

    def _trim(self) -> None:
        passed = min(self._cursor.floor(), self._read_upto) - self._base
        if passed >= TRIM_MIN and 2 * passed >= len(self._sizes):
            del self._sizes[:passed]
            self._base += passed
