"""What length limits and operators ask of a subscription: how much waits, how long nobody took it.

Not here: the limits (``limits.py``).
"""

from abc import ABC

from penstock.engine.body_bytes import BodyBytes
from penstock.engine.deliver import Journey
from penstock.engine.host import Host, SubscribedQueue
from penstock.engine.ready_bytes import ReadyBytes
from penstock.engine.taking import Takes
from penstock.model.ids import QueueId, SubscriptionId


class Measured(Takes, ABC):
    """The part of a subscription that answers them."""

    __slots__ = ("_body_bytes", "_ready_bytes", "_unserved_ms", "_unserved_since_ms")

    def __init__(
        self, subscription_id: SubscriptionId, name: str, host: Host, journey: Journey
    ) -> None:
        super().__init__(subscription_id, name, host, journey)
        self._ready_bytes: dict[QueueId, ReadyBytes] = {}
        self._body_bytes: dict[QueueId, BodyBytes] = {}
        self._unserved_ms = 0
        self._unserved_since_ms: int | None = None

    @property
    def unserved_ms(self) -> int:
        """Time, since the start, in which messages were ready and nobody took them."""
        since_ms = self._unserved_since_ms
        if since_ms is None:
            return self._unserved_ms
        return self._unserved_ms + self._host.clock.monotonic_ms() - since_ms

    @property
    def is_unserved(self) -> bool:
        """True while messages are ready and nobody takes them."""
        return self._unserved_since_ms is not None

    @property
    def is_noteworthy(self) -> bool:
        """True when the diagnosis may have something to say about it."""
        if self._settler.inflight.is_blocked or self._settler.dying:
            return True
        return any(lane.ready_messages for lane in self._order)

    def _note_service(self, is_unserved: bool) -> None:
        """A round is over; whether it left something because nobody could take more."""
        if is_unserved is (self._unserved_since_ms is None):
            now_ms = self._host.clock.monotonic_ms()
            if self._unserved_since_ms is None:
                self._unserved_since_ms = now_ms
            else:
                self._unserved_ms += now_ms - self._unserved_since_ms
                self._unserved_since_ms = None

    @property
    def lead_queue(self) -> SubscribedQueue:
        """One of its queues; all are of one topic."""
        return self._order[0].queue

    def room(self) -> int:
        """Messages its consumers would take at once, as far as one round looks."""
        if self._settler.inflight.is_blocked:
            return 0
        return sum(taker.room() for taker in self._order[0].dispatcher.takers())

    def body_bytes(self) -> tuple[int, int]:
        """Of what is ready and of what is in flight, as exactly as a look may cost."""
        known = self._body_bytes
        for lane in self._order:
            if lane.queue_id not in known:
                known[lane.queue_id] = BodyBytes(lane, self._host.read)
        found = [each.look() for each in known.values()]
        # Where a limit asks, somebody counts: that is exact.
        ready = self.ready_body_bytes() if self._ready_bytes else sum([each[0] for each in found])
        return ready, sum([each[1] for each in found])

    def ready_body_bytes(self) -> int:
        """Body bytes of what waits, in all queues; the first call reads them."""
        known = self._ready_bytes
        for lane in self._order:
            if lane.queue_id not in known:
                known[lane.queue_id] = ReadyBytes(lane, self._host.read)
        return sum(each.total() for each in known.values())
