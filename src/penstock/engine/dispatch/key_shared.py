"""Key_shared: messages of one key go to one consumer at a time, in order.

A key falls into a slot, a slot has an owner (``key_slots``). Three things keep the order:

* *Draining*: while a former owner still has messages of a slot in flight, the slot's further
  messages wait; they go to the new owner when the last of those is settled or comes back.
* *Parking*: a message whose owner has no room is set aside for it, and the reader looks further
  for keys whose owners have room. Whatever is parked for a consumer goes to it before anything new.
* *Bounded look-ahead*: so many are parked at most; then reading stops until some are taken.

What comes back is parked, too, and so takes its place among the waiting messages of its key.
Invariant: an offset is parked at most once, for its owner or for its slot.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from penstock.engine.consumer import Consumer, ConsumerRefusal
from penstock.engine.dispatch.dispatcher import TAKERS_MAX
from penstock.engine.dispatch.key_slots import SLOTS, SlotClaims, SlotOwners, SlotRing

LOOK_AHEAD_PER_CONSUMER_MAX: Final = 4_000
LOOK_AHEAD_MAX: Final = 40_000
"""Parked entries; an entry is some 100 bytes here, so at most 4 MiB per queue."""

Parked = tuple[int, int]
"""(first offset, slot)"""

_SPREAD: Final = 40_503
"""A message without a key has no order to keep: its offset, multiplied, gives it any slot."""


class KeyShared:
    """Owners, what they hold by slot, and what waits for them."""

    __slots__ = ("_held", "_is_stale", "_parked", "_waiting", "consumers", "owners", "parked_count")

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self.owners: SlotOwners = SlotRing()
        self.parked_count = 0
        # Slot -> [id of the consumer that has it in flight, how many entries].
        self._held: dict[int, list[int]] = {}
        # Consumer id -> heap of what is parked for it; slot -> heap of what waits for draining.
        self._parked: dict[int, list[Parked]] = {}
        self._waiting: dict[int, list[Parked]] = {}
        self._is_stale = False

    @property
    def look_ahead_left(self) -> int:
        """How many more entries may be parked."""
        per_consumer = LOOK_AHEAD_PER_CONSUMER_MAX * len(self.consumers)
        return max(0, min(LOOK_AHEAD_MAX, per_consumer) - self.parked_count)

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """The first consumer decides how keys are shared out; the others must fit in."""
        if not self.consumers:
            self.owners = SlotClaims() if consumer.key_ranges else SlotRing()
        return self.owners.refusal(consumer)

    def join(self, consumer: Consumer) -> Consumer | None:
        """It takes over some slots, once they are drained."""
        self.consumers.append(consumer)
        self.owners.add(consumer)
        self._is_stale = True
        return None

    def leave(self, consumer: Consumer) -> None:
        """Its slots fall to others; what it has in flight still drains."""
        self.consumers.remove(consumer)
        self.owners.remove(consumer)
        self._is_stale = True

    def takers(self, count_max: int = TAKERS_MAX) -> list[Consumer]:
        """Everyone with room; who gets what is decided by key."""
        self._settle_owners()
        return [consumer for consumer in self.consumers if consumer.room() > 0]

    def served(self, last: Consumer) -> None:
        """There is no round."""

    def slot(self, key: bytes, offset: int) -> int:
        """The slot of a message."""
        return self.owners.slot(key) if key else offset * _SPREAD % SLOTS + 1

    def place(self, offset: int, slot: int, rooms: dict[int, int]) -> int:
        """The consumer id that takes this entry now; 0 = it was parked.

        ``rooms`` says how much each taker may still get; who is not in it gets nothing.
        """
        owner_id = self._free_owner(slot)
        if not owner_id or rooms.get(owner_id, 0) <= 0 or owner_id in self._parked:
            self.park(offset, slot)
            return 0
        return owner_id

    def park(self, offset: int, slot: int) -> None:
        """Set an entry aside, for the owner of its slot or until the slot is drained."""
        owner_id = self._free_owner(slot)
        heap = self._parked if owner_id else self._waiting
        heappush(heap.setdefault(owner_id or slot, []), (offset, slot))
        self.parked_count += 1

    def handed(self, slot: int, consumer_id: int) -> None:
        """An entry of the slot is in flight now."""
        held = self._held.get(slot)
        if held is None:
            self._held[slot] = [consumer_id, 1]
        else:
            held[1] += 1

    def released(self, slot: int) -> None:
        """An entry of the slot is settled or comes back; the last one ends the draining."""
        held = self._held[slot]
        held[1] -= 1
        if held[1]:
            return
        del self._held[slot]
        waiting = self._waiting.get(slot)
        owner = self.owners.owner(slot)
        if waiting and owner is not None:
            del self._waiting[slot]
            heap = self._parked.setdefault(owner.consumer_id, [])
            for parked in waiting:
                heappush(heap, parked)

    def take_parked(self, consumer: Consumer, count_max: int) -> list[Parked]:
        """The oldest entries parked for a consumer; they are the caller's now."""
        heap = self._parked.get(consumer.consumer_id)
        taken: list[Parked] = []
        while heap and len(taken) < count_max:
            offset, slot = heap[0]
            held = self._held.get(slot)
            heappop(heap)
            if held is not None and held[0] != consumer.consumer_id:
                # The slot went to another owner and came back while it drains.
                heappush(self._waiting.setdefault(slot, []), (offset, slot))
            else:
                taken.append((offset, slot))
        if heap is not None and not heap:
            del self._parked[consumer.consumer_id]
        self.parked_count -= len(taken)
        return taken

    def has_parked(self, consumer: Consumer) -> bool:
        """Whether something waits for this consumer alone."""
        return consumer.consumer_id in self._parked

    def parked_offsets(self) -> list[int]:
        """Everything parked, in no order."""
        heaps = [*self._parked.values(), *self._waiting.values()]
        return [offset for heap in heaps for offset, _ in heap]

    def unpark(self) -> list[int]:
        """The cursor moved, or nobody is left to take it: everything parked, in no order."""
        offsets = self.parked_offsets()
        self._parked.clear()
        self._waiting.clear()
        self.parked_count = 0
        return offsets

    def draining_slots(self) -> int:
        """Slots whose messages wait for a former owner."""
        return len(self._waiting)

    def _free_owner(self, slot: int) -> int:
        """The id of the consumer that may have messages of the slot now; 0 = nobody may."""
        owner = self.owners.owner(slot)
        held = self._held.get(slot)
        if owner is None or (held is not None and held[0] != owner.consumer_id):
            return 0
        return owner.consumer_id

    def _settle_owners(self) -> None:
        """After consumers came or went, sort what is parked by its owners of today."""
        if not self._is_stale:
            return
        self._is_stale = False
        everything = [
            parked for heap in (*self._parked.values(), *self._waiting.values()) for parked in heap
        ]
        self._parked.clear()
        self._waiting.clear()
        for parked in everything:
            owner_id = self._free_owner(parked[1])
            heaps = self._parked if owner_id else self._waiting
            heaps.setdefault(owner_id or parked[1], []).append(parked)
        for heap in (*self._parked.values(), *self._waiting.values()):
            heapify(heap)
