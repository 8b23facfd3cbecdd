"""When messages run out of time.

A message expires at the head of its subscription only: either it is about to be delivered, or it
has been the next one for long enough. Whichever comes first of its own ``expire_ms`` and the
topic's time to live counts. The moment is wall time in the record and becomes monotonic when it is
armed (D14).

Not here: what becomes of an expired message (``pick``, the host's dead letters), unused topics
(``housekeeping``).
"""

from penstock.engine.host import IndexEntry
from penstock.engine.lane import Lane
from penstock.model.record import Record


def expires_ms(entry: IndexEntry, record: Record, ttl_ms: int) -> int:
    """Wall time after which the message is expired; 0 = never."""
    own = record.expire_ms
    if not ttl_ms:
        return own
    by_topic = entry[3] + max(ttl_ms, 0)
    return min(own, by_topic) if own else by_topic


def head_of(lane: Lane) -> int:
    """The next offset to deliver; the lane's end when there is none."""
    again = lane.redelivery.again
    return again[0] if again else lane.next_offset
