"""What length limits ask of a subscription: how much waits, and how much would not have to.

Not here: the limits (``limits.py``).
"""

from abc import ABC

from penstock.engine.deliver import Journey
from penstock.engine.host import Host, SubscribedQueue
from penstock.engine.ready_bytes import ReadyBytes
from penstock.engine.taking import Takes
from penstock.model.position import QueueId, SubscriptionId


class Measured(Takes, ABC):
    """The part of a subscription that answers them."""

    __slots__ = ("_ready_bytes",)

    def __init__(
        self, subscription_id: SubscriptionId, name: str, host: Host, journey: Journey
    ) -> None:
        super().__init__(subscription_id, name, host, journey)
        self._ready_bytes: dict[QueueId, ReadyBytes] = {}

    @property
    def lead_queue(self) -> SubscribedQueue:
        """One of its queues; all are of one topic."""
        return self._order[0].queue

    def room(self) -> int:
        """Messages its consumers would take at once, as far as one round looks."""
        if self._settler.inflight.is_blocked:
            return 0
        return sum(taker.room() for taker in self._order[0].dispatcher.takers())

    def ready_body_bytes(self) -> int:
        """Body bytes of what waits, in all queues; the first call reads them."""
        known = self._ready_bytes
        for lane in self._order:
            if lane.queue_id not in known:
                known[lane.queue_id] = ReadyBytes(lane, self._host.read)
        return sum(each.total() for each in known.values())
