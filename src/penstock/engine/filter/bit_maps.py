"""Bit maps beside the index: which registered selectors a message matched when it was stored.

With maps a reader can pass over a message without reading it: the selector was asked once, at the
append, and its answer is a few bits. They only ever save work. A map says "maybe" about everything
it cannot judge: a message stored before the selector was registered, one without a map (older than
what is kept, stored by a path that makes none, before a restart), a map of another size.

Who makes them: ``appended(batch)``, through ``Engine.watch_appends``, before anybody can read it.
Who asks: ``OffsetPrefilter.may_match``, as a ``Pull.prefilter``, before the record is read.

Invariants: a map without a reader's bits means that its selector was asked and was not true; maps
of one queue lie in one block of bytes by offset, at most ``maps_per_queue_max`` of them; a gap is
filled with "maybe". Kept in memory only: after a restart everything is "maybe" again.
Not here: the selectors (``sql92.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.engine.filter.sql92 import PropertiesReader, Selector
from penstock.log.encode import Appending
from penstock.model.record import Record, RecordKind

MAPS_PER_QUEUE_MAX: Final = 65_536
"""Maps kept of one queue, the newest: 0.9 MiB of 112-bit maps."""

QUEUES_MAX: Final = 64
"""Queues with maps at a time, so 57 MiB at most; queues beyond are read without."""

SELECTORS_PER_QUEUE_MAX: Final = 32
"""Selectors asked for one append; those beyond are asked by their readers only."""


class BitMaps:
    """All maps, and the selectors they are made from."""

    __slots__ = (
        "_by_queue",
        "_properties",
        "_registrations",
        "errors",
        "maps_per_queue_max",
        "shape",
    )

    def __init__(
        self,
        properties: PropertiesReader,
        shape: BloomShape | None = None,
        *,
        maps_per_queue_max: int = MAPS_PER_QUEUE_MAX,
    ) -> None:
        self.shape = shape or BloomShape()
        self.maps_per_queue_max = maps_per_queue_max
        self.errors = 0
        """Messages whose properties could not be read: mapped as "maybe"."""
        self._properties = properties
        self._registrations: dict[str, Registration] = {}
        self._by_queue: dict[int, _QueueMaps] = {}

    def register(
        self, name: str, selector: Selector, queue_ids: Iterable[int]
    ) -> Registration | None:
        """Map these queues for a reader from now on; None when there is no room for it.

        The same name with the same expression stays as it is (new queues are added); with another
        expression it begins anew, because older maps speak of the other one.
        """
        registration = self._registrations.get(name)
        if registration is not None and registration.selector.expression != selector.expression:
            self.unregister(name)
            registration = None
        if registration is None:
            registration = Registration(name, selector, self.shape)
        watched = 0
        for queue_id in queue_ids:
            watched += self._watch(queue_id, registration)
        if not watched:
            return None
        self._registrations[name] = registration
        return registration

    def unregister(self, name: str) -> None:
        """Nobody reads by this selector any more."""
        registration = self._registrations.pop(name, None)
        if registration is None:
            return
        registration.is_live = False
        for queue_id in [
            queue_id for queue_id, maps in self._by_queue.items() if maps.remove(registration)
        ]:
            del self._by_queue[queue_id]

    def dropped(self, queue_id: int) -> None:
        maps = self._by_queue.pop(queue_id, None)
        for registration in maps.registrations if maps is not None else ():
            registration.floors.pop(queue_id, None)

    def appended(self, batch: Sequence[Appending]) -> None:
        """Map what was appended; costs nothing while no selector is registered."""
        if not self._by_queue:
            return
        for appending in batch:
            # A delayed message has no offset yet, and its release no properties: "maybe" then.
            if appending.record.kind != RecordKind.MESSAGE:
                continue
            for queue, offset in zip(appending.queues, appending.first_offsets, strict=False):
                maps = self._by_queue.get(queue.queue_id)
                if maps is not None:
                    made = self._made(appending.record, maps.registrations)
                    maps.put(offset, made, queue.queue_id)

    def prefilter(self, name: str, queue_id: int) -> OffsetPrefilter | None:
        """What the reader of this name asks about a queue; None when nothing is mapped for it."""
        registration = self._registrations.get(name)
        maps = self._by_queue.get(queue_id)
        if registration is None or maps is None or registration not in maps.registrations:
            return None
        return OffsetPrefilter(self, registration, queue_id)

    def bit_map(self, queue_id: int, offset: int) -> bytearray | None:
        """The map of one message; None when there is none."""
        maps = self._by_queue.get(queue_id)
        return None if maps is None else maps.get(offset)

    def _watch(self, queue_id: int, registration: Registration) -> bool:
        maps = self._by_queue.get(queue_id)
        if maps is None:
            if len(self._by_queue) >= QUEUES_MAX:
                return False
            maps = self._by_queue[queue_id] = _QueueMaps(self.shape, self.maps_per_queue_max)
        if registration not in maps.registrations:
            if len(maps.registrations) >= SELECTORS_PER_QUEUE_MAX:
                return False
            maps.registrations.append(registration)
        return True

    def _made(self, record: Record, registrations: list[Registration]) -> int:
        try:
            properties = self._properties(record)
        except ValueError:
            self.errors += 1
            return self.shape.all_set
        bits = 0
        for registration in registrations:
            if registration.selector.matches(properties):
                bits |= registration.mask
        return bits


class Registration:
    """One reader's selector, as long as it is registered."""

    __slots__ = ("floors", "is_live", "mask", "name", "selector", "shape")

    def __init__(self, name: str, selector: Selector, shape: BloomShape) -> None:
        self.name = name
        self.selector = selector
        self.shape = shape
        self.mask = shape.mask(name)
        self.floors: dict[int, int] = {}
        """queue id -> first offset that was mapped with this selector; below it is "maybe"."""
        self.is_live = True


class OffsetPrefilter:
    """What a reader asks before it reads a record of one queue."""

    __slots__ = ("_maps", "_queue_id", "_registration")

    def __init__(self, maps: BitMaps, registration: Registration, queue_id: int) -> None:
        self._maps = maps
        self._registration = registration
        self._queue_id = queue_id

    def may_match(self, first_offset: int) -> bool:
        """False only when the selector was not true for the message at this offset."""
        registration = self._registration
        floor = registration.floors.get(self._queue_id)
        if floor is None or first_offset < floor or not registration.is_live:
            return True
        found = self._maps.bit_map(self._queue_id, first_offset)
        return may_hold(found, registration.shape, registration.mask)


def may_hold(found: bytes | bytearray | None, shape: BloomShape, mask: int) -> bool:
    """Whether a map can hold a name; no map and a map of another size can."""
    if found is None or len(found) * 8 != shape.bits:
        return True
    return int.from_bytes(found, "little") & mask == mask


class _QueueMaps:
    """The maps of one queue: equal pieces of one block, in the order of offsets."""

    __slots__ = ("_block", "_count_max", "_first_offset", "_width", "registrations")

    def __init__(self, shape: BloomShape, count_max: int) -> None:
        self.registrations: list[Registration] = []
        self._width = shape.bits // 8
        self._count_max = count_max
        self._block = bytearray()
        self._first_offset = 0

    def remove(self, registration: Registration) -> bool:
        if registration in self.registrations:
            self.registrations.remove(registration)
        return not self.registrations

    def put(self, offset: int, bits: int, queue_id: int) -> None:
        width = self._width
        made = bits.to_bytes(width, "little")
        end = self._first_offset + len(self._block) // width
        # Not below what was mapped before: that was made without the newer selectors.
        floor = max(offset, end)
        for registration in self.registrations:
            registration.floors.setdefault(queue_id, floor)
        if self._first_offset <= offset < end:
            at = (offset - self._first_offset) * width
            self._block[at : at + width] = made
        elif self._block and 0 <= offset - end < self._count_max:
            # A batch, or messages stored without asking, may lie between: "maybe".
            self._block += b"\xff" * ((offset - end) * width) + made
        else:
            # The first map, or so far from the others that they are not worth keeping.
            self._block[:] = made
            self._first_offset = offset
        surplus = len(self._block) // self._width - self._count_max
        # By quarters, for each cut moves what stays.
        if surplus > self._count_max // 4:
            del self._block[: surplus * self._width]
            self._first_offset += surplus

    def get(self, offset: int) -> bytearray | None:
        at = (offset - self._first_offset) * self._width
        return self._block[at : at + self._width] if 0 <= at < len(self._block) else None


# ---- bloom bits ---------------------------------------------------------------------------------


ERROR_PERCENT: Final = 20
"""Chance of a wrong "maybe" when the map is as full as planned."""

NAMES_PLANNED: Final = 32
"""Readers with a filter on one topic for which the map is sized."""

_MASK_64: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class BloomShape:
    """How many bits a map has, and which of them stand for a name.

    A map is computed for a message from the names of all readers whose filter it matches. A reader
    whose bits are not all set is surely not among them; the other way round it may be chance, by
    design about once in five when the map holds as many names as it is made for.

    A map is an integer of ``bits`` bits; bit 0 is position 0. The positions are fixed by arithmetic
    that other programs share (Kirsch and Mitzenmacher, 64 bits of murmur3): see the golden test.
    """

    error_percent: int = ERROR_PERCENT
    names_planned: int = NAMES_PLANNED
    hashes: int = field(init=False)
    bits: int = field(init=False)
    """A multiple of 8."""

    def __post_init__(self) -> None:
        if not 1 <= self.error_percent < 100:
            raise ValueError(f"error_percent is {self.error_percent}; it must be 1 to 99")
        if self.names_planned < 1:
            raise ValueError(f"names_planned is {self.names_planned}; it must be at least 1")
        halvings = math.log2(100 / self.error_percent)
        object.__setattr__(self, "hashes", math.ceil(halvings))
        bits = math.ceil(self.names_planned * halvings * math.log2(math.e))
        object.__setattr__(self, "bits", -(-bits // 8) * 8)

    @property
    def all_set(self) -> int:
        """The map that can hold every name."""
        return (1 << self.bits) - 1

    def positions(self, name: str) -> list[int]:
        """The bits that stand for a name, in order of their making."""
        low, _ = murmur3_128(name.encode())
        first, second = _signed(low), _signed(low >> 32)
        made = []
        for turn in range(1, self.hashes + 1):
            combined = _signed(first + turn * second)
            made.append((~combined if combined < 0 else combined) % self.bits)
        return made

    def mask(self, name: str) -> int:
        """The map that holds this name and nothing else."""
        mask = 0
        for position in self.positions(name):
            mask |= 1 << position
        return mask


def murmur3_128(data: bytes) -> tuple[int, int]:
    """murmur3, 128 bits, x64 variant, seed 0: (low, high) 64 bits."""
    low = high = 0
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        low ^= _mixed_low(int.from_bytes(data[at : at + 8], "little"))
        low = (_rotated(low, 27) + high) * 5 + 0x52DCE729 & _MASK_64
        high ^= _mixed_high(int.from_bytes(data[at + 8 : at + 16], "little"))
        high = (_rotated(high, 31) + low) * 5 + 0x38495AB5 & _MASK_64
    low ^= _mixed_low(int.from_bytes(data[whole : whole + 8], "little"))
    high ^= _mixed_high(int.from_bytes(data[whole + 8 :], "little"))
    low ^= len(data)
    high ^= len(data)
    low = low + high & _MASK_64
    high = high + low & _MASK_64
    low, high = _finished(low), _finished(high)
    low = low + high & _MASK_64
    return low, high + low & _MASK_64


def _mixed_low(word: int) -> int:
    return _rotated(word * _C1 & _MASK_64, 31) * _C2 & _MASK_64


def _mixed_high(word: int) -> int:
    return _rotated(word * _C2 & _MASK_64, 33) * _C1 & _MASK_64


def _rotated(word: int, count: int) -> int:
    return (word << count | word >> (64 - count)) & _MASK_64


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK_64
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK_64
    return word ^ word >> 33


def _signed(word: int) -> int:
    word &= 0xFFFF_FFFF
    return word - (1 << 32) if word >> 31 else word
