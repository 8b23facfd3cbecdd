"""The way out: what the engine hands to a consumer becomes frames of its channel, a list at a time.

Per list: one look whether all records are plain AMQP ones of one shape (the rule), one entry in the
ledger of delivery tags, one piece of bytes. Records of other protocols are rewritten as AMQP shows
them (``present.py``); what came back to a quorum queue says how often.

F14: what the socket has not taken is counted by the engine when it hands a list over, against the
connection's ``UnsentLimit``; ``Session.flushed`` gives it back and ``Consuming.wake`` lets the
engine go on. So a peer that does not read stops its own connection's deliveries and nobody else's.

Not here: tags (``unacked.py``), the layout of frames (``wire/amqp/serializer.py``).
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.present import as_amqp, with_attempts
from penstock.model.record import Record, Wire

if TYPE_CHECKING:
    from penstock.adapters.amqp.consumers import ConsumerEntry, Holder
    from penstock.engine.subscription.consumer import Delivery

_AMQP: Final = int(Wire.AMQP)
_RECORD: Final = attrgetter("record")
_SHAPE: Final = attrgetter("shape")
_OFFSET: Final = attrgetter("offset")
_QUEUE: Final = attrgetter("queue_id")
_IS_REDELIVERED: Final = attrgetter("is_redelivered")


def deliver(entry: ConsumerEntry, deliveries: list[Delivery]) -> None:
    """Send these to a consumer; what needs an ack is in the ledger afterwards."""
    count = len(deliveries)
    records: list[Record] = list(map(_RECORD, deliveries))
    first = records[0].shape
    is_plain = first.wire == _AMQP and (
        count == 1 or list(map(_SHAPE, records)).count(first) == count
    )
    redelivered: list[bool] | None = None
    again = 0
    if True in map(_IS_REDELIVERED, deliveries):
        redelivered = list(map(_IS_REDELIVERED, deliveries))
        again = redelivered.count(True)
    if not is_plain or (redelivered is not None and entry.is_counted):
        records = [presented(entry, delivery) for delivery in deliveries]
    channel, is_no_ack = entry.channel, entry.is_no_ack
    consuming = channel.consuming
    consuming.tally.delivered(count, again, is_no_ack=is_no_ack)
    entry.queue.tally.delivered(count, again, is_no_ack=is_no_ack)
    if is_no_ack:
        first_tag = consuming.unacked.skip(count)
    else:
        first_tag = note(entry, deliveries, is_plain=is_plain)
    if channel.line.is_waiting:
        channel.line.note_deliveries(count, sum([delivery.size for delivery in deliveries]))
    channel.send(entry.deliveries.encode(records, first_tag, redelivered))


def note(holder: Holder, deliveries: list[Delivery], *, is_plain: bool) -> int:
    """Enter deliveries into the ledger; the first tag."""
    channel = holder.channel
    unacked = channel.consuming.unacked
    now_ms = channel.house.clock.monotonic_ms()
    first_tag = unacked.next_tag
    if is_plain and len(holder.queue.topic.queues) == 1:
        offsets = list(map(_OFFSET, deliveries))
        return unacked.add(holder, deliveries[0].queue_id, offsets, now_ms)
    for queue_id, group in groupby(deliveries, _QUEUE):
        offsets = []
        for delivery in group:
            span = delivery.record.messages
            if span == 1:
                offsets.append(delivery.offset)
                continue
            if offsets:
                unacked.add(holder, queue_id, offsets, now_ms)
                offsets = []
            whole = list(range(delivery.offset, delivery.offset + span))
            unacked.add_batch(holder, queue_id, whole, now_ms)
        if offsets:
            unacked.add(holder, queue_id, offsets, now_ms)
    return first_tag


def presented(holder: Holder, delivery: Delivery) -> Record:
    """The record of a delivery as its AMQP peer shall see it."""
    record = delivery.record
    if record.shape.wire != _AMQP:
        house = holder.channel.house
        bytes_max = house.all_settings.topics.message_bytes_max
        reader = house.engine.facts.get(record.wire)
        record = as_amqp(record, holder.queue.name, reader=reader, bytes_max=bytes_max)
    if delivery.attempts and holder.is_counted:
        record = with_attempts(record, delivery.attempts)
    return record
