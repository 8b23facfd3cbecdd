"""How the log packs the records of one shape, worked out once for all of them.

Runs of one shape are the rule in a busy broker: one producer, one topic, one kind of message. What
is left to do for each record is its position, its times, its target and its content.

Invariant: a record of this shape and size, packed with this, gives the bytes of ``entry.encode``.

Not here: the bytes themselves (``entry.py``), who packs (``intake.py``, ``run.py``).
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple

from penstock.log.cursors import entry_flags
from penstock.log.entry import template
from penstock.log.index_files import ENTRY_FACTS
from penstock.model.record import NO_STAMP, RecordFlag, RecordKind, Shape

_MESSAGE: Final = int(RecordKind.MESSAGE)
UNINDEXED: Final = int(RecordFlag.DELAYED | RecordFlag.NO_INDEX)
_STAMP_BYTES: Final = 8


class Stamps(NamedTuple):
    """How offset, position and store time get into an origin that carries them (D3)."""

    split: Callable[[bytes], tuple[Any, ...]]
    """The bytes before each of the three stamps, of a whole origin."""
    join: Callable[..., bytes]
    """``(bytes, offset, bytes, position, bytes, store_ms)``: the origin up to ``end``, stamped."""
    end: int

    def stamp(self, origin: bytes, offset: int, position: int, store_ms: int) -> bytes:
        """A whole origin with its stamps."""
        first, second, third = self.split(origin)
        front = self.join(first, offset, second, position, third, store_ms)
        return front + origin[self.end :]


class Packing(NamedTuple):
    """What records of one shape and size have in common on disk; for one target queue."""

    head: bytes
    tail: bytes
    pack: Callable[..., bytes]
    """See ``entry.Template``."""
    length: int
    """Bytes of the whole record."""
    messages: int
    flags: int
    """Flags of its index entry."""
    facts: bytes
    """The end of its index entry (``ENTRY_FACTS``), as long as it has no tag."""
    tag_at: int
    tag_end: int
    """0 when it has no tag."""
    stamps: Stamps | None


@lru_cache(maxsize=256)
def packing_of(shape: Shape, size: int) -> Packing | None:
    """How records of this shape with ``size`` origin bytes are packed; None: one by one.

    Remembered, for messages differ in size more than in kind.
    """
    if shape.kind != _MESSAGE or shape.flags & UNINDEXED:
        return None
    places = (shape.stamp_offset_at, shape.stamp_position_at, shape.stamp_store_ms_at)
    stamps = None
    if places != (NO_STAMP, NO_STAMP, NO_STAMP):
        stamps = _stamps(*places)
        if stamps is None or stamps.end > size:
            return None
    common = template(shape, size)
    if common is None:
        return None
    head, tail, pack, length = common
    flags = entry_flags(shape)
    facts = ENTRY_FACTS.pack(length, shape.messages, 0, flags)
    tag_end = shape.tag_at + shape.tag_len if shape.tag_len else 0
    return Packing(
        head, tail, pack, length, shape.messages, flags, facts, shape.tag_at, tag_end, stamps
    )


@lru_cache(maxsize=64)
def _stamps(offset_at: int, position_at: int, store_ms_at: int) -> Stamps | None:
    """Stamps in the order in which RocketMQ stores them; any other order is staged on its own."""
    first = offset_at
    second = position_at - offset_at - _STAMP_BYTES
    third = store_ms_at - position_at - _STAMP_BYTES
    if min(first, second, third) < 0:
        return None
    return Stamps(
        Struct(f"{first}s8x{second}s8x{third}s").unpack_from,
        Struct(f">{first}sq{second}sq{third}sq").pack,
        store_ms_at + _STAMP_BYTES,
    )
