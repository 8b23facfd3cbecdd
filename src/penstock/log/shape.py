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

from penstock.log.cursors import entry_flags
from penstock.log.entry import template
from penstock.log.index_files import ENTRY_FACTS
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
    Record, int, bytes, bytes, Callable[..., bytes], int, int, int, bytes, int, int, Stamps | None
]
"""``(sample, size, head, tail, pack, length, messages, flags, facts, tag_at, tag_end, stamps)``:

a record of this shape, for comparing, whose origin and birth are his who compares (he gives the
origin back); its origin bytes, -1 when it has to be staged on its own; its ``entry.Template``; its
messages; flags and packed facts of its index entries; where its tag is, ``tag_end`` 0 for none; how
it is stamped.
"""

UNCOMMON: Final[Shape] = (
    Record(b"", kind=0), -1, b"", b"", bytes, 0, 0, 0, b"", 0, 0, None
)  # fmt: skip
"""Several shapes that have only this in common; nothing equals its sample."""


def shape_of(record: Record) -> Shape:
    """The shape of a record for one queue."""
    if record.kind != _MESSAGE or record.flags & UNINDEXED:
        return UNCOMMON
    return _known(
        (
            len(record.origin), record.wire, record.flags, record.priority, record.messages,
            record.expire_ms, record.deliver_ms, record.key_at, record.key_len, record.tag_at,
            record.tag_len, record.props_at, record.props_len, record.body_at, record.body_len,
            record.stamp_offset_at, record.stamp_position_at, record.stamp_store_ms_at,
        )
    )  # fmt: skip


@lru_cache(maxsize=256)
def _known(facts: tuple[int, ...]) -> Shape:
    """The shape with these facts; remembered, for messages differ in size more than in kind."""
    size, wire, flags, priority, messages, expire_ms, deliver_ms = facts[:7]
    key_at, key_len, tag_at, tag_len, props_at, props_len, body_at, body_len = facts[7:15]
    sample = Record(
        bytes(size), wire, _MESSAGE, flags, priority, messages, 0, expire_ms, deliver_ms, key_at,
        key_len, tag_at, tag_len, props_at, props_len, body_at, body_len,
    )  # fmt: skip
    places = facts[15:]
    sample.stamp_offset_at, sample.stamp_position_at, sample.stamp_store_ms_at = places
    stamps = None
    if any(place != NO_STAMP for place in places):
        offset_at, position_at, store_ms_at = places
        is_usual = (
            0 <= offset_at <= position_at - _STAMP_BYTES
            and position_at <= store_ms_at - _STAMP_BYTES
            and store_ms_at <= size - _STAMP_BYTES
        )
        if not is_usual:
            return UNCOMMON
        stamps = _stamps(offset_at, position_at, store_ms_at)
    common = template(sample)
    if common is None:
        return UNCOMMON
    sample.origin = b""
    head, tail, pack, length = common
    index_flags = entry_flags(sample)
    return (
        sample, size, head, tail, pack, length, messages, index_flags,
        ENTRY_FACTS.pack(length, messages, 0, index_flags), tag_at,
        tag_at + tag_len if tag_len else 0, stamps,
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
