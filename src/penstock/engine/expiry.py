"""When messages run out of time.

A message expires at the head of its subscription only: either it is about to be delivered, or it
has been the next one for long enough. Whichever comes first of its own ``expire_ms`` and the
topic's time to live counts. The moment is wall time in the record and becomes monotonic when it is
armed (D14).

Not here: what becomes of an expired message (``pick``, the host's dead letters), unused topics
(``housekeeping``).
"""

from penstock.engine.host import Host, IndexEntry
from penstock.engine.lane import Lane
from penstock.flow.diagnosis import EXPIRIES, UndoneView
from penstock.model.record import Record


def expires_ms(entry: IndexEntry, record: Record, ttl_ms: int) -> int:
    """Wall time after which the message is expired; 0 = never."""
    own = record.expire_ms
    if not ttl_ms:
        return own
    by_topic = entry[3] + max(ttl_ms, 0)
    return min(own, by_topic) if own else by_topic


def overdue(lane: Lane, host: Host) -> UndoneView | None:
    """What is out of time and still there, if anything is: at least so many, and since when."""
    wall_ms, now_ms = host.clock.wall_ms(), host.clock.monotonic_ms()
    head, ttl_ms = head_of(lane), lane.queue.topic.policy.message_ttl_ms
    if not 0 < lane.head_deadline_ms <= now_ms:
        return None
    found = lane.queue.index.entries(head, 1)
    record = host.read([(found[0][0], found[0][4])])[0] if found else None
    if record is None:
        return None
    late_ms = wall_ms - expires_ms(found[0], record, ttl_ms)
    # Of those with a time of their own nobody knows before they are read.
    end = lane.queue.index.search_time(wall_ms - max(ttl_ms, 0)) if ttl_ms else 0
    return UndoneView(EXPIRIES, max(1, min(end, lane.end) - head), now_ms - max(0, late_ms))


def head_of(lane: Lane) -> int:
    """The next offset to deliver; the lane's end when there is none."""
    again = lane.redelivery.again
    return again[0] if again else lane.next_offset
