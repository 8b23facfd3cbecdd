"""A topic the broker writes itself: ``penstock.flow``, the edges of flow control as messages.

Whoever wants to know yesterday's stalls reads a topic like any other; it is hidden in listings
(``TopicName.is_hidden``) and made when there is something to tell.

Telling must never cost more than it is worth. The records pass no admission and spend no credit, so
no stage can be held by them and telling of a hold makes no new hold to tell of. They ride along
with the turn's frame. When there are too many (``RATE_PER_S_MAX``), when the log is held or a write
fails, they are dropped and counted, never kept for later.

They keep no segment alive: the topic asks for no retention of its own, so they stay as long as
settled data does (``storage.settled_keep_ms``), and a subscription that falls behind loses its
oldest (``POLICY``).
Not here: what is told (``telemetry/events.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.engine.chain import Chain
from penstock.engine.commit import Commits
from penstock.engine.frame import Frame
from penstock.engine.registry import Registry
from penstock.engine.topic import TopicPolicy
from penstock.flow.quota import QuotaPolicy
from penstock.flow.rate import TokenBucket
from penstock.log.encode import Appending
from penstock.model.errors import AlreadyExists
from penstock.model.names import TopicName
from penstock.model.record import Record

if TYPE_CHECKING:
    from penstock.engine.queue import Queue

FLOW_TOPIC: Final = TopicName("", "penstock.flow")

RATE_PER_S_MAX: Final = 100
"""Records told per second, and at once; an alarm with ten thousand connections makes more."""

POLICY: Final = TopicPolicy(
    message_ttl_ms=24 * 3_600_000,
    quota_bytes_max=16 << 20,
    quota_policy=QuotaPolicy.EVICT,
)
"""What a subscription that is not read may keep of it."""


class SystemTopic:
    """Takes records of the broker's own, as far as nothing else suffers."""

    def __init__(
        self, name: TopicName, chain: Chain, registry: Registry, commits: Commits, *, is_on: bool
    ) -> None:
        self._name = name
        self._chain = chain
        self._registry = registry
        self._commits = commits
        self._is_on = is_on
        self._bucket = TokenBucket(RATE_PER_S_MAX, now_ms=chain.now_ms)
        # At most a second's worth: what the bucket lets pass until the next frame.
        self.waiting: list[Record] = []
        """Records that want a frame; to be looked at only."""
        self.appended = 0
        self.dropped = 0

    def offer(self, records: Sequence[Record]) -> None:
        """Tell these with the next frame, or drop them."""
        if not self._is_on or not records:
            return
        commits, now_ms = self._commits, self._chain.now_ms
        room = min(self._bucket.available(now_ms), RATE_PER_S_MAX - len(self.waiting))
        if commits.failure is not None or commits.is_held or self._queue() is None:
            room = 0
        taken = records[:room]
        self._bucket.charge(len(taken), now_ms)
        self.waiting += taken
        self.dropped += len(records) - len(taken)
        if taken:
            self._chain.stir()

    def put(self, frame: Frame) -> int:
        """Put what waits into the frame; how many, for ``failed``."""
        taken, self.waiting = self.waiting, []
        queue = self._queue()
        if queue is None:
            self.dropped += len(taken)
            return 0
        for record in taken:
            frame.append(Appending(record, (queue.index,)), (queue,))
        self.appended += len(taken)
        return len(taken)

    def failed(self, count: int) -> None:
        """The frame was refused: so much for them."""
        self.appended -= count
        self.dropped += count

    def _queue(self) -> Queue | None:
        """Where they go; None when there is no room for one topic more."""
        topic = self._registry.topics.get(self._name)
        if topic is None:
            try:
                topic = self._registry.create_topic(
                    self._name, queues=1, policy=POLICY, is_durable=True
                )
            except AlreadyExists:
                return None
        return topic.queues[0]
