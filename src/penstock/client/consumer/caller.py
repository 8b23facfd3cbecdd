"""One call of a listener: argument, time, hooks, and what its answer means.

Not here: on which thread or loop (``listening.py``), what follows (``concurrent.py``,
``ordered.py``).
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from penstock.client.consumer.hooks import Hooks
from penstock.client.consumer.results import (
    Answer,
    ConsumeResult,
    Finished,
    Later,
    ResultKind,
    Suspend,
)
from penstock.client.consumer.work import Batch, Work

Listener: TypeAlias = Callable[[Any], Answer | Awaitable[Answer]]
"""Gets one message, or a list where ``consume_batch`` is above 1."""

_SUCCESS: Final = ResultKind.SUCCESS


class Caller:
    """Calls one listener."""

    def __init__(
        self, listener: Listener, hooks: Hooks, *, takes_list: bool, timeout_ms: float
    ) -> None:
        self.listener = listener
        self.takes_list = takes_list
        self._hooks = hooks
        self._timeout_ms = timeout_ms

    def call(self, work: Work, batch: Batch, started_s: float) -> tuple[Finished, float]:
        """Call it now; returns what became of it and when that was."""
        contexts = self._hooks.before(work.assigned.queue, batch) if self._hooks.all else None
        try:
            answer: Any = self.listener(batch if self.takes_list else batch[0])
            error: BaseException | None = None
        except BaseException as problem:
            answer, error = None, problem
        ended_s = time.perf_counter()
        finished = self._finished(batch, answer, error, (ended_s - started_s) * 1000)
        if contexts is not None:
            self._hooks.after(work.assigned.queue, finished, contexts)
        return finished, ended_s

    async def call_async(
        self, work: Work, batch: Batch, started_s: float
    ) -> tuple[Finished, float]:
        """The same for a coroutine function."""
        contexts = self._hooks.before(work.assigned.queue, batch) if self._hooks.all else None
        try:
            listener: Any = self.listener
            answer: Any = await listener(batch if self.takes_list else batch[0])
            error: BaseException | None = None
        except asyncio.CancelledError:
            raise
        except BaseException as problem:
            answer, error = None, problem
        ended_s = time.perf_counter()
        finished = self._finished(batch, answer, error, (ended_s - started_s) * 1000)
        if contexts is not None:
            self._hooks.after(work.assigned.queue, finished, contexts)
        return finished, ended_s

    def _finished(
        self, batch: Batch, answer: Any, error: BaseException | None, spent_ms: float
    ) -> Finished:
        if error is None and answer is None and spent_ms < self._timeout_ms:
            return Finished(batch, None, None, _SUCCESS, spent_ms)
        if error is None and not isinstance(answer, (ConsumeResult, Later, Suspend, type(None))):
            error = TypeError(
                f"the listener returned {answer!r}; return None or SUCCESS when the messages are"
                f" done, LATER when they are to come again"
            )
            answer = None
        if error is not None:
            kind = ResultKind.EXCEPTION
        elif spent_ms >= self._timeout_ms:
            kind = ResultKind.TIME_OUT
        elif answer in (None, ConsumeResult.SUCCESS, ConsumeResult.COMMIT):
            kind = ResultKind.SUCCESS
        else:
            kind = ResultKind.LATER
        return Finished(batch, answer, error, kind, spent_ms)


def is_coroutine_listener(listener: Listener) -> bool:
    """True for a coroutine function, or an object whose call is one."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        type(listener).__call__
    )
