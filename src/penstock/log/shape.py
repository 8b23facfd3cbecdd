"""What the records of one shape have in common, worked out once for a run of them.

Shape is everything about a record but its content, its time of birth and what the append gives it:
position, store time, target and offset. Runs of one shape are the rule in a busy broker: one
producer, one topic, one kind of message.

Invariant: a record that equals ``Shape.sample`` once origin and birth are set aside has this shape,
and packed with it gives the bytes of ``entry.encode``.

Not here: the bytes themselves (``entry.py``), the loop that uses it (``intake.py``).
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from penstock.log.cursors import entry_flags
from penstock.log.entry import template
from penstock.model.record import NO_STAMP, Record, RecordFlag, RecordKind

_MESSAGE: Final = int(RecordKind.MESSAGE)
UNINDEXED: Final = int(RecordFlag.DELAYED | RecordFlag.NO_INDEX)
_STAMP_BYTES: Final = 8


class Stamps(NamedTuple):
    """How offset, position and store time get into an origin that carries them (D3)."""

    split: Callable[[bytes], tuple[Any, ...]]
    """The bytes before each of the three stamps, of a whole origin."""
    join: Callable[..., bytes]
    """``(bytes, offset, bytes, position, bytes, store_ms)``: the origin up to ``end``."""
    end: int


Shape = tuple[
    Record, int, bytes, bytes, Callable[..., bytes], int, int, int, int, int, Stamps | None
]
"""``(sample, size, head, tail, pack, length, messages, flags, tag_at, tag_end, stamps)``:

a record of this shape, for comparing, whose origin and birth may be overwritten; its origin bytes;
its ``entry.Template``; its messages; the flags of its index entries; where its tag is, ``tag_end``
0 for none; how it is stamped. A plain tuple, because some producers never send two of one shape.
"""


def shape_of(record: Record) -> Shape | None:
    """The shape of a record for one queue; None when it must be staged on its own."""
    if record.kind != _MESSAGE or record.flags & UNINDEXED:
        return None
    size = len(record.origin)
    offset_at, position_at = record.stamp_offset_at, record.stamp_position_at
    store_ms_at = record.stamp_store_ms_at
    stamps = None
    if offset_at != NO_STAMP or position_at != NO_STAMP or store_ms_at != NO_STAMP:
        is_usual = (
            0 <= offset_at <= position_at - _STAMP_BYTES
            and position_at <= store_ms_at - _STAMP_BYTES
            and store_ms_at <= size - _STAMP_BYTES
        )
        if not is_usual:
            return None
        stamps = _stamps(offset_at, position_at, store_ms_at)
    common = template(record)
    if common is None:
        return None
    head, tail, pack, length = common
    tag_at, tag_len = record.tag_at, record.tag_len
    return (
        replace(record), size, head, tail, pack, length, record.messages, entry_flags(record),
        tag_at, tag_at + tag_len if tag_len else 0, stamps,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _stamps(offset_at: int, position_at: int, store_ms_at: int) -> Stamps:
    """Stamps in the order in which RocketMQ stores them; any other order is staged on its own."""
    first = offset_at
    second = position_at - offset_at - _STAMP_BYTES
    third = store_ms_at - position_at - _STAMP_BYTES
    return Stamps(
        Struct(f"{first}s8x{second}s8x{third}s").unpack_from,
        Struct(f">{first}sq{second}sq{third}sq").pack,
        store_ms_at + _STAMP_BYTES,
    )
