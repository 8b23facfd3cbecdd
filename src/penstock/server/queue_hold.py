"""The fault ``queue-delay``: queues of one topic that take nothing in for a while (D26).

Nothing is pretended: each queue's stage is blocked by a stage called ``fault queue-delay``, exactly
as a slow log would block it, so credit runs out hop by hop and only publishers of that topic wait.
"""

import asyncio

from penstock.engine.broker import Engine
from penstock.engine.topic import Queue
from penstock.flow.credit import Stage
from penstock.model.errors import NotFound
from penstock.model.names import TopicName
from penstock.server.turns import Turns


class QueueHold:
    """Holds the queues of topics by name."""

    def __init__(self, engine: Engine, turns: Turns, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._turns = turns
        self._loop = loop
        self._culprit = Stage("fault", "queue-delay")
        self._held: dict[Queue, asyncio.TimerHandle] = {}

    def hold(self, topic: str, ms: int) -> None:
        """Hold the topic's queues for so long; a second order replaces the first."""
        space, _, name = topic.rpartition("/")
        found = self._engine.topic(TopicName(space, name))
        if found is None:
            raise NotFound(f"there is no topic {topic!r}")
        for queue in found.queues:
            self._release(queue)
            if ms:
                queue.stage.block(self._culprit)
                self._held[queue] = self._loop.call_later(ms / 1000, self._release, queue)

    def clear(self) -> None:
        """Let all of them go."""
        for queue in list(self._held):
            self._release(queue)

    def _release(self, queue: Queue) -> None:
        timer = self._held.pop(queue, None)
        if timer is not None:
            timer.cancel()
            queue.stage.unblock(self._culprit)
            self._turns.request()
