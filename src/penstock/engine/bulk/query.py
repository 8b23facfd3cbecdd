"""One Spark query as the broker knows it: where it stands, how fast it is, what is kept for it.

Where it stands is a subscription ``spark/<name>`` on each of its topics: durable, without consumers
and not among those that hold data by themselves (D11), because its lease does that. The position is
what the query says it has processed for good: the ``start`` of its polls.

Invariant: a position goes back only when a query that was silent takes its lease there, or when two
words of it in a row name an older place: one that was late does not undo the one after it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.engine.subscription_options import Mode, SubscriptionOptions
from penstock.flow.spark_brake import Backlog, Cause, DrainRate, Lease
from penstock.model.progress import BatchProgress

if TYPE_CHECKING:
    from penstock.engine.queue import Queue
    from penstock.engine.subscription import Subscription
    from penstock.engine.topic import Topic

_log = logging.getLogger(__name__)

PREFIX: Final = "spark/"
QUERY_KIND: Final = "spark-query"

POSITION_OPTIONS: Final = SubscriptionOptions(mode=Mode.EXCLUSIVE, holds_data=False)


class QueryRow(msgspec.Struct, frozen=True):
    """A query in the catalog; its key is the name, its positions are cursors."""

    ttl_ms: int
    heard_ms: int
    """Wall time; written now and then, so a restart may find it a little old."""
    cause: Cause = ""
    text: str = ""


class Query:
    """One query."""

    __slots__ = (
        "_back",
        "drain",
        "heard_ms",
        "is_limited",
        "last",
        "lease",
        "lost",
        "name",
        "polls",
        "reads",
        "saved_ms",
        "state",
        "text",
    )

    def __init__(self, name: str, lease: Lease) -> None:
        self.name: Final = name
        self.lease: Final = lease
        self.reads: dict[Topic, Subscription] = {}
        """Its topics, and its place in each."""
        self.drain = DrainRate()
        self.last = BatchProgress()
        self.state = "new"
        """new, running, idle, stopped or failed."""
        self.text = ""
        """Why it failed."""
        self.heard_ms: int | None = None
        """Monotonic time of its last word; None = not since the broker started."""
        self.saved_ms = 0
        """Wall time of the row in the catalog."""
        self.is_limited = False
        """True when the last batch was smaller than what was there: its own limits bound it."""
        self.polls = 0
        self.lost = 0
        """Most messages of a queue that were gone before it read them."""
        # Offsets that one poll named below the position: the next one decides.
        self._back: dict[int, int] = {}

    def is_alive(self, now_ms: int, alive_ms_max: int) -> bool:
        """True when it was heard of lately and has not said that it is over."""
        return (
            self.heard_ms is not None
            and now_ms - self.heard_ms <= alive_ms_max
            and self.state not in ("stopped", "failed")
        )

    def row(self) -> bytes:
        """Its catalog row."""
        lease = self.lease
        return msgspec.json.encode(QueryRow(lease.ttl_ms, lease.heard_ms, lease.cause, lease.text))

    # Where it stands.

    def position(self, queue: Queue) -> int:
        """Everything below is processed; what retention removed is not counted as behind."""
        return max(self.reads[queue.topic].low_mark(queue.queue_id), queue.index.min_offset)

    def lowest(self, queue: Queue) -> int:
        """The first offset that is kept for it: a step back that one poll named counts already."""
        low = self.reads[queue.topic].low_mark(queue.queue_id)
        return min(low, self._back.get(queue.queue_id, low))

    def acknowledge(self, queue: Queue, offset: int, *, is_sure: bool = False) -> tuple[int, int]:
        """It has processed everything below; returns (messages, bytes) that this is ahead."""
        subscription, queue_id = self.reads[queue.topic], queue.queue_id
        low = subscription.low_mark(queue_id)
        if offset == low:
            self._back.pop(queue_id, None)
            return 0, 0
        if offset > low:
            self._back.pop(queue_id, None)
            size = queue.index.bytes_between(low, offset)
            subscription.commit(queue_id, offset)
            return offset - max(low, queue.index.min_offset), size
        if is_sure or queue_id in self._back:
            self._back.pop(queue_id, None)
            where = {"query": self.name, "queue": queue.name, "from": low, "to": offset}
            _log.info("a query began again at an older place", extra=where)
            subscription.commit(queue_id, offset)
        else:
            self._back[queue_id] = offset
        return 0, 0

    def topics(self) -> list[Topic]:
        """What it reads and still exists."""
        return [topic for topic in self.reads if not topic.is_deleted]

    def backlog(self, topic: Topic, wall_ms: int, now_ms: int) -> Backlog:
        """How far it is behind on one topic, unsynced messages included."""
        messages = size = 0
        oldest_ms = wall_ms
        for queue in topic.queues:
            index, low = queue.index, self.position(queue)
            if index.next_offset > low:
                messages += index.next_offset - low
                size += index.bytes_between(low, index.next_offset)
                entries = index.entries(low, 1)
                oldest_ms = min(oldest_ms, entries[0][3]) if entries else oldest_ms
        return Backlog(
            self.name,
            messages,
            size,
            wall_ms - oldest_ms,
            self.drain.messages_per_s(now_ms),
            self.drain.bytes_per_s(now_ms),
            self.last.slow_part,
        )

    def held_bytes(self) -> int:
        """Log bytes that are kept for it."""
        return sum(
            queue.index.bytes_between(self.lowest(queue), queue.index.next_offset)
            for topic in self.topics()
            for queue in topic.queues
        )
