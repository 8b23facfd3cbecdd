"""Moving a cursor on purpose: seek, purge, and dropping the head of a queue that is too long.

Each is a settlement with a cause (D13), so that it survives a restart like any ack.
"""

from penstock.engine.host import Host
from penstock.engine.lane import Lane
from penstock.engine.pick import CHUNK_ENTRIES_MAX, Picker
from penstock.engine.settle import Settler
from penstock.flow.demand import UNLIMITED
from penstock.log.index import IndexFlag
from penstock.model.settlement import Cause


def seek(settler: Settler, lane: Lane, offset: int) -> None:
    """Go on at ``offset``, back or forth; what is in flight is no longer anybody's."""
    settler.throw_out(lane)
    lane.seek(max(0, min(offset, lane.queue.index.next_offset)))


def purge(lane: Lane) -> int:
    """Settle everything that is not in flight; returns how many messages."""
    purged = 0
    start = lane.cursor.low_mark
    end = lane.end
    # Between the in-flight entries, in order, lies what is to be purged.
    for offset in sorted(lane.pending.entries):
        purged += lane.settle(Cause.PURGED, start, min(offset, end))
        start = offset + lane.pending.entries[offset].span
    purged += lane.settle(Cause.PURGED, start, end)
    counts = lane.redelivery.counts
    in_flight = {at: count for at, count in counts.items() if at in lane.pending.entries}
    lane.redelivery.clear()
    lane.redelivery.counts.update(in_flight)
    lane.dispatcher.unpark()
    lane.next_offset = max(lane.next_offset, end)
    return purged


def drop_head(host: Host, picker: Picker, lane: Lane, messages: int, cause: Cause) -> int:
    """Settle the oldest ready messages, as dead letters; returns how many went."""
    dropped = 0
    while dropped < messages and lane.has_ready:
        left = messages - dropped
        # Looking at several buries the expired among them first: then one by one keeps the order.
        picked = picker.pick(lane, left if _is_immortal(lane, left) else 1, UNLIMITED)
        if not picked.moved:
            break
        dropped += picked.moved
        for delivery in picked.deliveries:
            offset = delivery.offset
            host.dead_letter(lane.queue, offset, delivery.record, cause, delivery.attempts)
            lane.settle(cause, offset, offset + delivery.record.messages)
            lane.redelivery.counts.pop(offset, None)
    return dropped


def _is_immortal(lane: Lane, count: int) -> bool:
    """True when none of the next messages can expire."""
    if lane.redelivery.again or lane.queue.topic.policy.message_ttl_ms:
        return False
    entries = lane.queue.index.entries(lane.next_offset, min(count, CHUNK_ENTRIES_MAX))
    return not any(entry[7] & IndexFlag.EXPIRES for entry in entries)
