"""Sends that wait for the route of their topic: together, for one look-up.

Also the other way round: a try that failed may mean that a route is old; then the name server is
asked anew, at most once in ``REFRESH_SPACING_MS``, and nobody waits for it.

Bound: those who wait hold permits or block their callers.
Not here: routes themselves (``client/routes.py``).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from penstock.client.errors import ClientError, NoRoute
from penstock.client.producer.send import Send
from penstock.client.routes import RouteCache

_log: Final = logging.getLogger(__name__)

REFRESH_SPACING_MS: Final = 1000
"""A dead broker fails thousands of sends a second; the name server is asked once."""

Found = Callable[[Send, ClientError | None], None]


class RouteWaits:
    """Who waits for which topic; lives on the client's thread."""

    def __init__(self, routes: RouteCache, *, default_queues: int, found: Found) -> None:
        self._routes = routes
        self._default_queues = default_queues
        self._found = found
        self._waiting: dict[str, list[Send]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshed_ms: int | None = None

    def __len__(self) -> int:
        """Topics that sends wait for."""
        return len(self._waiting)

    def wait(self, send: Send) -> None:
        """``found`` will be called with it: with a route in the cache, or with an error."""
        waiting = self._waiting.get(send.topic)
        if waiting is not None:
            waiting.append(send)
            return
        self._waiting[send.topic] = [send]
        self._spawn(self._look_up(send.topic))

    def leave_overdue(self, now_ms: int) -> list[Send]:
        """Those whose time is up; ``found`` is not called for them."""
        over: list[Send] = []
        for topic, waiting in self._waiting.items():
            late = [each for each in waiting if each.deadline_ms <= now_ms]
            if late:
                over += late
                self._waiting[topic] = [each for each in waiting if each.deadline_ms > now_ms]
        return over

    def refresh(self, topic: str, now_ms: int) -> None:
        """The route may be old."""
        last_ms = self._refreshed_ms
        if last_ms is not None and now_ms - last_ms < REFRESH_SPACING_MS:
            return
        self._refreshed_ms = now_ms
        self._spawn(self._routes.refresh([topic]))

    def close(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()

    async def _look_up(self, topic: str) -> None:
        problem: ClientError | None = NoRoute(topic, "the client was stopped")
        try:
            await self._routes.look_up(topic, default_queues=self._default_queues)
            problem = None
        except ClientError as error:
            problem = error
        finally:
            for send in self._waiting.pop(topic, []):
                self._found(send, problem)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("route look-up failed", exc_info=problem)
