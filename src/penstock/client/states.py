"""Everything that is started and stopped: its states, and ``with`` for it.

Nothing is started twice: a stopped or failed one is replaced by a new one, because its queues,
offsets and connections belong to a life that is over.
"""

from collections.abc import Awaitable
from enum import Enum
from typing import Final, Protocol, TypeVar

from penstock.client.failures import StateError


class State(Enum):
    """Of an instance, and of every producer and consumer."""

    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Lifecycle:
    """In which state one thing is; says what is wrong with a wrong call."""

    __slots__ = ("state", "what")

    def __init__(self, what: str) -> None:
        self.what: Final = what
        """Its name in sentences: ``producer 'orders'``."""
        self.state = State.CREATED

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def is_over(self) -> bool:
        """True when it will never run (again)."""
        return self.state in (State.STOPPING, State.STOPPED, State.FAILED)

    def begin(self) -> None:
        """Start now; it counts as failed until ``started`` is called."""
        if self.state is not State.CREATED:
            is_up = self.state is State.RUNNING
            how = "runs already" if is_up else f"is {self.state.value}; make a new one"
            raise StateError(f"{self.what} {how}")
        self.state = State.FAILED

    def started(self) -> None:
        self.state = State.RUNNING

    def check_running(self) -> None:
        if self.state is not State.RUNNING:
            hint = "; call start() first" if self.state is State.CREATED else ""
            raise StateError(f"{self.what} is {self.state.value}{hint}")

    def check_open(self) -> None:
        if self.is_over:
            raise StateError(f"{self.what} is {self.state.value}; make a new one")


class Startable(Protocol):
    """What has a start and a stop, for both kinds of callers."""

    def start(self) -> None: ...
    def start_async(self) -> Awaitable[None]: ...
    def stop(self) -> None: ...
    def stop_async(self) -> Awaitable[None]: ...


S = TypeVar("S", bound=Startable)


class StartStop:
    """``with`` and ``async with``: started on the way in, stopped on the way out, in any case."""

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
