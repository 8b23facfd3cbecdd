"""Stored records as the bytes a RocketMQ client reads: pulls, pops, look-ups.

A record that came over this wire is its own answer, byte for byte. One that was released later
(delay, transaction, retry) has its offset only since then, so its place is written into a copy; one
that was released into another topic gets that topic's name, too (D14). Records of other protocols
are presented as messages of this one (D16).

Not here: the presenting (``present.py``), how bytes are changed (``wire/rocketmq/stored.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.naming import wire_name
from penstock.adapters.rocketmq.present import present
from penstock.engine.host import IndexEntry
from penstock.engine.topic import Queue
from penstock.log.index import IndexFlag
from penstock.model.record import Record, RecordKind, Wire
from penstock.wire.rocketmq.stored import (
    SysFlag,
    placed,
    prepared_offset_of,
    retopic,
    sys_flag_of,
    topic_field,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House

_ROCKETMQ: Final = int(Wire.ROCKETMQ)
_RELEASED: Final = int(IndexFlag.RELEASED)
_TRANSACTION: Final = int(SysFlag.TRANSACTION_ROLLBACK)
_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)


def shown(house: House, queue: Queue, record: Record, entry: IndexEntry) -> list[bytes]:
    """The stored messages of one index entry, as its queue shows them."""
    if record.wire != _ROCKETMQ:
        return _presented(house, queue, record, entry)
    if entry[7] & _RELEASED:
        return [shown_in(queue, record, entry[1])]
    return [record.origin]


def shown_in(queue: Queue, record: Record, offset: int) -> bytes:
    """A record of this wire at a place that is not the one it was stored for."""
    origin = record.origin
    topic = wire_name(queue.topic.name)
    _, field = topic_field(topic)
    if sys_flag_of(origin) & _TRANSACTION == _COMMIT and not prepared_offset_of(origin):
        # A half message that was committed: it says where it lay before, which is where it lies.
        origin = retopic(origin, topic, prepared_offset=record.position)
    elif not origin.startswith(field, record.shape.body_at + record.shape.body_len):
        origin = retopic(origin, topic)
    return placed(origin, queue.number, offset, record.position)


def shown_at(house: House, position: int) -> bytes | None:
    """The message that a commitLogOffset names, as its queue shows it; None = not there.

    Of a record with several targets each has a commitLogOffset of its own (D4).
    """
    located = house.engine.locate(position)
    if located is None or not located.targets or located.record.kind != RecordKind.MESSAGE:
        return None
    record, targets, number = located
    if number >= max(record.messages, len(targets)):
        return None  # inside the record, but the number of nothing in it
    if record.wire == _ROCKETMQ:
        return record.origin
    target = number if len(targets) > 1 else 0
    queue_id, offset = targets[target]
    queue = house.engine.queue(queue_id)
    if queue is None:
        return None
    entry = (position - number + target, int(offset), 0, record.store_ms, 0, record.messages, 0, 0)
    found = _presented(house, queue, record, entry)
    return found[number - target] if number - target < len(found) else None


def _presented(house: House, queue: Queue, record: Record, entry: IndexEntry) -> list[bytes]:
    """A record of another protocol."""
    return [
        present(
            house,
            record,
            wire_name(queue.topic.name),
            queue_number=queue.number,
            offset=entry[1],
            position=entry[0],
        )
    ]
