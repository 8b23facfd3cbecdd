"""Waiting that can be cut short: an ordered queue suspends itself, until it is dropped.

Time comes from ``later``, an event loop's ``call_later`` in milliseconds; tests bring their own.

Invariant: a key waits at most once at a time; who is cut short is told so.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Protocol


class Later(Protocol):
    """Makes a call after a while."""

    def __call__(self, delay_ms: int, call: Callable[..., object], *args: Any) -> Any:
        """Call it in ``delay_ms``; returns something with ``cancel``."""
        ...


def later_on_loop(delay_ms: int, call: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
    """``later`` of the running event loop."""
    return asyncio.get_running_loop().call_later(delay_ms / 1000, call, *args)


class Pauses:
    """Who waits now."""

    def __init__(self, later: Later = later_on_loop) -> None:
        self._later = later
        self._waiting: dict[Hashable, asyncio.Future[bool]] = {}

    async def pause(self, key: Hashable, ms: int) -> bool:
        """Wait; True when the time is up, False when cut short."""
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[key] = ended
        timer = self._later(ms, _end, ended, True)
        try:
            return await ended
        finally:
            timer.cancel()
            self._waiting.pop(key, None)

    async def until(self, done: "asyncio.Future[None]", ms: int) -> bool:
        """Wait for ``done``, at most ``ms``; True when it is done."""
        if not done.done():
            key = object()
            done.add_done_callback(lambda _: self.cut(key))
            await self.pause(key, ms)
        return done.done()

    def cut(self, key: Hashable) -> None:
        """Let it go on at once, if it waits."""
        ended = self._waiting.get(key)
        if ended is not None:
            _end(ended, False)

    def cut_all(self) -> None:
        """Let everybody go on."""
        for key in list(self._waiting):
            self.cut(key)


def _end(ended: "asyncio.Future[bool]", is_time_up: bool) -> None:
    if not ended.done():
        ended.set_result(is_time_up)
