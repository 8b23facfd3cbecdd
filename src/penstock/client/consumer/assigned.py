"""A queue this consumer owns, and the two contracts around it: who consumes, who keeps queues.

Rebalancing (``rebalance.py``) decides which queues are ours and tells a ``QueueKeeper``; the keeper
makes ``AssignedQueue``s, pulls for them and hands messages to its ``ConsumeService`` (concurrent,
ordered or pop). A queue that comes back is a new object: results of the old one find
``is_dropped`` and change nothing.

Invariant: once dropped, an assigned queue neither pulls nor commits.
Not here: the cache itself (``process_queue.py``), locks of ordered queues (``locks.py``).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.client.consumer.process_queue import ProcessQueue
from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef

PULL_IDLE_MS_MAX: Final = 120_000
"""A queue whose pull loop has not run this long is dropped and made anew at the next rebalance."""


class AssignedQueue:
    """One owned queue; all times are monotonic milliseconds, 0 is never."""

    __slots__ = (
        "broker_id",
        "is_dropped",
        "is_locked",
        "is_paused",
        "last_consume_ms",
        "last_locked_ms",
        "last_pull_ms",
        "next_offset",
        "process_queue",
        "queue",
        "unlock_tries",
        "wake",
    )

    def __init__(self, queue: QueueRef, next_offset: int, now_ms: int) -> None:
        self.queue = queue
        self.process_queue = ProcessQueue()
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.broker_id = 0
        """The broker of this name to pull from, as the last answer suggested; 0 is the master."""
        self.is_dropped = False
        self.is_paused = False
        self.is_locked = False
        self.last_locked_ms = 0
        self.unlock_tries = 0
        self.last_pull_ms = now_ms
        """Set before the thresholds are looked at: a throttled queue is not an idle one."""
        self.last_consume_ms = now_ms
        self.wake: Callable[[], None] | None = None
        """Set while the pull loop waits for room: call it after settling."""

    def is_idle(self, now_ms: int) -> bool:
        """True when its pull loop must have died."""
        return now_ms - self.last_pull_ms > PULL_IDLE_MS_MAX

    def drop(self) -> None:
        """Not ours any more; whoever holds it finds this out by itself."""
        self.is_dropped = True


class DirectOutcome(NamedTuple):
    """What came of consuming one message on the broker's order (request 309)."""

    result: str
    """``CR_SUCCESS``, ``CR_LATER``, ``CR_ROLLBACK``, ``CR_COMMIT`` or ``CR_THROW_EXCEPTION``."""
    remark: str
    spent_ms: int
    is_ordered: bool
    is_auto_commit: bool = True


class ConsumeService(Protocol):
    """Gives messages to the listener and sees to what comes of it."""

    def start(self) -> None:
        """Begin; called on the client's loop."""
        ...

    async def stop(self, wait_ms: int) -> None:
        """Take no new messages; return when the listeners ended, or after ``wait_ms``."""
        ...

    def submit(self, assigned: AssignedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Consume these; they are in the queue's cache already."""
        ...

    async def dropped(self, assigned: AssignedQueue) -> bool:
        """The queue is being given up; False when that must wait (ordered: a listener runs)."""
        ...

    async def released(self, assigned: AssignedQueue) -> None:
        """After ``dropped`` and the last persist: the next owner may begin (ordered: unlock)."""
        ...

    async def consume_directly(self, message: ReceivedMessage) -> DirectOutcome:
        """Call the listener with one message now, whoever owns its queue."""
        ...


class QueueKeeper(Protocol):
    """Who owns assigned queues: what rebalancing needs to know and may ask for."""

    def owned(self) -> Mapping[QueueRef, AssignedQueue]:
        """The queues owned now, of all topics."""
        ...

    async def first_offset(self, queue: QueueRef) -> int | None:
        """Where to begin with a new queue, stale knowledge forgotten; None: not now, try later."""
        ...

    async def start_queue(self, queue: QueueRef, offset: int) -> None:
        """It is ours: make it and pull; the first pull begins after this has returned."""
        ...

    async def stop_queue(self, queue: QueueRef) -> bool:
        """Not ours any more: drop, ``service.dropped``, persist, forget, ``service.released``.

        False: not yet, ask again.
        """
        ...

    def assignment_changed(
        self, topic: str, queues: Collection[QueueRef], mine: Collection[QueueRef]
    ) -> None:
        """After a change: limits are divided anew, listeners of changes hear of it."""
        ...
