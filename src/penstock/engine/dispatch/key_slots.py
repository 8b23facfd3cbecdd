"""Which consumer owns a key: keys fall into slots, slots belong to consumers.

* ``SlotRing``: consistent hashing, 100 points per consumer on a ring of 65535 slots; the owner of a
  slot is the next point at or above it, going round. A consumer that comes or goes moves only the
  slots next to its points.
* ``SlotClaims``: consumers name their ranges; no overlap, and a slot nobody claimed has no owner.

Slots are 1..65535; 0 means "no slot".
"""

from bisect import bisect_left, bisect_right, insort
from typing import Final, Protocol

from penstock.engine.consumer import Consumer, ConsumerRefusal, RefusalReason
from penstock.engine.dispatch.murmur3 import murmur3_31, murmur3_32

SLOTS: Final = 65535
POINTS_PER_CONSUMER: Final = 100


class SlotOwners(Protocol):
    """A way to share out the slots."""

    def slot(self, key: bytes) -> int:
        """The slot of a key."""
        ...

    def owner(self, slot: int) -> Consumer | None:
        """Whose slot it is; None = nobody's."""
        ...

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Why this consumer cannot have a share; None = it can."""
        ...

    def add(self, consumer: Consumer) -> None:
        """Give it its share."""
        ...

    def remove(self, consumer: Consumer) -> None:
        """Give its share to others."""
        ...


class SlotRing:
    """Shares by consistent hashing."""

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
        """1..65535."""
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


class SlotClaims:
    """Shares as the consumers claim them."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: list[tuple[int, int, Consumer]] = []

    def slot(self, key: bytes) -> int:
        """0..65535 with 0 counted as 1."""
        return murmur3_31(key) % (SLOTS + 1) or 1

    def owner(self, slot: int) -> Consumer | None:
        """The one whose range covers the slot."""
        at = bisect_right(self._claims, slot, key=lambda claim: claim[0]) - 1
        if at < 0 or slot > self._claims[at][1]:
            return None
        return self._claims[at][2]

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Ranges must be in order, within 0..65535 and free."""
        if not consumer.key_ranges:
            return _mixed(consumer)
        claimed = [(start, end, other.name) for start, end, other in self._claims]
        for start, end in consumer.key_ranges:
            if not 0 <= start <= end <= SLOTS:
                text = f"key range {start}..{end} of {consumer.name!r} is not within 0..{SLOTS}"
                return ConsumerRefusal(RefusalReason.KEY_RANGE, text)
            for other_start, other_end, name in claimed:
                if start <= other_end and other_start <= end:
                    text = (
                        f"key range {start}..{end} of {consumer.name!r} overlaps "
                        f"{other_start}..{other_end} of {name!r}"
                    )
                    return ConsumerRefusal(RefusalReason.KEY_RANGE, text)
            claimed.append((start, end, consumer.name))
        return None

    def add(self, consumer: Consumer) -> None:
        """Claim its ranges."""
        for start, end in consumer.key_ranges:
            insort(self._claims, (start, end, consumer), key=lambda claim: claim[0])

    def remove(self, consumer: Consumer) -> None:
        """Its ranges are nobody's."""
        self._claims = [claim for claim in self._claims if claim[2] is not consumer]


def _mixed(consumer: Consumer) -> ConsumerRefusal:
    return ConsumerRefusal(
        RefusalReason.KEY_RANGE,
        f"consumer {consumer.name!r} and the ones already here do not share out keys the same way; "
        "either all name their key ranges or none does",
    )
