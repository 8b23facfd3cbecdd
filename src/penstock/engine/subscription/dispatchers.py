"""Who of a queue's consumers gets the next message: one dispatcher per subscription type (mode).

A subscription has one dispatcher per queue: where consumers read single queues, each queue has its
own set of consumers, its own active one and its own turn of the round.

* ``Exclusive``: one consumer; a second is refused.
* ``Failover`` and ``SingleActive``: one active consumer, the others stand by; failover may spread
  queues over its consumers and wait before another takes over.
* ``Shared``: everyone in turn, by priority.
* ``KeyShared``: everyone, but messages of one key to one consumer at a time.

Not here: how messages are dealt out and handed over (``dispatch.py``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, Protocol

from penstock.engine.host import FailoverRule, Mode
from penstock.engine.subscription.consumer import Consumer, ConsumerRefusal, RefusalReason
from penstock.flow.demand import Withheld
from penstock.model.clock import Clock
from penstock.model.murmur import murmur3_31, murmur3_32

RECEIVERS_MAX: Final = 64
"""Consumers looked for in one round; ten thousand of them must not make a round expensive."""


def make_dispatcher(
    mode: Mode, clock: Clock, number: int = 0, rule: FailoverRule | None = None
) -> Dispatcher:
    """Of the queue with this number; the rule is failover's."""
    if mode is Mode.FAILOVER:
        return Failover(rule or FailoverRule(), number, clock)
    return _DISPATCHERS[mode]()


def other_mode(mode: Mode, queue_name: str, consumer: Consumer) -> ConsumerRefusal:
    """The refusal of a consumer that wants another type than those who read the queue."""
    wanted = (consumer.mode or mode).value
    return ConsumerRefusal(
        RefusalReason.MODE,
        f"the subscription is read as {mode.value!r} in queue {queue_name!r} and consumer "
        f"{consumer.name!r} asks for {wanted!r}; it may come with that type when the others have "
        "left",
    )


class Dispatcher:
    """One mode, for one queue. As it stands here: everybody may join, in the order they come."""

    __slots__ = ("consumers", "takeover_at_ms")

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self.takeover_at_ms = 0
        """Failover: until then (monotonic) nobody gets anything; 0 = nobody is to take over."""

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Why this consumer may not join, as a value and not an error; None = it may."""
        return None

    def join(self, consumer: Consumer) -> Consumer | None:
        """Take it in; returns the consumer it displaced as the active one, if any."""
        self.consumers.append(consumer)
        return None

    def leave(self, consumer: Consumer) -> Consumer | None:
        """It is gone; returns the other one that thereby ceased to be the active one, if any."""
        self.consumers.remove(consumer)
        return None

    def disband(self) -> Consumer | None:
        """The queue is read no more: all leave, nobody follows; returns who was active, if any."""
        self.consumers.clear()
        return None

    def take_over(self, now_ms: int) -> Consumer | None:
        """Failover: it may be time for another active one; returns whom it displaced, if any."""
        return None

    def receivers(self, count_max: int = RECEIVERS_MAX) -> list[Consumer]:
        """Those who may be handed something now, in the order in which they are served.

        More than there are messages need not be found.
        """
        return [each for each in self.consumers if each.available_messages() > 0]

    def served(self, last: Consumer) -> None:
        """The round ended with this one."""

    def withheld_from(self, consumer: Consumer) -> Withheld | None:
        """Why this consumer gets nothing although something is ready; None = it may."""
        return None

    def awaited_by(self, consumer: Consumer) -> int:
        """The id of the consumer on whom that depends; 0 = on none."""
        return 0

    # Of these four only KeyShared knows anything.

    def has_parked(self, consumer: Consumer) -> bool:
        """Whether something waits for this consumer alone."""
        return False

    def park(self, offset: int, slot: int) -> None:
        """An entry of this key slot waits for its turn."""

    def released(self, slot: int) -> None:
        """An entry of this key slot is no longer in flight."""

    def unpark(self) -> list[int]:
        """Give up everything set aside for busy keys; its first offsets are the caller's now."""
        return []


# ---- exclusive, failover, single active ---------------------------------------------------------


class Exclusive(Dispatcher):
    """At most one consumer."""

    __slots__ = ()

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        if not self.consumers:
            return None
        owner = self.consumers[0].name
        return ConsumerRefusal(
            RefusalReason.BUSY,
            f"consumer {owner!r} has exclusive use of the subscription; "
            f"{consumer.name!r} may come when it has left",
        )


class ActiveStandby(Dispatcher):
    """One active consumer gets everything; the others stand by with their demand.

    ``consumers`` is the line of succession, its first is active. A consumer of several queues hears
    only of its first active queue and of its last.
    """

    __slots__ = ()

    @property
    def active(self) -> Consumer | None:
        return self.consumers[0] if self.consumers else None

    def leave(self, consumer: Consumer) -> Consumer | None:
        """The next in line becomes active when the active one leaves."""
        was_active = consumer is self.active
        self.consumers.remove(consumer)
        if was_active:
            self._hand_over(None, self.active)
        return None

    def disband(self) -> Consumer | None:
        active = self.active
        self.consumers.clear()
        if active is not None:
            active.active_queues -= 1
        return active

    def receivers(self, count_max: int = RECEIVERS_MAX) -> list[Consumer]:
        active = self.active
        return [active] if active is not None and active.available_messages() > 0 else []

    def withheld_from(self, consumer: Consumer) -> Withheld | None:
        return None if consumer is self.active else Withheld.INACTIVE

    def awaited_by(self, consumer: Consumer) -> int:
        """Who is active, or is to take over."""
        first = self._first()
        return 0 if first is None or first is consumer else first.consumer_id

    def _first(self) -> Consumer | None:
        return self.active

    def _hand_over(self, before: Consumer | None, after: Consumer | None) -> None:
        if before is not None:
            before.active_queues -= 1
            if not before.active_queues:
                before.outlet.active_changed(before, False)
        if after is not None:
            after.active_queues += 1
            if after.active_queues == 1:
                after.outlet.active_changed(after, True)


class Failover(ActiveStandby):
    """Active is one of the highest priority: the first by name, or whom the rule chooses.

    Whoever comes or goes may change the choice: what the active one has not settled goes to its
    successor, in order. Where the rule wants some time between (``FailoverRule.takeover_ms``):

    * until then nobody gets anything new; a second change meanwhile does not make it longer;
    * then everybody is told, also who knows; who joins and is not chosen is told at once;
    * when nobody is left there is nothing to wait for.

    ``consumers`` is in the order of priority, name and age.
    """

    __slots__ = ("_active", "_chosen", "_clock", "_number", "_rule")

    def __init__(self, rule: FailoverRule, number: int, clock: Clock) -> None:
        super().__init__()
        self._rule = rule
        self._number = number
        self._clock = clock
        self._chosen: Consumer | None = None
        self._active: Consumer | None = None

    @property
    def active(self) -> Consumer | None:
        """Who gets messages now; nobody while another is to take over."""
        return None if self.takeover_at_ms else self._active

    def join(self, consumer: Consumer) -> Consumer | None:
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda each: (-each.priority, each.name, each.consumer_id))
        displaced = self._choose()
        if self._rule.takeover_ms and consumer is not self._chosen and not consumer.active_queues:
            consumer.outlet.active_changed(consumer, False)
        return displaced

    def leave(self, consumer: Consumer) -> Consumer | None:
        self.consumers.remove(consumer)
        if consumer is self._active:
            self._active = None
            consumer.active_queues -= 1
        if not self.consumers:
            self._chosen = None
            self.takeover_at_ms = 0
            return None
        return self._choose()

    def disband(self) -> Consumer | None:
        self.takeover_at_ms = 0  # until then the active one still counts as such
        was_active = super().disband()
        self._active = self._chosen = None
        return was_active

    def take_over(self, now_ms: int) -> Consumer | None:
        if not 0 < self.takeover_at_ms <= now_ms:
            return None
        self.takeover_at_ms = 0
        before, after = self._active, self._chosen
        self._active = after
        if before is not after:
            if before is not None:
                before.active_queues -= 1
            if after is not None:
                after.active_queues += 1
        for consumer in list(self.consumers):
            consumer.outlet.active_changed(consumer, consumer.active_queues > 0)
        return None if before is after else before

    def _first(self) -> Consumer | None:
        return self._chosen

    def _choose(self) -> Consumer | None:
        """Somebody came or went; returns whom the one now chosen displaces at once, if anybody."""
        before, self._chosen = self._chosen, self._choice()
        if self._chosen is before:
            return None
        if self._rule.takeover_ms:
            if not self.takeover_at_ms:
                self.takeover_at_ms = self._clock.monotonic_ms() + self._rule.takeover_ms
            return None
        displaced, self._active = self._active, self._chosen
        self._hand_over(displaced, self._chosen)
        return displaced

    def _choice(self) -> Consumer:
        first, rule = self.consumers[0], self._rule
        if not (rule.is_by_partition or rule.ring_name):
            return first
        eligible = [each for each in self.consumers if each.priority == first.priority]
        if rule.is_by_partition:
            return eligible[self._number % len(eligible)]
        # Of several on one point the last has it.
        return min(reversed(eligible), key=lambda each: _ring_distance(rule.ring_name, each.name))


RING_NAMES_CACHED_MAX: Final = 4096
"""Pairs of a topic's and a consumer's name whose distance is remembered: hashing 100 points takes
some 200 us, and all of them are asked whenever one comes or goes."""


@lru_cache(maxsize=RING_NAMES_CACHED_MAX)
def _ring_distance(ring_name: str, name: str) -> int:
    """How far, going up and round, the nearest of a consumer's points is from a topic's place."""
    at = murmur3_31(ring_name.encode())
    points = [murmur3_31(f"{name}{number}".encode()) for number in range(POINTS_PER_CONSUMER)]
    return min([(point - at) & 0x7FFFFFFF for point in points])


class SingleActive(ActiveStandby):
    """Active is who came first (RabbitMQ's single active consumer).

    Unlike failover nobody is displaced: neither a name nor a priority lets a later one go first,
    and what the active one holds stays with it when it leaves.
    """

    __slots__ = ()

    def join(self, consumer: Consumer) -> Consumer | None:
        self.consumers.append(consumer)
        if consumer is self.active:
            self._hand_over(None, consumer)
        return None


# ---- shared -------------------------------------------------------------------------------------


class Shared(Dispatcher):
    """Everyone in turn, the highest priority that can take anything first.

    A consumer without demand is skipped, so a slow one holds only what it has (law 8); a lower
    priority is served only while no higher one may take anything.
    """

    __slots__ = ("_found_at", "_levels")

    def __init__(self) -> None:
        super().__init__()
        self._levels: list[_Level] = []
        # Where the receivers of the last call stand: ``served`` goes on behind the last of them.
        self._found_at: dict[int, tuple[_Level, int]] = {}

    def join(self, consumer: Consumer) -> Consumer | None:
        """Behind those of its own priority; nobody is displaced."""
        self.consumers.append(consumer)
        for level in self._levels:
            if level.priority == consumer.priority:
                level.members.append(consumer)
                return None
        self._levels.append(_Level(consumer.priority, [consumer]))
        self._levels.sort(key=lambda each: -each.priority)
        return None

    def leave(self, consumer: Consumer) -> Consumer | None:
        """The round goes on with the one behind it."""
        self.consumers.remove(consumer)
        self._found_at.clear()
        for level in self._levels:
            if level.priority == consumer.priority:
                at = level.members.index(consumer)
                del level.members[at]
                level.next -= at < level.next
        self._levels = [level for level in self._levels if level.members]
        return None

    def receivers(self, count_max: int = RECEIVERS_MAX) -> list[Consumer]:
        """Those of the highest level with demand, beginning behind the one served last."""
        count_max = min(count_max, RECEIVERS_MAX)
        self._found_at.clear()
        for level in self._levels:
            found: list[Consumer] = []
            members, count = level.members, len(level.members)
            for step in range(count):
                at = (level.next + step) % count
                consumer = members[at]
                if consumer.available_messages() > 0:
                    found.append(consumer)
                    self._found_at[consumer.consumer_id] = (level, at)
                    if len(found) == count_max:
                        break
            if found:
                return found
        return []

    def served(self, last: Consumer) -> None:
        """The next round begins behind this one."""
        found = self._found_at.get(last.consumer_id)
        if found is not None:
            level, at = found
            level.next = (at + 1) % len(level.members)


class _Level:
    """The consumers of one priority, and whose turn it is."""

    __slots__ = ("members", "next", "priority")

    def __init__(self, priority: int, members: list[Consumer]) -> None:
        self.priority = priority
        self.members = members
        self.next = 0


# ---- key shared ---------------------------------------------------------------------------------


LOOK_AHEAD_PER_CONSUMER_MAX: Final = 2_000
LOOK_AHEAD_MAX: Final = 20_000
"""Parked entries, Pulsar 4.0's bounds; one is some 100 bytes here, so at most 2 MiB per queue."""

DRAINING_LOOKED_AT_MAX: Final = 256
"""Draining slots looked at to say why one consumer gets nothing: thousands may be shown at once."""

Parked = tuple[int, int]
"""(first offset, slot)"""

_SPREAD: Final = 40_503
"""A message without a key has no order to keep: its offset, multiplied, gives it any slot."""


class KeyShared(Dispatcher):
    """Messages of one key go to one consumer at a time, in order.

    A key falls into a slot, a slot has an owner (``SlotOwners``). Three things keep the order:

    * *Draining*: while a former owner still has messages of a slot in flight, the slot's further
      messages wait; they go to the new owner when the last of those is settled or comes back.
    * *Parking*: a message whose owner has no demand is set aside for it, and the reader looks
      further for keys whose owners have some. Whatever is parked for a consumer goes to it before
      anything new.
    * *Bounded look-ahead*: so many are parked at most; then reading stops until some are taken.

    What comes back is parked, too, and so takes its place among the waiting messages of its key.
    Invariant: an offset is parked at most once, for its owner or for its slot.
    """

    __slots__ = ("_held", "_is_stale", "_parked", "_waiting", "owners", "parked_count")

    def __init__(self) -> None:
        super().__init__()
        self.owners: SlotOwners = ConsistentHashRing()
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
        return self._owners_with(consumer).refusal(consumer)

    def _owners_with(self, consumer: Consumer) -> SlotOwners:
        if self.consumers:
            return self.owners
        if consumer.key_ranges:
            return StickyRanges()
        return HalvedRanges() if consumer.halves_keys else ConsistentHashRing()

    def join(self, consumer: Consumer) -> Consumer | None:
        """It takes over some slots, once they are drained."""
        self.owners = self._owners_with(consumer)
        self.consumers.append(consumer)
        self.owners.add(consumer)
        self._is_stale = True
        return None

    def leave(self, consumer: Consumer) -> Consumer | None:
        """Its slots fall to others; what it has in flight still drains."""
        self.consumers.remove(consumer)
        self.owners.remove(consumer)
        self._is_stale = True
        return None

    def receivers(self, count_max: int = RECEIVERS_MAX) -> list[Consumer]:
        """Everyone with demand; who gets what is decided by key."""
        self._reassign_parked()
        return super().receivers(count_max)

    def slot(self, key: bytes, offset: int) -> int:
        return self.owners.slot(key) if key else offset * _SPREAD % SLOTS + 1

    def assign(self, offset: int, slot: int, available: dict[int, int]) -> int:
        """The consumer id that takes this entry now; 0 = it was parked.

        ``available`` says how much each receiver may still get; who is not in it gets nothing.
        """
        owner_id = self._free_owner(slot)
        if not owner_id or available.get(owner_id, 0) <= 0 or owner_id in self._parked:
            self.park(offset, slot)
            return 0
        return owner_id

    def park(self, offset: int, slot: int) -> None:
        """Set an entry aside, for the owner of its slot or until the slot is drained."""
        owner_id = self._free_owner(slot)
        heap = self._parked if owner_id else self._waiting
        heappush(heap.setdefault(owner_id or slot, []), (offset, slot))
        self.parked_count += 1

    def handed_over(self, slot: int, consumer_id: int) -> None:
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

    def withheld_from(self, consumer: Consumer) -> Withheld | None:
        if self.has_parked(consumer):
            return None
        if self._draining_for(consumer):
            return Withheld.DRAINING
        return None if self.look_ahead_left else Withheld.LOOK_AHEAD

    def awaited_by(self, consumer: Consumer) -> int:
        """Who still has messages of a slot that is to be this consumer's."""
        held = self._held.get(self._draining_for(consumer))
        return 0 if held is None else held[0]

    def _draining_for(self, consumer: Consumer) -> int:
        """A slot of this consumer that drains; 0 = none of those looked at."""
        owner = self.owners.owner
        looked_at = islice(self._waiting, DRAINING_LOOKED_AT_MAX)
        return next((slot for slot in looked_at if owner(slot) is consumer), 0)

    def _free_owner(self, slot: int) -> int:
        """The id of the consumer that may have messages of the slot now; 0 = nobody may."""
        owner = self.owners.owner(slot)
        held = self._held.get(slot)
        if owner is None or (held is not None and held[0] != owner.consumer_id):
            return 0
        return owner.consumer_id

    def _reassign_parked(self) -> None:
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


# ---- key slots ----------------------------------------------------------------------------------
# Which consumer owns a key: keys fall into slots, slots belong to consumers.


SLOTS: Final = 65535
"""Slots are 1..65535; 0 means "no slot"."""

RANGE_END_MAX: Final = SLOTS + 1
"""Where a claimed range may end: Pulsar lets clients claim 0..65536, though nothing falls there."""

POINTS_PER_CONSUMER: Final = 100


class SlotOwners(Protocol):
    """A way to share out the slots."""

    def slot(self, key: bytes) -> int: ...

    def owner(self, slot: int) -> Consumer | None:
        """Whose slot it is; None = nobody's."""
        ...

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Why this consumer cannot have a share; None = it can."""
        ...

    def add(self, consumer: Consumer) -> None: ...

    def remove(self, consumer: Consumer) -> None: ...


class ConsistentHashRing:
    """Shares by consistent hashing: 100 points per consumer on a ring of all slots.

    The owner of a slot is the next point at or above it, going round. A consumer that comes or goes
    moves only the slots next to its points.
    """

    __slots__ = ("_at", "_indexes", "_known", "_points", "_ring")

    def __init__(self) -> None:
        # Several points may fall on one slot: the first by name and id owns it.
        self._at: dict[int, list[tuple[str, int, Consumer]]] = {}
        self._ring: list[int] | None = []
        self._indexes: dict[str, list[int]] = {}
        self._points: dict[int, tuple[int, list[int]]] = {}
        # Slot -> owner as far as asked for since the last change: at most one per slot.
        self._known: dict[int, Consumer] = {}

    def slot(self, key: bytes) -> int:
        return murmur3_31(key) % SLOTS + 1

    def owner(self, slot: int) -> Consumer | None:
        """The consumer of the next point at or above the slot."""
        known = self._known.get(slot)
        if known is not None:
            return known
        ring = self._ring
        if ring is None:
            ring = self._ring = sorted(self._at)
        if not ring:
            return None
        at = bisect_left(ring, slot)
        owner = self._at[ring[at if at < len(ring) else 0]][0][2]
        self._known[slot] = owner
        return owner

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Only consumers without ranges of their own may join."""
        return _mixed(consumer) if consumer.key_ranges else None

    def add(self, consumer: Consumer) -> None:
        """Its points depend only on its name and how many share it: it finds its keys again."""
        taken = self._indexes.setdefault(consumer.name, [])
        index = next(each for each in range(len(taken) + 1) if each not in taken)
        taken.append(index)
        points = []
        for number in range(POINTS_PER_CONSUMER):
            name = f"{consumer.name}\0{index}\0{number}".encode()
            points.append((murmur3_32(name) & 0x7FFFFFFF) % SLOTS + 1)
        for point in points:
            insort(
                self._at.setdefault(point, []),
                (consumer.name, consumer.consumer_id, consumer),
                key=lambda each: each[:2],
            )
        self._points[consumer.consumer_id] = (index, points)
        self._ring = None
        self._known.clear()

    def remove(self, consumer: Consumer) -> None:
        """Its slots fall to the next points."""
        index, points = self._points.pop(consumer.consumer_id)
        for point in points:
            here = self._at[point]
            here.remove((consumer.name, consumer.consumer_id, consumer))
            if not here:
                del self._at[point]
        taken = self._indexes[consumer.name]
        taken.remove(index)
        if not taken:
            del self._indexes[consumer.name]
        self._ring = None
        self._known.clear()


class HalvedRanges:
    """Shares by ranges: who comes takes the lower half of the widest one (Pulsar's older way).

    Who leaves leaves its range to the next one above, or, if there is none, to the one below.
    """

    __slots__ = ("_ends", "_owners")

    def __init__(self) -> None:
        # Where ranges end, ascending, and whose they are; a range begins behind the one below.
        self._ends: list[int] = []
        self._owners: list[Consumer] = []

    def slot(self, key: bytes) -> int:
        return range_slot(key)

    def owner(self, slot: int) -> Consumer | None:
        return self._owners[bisect_left(self._ends, slot)] if self._ends else None

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Only consumers without ranges of their own may join."""
        return _mixed(consumer) if consumer.key_ranges else None

    def add(self, consumer: Consumer) -> None:
        ends = self._ends
        at, end = 0, RANGE_END_MAX
        if ends:
            starts = [0, *ends]
            at = max(range(len(ends)), key=lambda each: (ends[each] - starts[each], -each))
            end = starts[at] + (ends[at] - starts[at]) // 2
        ends.insert(at, end)
        self._owners.insert(at, consumer)

    def remove(self, consumer: Consumer) -> None:
        at = self._owners.index(consumer)
        del self._owners[at]
        is_highest = at == len(self._ends) - 1
        del self._ends[at - 1 if is_highest else at]


_Claim = tuple[int, int, Consumer]
"""A range and whose it is."""


class StickyRanges:
    """Shares as the consumers claim them: no overlap, and a slot nobody claimed has no owner."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: list[_Claim] = []

    def slot(self, key: bytes) -> int:
        return range_slot(key)

    def owner(self, slot: int) -> Consumer | None:
        """The one whose range covers the slot."""
        at = bisect_right(self._claims, slot, key=lambda claim: claim[0]) - 1
        if at < 0 or slot > self._claims[at][1]:
            return None
        return self._claims[at][2]

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Ranges must be in order, within 0..65536 and free."""
        if not consumer.key_ranges:
            return _mixed(consumer)
        before: list[_Claim] = []
        for start, end in sorted(consumer.key_ranges):
            if not 0 <= start <= end <= RANGE_END_MAX:
                text = (
                    f"key range {start}..{end} of {consumer.name!r} "
                    f"is not within 0..{RANGE_END_MAX}"
                )
                return ConsumerRefusal(RefusalReason.KEY_RANGE, text)
            # Of claims, which do not overlap, the last that begins in time ends last, too.
            at = bisect_right(self._claims, end, key=lambda claim: claim[0])
            for other_start, other_end, other in (*before, *self._claims[max(at - 1, 0) : at]):
                if start <= other_end and other_start <= end:
                    text = (
                        f"key range {start}..{end} of {consumer.name!r} overlaps "
                        f"{other_start}..{other_end} of {other.name!r}"
                    )
                    return ConsumerRefusal(RefusalReason.KEY_RANGE, text)
            before = [(start, end, consumer)]
        return None

    def add(self, consumer: Consumer) -> None:
        for start, end in consumer.key_ranges:
            insort(self._claims, (start, end, consumer), key=lambda claim: claim[0])

    def remove(self, consumer: Consumer) -> None:
        self._claims = [claim for claim in self._claims if claim[2] is not consumer]


def range_slot(key: bytes) -> int:
    """Where keys are shared out by ranges: 0..65535 with 0 counted as 1."""
    return murmur3_31(key) % (SLOTS + 1) or 1


def _mixed(consumer: Consumer) -> ConsumerRefusal:
    return ConsumerRefusal(
        RefusalReason.MODE,
        f"consumer {consumer.name!r} and the ones already here do not share out keys the same way; "
        "either all name their key ranges or none does",
    )


_DISPATCHERS: Final[dict[Mode, type[Dispatcher]]] = {
    Mode.EXCLUSIVE: Exclusive,
    Mode.SINGLE_ACTIVE: SingleActive,
    Mode.SHARED: Shared,
    Mode.KEY_SHARED: KeyShared,
}
