"""Deliveries and what is remembered of them until they are settled.

Two lives, two objects: a ``Delivery`` carries the record to the adapter and is gone once it is
encoded; a ``Held`` is the in-flight entry, small and without the record, so that consumers who
never settle hold numbers and not payloads (laws 2 and 8). A dead letter reads its record again.

Invariant: an entry is in flight at most once per subscription; its key is the first offset.
Bound: F13's limits, checked before a delivery is made.
Not here: limits (``flow/inflight.py``), what comes back (``redelivery.py``).
"""

from bisect import bisect_right, insort
from heapq import heapify, heappop, heappush
from itertools import repeat

import msgspec
from msgspec.structs import replace

from penstock.flow.demand import UNLIMITED
from penstock.model.position import QueueId
from penstock.model.record import Record

STALE_DEADLINES_MIN = 64
"""Outdated entries the deadline heap may hold before it is rebuilt, beside one per held entry."""


class Delivery(msgspec.Struct, gc=False):
    """One record on its way to one consumer."""

    record: Record
    queue_id: QueueId
    offset: int
    """Its first offset; a batch record covers ``record.messages`` of them."""
    size: int
    """Log bytes, as the limits count them."""
    attempts: int = 0
    """How often it came back and was counted; 0 = first."""
    is_redelivered: bool = False
    messages: int = 1
    """Messages in it that are not settled yet: what demand and limits are charged."""
    slot: int = 0
    """Key slot of key_shared, 0 elsewhere."""
    tag: int = 0
    """The adapter's own number for it."""


class Held(msgspec.Struct, gc=False):
    """The in-flight entry of one delivery, or of several single messages of one size.

    So it is replaced, not changed, except for that of a batch, which is never shared.
    """

    consumer_id: int
    size: int
    attempts: int = 0
    messages: int = 1
    """Charged and not yet returned; falls as offsets inside a batch are settled one by one."""
    span: int = 1
    """Offsets the entry covers."""
    slot: int = 0
    deadline_ms: int = 0
    """Monotonic time at which it goes back by itself; 0 = never."""
    tag: int = 0
    """The adapter's own number for this hand-over: what a receipt must name."""


class Pending:
    """The in-flight entries of one subscription in one queue."""

    __slots__ = ("_batches", "_deadlines", "entries", "messages")

    def __init__(self) -> None:
        self.entries: dict[int, Held] = {}
        self.messages = 0
        """Messages in flight: batches counted by what is unsettled in them."""
        # First offsets of entries that span several, sorted: the way from an offset to its entry.
        self._batches: list[int] = []
        self._deadlines: list[tuple[int, int]] = []

    def add_plain(self, consumer_id: int, offsets: list[int], sizes: list[int]) -> None:
        """Single messages without a deadline were handed to a consumer, all at once."""
        # One for all of a size: what is held of a single message says nothing but that.
        held = {size: Held(consumer_id, size) for size in set(sizes)}
        if len(held) == 1:
            self.entries.update(zip(offsets, repeat(held[sizes[0]])))
        else:
            self.entries.update(zip(offsets, map(held.__getitem__, sizes), strict=True))
        self.messages += len(offsets)

    def add(self, offset: int, held: Held) -> None:
        """An entry was handed to a consumer."""
        self.entries[offset] = held
        self.messages += held.messages
        if held.span > 1:
            insort(self._batches, offset)
        if held.deadline_ms:
            self.arm(offset, held, held.deadline_ms)

    def pop(self, offset: int) -> Held | None:
        """Take an entry out by its first offset."""
        held = self.entries.pop(offset, None)
        if held is not None:
            self.messages -= held.messages
            if held.span > 1:
                del self._batches[bisect_right(self._batches, offset) - 1]
        return held

    def first_offset(self, offset: int) -> int | None:
        """The key of the entry that covers ``offset``, if it is in flight."""
        if offset in self.entries:
            return offset
        at = bisect_right(self._batches, offset) - 1
        if at < 0:
            return None
        start = self._batches[at]
        return start if offset < start + self.entries[start].span else None

    def shrink(self, held: Held, messages: int) -> None:
        """``messages`` of a batch are settled while the rest stays in flight."""
        held.messages -= messages
        self.messages -= messages

    def arm(self, offset: int, held: Held, deadline_ms: int) -> None:
        """Set or move the moment at which an entry goes back by itself; 0 = never."""
        if held.deadline_ms != deadline_ms:
            self.entries[offset] = replace(held, deadline_ms=deadline_ms)
        if deadline_ms:
            heappush(self._deadlines, (deadline_ms, offset))
            if len(self._deadlines) > 2 * len(self.entries) + STALE_DEADLINES_MIN:
                self._deadlines = [
                    (held.deadline_ms, start)
                    for start, held in self.entries.items()
                    if held.deadline_ms
                ]
                heapify(self._deadlines)

    def extend(self, offset: int, deadline_ms: int) -> bool:
        """Move the deadline of the entry that covers ``offset``; False if it is not in flight."""
        start = self.first_offset(offset)
        if start is not None:
            self.arm(start, self.entries[start], deadline_ms)
        return start is not None

    def overdue(self, now_ms: int, count_max: int = UNLIMITED) -> list[int]:
        """First offsets whose deadline has passed; they stay in flight until popped.

        What is more than ``count_max`` is found by the next call.
        """
        found: list[int] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms and len(found) < count_max:
            deadline_ms, offset = heappop(deadlines)
            held = self.entries.get(offset)
            if held is not None and held.deadline_ms == deadline_ms:
                found.append(offset)
        return found

    def next_deadline_ms(self) -> int | None:
        """When ``overdue`` may next find something."""
        deadlines = self._deadlines
        while deadlines:
            deadline_ms, offset = deadlines[0]
            held = self.entries.get(offset)
            if held is not None and held.deadline_ms == deadline_ms:
                return deadline_ms
            heappop(deadlines)
        return None
