"""What consumers say about the messages they hold, and cursors moved on purpose.

Consumers settle messages (done), requeue them (again, in the original place), reject them (dead
letters), or the broker takes them back (time-out, seek, consumer gone). Each way ends in the same
two steps: out of flight, which returns demand and limits, and then settled, waiting for redelivery,
or dead-lettered. Seek, purge and dropping the head of a queue that is too long are settlements with
a cause (D13), so that they survive a restart like any ack.

Invariant: what was charged when a message was handed over is returned exactly once. Lists are
settled in one pass; the common one, consecutive offsets all in flight, is one step of the cursor.
Not here: the way out (``dispatch.py``), cursors and saving (``cursor.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Final

from msgspec.structs import replace

from penstock.engine.host import Host, SubscribedQueue, SubscriptionOptions
from penstock.engine.subscription.consumer import NO_CONSUMER, Consumer, PendingEntry
from penstock.engine.subscription.cursor import QueueCursor, joined_ranges
from penstock.engine.subscription.pick import CHUNK_ENTRIES_MAX, Picker, entries_at
from penstock.flow.demand import UNLIMITED, InflightLimit
from penstock.log.index import IndexFlag
from penstock.model.record import Record
from penstock.model.settlement import Cause

Rewrite = Callable[[Record, list[int], int], Iterable[tuple[Record, SubscribedQueue]]]
"""(record, its unsettled offsets, attempts so far) -> the copies and where they go."""

REWIND_COUNTED_MAX: Final = 1_000
"""Of a settled range that comes again so many get a count; a filter may have settled millions."""


class Settler:
    """Takes messages of one subscription out of flight, and says what becomes of them.

    Offsets that nobody has in flight are settled, too (a late ack, an offset inside a batch, one
    that waits for redelivery), but never those that were never delivered.
    """

    __slots__ = (
        "_consumers",
        "_host",
        "_options",
        "_picker",
        "inflight",
        "reject_backlog",
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
        self._picker = picker
        self.reject_backlog = RejectBacklog(host, picker)
        """Rejected messages that are not dead letters yet."""
        self.inflight = InflightLimit(
            host.flow.unacked_subscription_max
            if options.unacked_max is None
            else options.unacked_max
        )
        """F13 for the subscription: while blocked only what was delivered before goes out."""
        self.settled_messages = 0
        self.unknown_settles = 0
        """Settlements of offsets that were never delivered; ignored."""

    def settle(
        self, cursor: QueueCursor, offsets: Sequence[int], cause: Cause = Cause.ACKED
    ) -> int:
        """These offsets are done, whoever had them; returns how many were not before.

        The usual list is neighbours from the beginning of a run: one step each for flight, limits
        and cursor. Any other list goes entry by entry; what is *odd* in it (no single message in
        flight: inside a batch, waiting for redelivery, settled before, never delivered) is looked
        at once the cursor knows it as settled.
        """
        if (taken := cursor.pending.take_run(offsets)) is not None:
            # Never delivered before, so none of them has a count.
            for returned in taken:
                self._release(*returned)
            fresh = cursor.settle(cause, offsets[0], offsets[-1] + 1)
            self.settled_messages += fresh
            return fresh
        popped = list(map(cursor.pending.spill().pop, offsets, repeat(None)))
        odd = self._release_each(cursor, offsets, popped)
        cursor.pending.messages -= len(offsets) - len(odd)
        settled = self._settle_runs(cursor, offsets, odd, cause)
        counts = cursor.redelivery.counts
        if counts:
            # A batch keeps its count until all of it is settled (``_shrink``).
            for offset in set(offsets).difference(odd):
                counts.pop(offset, None)
        return settled

    def settle_range(
        self, cursor: QueueCursor, start: int, end: int, cause: Cause = Cause.ACKED
    ) -> int:
        """The offsets of [start, end) are done; as ``settle``, at the price of one offset.

        The usual range is one batch in flight, all of it, or a run from its beginning.
        """
        pending = cursor.pending
        if start < end and (taken := pending.take_range(start, end)) is not None:
            for returned in taken:
                self._release(*returned)
        elif (entry := pending.spill().get(start)) is not None and entry.span == end - start:
            self._out_of_flight(cursor, start)
            cursor.redelivery.counts.pop(start, None)
        else:
            return self._settle_any_range(cursor, start, end, cause)
        fresh = cursor.settle(cause, start, end)
        self.settled_messages += fresh
        return fresh

    def _settle_any_range(self, cursor: QueueCursor, start: int, end: int, cause: Cause) -> int:
        """A part of a batch, several of them, or what nobody has in flight."""
        known_end = max(start, min(end, max(cursor.next_offset, cursor.flagged_below)))
        self.unknown_settles += max(0, end - known_end)
        if start >= known_end:
            return 0
        inside = self._starts_in(cursor, start, known_end)
        fresh = cursor.settle(cause, start, known_end)
        self.settled_messages += fresh
        inside += cursor.redelivery.delayed_in(start, known_end)
        for at in inside:
            self._shrink(cursor, at)
        return fresh

    def settle_entries(
        self, cursor: QueueCursor, starts: Sequence[int], cause: Cause = Cause.ACKED
    ) -> int:
        """Whole entries are done, named by their first offsets; what is none is ignored.

        First offsets that are neighbours are single messages, except for the last of them: mostly
        they are in flight as a run, and nothing is looked up. Of a batch in flight its entry knows
        how long it is; of what is not in flight (late, or waiting to be delivered again) the index.
        """
        settled = 0
        pending = cursor.pending
        singles: list[int] = []
        odd: list[int] = []
        for start, end in _neighbours(starts):
            if (taken := pending.take_range(start, end)) is not None:
                for returned in taken:
                    self._release(*returned)
                fresh = cursor.settle(cause, start, end)
                self.settled_messages += fresh
                settled += fresh
                continue
            entries = pending.spill()
            for at in range(start, end):
                entry = entries.get(at)
                if entry is None:
                    odd.append(at)
                elif entry.span == 1:
                    singles.append(at)
                else:
                    settled += self.settle_range(cursor, at, at + entry.span, cause)
        if singles:
            settled += self.settle(cursor, singles, cause)
        for at, found in entries_at(cursor, odd).items() if odd else ():
            if found[1] == at:
                settled += self.settle_range(cursor, at, at + found[5], cause)
        return settled

    def _starts_in(self, cursor: QueueCursor, start: int, end: int) -> list[int]:
        """First offsets of the in-flight entries that have a part in [start, end)."""
        entries = cursor.pending.spill()
        # Whichever is shorter: the offsets of the range, or what is in flight.
        if end - start < len(entries):
            inside = [offset for offset in range(start, end) if offset in entries]
        else:
            inside = [offset for offset in entries if start <= offset < end]
        if (batch := cursor.pending.first_offset(start)) is not None and batch < start:
            inside.append(batch)
        return inside

    def settle_upto(self, cursor: QueueCursor, end: int, cause: Cause = Cause.COMMITTED) -> int:
        """Everything below ``end`` is done."""
        end = min(end, cursor.queue.index.next_offset)
        inside = self._starts_in(cursor, cursor.settled.low_mark, end)
        fresh = cursor.settle_upto(cause, end)
        self.settled_messages += fresh
        for offset in inside:
            self._shrink(cursor, offset)
        if not cursor.redelivery.is_empty:
            cursor.redelivery.forget_below(cursor.floor())
        cursor.next_offset = max(cursor.next_offset, min(end, cursor.end))
        return fresh

    def requeue(
        self, cursor: QueueCursor, offsets: Iterable[int], *, delay_ms: int = 0, is_counted: bool
    ) -> int:
        """Back to their original places (after a while, if asked); returns how many entries."""
        limits = (self._options.delivery_limit, cursor.queue.topic.policy.delivery_limit)
        limit = min((each for each in limits if each), default=0)
        rejected: list[int] = []
        moved = 0
        if delay_ms <= 0:
            attempts_max = (limit or UNLIMITED) - 1 if is_counted else UNLIMITED
            moved, offsets = self._requeue_singles(
                cursor, offsets, attempts_max, is_counted=is_counted
            )
        entries = cursor.pending.spill()
        for start in self._entries_of(cursor, offsets):
            entry = entries[start]
            attempts = entry.attempts + is_counted
            moved += 1
            if is_counted and limit and attempts > max(0, limit):
                entries[start] = replace(entry, attempts=attempts)
                rejected.append(start)
                continue
            self._out_of_flight(cursor, start)
            cursor.remember(start, attempts, is_counted=is_counted)
            if delay_ms > 0:
                due_ms = self._host.clock.monotonic_ms() + delay_ms
                cursor.redelivery.delay(start, due_ms, entry.messages)
            else:
                cursor.put_back(start, entry.slot)
        self.reject_backlog.add(cursor, rejected, Cause.DELIVERY_LIMIT, self._release)
        return moved

    def requeue_ranges(
        self,
        cursor: QueueCursor,
        ranges: Iterable[tuple[int, int]],
        *,
        delay_ms: int = 0,
        is_counted: bool,
    ) -> int:
        """The same for whatever has a part in one of these [start, end)."""
        starts = [at for start, end in ranges for at in self._starts_in(cursor, start, end)]
        starts = list(dict.fromkeys(starts))
        return self.requeue(cursor, starts, delay_ms=delay_ms, is_counted=is_counted)

    def _requeue_singles(
        self,
        cursor: QueueCursor,
        offsets: Iterable[int],
        attempts_max: int,
        *,
        is_counted: bool,
    ) -> tuple[int, list[int]]:
        """Many single messages at once: how many went back, and the offsets that are none.

        A consumer that leaves with tens of thousands of them must not hold up everybody else. What
        is no single message in flight, belongs to a key, or was delivered too often is left to the
        closer look of ``requeue``.
        """
        entries = cursor.pending.spill()
        back: list[int] = []
        odd: list[int] = []
        messages = size = holder = 0
        for offset in offsets:
            entry = entries.get(offset)
            if entry is None or entry.span != 1 or entry.slot or entry.attempts > attempts_max:
                odd.append(offset)
                continue
            del entries[offset]
            if entry.consumer_id != holder:
                self._release(holder, messages, size)
                holder, messages, size = entry.consumer_id, 0, 0
            messages += 1
            size += entry.size
            cursor.remember(offset, entry.attempts + is_counted, is_counted=is_counted)
            back.append(offset)
        self._release(holder, messages, size)
        cursor.pending.messages -= len(back)
        cursor.redelivery.add_all(back)
        return len(back), odd

    def reject(self, cursor: QueueCursor, offsets: Iterable[int]) -> int:
        """Refused for good: dead letters if there is a target. A batch is rejected whole, once."""
        entries = cursor.pending.spill()
        starts = self._entries_of(cursor, offsets)
        starts = [start for start in starts if entries[start].consumer_id != NO_CONSUMER]
        self.reject_backlog.add(cursor, starts, Cause.REJECTED, self._release)
        return len(starts)

    def move(self, cursor: QueueCursor, offsets: Iterable[int], rewrite: Rewrite) -> int:
        """To other queues, as copies; what is gone or unreadable is only settled."""
        starts = self._entries_of(cursor, offsets)
        found, _ = self._picker.messages_at(cursor, starts)
        copies = 0
        for start in starts:
            entry = self._out_of_flight(cursor, start)
            assert entry is not None, "an entry that was just found"
            end = start + entry.span
            stored, record = found.get(start, (None, None))
            if stored is None:
                self._picker.skip_missing(cursor, start, end)
            elif record is None:
                self._picker.dead_letter(cursor, stored, None, Cause.CORRUPT)
            else:
                unsettled = [at for at in range(start, end) if not cursor.settled.is_settled(at)]
                for copy, target in rewrite(record, unsettled, entry.attempts):
                    self._host.carry(copy, target)
                    copies += 1
                self.settled_messages += cursor.settle(Cause.MOVED, start, end)
                cursor.redelivery.counts.pop(start, None)
        return copies

    def clear_in_flight(self, cursor: QueueCursor) -> None:
        """Take everything out of flight without saying what becomes of it."""
        for start in list(cursor.pending.spill()):
            self._out_of_flight(cursor, start)

    # Cursors moved on purpose

    def seek(
        self, cursor: QueueCursor, offset: int, settled: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Go on at ``offset``, back or forth; what is in flight is no longer anybody's.

        ``settled``: [start, end) that are done nevertheless.
        """
        self.clear_in_flight(cursor)
        cursor.seek(max(0, min(offset, cursor.queue.index.next_offset)))
        for start, end in settled:
            self.settled_messages += cursor.settle(Cause.ACKED, start, end)

    def rewind(self, cursor: QueueCursor) -> int:
        """Back to the low mark: what is settled above it comes again, counted as an attempt."""
        settled, counts = cursor.settled, dict(cursor.redelivery.counts)
        rewound = settled.settled_above
        for start, end in settled.ranges:
            for offset in range(start, min(end, start + REWIND_COUNTED_MAX)):
                counts[offset] = counts.get(offset, 0) + 1
        self.seek(cursor, settled.low_mark)
        for offset, attempts in counts.items():
            cursor.remember(offset, attempts, is_counted=True)
        return rewound

    def purge(self, cursor: QueueCursor) -> int:
        """Settle everything that is not in flight; returns how many messages."""
        purged = 0
        start = cursor.settled.low_mark
        end = cursor.end
        entries = cursor.pending.spill()
        # Between the in-flight entries, in order, lies what is to be purged.
        for offset in sorted(entries):
            purged += cursor.settle(Cause.PURGED, start, min(offset, end))
            start = offset + entries[offset].span
        purged += cursor.settle(Cause.PURGED, start, end)
        counts = cursor.redelivery.counts
        in_flight = {at: count for at, count in counts.items() if at in entries}
        cursor.redelivery.clear()
        cursor.redelivery.counts.update(in_flight)
        cursor.dispatcher.unpark()
        cursor.next_offset = max(cursor.next_offset, end)
        return purged

    def drop_head(self, cursor: QueueCursor, messages: int, cause: Cause) -> int:
        """Settle the oldest ready messages, as dead letters; returns how many went."""
        dropped = 0
        while dropped < messages and cursor.has_ready:
            left = messages - dropped
            # Picking several dead-letters the expired among them first: one by one keeps the order.
            picked = self._picker.pick(cursor, 1 if _may_expire(cursor, left) else left, UNLIMITED)
            if not picked.moved:
                break
            dropped += picked.moved
            for delivery in picked.deliveries:
                offset, record = delivery.offset, delivery.record
                self._host.dead_letter(cursor.queue, offset, record, cause, delivery.attempts)
                cursor.settle(cause, offset, offset + record.messages)
                cursor.redelivery.counts.pop(offset, None)
        return dropped

    # Out of flight

    def _release_each(
        self, cursor: QueueCursor, offsets: Sequence[int], popped: list[PendingEntry | None]
    ) -> list[int]:
        """Any list; the offsets that are no single messages in flight come back."""
        odd: list[int] = []
        messages = size = holder = 0
        for offset, entry in zip(offsets, popped, strict=True):
            if entry is None or entry.span != 1:
                if entry is not None:
                    cursor.pending.spill()[offset] = entry
                odd.append(offset)
                continue
            if entry.consumer_id != holder:
                self._release(holder, messages, size)
                holder, messages, size = entry.consumer_id, 0, 0
            messages += 1
            size += entry.size
            if entry.slot:
                cursor.dispatcher.released(entry.slot)
        self._release(holder, messages, size)
        return odd

    def _settle_runs(
        self, cursor: QueueCursor, offsets: Sequence[int], odd: list[int], cause: Cause
    ) -> int:
        if not offsets:
            return 0
        ordered = sorted(offsets)
        if not odd and ordered[-1] - ordered[0] + 1 == len(ordered):
            # All of them were in flight, hence all different: this is one run.
            fresh = cursor.settle(cause, ordered[0], ordered[-1] + 1)
        else:
            if odd:
                ordered = self._known(cursor, ordered)
            runs = joined_ranges([(offset, offset + 1) for offset in ordered])
            fresh = cursor.settle_runs(cause, runs) if runs else 0
            for offset in odd:
                self._shrink(cursor, offset)
        self.settled_messages += fresh
        return fresh

    def _known(self, cursor: QueueCursor, ordered: list[int]) -> list[int]:
        """Without what nobody ever delivered, not even the process before.

        Settling that is a peer's mistake, and the one way to make the ranges grow without bound.
        """
        end = max(cursor.next_offset, cursor.flagged_below)
        known = [offset for offset in ordered if offset < end]
        self.unknown_settles += len(ordered) - len(known)
        return known

    def _shrink(self, cursor: QueueCursor, offset: int) -> None:
        """An offset was settled that is no plain in-flight entry: in a batch, or waiting."""
        start = cursor.pending.first_offset(offset)
        if start is None:
            # Of a delayed batch something may be left, which still waits for its time.
            if cursor.redelivery.is_delayed(offset) and not _has_unsettled(cursor, offset):
                cursor.redelivery.cancel_delay(offset)
            return
        entry = cursor.pending.spill()[start]
        left = entry.span - cursor.settled.settled_in(start, start + entry.span)
        if not left:
            self._out_of_flight(cursor, start)
            cursor.redelivery.counts.pop(start, None)
        elif left < entry.messages:
            self._release(entry.consumer_id, entry.messages - left, 0)
            cursor.pending.shrink(entry, entry.messages - left)

    def _entries_of(self, cursor: QueueCursor, offsets: Iterable[int]) -> list[int]:
        """First offsets of the in-flight entries that cover these, each once."""
        first_offset = cursor.pending.first_offset
        starts = dict.fromkeys(first_offset(offset) for offset in offsets)
        return [start for start in starts if start is not None]

    def _out_of_flight(self, cursor: QueueCursor, start: int) -> PendingEntry | None:
        entry = cursor.pending.pop(start)
        if entry is not None:
            if entry.slot:
                cursor.dispatcher.released(entry.slot)
            self._release(entry.consumer_id, entry.messages, entry.size)
        return entry

    def _release(self, consumer_id: int, messages: int, size: int) -> None:
        if messages and consumer_id != NO_CONSUMER:
            self.inflight.remove(messages)
            self._consumers[consumer_id].returned(messages, size)


def _neighbours(offsets: Sequence[int]) -> Iterable[tuple[int, int]]:
    """[start, end) of each stretch of offsets that follow each other, in the order they come."""
    start = end = -1
    for offset in offsets:
        if offset == end:
            end += 1
            continue
        if start >= 0:
            yield start, end
        start, end = offset, offset + 1
    if start >= 0:
        yield start, end


def _has_unsettled(cursor: QueueCursor, offset: int) -> bool:
    """Whether something of the entry that begins there is left."""
    found = entries_at(cursor, [offset]).get(offset)
    return found is not None and bool(cursor.settled.unsettled_in(offset, offset + found[5]))


def _may_expire(cursor: QueueCursor, count: int) -> bool:
    """False when none of the next messages can expire."""
    if cursor.redelivery.ready or cursor.queue.topic.policy.message_ttl_ms:
        return True
    entries = cursor.index.entries(cursor.next_offset, min(count, CHUNK_ENTRIES_MAX))
    return any(entry[7] & IndexFlag.EXPIRES for entry in entries)


# ---- reject backlog -----------------------------------------------------------------------------


REJECTS_PER_TURN: Final = 250
"""Messages one subscription dead-letters in one turn, rejected by one command or by many."""

BACKLOG_MAX: Final = 200_000
"""Messages that may wait; as many as can be in flight, the rest was taken by hand meanwhile."""

Release = Callable[[int, int, int], None]
"""(consumer id, messages, bytes): what was charged when they were handed over is returned."""


class RejectBacklog:
    """Rejected messages that wait to become dead letters: some do in every turn (law 5).

    Who rejects tens of thousands at once must not hold up everybody else: a dead letter is read,
    made and written again. Until its turn such a message is still in flight, for no consumer: it is
    neither ready nor anybody's to settle, and after a crash it is delivered again, like all in
    flight.

    Who spends: whoever rejects, or requeues too often. Who stops: the subscription hands out
    nothing new before the backlog is empty, so that it cannot pile up. What wakes it: itself.

    Invariants: what was charged for them is returned at once; they become dead letters in the order
    in which they were rejected, each once. Bound: ``BACKLOG_MAX``; beyond it whoever rejects more
    does the work in the call.
    """

    __slots__ = ("_host", "_left", "_picker", "_waiting", "count", "since_ms")

    def __init__(self, host: Host, picker: Picker) -> None:
        self._host = host
        self._picker = picker
        self._left = REJECTS_PER_TURN
        # First offsets of in-flight entries.
        self._waiting: deque[tuple[QueueCursor, deque[int], Cause]] = deque()
        self.count = 0
        self.since_ms = 0
        """Since when it is not empty, while it is not."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, cursor: QueueCursor, starts: list[int], cause: Cause, release: Release) -> None:
        """These in-flight entries are rejected: now, or when it is their turn."""
        if not starts:
            return
        was_waiting = bool(self._waiting)
        _release_all(cursor, starts, release)
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last[0] is cursor and last[2] is cause:
            last[1].extend(starts)
        else:
            self._waiting.append((cursor, deque(starts), cause))
        self.count += len(starts)
        if self.count > BACKLOG_MAX:
            self._left = REJECTS_PER_TURN
        self._work()
        if self._waiting and not was_waiting:
            self.since_ms = self._host.clock.monotonic_ms()

    def turn(self) -> bool:
        """A turn has come: dead-letter the first of them; True while others wait."""
        self._left = REJECTS_PER_TURN
        if not self._waiting:
            return False
        self._work()
        return bool(self._waiting)

    def drain(self) -> None:
        """All of them, at once: the subscription ends."""
        while self._waiting:
            self.turn()

    def _work(self) -> None:
        while self._waiting and self._left > 0:
            cursor, starts, cause = self._waiting[0]
            some = [starts.popleft() for _ in range(min(self._left, len(starts)))]
            self._left -= len(some)
            self.count -= len(some)
            if not starts:
                self._waiting.popleft()
            self._dead_letter(cursor, [at for at in some if _take_rejected(cursor, at)], cause)

    def _dead_letter(self, cursor: QueueCursor, starts: list[int], cause: Cause) -> None:
        """Entries out of flight; their records are read again, they were not kept."""
        found, gone = self._picker.messages_at(cursor, starts)
        for entry, record in found.values():
            self._picker.dead_letter(cursor, entry, record, cause)
        for start in gone:
            self._picker.skip_missing(cursor, start, start + 1)


def _take_rejected(cursor: QueueCursor, start: int) -> bool:
    """Take an entry out of flight; False when it is not waiting to be a dead letter any more."""
    entry = cursor.pending.spill().get(start)
    if entry is None or entry.consumer_id != NO_CONSUMER:
        return False
    cursor.pending.pop(start)
    cursor.redelivery.counts[start] = entry.attempts
    return True


def _release_all(cursor: QueueCursor, starts: list[int], release: Release) -> None:
    entries = cursor.pending.spill()
    messages = size = holder = 0
    for start in starts:
        entry = entries[start]
        if entry.slot:
            cursor.dispatcher.released(entry.slot)
        if entry.consumer_id != holder:
            release(holder, messages, size)
            holder, messages, size = entry.consumer_id, 0, 0
        messages += entry.messages
        size += entry.size
        entries[start] = PendingEntry(NO_CONSUMER, 0, entry.attempts, entry.messages, entry.span)
    release(holder, messages, size)
