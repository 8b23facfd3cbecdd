"""The end of the journey out: what consumers say about the messages they hold.

They settle them (done), requeue them (again, in the original place), reject them (dead letters), or
the broker takes them back (time-out, seek, consumer gone). Each way ends in the same two steps:
out of flight, which returns demand and limits, and then settled, coming back, or buried.

Invariant: what was charged when a message was handed over is returned exactly once. Lists are
settled in one pass; the common one, consecutive offsets all in flight, is one step of the cursor.
Not here: the way out (``deliver``), the cursor (``cursor``), saving (``notes``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Final

from msgspec.structs import replace

from penstock.engine.host import Host, SubscribedQueue, SubscriptionOptions
from penstock.engine.subscription.consumer import NOBODY, Consumer, Held
from penstock.engine.subscription.cursor import QueueCursor, joined_ranges
from penstock.engine.subscription.pick import CHUNK_ENTRIES_MAX, Picker, entries_at
from penstock.flow.demand import UNLIMITED, InflightLimit
from penstock.log.index import IndexFlag
from penstock.model.record import Record
from penstock.model.settlement import Cause

Rewrite = Callable[[Record, list[int], int], Iterable[tuple[Record, SubscribedQueue]]]
"""(record, its unsettled offsets, attempts so far) -> the copies and where they go."""


class Settler:
    """Takes messages of one subscription out of flight."""

    __slots__ = (
        "_consumers",
        "_host",
        "_options",
        "dying",
        "inflight",
        "picker",
        "settled_messages",
        "unknown_settles",
    )

    def __init__(
        self,
        host: Host,
        options: SubscriptionOptions,
        consumers: dict[int, Consumer],
        picker: Picker,
    ) -> None:
        self._host = host
        self._options = options
        self._consumers = consumers
        self.picker = picker
        self.dying = RejectBacklog(host, picker, self._return)
        """Those of a long list that are not buried yet."""
        self.inflight = InflightLimit(host.flow.unacked_subscription_max)
        """F13 for the subscription: while blocked only what was delivered before goes out."""
        self.settled_messages = 0
        self.unknown_settles = 0
        """Settlements of offsets that were never delivered; ignored."""

    def settle(self, lane: QueueCursor, offsets: Sequence[int], cause: Cause = Cause.ACKED) -> int:
        """These offsets are done, whoever had them; returns how many were not before."""
        if (taken := lane.pending.take_run(offsets)) is not None:
            # Never delivered before, so none of them has a count.
            for returned in taken:
                self._return(*returned)
            fresh = lane.settle(cause, offsets[0], offsets[-1] + 1)
            self.settled_messages += fresh
            return fresh
        popped = list(map(lane.pending.entries.pop, offsets, repeat(None)))
        odd = self._return_each(lane, offsets, popped)
        lane.pending.messages -= len(offsets) - len(odd)
        settled = self._settle_runs(lane, offsets, odd, cause)
        counts = lane.redelivery.counts
        if counts:
            # A batch keeps its count until all of it is settled (``_shrink``).
            for offset in set(offsets).difference(odd):
                counts.pop(offset, None)
        return settled

    def settle_upto(self, lane: QueueCursor, end: int, cause: Cause = Cause.COMMITTED) -> int:
        """Everything below ``end`` is done."""
        end = min(end, lane.queue.index.next_offset)
        low = lane.cursor.low_mark
        entries = lane.pending.entries
        # Whichever is shorter: the offsets that are newly settled, or what is in flight.
        if end - low < len(entries):
            inside = [offset for offset in range(low, end) if offset in entries]
            if (batch := lane.pending.first_offset(low)) is not None and batch < low:
                inside.append(batch)
        else:
            inside = [offset for offset in entries if offset < end]
        fresh = lane.settle_upto(cause, end)
        self.settled_messages += fresh
        for offset in inside:
            self._shrink(lane, offset)
        if not lane.redelivery.is_empty:
            lane.redelivery.forget_below(lane.floor())
        lane.next_offset = max(lane.next_offset, min(end, lane.end))
        return fresh

    def requeue(
        self, lane: QueueCursor, offsets: Iterable[int], *, delay_ms: int = 0, is_counted: bool
    ) -> int:
        """Back to their original places (after a while, if asked); returns how many entries."""
        limit = self._options.delivery_limit or lane.queue.topic.policy.delivery_limit
        dying: list[int] = []
        moved = 0
        if delay_ms <= 0:
            attempts_max = (limit or UNLIMITED) - 1 if is_counted else UNLIMITED
            moved, offsets = singles_back(
                lane, offsets, attempts_max, is_counted=is_counted, give=self._return
            )
        for start in self._entries_of(lane, offsets):
            held = lane.pending.entries[start]
            attempts = held.attempts + is_counted
            moved += 1
            if is_counted and limit and attempts > max(0, limit):
                lane.pending.entries[start] = replace(held, attempts=attempts)
                dying.append(start)
                continue
            self._out_of_flight(lane, start)
            if delay_ms > 0:
                lane.remember(start, attempts, is_counted=is_counted)
                due_ms = self._host.clock.monotonic_ms() + delay_ms
                lane.redelivery.delay(start, due_ms, held.messages)
            else:
                lane.remember(start, attempts, is_counted=is_counted)
                lane.back(start, held.slot)
        self.dying.condemn(lane, dying, Cause.DELIVERY_LIMIT)
        return moved

    def reject(self, lane: QueueCursor, offsets: Iterable[int]) -> int:
        """Refused for good: dead letters if there is a target. A batch is buried whole, once."""
        entries = lane.pending.entries
        starts = self._entries_of(lane, offsets)
        starts = [start for start in starts if entries[start].consumer_id != NOBODY]
        self.dying.condemn(lane, starts, Cause.REJECTED)
        return len(starts)

    def move(self, lane: QueueCursor, offsets: Iterable[int], rewrite: Rewrite) -> int:
        """To other queues, as copies; what is gone or unreadable is only settled."""
        starts = self._entries_of(lane, offsets)
        found = entries_at(lane, starts)
        read = self._host.read([(entry[0], entry[4]) for entry in found.values()])
        records = dict(zip(found, read, strict=True))
        copies = 0
        for start in starts:
            held = self._out_of_flight(lane, start)
            assert held is not None, "an entry that was just found"
            end = start + held.span
            record = records.get(start)
            if start not in found:
                self.picker.gone(lane, start, end)
            elif record is None:
                self.picker.bury(lane, found[start], None, Cause.CORRUPT)
            else:
                unsettled = [at for at in range(start, end) if not lane.cursor.is_settled(at)]
                for copy, target in rewrite(record, unsettled, held.attempts):
                    self._host.carry(copy, target)
                    copies += 1
                self.settled_messages += lane.settle(Cause.MOVED, start, end)
                lane.redelivery.counts.pop(start, None)
        return copies

    def throw_out(self, lane: QueueCursor) -> None:
        """Take everything out of flight without saying what becomes of it (seek)."""
        for start in list(lane.pending.entries):
            self._out_of_flight(lane, start)

    def _return_each(
        self, lane: QueueCursor, offsets: Sequence[int], popped: list[Held | None]
    ) -> list[int]:
        """Any list; the offsets that are no single messages in flight come back."""
        odd: list[int] = []
        messages = size = holder = 0
        for offset, held in zip(offsets, popped, strict=True):
            if held is None or held.span != 1:
                if held is not None:
                    lane.pending.entries[offset] = held
                odd.append(offset)
                continue
            if held.consumer_id != holder:
                self._return(holder, messages, size)
                holder, messages, size = held.consumer_id, 0, 0
            messages += 1
            size += held.size
            if held.slot:
                lane.dispatcher.released(held.slot)
        self._return(holder, messages, size)
        return odd

    def _settle_runs(
        self, lane: QueueCursor, offsets: Sequence[int], odd: list[int], cause: Cause
    ) -> int:
        if not offsets:
            return 0
        ordered = sorted(offsets)
        if not odd and ordered[-1] - ordered[0] + 1 == len(ordered):
            # All of them were in flight, hence all different: this is one run.
            fresh = lane.settle(cause, ordered[0], ordered[-1] + 1)
        else:
            if odd:
                ordered = self._known(lane, ordered)
            runs = joined_ranges([(offset, offset + 1) for offset in ordered])
            fresh = lane.settle_runs(cause, runs) if runs else 0
            for offset in odd:
                self._shrink(lane, offset)
        self.settled_messages += fresh
        return fresh

    def _known(self, lane: QueueCursor, ordered: list[int]) -> list[int]:
        """Without what nobody ever delivered, not even the process before.

        Settling that is a peer's mistake, and the one way to make the ranges grow without bound.
        """
        end = max(lane.next_offset, lane.flagged_below)
        known = [offset for offset in ordered if offset < end]
        self.unknown_settles += len(ordered) - len(known)
        return known

    def _shrink(self, lane: QueueCursor, offset: int) -> None:
        """An offset was settled that is no plain in-flight entry: in a batch, or waiting."""
        start = lane.pending.first_offset(offset)
        if start is None:
            lane.redelivery.undelay(offset)
            return
        held = lane.pending.entries[start]
        left = held.span - lane.cursor.settled_in(start, start + held.span)
        if not left:
            self._out_of_flight(lane, start)
            lane.redelivery.counts.pop(start, None)
        elif left < held.messages:
            self._return(held.consumer_id, held.messages - left, 0)
            lane.pending.shrink(held, held.messages - left)

    def _entries_of(self, lane: QueueCursor, offsets: Iterable[int]) -> list[int]:
        """First offsets of the in-flight entries that cover these, each once."""
        first_offset = lane.pending.first_offset
        starts = dict.fromkeys(first_offset(offset) for offset in offsets)
        return [start for start in starts if start is not None]

    def _out_of_flight(self, lane: QueueCursor, start: int) -> Held | None:
        held = lane.pending.pop(start)
        if held is not None:
            if held.slot:
                lane.dispatcher.released(held.slot)
            self._return(held.consumer_id, held.messages, held.size)
        return held

    def _return(self, consumer_id: int, messages: int, size: int) -> None:
        if messages and consumer_id != NOBODY:
            self.inflight.remove(messages)
            self._consumers[consumer_id].returned(messages, size)


# ---- dying --------------------------------------------------------------------------------------
# Messages that are to die, when they are many: some are buried in every turn (law 5).
#
# Who refuses tens of thousands at once must not hold up everybody else: a dead letter is read, made
# and written again. Until it is its turn, such a message is in flight still, in nobody's hands: it
# is neither ready nor anybody's to settle, and after a crash it is delivered again, like all in
# flight.
#
# Who spends: whoever rejects, or brings back too often. Who stops: this subscription hands out
# nothing new before all of them are buried, so that they cannot pile up. What wakes it: itself.
#
# Invariants: what was charged for them is returned at once; they are buried in the order in which
# they were refused, each once. Bound: ``DYING_MAX``; beyond it whoever refuses more waits himself.
# Not here: who dies (``settle.py``), letters (``dead_letter.py``).


DEATHS_AT_ONCE: Final = 250
"""Messages one subscription buries in one turn, refused by one command or by many."""

DYING_MAX: Final = 200_000
"""Messages that may wait; as many as can be in flight, the rest was taken by hand meanwhile."""


class RejectBacklog:
    """The line of those who wait to be buried."""

    __slots__ = ("_give", "_host", "_left", "_line", "_picker", "count", "since_ms")

    def __init__(self, host: Host, picker: Picker, give: Give) -> None:
        self._host = host
        self._picker = picker
        self._give = give
        self._left = DEATHS_AT_ONCE
        # First offsets of in-flight entries.
        self._line: deque[tuple[QueueCursor, deque[int], Cause]] = deque()
        self.count = 0
        self.since_ms = 0
        """Since when somebody waits, while somebody does."""

    def __bool__(self) -> bool:
        return bool(self._line)

    def condemn(self, lane: QueueCursor, starts: list[int], cause: Cause) -> None:
        """These in-flight entries die: now, or when it is their turn."""
        if not starts:
            return
        was_waiting = bool(self._line)
        self._let_go(lane, starts)
        last = self._line[-1] if self._line else None
        if last is not None and last[0] is lane and last[2] is cause:
            last[1].extend(starts)
        else:
            self._line.append((lane, deque(starts), cause))
        self.count += len(starts)
        if self.count > DYING_MAX:
            self._left = DEATHS_AT_ONCE
        self._bury_some()
        if self._line and not was_waiting:
            self.since_ms = self._host.clock.monotonic_ms()

    def turn(self) -> bool:
        """A turn has come: bury the first of those who wait for it; True while others do."""
        self._left = DEATHS_AT_ONCE
        if not self._line:
            return False
        self._bury_some()
        return bool(self._line)

    def bury_all(self) -> None:
        """Bury everybody who waits for it: the subscription ends."""
        while self._line:
            self.turn()

    def _let_go(self, lane: QueueCursor, starts: list[int]) -> None:
        entries = lane.pending.entries
        messages = size = holder = 0
        for start in starts:
            held = entries[start]
            if held.slot:
                lane.dispatcher.released(held.slot)
            if held.consumer_id != holder:
                self._give(holder, messages, size)
                holder, messages, size = held.consumer_id, 0, 0
            messages += held.messages
            size += held.size
            entries[start] = Held(NOBODY, 0, held.attempts, held.messages, held.span)
        self._give(holder, messages, size)

    def _bury_some(self) -> None:
        while self._line and self._left > 0:
            lane, starts, cause = self._line[0]
            some = [starts.popleft() for _ in range(min(self._left, len(starts)))]
            self._left -= len(some)
            self.count -= len(some)
            if not starts:
                self._line.popleft()
            self._bury(lane, [start for start in some if _leaves(lane, start)], cause)

    def _bury(self, lane: QueueCursor, starts: list[int], cause: Cause) -> None:
        """Entries out of flight die; their records are read again, they were not kept."""
        found = entries_at(lane, starts)
        records = self._host.read([(entry[0], entry[4]) for entry in found.values()])
        for entry, record in zip(found.values(), records, strict=True):
            self._picker.bury(lane, entry, record, cause)
        for start in starts:
            if start not in found:
                self._picker.gone(lane, start, start + 1)


def _leaves(lane: QueueCursor, start: int) -> bool:
    """Take an entry out of flight; False when it is not waiting to be buried any more."""
    held = lane.pending.entries.get(start)
    if held is None or held.consumer_id != NOBODY:
        return False
    lane.pending.pop(start)
    lane.redelivery.counts[start] = held.attempts
    return True


# ---- going back ---------------------------------------------------------------------------------
# Many single messages go back to their places in one step.
#
# A consumer that leaves with tens of thousands of them must not hold up everybody else. What is no
# single message in flight, belongs to a key, or was delivered too often, is left to the closer look
# of ``settle.py``.


Give = Callable[[int, int, int], None]
"""(consumer id, messages, bytes): what was charged when they were handed over is returned."""


def singles_back(
    lane: QueueCursor, offsets: Iterable[int], attempts_max: int, *, is_counted: bool, give: Give
) -> tuple[int, list[int]]:
    """How many went back, and the offsets that are none of these."""
    entries = lane.pending.entries
    back: list[int] = []
    odd: list[int] = []
    messages = size = holder = 0
    for offset in offsets:
        held = entries.get(offset)
        if held is None or held.span != 1 or held.slot or held.attempts > attempts_max:
            odd.append(offset)
            continue
        del entries[offset]
        if held.consumer_id != holder:
            give(holder, messages, size)
            holder, messages, size = held.consumer_id, 0, 0
        messages += 1
        size += held.size
        lane.remember(offset, held.attempts + is_counted, is_counted=is_counted)
        back.append(offset)
    give(holder, messages, size)
    lane.pending.messages -= len(back)
    lane.redelivery.back_all(back)
    return len(back), odd


# ---- moves --------------------------------------------------------------------------------------
# Moving a cursor on purpose: seek, purge, and dropping the head of a queue that is too long.
#
# Each is a settlement with a cause (D13), so that it survives a restart like any ack.


def seek(settler: Settler, lane: QueueCursor, offset: int) -> None:
    """Go on at ``offset``, back or forth; what is in flight is no longer anybody's."""
    settler.throw_out(lane)
    lane.seek(max(0, min(offset, lane.queue.index.next_offset)))


def purge(lane: QueueCursor) -> int:
    """Settle everything that is not in flight; returns how many messages."""
    purged = 0
    start = lane.cursor.low_mark
    end = lane.end
    # Between the in-flight entries, in order, lies what is to be purged.
    for offset in sorted(lane.pending.entries):
        purged += lane.settle(Cause.PURGED, start, min(offset, end))
        start = offset + lane.pending.entries[offset].span
    purged += lane.settle(Cause.PURGED, start, end)
    counts = lane.redelivery.counts
    in_flight = {at: count for at, count in counts.items() if at in lane.pending.entries}
    lane.redelivery.clear()
    lane.redelivery.counts.update(in_flight)
    lane.dispatcher.unpark()
    lane.next_offset = max(lane.next_offset, end)
    return purged


def drop_head(host: Host, picker: Picker, lane: QueueCursor, messages: int, cause: Cause) -> int:
    """Settle the oldest ready messages, as dead letters; returns how many went."""
    dropped = 0
    while dropped < messages and lane.has_ready:
        left = messages - dropped
        # Looking at several buries the expired among them first: then one by one keeps the order.
        picked = picker.pick(lane, left if _is_immortal(lane, left) else 1, UNLIMITED)
        if not picked.moved:
            break
        dropped += picked.moved
        for delivery in picked.deliveries:
            offset = delivery.offset
            host.dead_letter(lane.queue, offset, delivery.record, cause, delivery.attempts)
            lane.settle(cause, offset, offset + delivery.record.messages)
            lane.redelivery.counts.pop(offset, None)
    return dropped


def _is_immortal(lane: QueueCursor, count: int) -> bool:
    """True when none of the next messages can expire."""
    if lane.redelivery.again or lane.queue.topic.policy.message_ttl_ms:
        return False
    entries = lane.queue.index.entries(lane.next_offset, min(count, CHUNK_ENTRIES_MAX))
    return not any(entry[7] & IndexFlag.EXPIRES for entry in entries)
