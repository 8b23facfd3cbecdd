"""Bit maps beside the index: which registered selectors a message matched when it was stored.

With maps a reader can pass over a message without reading it: the selector was asked once, at the
append, and its answer is a few bits. They only ever save work. A map says "maybe" about everything
it cannot judge: a message stored before the selector was registered, one without a map (older than
what is kept, stored by a path that makes none, before a restart), a map of another size.

Who makes them: ``appended(batch)``, through ``Engine.watch_appends``, before anybody can read it.
Who asks: ``OffsetJudge.may_match(first_offset)``, a ``Pull.prefilter``, before the record is read.

Invariants: a map without a reader's bits means that its selector was asked and was not true; maps
of one queue lie in one block of bytes by offset, at most ``maps_per_queue_max`` of them; a gap is
filled with "maybe". Kept in memory only: after a restart everything is "maybe" again.
Not here: the bits (``bloom.py``), the selectors (``sql92.py``).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.engine.filter.bloom import BloomShape
from penstock.engine.filter.sql92 import PropertiesReader, Selector
from penstock.log.encode import Appending
from penstock.model.record import Record, RecordKind

MAPS_PER_QUEUE_MAX: Final = 65_536
"""Maps kept of one queue, the newest: 0.9 MiB of 112-bit maps."""

QUEUES_MAX: Final = 64
"""Queues with maps at a time, so 57 MiB at most; queues beyond are read without."""

SELECTORS_PER_QUEUE_MAX: Final = 32
"""Selectors asked for one append; those beyond are asked by their readers only."""


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


class OffsetJudge:
    """What a reader asks before it reads a record of one queue."""

    __slots__ = ("_maps", "_queue_id", "_registration")

    def __init__(self, maps: "BitMaps", registration: Registration, queue_id: int) -> None:
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
        """The queue is gone."""
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

    def judge(self, name: str, queue_id: int) -> OffsetJudge | None:
        """What the reader of this name asks about a queue; None when nothing is mapped for it."""
        registration = self._registrations.get(name)
        maps = self._by_queue.get(queue_id)
        if registration is None or maps is None or registration not in maps.registrations:
            return None
        return OffsetJudge(self, registration, queue_id)

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
        """True when nobody is left."""
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
