"""Coroutines that run beside: none is lost, none fails unseen, all end together.

An event loop holds its tasks only weakly, and keeps an error to itself until somebody looks; here
both are seen to. Timers are tasks that repeat.

Bound: ``TASKS_MAX`` tasks at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from penstock.client.errors import StateError

_log = logging.getLogger(__name__)

T = TypeVar("T")

TASKS_MAX: Final = 100_000
"""Tasks of one instance: a few for each queue, and what brokers ask."""


class Tasks:
    """The tasks of one owner; made and used on its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine beside; an error is logged."""
        if self._is_closed or len(self._tasks) >= TASKS_MAX:
            coroutine.close()
            why = "the client was stopped" if self._is_closed else f"{TASKS_MAX} tasks run already"
            raise StateError(f"{name} cannot run: {why}")
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def every(
        self, name: str, first_ms: int, interval_ms: int, call: Callable[[], Awaitable[object]]
    ) -> None:
        """Await ``call()`` again and again; an error is logged, and the next time comes."""

        async def repeat() -> None:
            await asyncio.sleep(min(first_ms, interval_ms) / 1000)
            while True:
                try:
                    await call()
                except Exception:
                    _log.exception("timer failed", extra={"timer": name})
                await asyncio.sleep(interval_ms / 1000)

        self.spawn(repeat(), name)

    def close(self) -> list[asyncio.Task[Any]]:
        """Cancel all but the one that calls; those cancelled, to be awaited."""
        self._is_closed = True
        current = asyncio.current_task()
        ended = [task for task in self._tasks if task is not current]
        for task in ended:
            task.cancel()
        return ended

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("task failed", extra={"task": task.get_name()}, exc_info=task.exception())
