"""Looking whether topics have other queues than before, for consumers that choose their own.

Who assigns queues by hand has to hear of new ones. Every 30 s the routes of all watched topics are
asked for; a difference is told to the listener, a topic that cannot be asked for keeps its queues.

Not here: sharing queues with a group, which sees new ones by itself (``rebalance.py``).
"""

import asyncio
import logging
from collections.abc import Callable

from penstock.client.errors import ClientError
from penstock.client.instance import ClientInstance
from penstock.model.assignment import QueueRef

_log = logging.getLogger(__name__)

TopicQueuesChanged = Callable[[str, list[QueueRef]], object]
"""Gets a topic and its queues, on a thread, when they are others than before."""


class TopicWatch:
    """The watched topics of one consumer."""

    def __init__(self, instance: ClientInstance, interval_ms: int) -> None:
        self._instance = instance
        self._interval_ms = interval_ms
        self._watched: dict[str, tuple[TopicQueuesChanged, list[QueueRef]]] = {}
        self._task: asyncio.Task[None] | None = None

    def topics(self) -> set[str]:
        """What is watched."""
        return set(self._watched)

    async def add(self, topic: str, listener: TopicQueuesChanged) -> None:
        """Watch a topic from its queues of now on; raises ``NoRoute``."""
        route = await self._instance.routes.look_up(topic)
        self._watched[topic] = (listener, route.read_queues())
        if self._task is None:
            self._task = self._instance.spawn(self._run(), "queues of topics")

    def stop(self) -> None:
        """Watch nothing any more."""
        if self._task is not None:
            self._task.cancel()

    async def look(self) -> None:
        """Look at all watched topics now."""
        for topic, (listener, known) in list(self._watched.items()):
            try:
                queues = (await self._instance.routes.look_up(topic)).read_queues()
            except ClientError as problem:
                _log.warning("queues not known", extra={"topic": topic, "why": str(problem)})
                continue
            if queues != known:
                self._watched[topic] = (listener, queues)
                try:
                    await asyncio.to_thread(listener, topic, list(queues))
                except Exception:
                    _log.exception("listener of queues failed", extra={"topic": topic})

    async def _run(self) -> None:
        while True:
            await self._instance.sleep(self._interval_ms)
            await self.look()
