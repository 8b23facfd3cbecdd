"""The queues' part of the journey in: parcels at the head of their inboxes become one frame.

Who spends: the queue, credit towards the log, when a parcel is taken. Who grants: the log, when the
sync that covers it returned (``commit.py``). Who stops: a queue without credit; all of them while
no write buffer is free. What wakes them: that sync.

A parcel for several queues is taken when it is at the head of all of them and none of them is
stopped. It cannot wait for ever: every inbox holds parcels in the order they were routed, so the
oldest parcel of all is always at the head of each of its inboxes.

Fairness (law 5): past the turn's bytes every queue still takes one parcel, and who was first is
last next time.
"""

from __future__ import annotations

from penstock.engine.frame import Frame
from penstock.engine.parcel import Parcel
from penstock.engine.queue import Queue
from penstock.flow.buffer_pool import BufferPool
from penstock.flow.stage import Stage


class Collector:
    """All queues that have parcels."""

    def __init__(self, turn_bytes_max: int, buffers: BufferPool) -> None:
        self._turn_bytes_max = turn_bytes_max
        self._buffers = buffers
        self._queues: dict[Queue, None] = {}
        self._held: dict[Queue, None] = {}

    def put(self, queue: Queue, parcel: Parcel) -> None:
        """A channel routed a parcel to this queue."""
        queue.inbox.append(parcel)
        queue.inbox_messages += len(parcel.publications)
        self._queues[queue] = None

    def collect(self, frame: Frame) -> None:
        """Move parcels into the frame as far as credit and buffers reach."""
        is_moving = bool(self._queues)
        # A parcel for several queues may come free only when another queue has moved on.
        while is_moving:
            is_moving = False
            for queue in list(self._queues):
                if self._run(queue, frame):
                    is_moving = True
                if not queue.inbox:
                    self._queues.pop(queue, None)
        if self._queues:
            first = next(iter(self._queues))
            self._queues[first] = self._queues.pop(first)

    def hold(self, log: Stage) -> None:
        """Nothing may be written: queues with parcels wait for the log, and are seen to."""
        for queue in self._queues:
            if queue not in self._held:
                queue.stage.block(log, self)
                self._held[queue] = None

    def let_go(self, log: Stage) -> None:
        """The log takes frames again."""
        held, self._held = self._held, {}
        for queue in held:
            queue.stage.unblock(log, self)

    @property
    def can_move(self) -> bool:
        """True when some queue has a parcel that could be taken now (law 4)."""
        return any(self._is_free(queue, 0) for queue in self._queues)

    def take_all(self) -> list[Parcel]:
        """Empty every inbox: nothing can be appended any more."""
        parcels: dict[Parcel, None] = {}
        for queue in self._queues:
            for parcel in queue.inbox:
                parcels[parcel] = None
                credit = parcel.channel.queue_credits.get(queue)
                if credit is not None:
                    credit.processed(len(parcel.publications))
            queue.inbox.clear()
            queue.inbox_messages = 0
        self._queues.clear()
        return list(parcels)

    def remove(self, queue: Queue) -> list[Parcel]:
        """A queue was deleted: its parcels are taken out of it; those left without any come back.

        They are untouched by any other queue, because they were still in this one's inbox.
        """
        self._queues.pop(queue, None)
        orphans = []
        for parcel in queue.inbox:
            parcel.queues = tuple(each for each in parcel.queues or () if each is not queue)
            for publication in parcel.publications:
                publication.queues = tuple(each.index for each in parcel.queues)
            if not parcel.queues:
                orphans.append(parcel)
        queue.inbox.clear()
        queue.inbox_messages = 0
        return orphans

    def _run(self, queue: Queue, frame: Frame) -> bool:
        took = False
        inbox = queue.inbox
        while inbox and self._is_free(queue, frame.size):
            if frame.size >= self._turn_bytes_max and queue in frame.queues:
                break
            parcel = inbox[0]
            for each in parcel.queues or ():
                each.inbox.popleft()
                each.inbox_messages -= len(parcel.publications)
                each.log_credit.spend(len(parcel.publications))
                frame.queues[each] = None
                # The channel may be gone, and its credit with it.
                credit = parcel.channel.queue_credits.get(each)
                if credit is not None:
                    credit.processed(len(parcel.publications))
            frame.add(parcel)
            took = True
        return took

    def _is_free(self, queue: Queue, waiting_bytes: int) -> bool:
        """True when the queue's first parcel could be taken."""
        parcel = queue.inbox[0]
        queues = parcel.queues or ()
        if queue.stage.is_blocked or not self._buffers.can_take(parcel.size, waiting_bytes):
            return False
        return len(queues) == 1 or all(
            each.inbox[0] is parcel and not each.stage.is_blocked for each in queues
        )
