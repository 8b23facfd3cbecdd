"""Actors of a scene that speak AMQP over real sockets, on the scene's own loop.

A publisher sends numbered messages at a steady pace in confirm mode, as far as its socket takes
them, and keeps what it was told: confirmed or refused. A consumer takes with a prefetch, settles
after as long as it is told to need, and keeps the bodies. Both may share one connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from penstock.cli.scenes.amqp_link import AmqpLink
from penstock.wire.amqp.methods.basic import Ack, Consume, Deliver, Nack, Qos
from penstock.wire.amqp.methods.channel import Close, ConfirmSelect
from penstock.wire.amqp.methods.method import Method
from penstock.wire.amqp.methods.queue import Declare, DeclareOk

ROUND_SECONDS: Final = 0.01
"""How often a publisher sends its share of a second."""


class AmqpPublisher:
    """Publishes to one routing key of the default exchange and counts the answers."""

    def __init__(
        self, link: AmqpLink, name: str, queue: str, *, channel: int, is_persistent: bool
    ) -> None:
        self.name: Final = name
        self.link: Final = link
        self.sent = 0
        self.confirmed_numbers: Final[set[int]] = set()
        self.nacked_numbers: Final[set[int]] = set()
        self.closed_text = ""
        """Why the broker closed the channel, if it did."""
        self._queue = queue
        self._channel = channel
        self._is_persistent = is_persistent
        self._answered = 0
        self._last = (0, 0)
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        link: AmqpLink,
        name: str,
        queue: str,
        *,
        per_second: int,
        channel: int = 1,
        is_persistent: bool = True,
        body_bytes: int = 0,
        count_max: int | None = None,
        window: int = 1 << 30,
    ) -> AmqpPublisher:
        """A publisher with its own channel; with so many unanswered, or in all, if it says so."""
        self = cls(link, name, queue, channel=channel, is_persistent=is_persistent)
        await link.open(channel, self._hear)
        await link.call(channel, ConfirmSelect())
        self._task = asyncio.create_task(self._publish(per_second, body_bytes, count_max, window))
        return self

    @property
    def outstanding(self) -> int:
        """Sent and not answered."""
        return self.sent - len(self.confirmed_numbers) - len(self.nacked_numbers)

    @property
    def is_done(self) -> bool:
        """It has sent what it was to send, and everything was answered."""
        return self._task is not None and self._task.done() and not self.outstanding

    def stop(self) -> None:
        """Send nothing more; answers still come."""
        if self._task is not None:
            self._task.cancel()

    def leave(self) -> None:
        """Stop and hang up."""
        self.stop()
        self.link.leave()

    def figures(self, seconds: float) -> str:
        """Its part of a ticker line."""
        confirmed, nacked = len(self.confirmed_numbers), len(self.nacked_numbers)
        rate = (confirmed - self._last[0]) / seconds
        news = nacked - self._last[1]
        self._last = (confirmed, nacked)
        mark = " blocked" if self.link.is_blocked else ""
        return f"{self.name} {rate:6,.0f}/s{mark}" + (f" nacked {news}" if news else "")

    async def _publish(
        self, per_second: int, body_bytes: int, count_max: int | None, window: int
    ) -> None:
        share = max(1, round(per_second * ROUND_SECONDS))
        pause = share / per_second
        while count_max is None or self.sent < count_max:
            await asyncio.sleep(pause)
            room = window - self.outstanding
            if count_max is not None:
                room = min(room, count_max - self.sent)
            numbers = range(self.sent + 1, self.sent + 1 + min(share, room))
            bodies = [b"%s %d" % (self.name.encode(), number) for number in numbers]
            if body_bytes:
                bodies = [body.ljust(body_bytes) for body in bodies]
            # Counted first: what is written but not taken by the socket was sent, too.
            self.sent += len(bodies)
            self.link.write(
                self.link.publishes(
                    self._channel, self._queue, bodies, is_persistent=self._is_persistent
                )
            )
            await self.link.room()

    def _hear(self, method: Method, _body: bytes) -> None:
        if isinstance(method, Ack):
            self._note(method.delivery_tag, method.is_multiple, self.confirmed_numbers)
        elif isinstance(method, Nack):
            self._note(method.delivery_tag, method.is_multiple, self.nacked_numbers)
        elif isinstance(method, Close):
            self.closed_text = method.reply_text
            self.stop()

    def _note(self, tag: int, is_multiple: bool, book: set[int]) -> None:
        if not is_multiple:
            book.add(tag)
            return
        both = (self.confirmed_numbers, self.nacked_numbers)
        new = [
            number
            for number in range(self._answered + 1, tag + 1)
            if number not in both[0] and number not in both[1]
        ]
        book.update(new)
        self._answered = max(self._answered, tag)


class AmqpConsumer:
    """Settles what it gets, at once or after a while, or not at all; made by ``Desk.consume``."""

    def __init__(self, desk: Desk, name: str, *, is_idle: bool) -> None:
        self.name: Final = name
        self.link: Final = desk.link
        self.bodies: Final[list[bytes]] = []
        """Settled ones, in order."""
        self.message_seconds = 0.0
        """What a message costs it; may be changed at any time."""
        self.is_idle = is_idle
        """True: it takes, and settles nothing."""
        self.unacked_peak = 0
        self._channel = desk.channel
        # Bounded by the prefetch, or by F13 of the broker.
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._last = 0
        self._task = asyncio.create_task(self._work())

    @property
    def unacked(self) -> int:
        """Delivered and not settled."""
        return len(self._arrived)

    def take(self, tag: int, body: bytes) -> None:
        """A delivery came."""
        # What a body is padded with is not kept.
        self._arrived.append((tag, body.rstrip()))
        self.unacked_peak = max(self.unacked_peak, self.unacked)

    def settle(self, count: int) -> None:
        """Settle the oldest ones."""
        taken = [self._arrived.popleft() for _ in range(min(count, self.unacked))]
        self.link.send(self._channel, *[Ack(tag) for tag, _ in taken])
        self.bodies.extend(body for _, body in taken)

    def leave(self) -> None:
        """Hang up; what is not settled goes back."""
        self._task.cancel()
        self.link.leave()

    def figures(self, seconds: float) -> str:
        """Its part of a ticker line."""
        rate = (len(self.bodies) - self._last) / seconds
        self._last = len(self.bodies)
        return f"{self.name} {rate:6,.0f}/s ({self.unacked} unacked)"

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(self.message_seconds or ROUND_SECONDS)
            if self.unacked and not self.is_idle:
                self.settle(1 if self.message_seconds else self.unacked)


class Desk:
    """A channel for commands and consumers: each delivery goes to the one it names."""

    def __init__(self, link: AmqpLink, channel: int) -> None:
        self.link: Final = link
        self.channel: Final = channel
        self.closed_text = ""
        """Why the broker closed the channel, if it did."""
        self._consumers: Final[dict[str, AmqpConsumer]] = {}

    @classmethod
    async def open(cls, link: AmqpLink, channel: int = 1) -> Desk:
        """A new channel."""
        desk = cls(link, channel)
        await link.open(channel, desk._hear)
        return desk

    async def declare(self, queue: str, **arguments: Any) -> None:
        """A durable queue; ``x_overflow="hold"`` is the argument ``x-overflow``."""
        table = {name.replace("_", "-"): value for name, value in arguments.items()}
        await self.link.call(self.channel, Declare(0, queue, is_durable=True, arguments=table))

    async def ready(self, queue: str) -> int:
        """Messages that nobody has; -1 when the broker says something else."""
        answer = await self.link.call(self.channel, Declare(0, queue, is_passive=True))
        return answer.messages if isinstance(answer, DeclareOk) else -1

    async def qos(self, count: int, *, is_global: bool = False) -> None:
        """basic.qos."""
        await self.link.call(self.channel, Qos(0, count, is_global))

    async def consume(self, name: str, queue: str, *, is_idle: bool = False) -> AmqpConsumer:
        """A consumer with that tag."""
        consumer = self._consumers[name] = AmqpConsumer(self, name, is_idle=is_idle)
        await self.link.call(self.channel, Consume(0, queue, name))
        return consumer

    def publish(self, queue: str, *bodies: bytes) -> None:
        """Persistent messages without confirms."""
        self.link.write(self.link.publishes(self.channel, queue, list(bodies)))

    def _hear(self, method: Method, body: bytes) -> None:
        if isinstance(method, Deliver):
            self._consumers[method.consumer_tag].take(method.delivery_tag, body)
        elif isinstance(method, Close):
            self.closed_text = method.reply_text
