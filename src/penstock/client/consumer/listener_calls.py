"""One call of the listener at a time for each queue, awaited: what ordered consumption is made of.

A call that no worker has taken can be withdrawn; it then never happens. Workers do not take calls
of a dropped queue, so without that nobody would ever hear of them.

Invariant: every call ends exactly once, with what became of it or with None (withdrawn).
Not here: the workers (``listening.py``).
"""

import asyncio

from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.consumer.listening import Listening, Work
from penstock.client.consumer.results import Finished
from penstock.client.message import ReceivedMessage


class ListenerCalls:
    """The calls that have not ended."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self._open: dict[Work, asyncio.Future[Finished | None]] = {}

    async def call(
        self, assigned: AssignedQueue, messages: list[ReceivedMessage]
    ) -> Finished | None:
        """What the listener made of these messages; None when it was not called."""
        work = Work(assigned, [messages], self._finished)
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

    def _withdraw(self, work: Work) -> None:
        try:
            # Workers take from the same deque: whoever gets the batch decides.
            work.batches.popleft()
        except IndexError:
            return
        self._end(work, None)

    def _finished(self, work: Work, finished: list[Finished]) -> None:
        self._end(work, finished[0])

    def _end(self, work: Work, finished: Finished | None) -> None:
        ended = self._open.get(work)
        if ended is not None and not ended.done():
            ended.set_result(finished)
