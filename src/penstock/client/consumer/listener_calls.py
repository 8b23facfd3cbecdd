"""One call of the listener at a time for each queue, awaited: what ordered consumption is made of.

A call that no worker has taken can be withdrawn; it then never happens. Workers do not take calls
of a dropped queue, nor those that may not begin any more when their turn comes (a lock that went
stale while all workers were busy); without withdrawing nobody would ever hear of them.

Invariants: every call ends exactly once, with what became of it or with None (withdrawn); a call
begins only while ``may_begin`` says so, asked by the worker right before.
Not here: the workers (``listening.py``).
"""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.consumer.listening import Listening
from penstock.client.consumer.results import Finished
from penstock.client.consumer.work import Work
from penstock.client.message import ReceivedMessage


class _Guarded(deque[list[ReceivedMessage]]):
    """Batches that a worker gets only while they may begin."""

    def __init__(self, batch: list[ReceivedMessage], may_begin: Callable[[], bool]) -> None:
        super().__init__([batch])
        self.may_begin = may_begin

    def popleft(self) -> list[ReceivedMessage]:
        """For workers, on their threads."""
        if not self.may_begin():
            raise IndexError("not now")
        return super().popleft()

    def withdraw(self) -> bool:
        """Take it away from them; False when a worker was faster."""
        try:
            super().popleft()
        except IndexError:
            return False
        return True


class ListenerCalls:
    """The calls that have not ended."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self._open: dict[Work, asyncio.Future[Finished | None]] = {}

    async def call(
        self,
        assigned: AssignedQueue,
        messages: list[ReceivedMessage],
        may_begin: Callable[[], bool] = lambda: True,
    ) -> Finished | None:
        """What the listener made of these messages; None when it was not called."""
        work = Work(assigned, (), self._finished)
        work.batches = _Guarded(messages, may_begin)
        ended: asyncio.Future[Finished | None] = asyncio.get_running_loop().create_future()
        self._open[work] = ended
        self._listening.submit(work)
        try:
            return await ended
        finally:
            self._open.pop(work, None)

    def withdraw(self, assigned: AssignedQueue) -> None:
        """Take back a call of this queue that no worker has taken."""
        for work in [each for each in self._open if each.assigned is assigned]:
            self._withdraw(work)

    def withdraw_all(self) -> None:
        """The same for every queue."""
        for work in list(self._open):
            self._withdraw(work)

    def withdraw_late(self) -> None:
        """Take back what may not begin any more."""
        for work in list(self._open):
            if isinstance(work.batches, _Guarded) and not work.batches.may_begin():
                self._withdraw(work)

    def _withdraw(self, work: Work) -> None:
        # Workers take from the same deque: whoever gets the batch decides.
        if isinstance(work.batches, _Guarded) and work.batches.withdraw():
            self._end(work, None)

    def _finished(self, work: Work, finished: list[Finished]) -> None:
        self._end(work, finished[0])

    def _end(self, work: Work, finished: Finished | None) -> None:
        ended = self._open.get(work)
        if ended is not None and not ended.done():
            ended.set_result(finished)
