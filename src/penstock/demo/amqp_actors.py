"""Actors of a scene that speak AMQP over real sockets, on the scene's own loop.

A publisher sends numbered messages at a steady pace in confirm mode, as far as its socket takes
them, and keeps what it was told: confirmed or refused. A consumer takes with a prefetch, settles
after as long as it is told to need, and keeps the bodies. Both may share one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from socket import SO_RCVBUF, SOL_SOCKET
from typing import Any, Final, NamedTuple

from penstock.model.errors import PenstockError
from penstock.wire.amqp.codes import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, PROTOCOL_HEADER
from penstock.wire.amqp.frames import CONTENT_HEAD, AmqpFrames, Frame, content_frames, method_frame
from penstock.wire.amqp.methods import decode_method
from penstock.wire.amqp.methods.basic import (
    Ack,
    Cancel,
    Consume,
    Deliver,
    GetOk,
    Nack,
    Publish,
    Qos,
    Return,
)
from penstock.wire.amqp.methods.channel import Close, ConfirmSelect
from penstock.wire.amqp.methods.channel import Close as CloseChannel
from penstock.wire.amqp.methods.channel import Open as OpenChannel
from penstock.wire.amqp.methods.connection import Blocked, Open, StartOk, Tune, TuneOk, Unblocked
from penstock.wire.amqp.methods.connection import Close as ConnectionClose
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
    """Settles what it gets, at once, after a while or not at all; see ``AmqpControl.consume``."""

    def __init__(self, control: AmqpControl, name: str, *, is_idle: bool) -> None:
        self.name: Final = name
        self.link: Final = control.link
        self.bodies: Final[list[bytes]] = []
        """Settled ones, in order."""
        self.message_seconds = 0.0
        """What a message costs it; may be changed at any time."""
        self.is_idle = is_idle
        """True: it takes, and settles nothing."""
        self.unacked_peak = 0
        self._channel = control.channel
        # Bounded by the prefetch, or by F13 of the broker.
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._last = 0
        self._task = asyncio.create_task(self._work())

    @property
    def unacked(self) -> int:
        """Delivered and not settled."""
        return len(self._arrived)

    def take(self, tag: int, body: bytes) -> None:
        # What a body is padded with is not kept.
        self._arrived.append((tag, body.rstrip()))
        self.unacked_peak = max(self.unacked_peak, self.unacked)

    def settle(self, count: int) -> None:
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


class AmqpControl:
    """A channel for commands and consumers: each delivery goes to the one it names."""

    def __init__(self, link: AmqpLink, channel: int) -> None:
        self.link: Final = link
        self.channel: Final = channel
        self.closed_text = ""
        """Why the broker closed the channel, if it did."""
        self._consumers: Final[dict[str, AmqpConsumer]] = {}

    @classmethod
    async def open(cls, link: AmqpLink, channel: int = 1) -> AmqpControl:
        control = cls(link, channel)
        await link.open(channel, control._hear)
        return control

    async def declare(self, queue: str, **arguments: Any) -> None:
        """A durable queue; ``x_overflow="hold"`` is the argument ``x-overflow``."""
        table = {name.replace("_", "-"): value for name, value in arguments.items()}
        await self.link.call(self.channel, Declare(0, queue, is_durable=True, arguments=table))

    async def ready(self, queue: str) -> int:
        """Messages that nobody has; -1 when the broker says something else."""
        answer = await self.link.call(self.channel, Declare(0, queue, is_passive=True))
        return answer.messages if isinstance(answer, DeclareOk) else -1

    async def qos(self, count: int, *, is_global: bool = False) -> None:
        await self.link.call(self.channel, Qos(0, count, is_global))

    async def consume(self, name: str, queue: str, *, is_idle: bool = False) -> AmqpConsumer:
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


# ---- amqp link ----------------------------------------------------------------------------------
# An AMQP client in a few lines, for scenes: one socket, its channels, what the broker says.
#
# It speaks with ``wire/amqp`` over asyncio, like any client of RabbitMQ: ``call`` waits for the
# answer of its channel, ``publish`` only writes, what nobody asked for goes to whoever listens on
# that channel. ``connection.blocked`` is kept in ``notices`` with the time at which it was heard.
#
# Bound: the transport's own buffer; whoever publishes a lot awaits ``room``.
# Not here: paces, windows and counts (``amqp_actors.py``).


PERSISTENT: Final = b"\x10\x00\x02"
"""Properties of a message that says nothing but delivery-mode 2."""
TRANSIENT: Final = b"\x00\x00"
READ_BYTES: Final = 1 << 18
RESTING_BYTES: Final = 1 << 16
"""What the system keeps for a client that does not read."""
ANSWER_SECONDS_MAX: Final = 15.0
_UNASKED: Final = (Deliver, Return, Ack, Nack, Cancel, CloseChannel)
_WITH_CONTENT: Final = (Deliver, Return, GetOk)
_CAPABILITIES: Final = ("basic.nack", "connection.blocked", "publisher_confirms")

Listener = Callable[[Method, bytes], None]
"""Told of what a channel was not asked for, with the body if there is one."""


class Notice(NamedTuple):
    """``connection.blocked`` with its reason, or ``unblocked`` without."""

    at_s: float
    reason: str


class AmqpLink:
    """One connection to the broker; made by ``connect``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.notices: Final[list[Notice]] = []
        """What was heard of alarms, in order."""
        self.closed_by_broker = ""
        """The broker's words, if it closed the connection."""
        self._reader = reader
        self._writer = writer
        self._frames: Final = AmqpFrames(frame_max=0, is_greeted=True)
        self._frame_max = 0
        self._answers: Final[dict[int, asyncio.Queue[Method]]] = {}
        self._listeners: Final[dict[int, Listener]] = {}
        self._partial: Final[dict[int, _Content]] = {}
        self._may_read: Final = asyncio.Event()
        self._may_read.set()
        self._task = asyncio.create_task(self._hear())

    @classmethod
    async def connect(cls, endpoint: str, name: str) -> AmqpLink:
        """Connect as guest to virtual host ``/``."""
        host, _, port = endpoint.rpartition(":")
        link = cls(*await asyncio.open_connection(host.strip("[]"), int(port)))
        link._answers[0] = asyncio.Queue()
        link._writer.write(PROTOCOL_HEADER)
        await link._answer(0)
        properties = {
            "capabilities": dict.fromkeys(_CAPABILITIES, True),
            "connection_name": name,
        }
        tune = await link.call(0, StartOk(properties, "PLAIN", b"\0guest\0guest"))
        assert isinstance(tune, Tune)
        link._frame_max = tune.frame_max
        link.send(0, TuneOk(tune.channel_max, tune.frame_max, 0))
        await link.call(0, Open("/"))
        return link

    async def open(self, channel: int, listener: Listener) -> None:
        """A new channel, and who listens to it."""
        self._answers[channel] = asyncio.Queue()
        self._listeners[channel] = listener
        await self.call(channel, OpenChannel())

    async def call(self, channel: int, method: Method) -> Method:
        """Send a method and wait for its answer."""
        self.send(channel, method)
        return await self._answer(channel)

    def send(self, channel: int, *methods: Method) -> None:
        """Send methods; their answers are somebody else's business."""
        self.write(b"".join([method_frame(channel, method) for method in methods]))

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    def publishes(
        self, channel: int, queue: str, bodies: list[bytes], *, is_persistent: bool = True
    ) -> bytes:
        """The frames of publishes to the default exchange; for ``write``."""
        front = method_frame(channel, Publish(0, "", queue))
        properties = PERSISTENT if is_persistent else TRANSIENT
        return b"".join(
            [front + content_frames(channel, properties, body, self._frame_max) for body in bodies]
        )

    async def room(self) -> None:
        """Wait while the broker does not read and the socket's buffer is full."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    @property
    def is_blocked(self) -> bool:
        """True between ``connection.blocked`` and ``unblocked``."""
        return bool(self.notices) and bool(self.notices[-1].reason)

    def rest(self) -> None:
        """Read nothing any more, as a client that hangs; a little is read ahead still."""
        # A buffer of the system's choice would take whatever a scene can send.
        self._writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, RESTING_BYTES)
        self._may_read.clear()

    def read_on(self) -> None:
        self._may_read.set()

    def leave(self) -> None:
        self._task.cancel()
        self._writer.transport.abort()

    # Listening.

    async def _answer(self, channel: int) -> Method:
        answer = await asyncio.wait_for(self._answers[channel].get(), ANSWER_SECONDS_MAX)
        if isinstance(answer, ConnectionClose):
            raise PenstockError(f"the broker closed the connection: {answer.reply_text}")
        return answer

    async def _hear(self) -> None:
        while True:
            await self._may_read.wait()
            try:
                data = await self._reader.read(READ_BYTES)
            except ConnectionError:
                return
            if not data:
                return
            self._frames.feed(data)
            for frame in self._frames.frames():
                self._understand(frame)

    def _understand(self, frame: Frame) -> None:
        channel = frame.channel
        if frame.kind == FRAME_METHOD:
            method = decode_method(frame.payload, channel)
            if isinstance(method, _WITH_CONTENT):
                self._partial[channel] = _Content(method)
            else:
                self._heard(channel, method, b"")
        elif frame.kind in (FRAME_HEADER, FRAME_BODY):
            content = self._partial[channel]
            if content.is_complete_with(frame):
                del self._partial[channel]
                self._heard(channel, content.method, b"".join(content.pieces))

    def _heard(self, channel: int, method: Method, body: bytes) -> None:
        if isinstance(method, Blocked):
            self.notices.append(Notice(time.monotonic(), method.reason))
        elif isinstance(method, Unblocked):
            self.notices.append(Notice(time.monotonic(), ""))
        elif isinstance(method, _UNASKED) and channel in self._listeners:
            self._listeners[channel](method, body)
        else:
            if isinstance(method, ConnectionClose):
                self.closed_by_broker = method.reply_text
            self._answers[channel].put_nowait(method)


class _Content:
    """A method whose header and body are still arriving."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.pieces: list[bytes] = []
        self._left = 0

    def is_complete_with(self, frame: Frame) -> bool:
        """Take the next frame; True when it was the last."""
        if frame.kind == FRAME_HEADER:
            self._left = CONTENT_HEAD.unpack_from(frame.payload)[2]
        else:
            self.pieces.append(frame.payload)
            self._left -= len(frame.payload)
        return self._left == 0
