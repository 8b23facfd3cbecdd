"""A place to pop from, and the messages popped there that nobody has settled yet.

A place is one queue, or with ``ALL_QUEUES`` every queue of a broker. Nothing is committed by the
client: a message is settled by its receipt, within its invisible time, or it comes again.

Invariants: a message is counted from its pop until its result is in, or its time is up; a dropped
place pops nothing, but what it popped may still be settled: the receipts stay good.
Not here: the pops (``pop.py``), results (``pop_service.py``).
"""

from typing import Final
from uuid import uuid4

from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.message import ReceivedMessage
from penstock.flow.thresholds import Cached
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.pop_handle import PopHandle
from penstock.wire.rocketmq.stored import StoredMessage

NO_OFFSET: Final = -1
"""A popped place has no offset of its own: the broker keeps it."""


class PoppedMessage(ReceivedMessage):
    """A received message with its receipt."""

    __slots__ = ("deadline_ms", "handle", "popped_from")

    def __init__(
        self,
        stored: StoredMessage,
        queue: QueueRef,
        handle: PopHandle,
        text: str,
        *,
        popped_from: "PopQueue",
        deadline_ms: int,
    ) -> None:
        super().__init__(stored, queue, text)
        self.handle = handle
        self.popped_from = popped_from
        self.deadline_ms = deadline_ms
        """Monotonic; from then on the broker may have given it to somebody else."""

    def renew(self, handle: PopHandle, deadline_ms: int) -> None:
        """Its invisible time was changed: the old receipt is void."""
        self.handle = handle
        self.pop_handle = str(handle)
        self.deadline_ms = deadline_ms

    def is_too_late(self, now_ms: int) -> bool:
        """True when no result counts any more."""
        return now_ms >= self.deadline_ms


class PopQueue(AssignedQueue):
    """One place."""

    __slots__ = ("attempt_id", "popped", "settled", "unacked")

    def __init__(self, queue: QueueRef, now_ms: int) -> None:
        super().__init__(queue, NO_OFFSET, now_ms)
        self.unacked = 0
        self.popped = 0
        """Messages popped since the beginning."""
        self.settled = 0
        """Those acknowledged or given back in time."""
        self.attempt_id = new_attempt()
        """The same in every try of one ordered pop: a lost answer can be asked for again."""

    @property
    def cached(self) -> Cached:
        """What the limit looks at."""
        return Cached(self.unacked, 0, 0)

    def found(self, messages: int) -> None:
        """A pop brought so many."""
        self.unacked += messages
        self.popped += messages

    def ended(self, messages: int, *, in_time: bool) -> None:
        """So many are off our hands."""
        self.unacked -= messages
        assert self.unacked >= 0, "more popped messages ended than were popped"
        if in_time:
            self.settled += messages
        if self.wake is not None:
            self.wake()


def new_attempt() -> str:
    """An id for an ordered pop."""
    return uuid4().hex
