"""What the actors of a scene share that have a socket, whatever they speak.

A ``NumberedPublisher`` sends numbered messages at a steady pace, as far as its window and its count
allow, and keeps what it was told of each. An ``AckingConsumer`` has messages in hand until it acks
them, and keeps the bodies of those. How something is sent, taken and acked, a subclass for each
client says; a ``SocketLink`` is the socket of those that speak by themselves.

Bound: the window, the consumer's demand, and the transport's own buffer; whoever sends a lot awaits
``room``. The books grow for as long as a scene lasts.
Not here: threads, and publishers inside the broker's process (``actors.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Sized
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

ROUND_SECONDS: Final = 0.01
"""How often a publisher sends its share of a second, and a consumer looks at what it has."""
READ_BYTES: Final = 1 << 18
ANSWER_SECONDS_MAX: Final = 15.0
"""A broker that has not answered a request for so long does not answer it."""


class Link(Protocol):
    """What an actor reaches the broker by."""

    def leave(self) -> None: ...


LinkT = TypeVar("LinkT", bound=Link)
HeldT = TypeVar("HeldT")


@dataclass(frozen=True)
class Pace:
    """So many messages a second, in whole batches, a share of them in each round."""

    per_second: int
    batch: int = 1

    @property
    def share(self) -> int:
        return max(1, round(self.per_second * ROUND_SECONDS / self.batch)) * self.batch

    async def next_share(self) -> int:
        """Wait until that many messages are due."""
        await asyncio.sleep(self.share / self.per_second)
        return self.share


class Growth:
    """How much a count has grown since it was asked last."""

    def __init__(self) -> None:
        self._last = 0

    def of(self, total: int) -> int:
        grown = total - self._last
        self._last = total
        return grown


class _SocketActor(ABC, Generic[LinkT]):
    """Whoever works in tasks of its own until it leaves, and is told of by the ticker."""

    def __init__(self, name: str, link: LinkT) -> None:
        self.name: Final = name
        self.link: Final = link
        self._tasks: list[asyncio.Task[None]] = []
        self._growth: Final = Growth()

    def leave(self) -> None:
        """Gone, and its link with it."""
        self._cancel()
        self.link.leave()

    def figures(self, seconds: float) -> str:
        """Its part of a ticker line."""
        rate = self._growth.of(len(self._done)) / seconds
        return f"{self.name} {rate:6,.0f}/s{self._remark()}"

    @property
    @abstractmethod
    def _done(self) -> Sized:
        """What its rate is counted by."""

    @abstractmethod
    def _remark(self) -> str:
        """What the ticker says behind the rate."""

    def _begin(self, *work: Coroutine[Any, Any, None]) -> None:
        self._tasks = [asyncio.create_task(each) for each in work]

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


class NumberedPublisher(_SocketActor[LinkT]):
    """Sends ``name 1``, ``name 2`` and so on; begun by a subclass, once it is open."""

    def __init__(self, name: str, link: LinkT, body_bytes: int = 0) -> None:
        super().__init__(name, link)
        self.sent = 0
        self.confirmed_numbers: Final[set[int]] = set()
        self.failed_numbers: Final[set[int]] = set()
        """What the application was told is not stored."""
        self._body_bytes = body_bytes

    @property
    def outstanding(self) -> int:
        return self.sent - len(self.confirmed_numbers) - len(self.failed_numbers)

    @property
    def is_done(self) -> bool:
        """It has sent what it was to send, and everything was answered."""
        return bool(self._tasks) and self._tasks[0].done() and not self.outstanding

    def stop(self) -> None:
        """Send nothing more; answers still come."""
        self._cancel()

    @abstractmethod
    async def _send(self, numbers: range) -> None:
        """Send these, and wait while the socket takes no more."""

    async def _publish(self, pace: Pace, count_max: int | None, window: int) -> None:
        """A share in each round, or what there is room for; ``count_max`` is in whole batches."""
        while count_max is None or self.sent < count_max:
            share = await pace.next_share()
            room = window - self.outstanding
            if count_max is not None:
                room = min(room, count_max - self.sent)
            due = min(share, room) // pace.batch * pace.batch
            if due > 0:
                first = self.sent + 1
                # Counted first: what is written but not taken by the socket was sent, too.
                self.sent += due
                await self._send(range(first, first + due))

    def _body(self, number: int) -> bytes:
        return (b"%s %d" % (self.name.encode(), number)).ljust(self._body_bytes)

    @property
    def _done(self) -> Sized:
        return self.confirmed_numbers


class AckingConsumer(_SocketActor[LinkT], Generic[LinkT, HeldT]):
    """Acks what it has, at once, after a while or not at all."""

    def __init__(self, name: str, link: LinkT) -> None:
        super().__init__(name, link)
        self.bodies: Final[list[bytes]] = []
        """Acked ones, in order."""
        self.is_acking = True
        """False: it takes, and acks nothing."""
        self.message_seconds = 0.0
        """What a message costs it; may be changed at any time."""
        # Bounded by its demand, or by F13 of the broker.
        self._in_hand: deque[HeldT] = deque()

    @property
    def unacked(self) -> int:
        """Messages it has and did not ack."""
        return len(self._in_hand)

    @abstractmethod
    async def ack(self, messages: int) -> None:
        """The oldest in hand, so many."""

    async def _settle(self) -> None:
        while True:
            await asyncio.sleep(self.message_seconds or ROUND_SECONDS)
            if self.is_acking and self._in_hand:
                await self.ack(1 if self.message_seconds else self.unacked)

    @property
    def _done(self) -> Sized:
        return self.bodies

    def _remark(self) -> str:
        return f" ({self.unacked} unacked)"


class SocketLink(ABC):
    """One socket to the broker, for whoever understands what comes; made by ``connect``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer
        self._may_read: Final = asyncio.Event()
        self._may_read.set()
        self._task: Final = asyncio.create_task(self._hear())

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def room(self) -> None:
        """Wait while the broker does not read and the socket's buffer is full."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def leave(self) -> None:
        """Cut the connection without a word."""
        self._task.cancel()
        self._writer.transport.abort()

    @abstractmethod
    def _heard(self, data: bytes) -> None:
        """Bytes of the broker's."""

    async def _hear(self) -> None:
        while True:
            await self._may_read.wait()
            try:
                data = await self._reader.read(READ_BYTES)
            except ConnectionError:
                return
            if not data:
                return
            self._heard(data)


async def open_socket(endpoint: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = endpoint.rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port))
