"""``with`` and ``async with`` for everything that is started and stopped.

Not here: what starting means (each class), in which order it is allowed (``states.py``).
"""

from collections.abc import Awaitable
from typing import Protocol, TypeVar


class Startable(Protocol):
    """What has a beginning and an end, for both kinds of callers."""

    def start(self) -> None:
        """Begin."""
        ...

    def start_async(self) -> Awaitable[None]:
        """The same."""
        ...

    def stop(self) -> None:
        """End."""
        ...

    def stop_async(self) -> Awaitable[None]:
        """The same."""
        ...


S = TypeVar("S", bound=Startable)


class Contexts:
    """Started on the way in, stopped on the way out, whatever happened in between."""

    def __enter__(self: S) -> S:
        self.start()
        return self

    def __exit__(self: Startable, *_: object) -> None:
        self.stop()

    async def __aenter__(self: S) -> S:
        await self.start_async()
        return self

    async def __aexit__(self: Startable, *_: object) -> None:
        await self.stop_async()
