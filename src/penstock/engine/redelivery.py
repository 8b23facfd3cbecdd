"""Messages that were taken from the queue and must be delivered (again), in their original order.

* ``again``: a min-heap of first offsets, served before the next unread one, so a message that comes
  back takes its original place (D13).
* ``counts``: how often a message came back; being in it marks the message as redelivered.
* ``delayed``: skipped until a moment; wall time became monotonic when it was armed, so a clock jump
  fires nothing (D14). When the moment comes they move to ``again``.

Invariants: an offset is in ``again`` or ``delayed`` at most once, and in neither while in flight.
An offset that is settled while it waits here is skipped when its turn comes.
Bounds: ``again`` and ``counts`` hold what was in flight (F13) or looked ahead at; ``delayed`` stops
the reader when the room that all subscriptions share is full.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from penstock.engine.delayed_room import DelayedRoom
from penstock.flow.demand import UNLIMITED

HEAP_STEPS: Final = 16
"""What putting one offset into a long heap costs, compared with looking once at each in it."""


class Redelivery:
    """What one subscription must deliver before it reads on in one queue."""

    __slots__ = ("_due", "again", "counts", "delayed", "delayed_messages", "room")

    def __init__(self, room: DelayedRoom) -> None:
        self.again: list[int] = []
        self.counts: dict[int, int] = {}
        self.delayed: dict[int, tuple[int, int]] = {}
        """First offset -> (monotonic due time, messages)."""
        self.delayed_messages = 0
        self.room = room
        """What all lanes together may put aside."""
        self._due: list[tuple[int, int]] = []

    @property
    def look_max(self) -> int:
        """How many unread messages may be looked at: each of them may have to be put aside."""
        room = self.room
        return room.own_min - len(self.delayed) if room.is_full else UNLIMITED

    @property
    def is_full(self) -> bool:
        """True when no further delayed message may be skipped: the reader waits."""
        return self.look_max <= 0

    @property
    def is_empty(self) -> bool:
        """True when nothing waits and nothing is remembered."""
        return not (self.again or self.counts or self.delayed)

    def back(self, offset: int) -> None:
        """An entry waits in its original place."""
        heappush(self.again, offset)

    def back_all(self, offsets: list[int]) -> None:
        """The same for many."""
        again = self.again
        if len(offsets) * HEAP_STEPS < len(again):
            for offset in offsets:
                heappush(again, offset)
        elif offsets:
            again += offsets
            heapify(again)

    def delay(self, offset: int, due_ms: int, messages: int) -> None:
        """An entry is skipped until ``due_ms`` (monotonic)."""
        self.delayed[offset] = (due_ms, messages)
        self.delayed_messages += messages
        self.room.add()
        heappush(self._due, (due_ms, offset))

    def undelay(self, offset: int) -> bool:
        """A delayed entry is settled before its time; True if it was one."""
        found = self.delayed.pop(offset, None)
        if found is None:
            return False
        self.delayed_messages -= found[1]
        self.room.remove()
        return True

    def ripen(self, now_ms: int) -> int:
        """Move what is due to ``again``; returns how many entries."""
        moved = 0
        due = self._due
        while due and due[0][0] <= now_ms:
            due_ms, offset = heappop(due)
            found = self.delayed.get(offset)
            if found is not None and found[0] == due_ms:
                self.undelay(offset)
                heappush(self.again, offset)
                moved += 1
        return moved

    def next_due_ms(self) -> int | None:
        """When ``ripen`` may next move something."""
        due = self._due
        while due:
            due_ms, offset = due[0]
            found = self.delayed.get(offset)
            if found is not None and found[0] == due_ms:
                return due_ms
            heappop(due)
        return None

    def take(self, count_max: int) -> list[int]:
        """The lowest offsets that wait, in order; they belong to the caller now."""
        again = self.again
        return [heappop(again) for _ in range(min(count_max, len(again)))]

    def put_back(self, offsets: list[int]) -> None:
        """Undo a ``take``: nothing else changes."""
        for offset in offsets:
            heappush(self.again, offset)

    def forget_below(self, offset: int) -> None:
        """Everything below is settled: drop what is remembered about it."""
        if self.counts:
            self.counts = {at: count for at, count in self.counts.items() if at >= offset}
        if self.delayed:
            for at in [at for at in self.delayed if at < offset]:
                self.undelay(at)
        if self.again and self.again[0] < offset:
            # A sorted list is a valid heap.
            self.again = sorted(at for at in self.again if at >= offset)

    def clear(self) -> None:
        """Forget everything."""
        self.again.clear()
        self.counts.clear()
        self.room.remove(len(self.delayed))
        self.delayed.clear()
        self._due.clear()
        self.delayed_messages = 0
