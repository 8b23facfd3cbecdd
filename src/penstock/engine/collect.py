"""The queues' part of the journey in: parcels at the head of their lanes become one frame.

Who spends: the queue, credit towards the log, when a parcel is taken. Who grants: the log, when the
sync that covers it returned (``commit.py``). Who stops: a queue without credit; all of them while
no write buffer is free. What wakes them: that sync. To the channels the queue gives their credit
back at the end of the turn, when its work is done: that is how long they waited for it.

A parcel for several queues is taken when it is at the head of its lane in all of them and none of
them is stopped. It cannot wait for ever: a channel's parcels are in the same order in every inbox.

Fairness (law 5): first every newcomer of every queue, then all lanes in turn until the turn's bytes
are used; and which queue was first is last next time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.frame import Frame
from penstock.engine.parcel import Parcel
from penstock.engine.queue import Queue
from penstock.flow.budgets import BufferPool
from penstock.flow.credit import Stage

if TYPE_CHECKING:
    from penstock.engine.chain import Chain
    from penstock.engine.connection import Channel


class Collector:
    """All queues that have parcels."""

    def __init__(self, turn_bytes_max: int, buffers: BufferPool) -> None:
        self._turn_bytes_max = turn_bytes_max
        self._buffers = buffers
        self.queues: dict[Queue, None] = {}
        """Those that have parcels; to be looked at only."""
        self.held: dict[Queue, None] = {}
        """Those that wait for the log; to be looked at only."""
        # Taken in this turn; their channels have not got their credit back yet.
        self._taken: list[Parcel] = []
        self._awaiting: list[Channel] = []

    def put(self, queue: Queue, parcel: Parcel) -> None:
        """A channel routed a parcel to this queue."""
        queue.inbox.put(parcel)
        self.queues[queue] = None

    def collect(self, frame: Frame) -> None:
        """Move parcels into the frame as far as credit, buffers and the turn reach."""
        if not self.queues:
            return
        left = 0
        for queue in [*self.queues]:
            for parcel in queue.inbox.newcomers():
                self._take_if_free(queue, parcel, frame)
            left += queue.inbox.messages
        if not left:
            # Everybody was a newcomer and could be taken: the usual turn.
            self.queues.clear()
            return
        is_moving = True
        while is_moving and frame.size < self._turn_bytes_max:
            is_moving = False
            for queue in list(self.queues):
                # A parcel for several queues may be gone by now, or come free by the next round.
                for parcel in queue.inbox.heads():
                    if frame.size >= self._turn_bytes_max:
                        break
                    is_moving |= self._take_if_free(queue, parcel, frame)
        for queue in [each for each in self.queues if not each.inbox.messages]:
            del self.queues[queue]
        if self.queues:
            first = next(iter(self.queues))
            self.queues[first] = self.queues.pop(first)

    def give_back(self) -> None:
        """The queues have stored and handed out what they took in this turn."""
        if self._taken:
            taken, self._taken = self._taken, []
            for parcel in taken:
                for queue in parcel.queues or ():
                    _processed(queue, parcel)
        if self._awaiting:
            awaiting, self._awaiting = self._awaiting, []
            for channel in awaiting:
                channel.stage.waited()

    def awaits(self, channel: Channel, queue: Queue, chain: Chain) -> None:
        """A channel gave all it could in this turn to one queue, and has more.

        Until the turn ends it waits for the queue, however much credit is left; it is seen to, and
        nothing else.
        """
        chain.journal.tick(chain.now_ms)
        channel.stage.waits(queue.stage)
        self._awaiting.append(channel)

    def hold(self, log: Stage) -> None:
        """Nothing may be written: queues with parcels wait for the log, and are seen to."""
        for queue in self.queues:
            if queue not in self.held:
                queue.stage.block(log, self)
                self.held[queue] = None

    def let_go(self, log: Stage) -> None:
        """The log takes frames again."""
        held, self.held = self.held, {}
        for queue in held:
            queue.stage.unblock(log, self)

    @property
    def can_move(self) -> bool:
        """True when some queue has a parcel that could be taken now (law 4)."""
        for queue in self.queues:
            if not queue.stage.is_blocked:
                for parcel in queue.inbox.heads():
                    if self._is_free(queue, parcel, 0):
                        return True
        return False

    def take_all(self) -> list[Parcel]:
        """Empty every inbox: nothing can be appended any more."""
        parcels: dict[Parcel, None] = {}
        for queue in self.queues:
            for parcel in queue.inbox:
                parcels[parcel] = None
                _processed(queue, parcel)
            queue.inbox.clear()
        self.queues.clear()
        return list(parcels)

    def remove(self, queue: Queue) -> list[Parcel]:
        """A queue was deleted: empty its inbox; parcels that go nowhere else come back."""
        self.queues.pop(queue, None)
        self.held.pop(queue, None)
        orphans = []
        for parcel in queue.inbox:
            parcel.queues = tuple(each for each in parcel.queues or () if each is not queue)
            for publication in parcel.publications:
                publication.queues = tuple(each.index for each in parcel.queues)
            if not parcel.queues:
                orphans.append(parcel)
        queue.inbox.clear()
        return orphans

    def _take_if_free(self, queue: Queue, parcel: Parcel, frame: Frame) -> bool:
        if not self._is_free(queue, parcel, frame.size):
            return False
        messages = len(parcel.publications)
        for each in parcel.queues or ():
            each.inbox.take(parcel)
            each.log_credit.spend(messages)
            frame.queues[each] = None
        frame.add(parcel)
        self._taken.append(parcel)
        return True

    def _is_free(self, queue: Queue, parcel: Parcel, waiting_bytes: int) -> bool:
        """True when the parcel, which is at the head of its lane in ``queue``, could be taken."""
        if queue.stage.is_blocked:
            return False
        if not self._buffers.can_take(parcel.size, waiting_bytes):
            self._buffers.is_awaited = self._buffers.unsynced_bytes > 0
            return False
        queues = parcel.queues or ()
        return len(queues) == 1 or all(
            each.inbox.is_head(parcel) and not each.stage.is_blocked for each in queues
        )


def _processed(queue: Queue, parcel: Parcel) -> None:
    # The channel may be gone, and its credit with it.
    credit = parcel.channel.queue_credits.get(queue)
    if credit is not None:
        credit.processed(len(parcel.publications))
