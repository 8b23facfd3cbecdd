"""Actors of a scene that speak AMQP over real sockets, on the scene's own loop.

A publisher has a channel of its own in confirm mode; consumers share the channel of their control,
and its prefetch. All may share one connection. Here are their words of AMQP.

Not here: paces, windows and counts (``steady.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from socket import SO_RCVBUF, SOL_SOCKET
from typing import Any, Final, NamedTuple

from penstock.demo.steady import (
    ANSWER_SECONDS_MAX,
    AckingConsumer,
    Growth,
    NumberedPublisher,
    Pace,
    SocketLink,
    open_socket,
)
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

NO_WINDOW: Final = 1 << 30


class AmqpPublisher(NumberedPublisher["AmqpLink"]):
    """Publishes to one routing key of the default exchange, in confirm mode."""

    def __init__(
        self,
        link: AmqpLink,
        name: str,
        queue: str,
        *,
        channel: int,
        is_persistent: bool,
        body_bytes: int,
    ) -> None:
        super().__init__(name, link, body_bytes)
        self.closed_text = ""
        """Why the broker closed the channel, if it did."""
        self._queue = queue
        self._channel = channel
        self._is_persistent = is_persistent
        self._answered = 0
        self._nacked_growth: Final = Growth()

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
        window: int = NO_WINDOW,
    ) -> AmqpPublisher:
        """A publisher with its own channel; with so many unanswered, or in all, if it says so."""
        self = cls(
            link, name, queue,
            channel=channel, is_persistent=is_persistent, body_bytes=body_bytes,
        )  # fmt: skip
        await link.open(channel, self._hear)
        await link.call(channel, ConfirmSelect())
        self._begin(self._publish(Pace(per_second), count_max, window))
        return self

    @property
    def nacked_numbers(self) -> set[int]:
        """AMQP's word for what is not stored."""
        return self.failed_numbers

    async def _send(self, numbers: range) -> None:
        bodies = [self._body(number) for number in numbers]
        self.link.write(
            self.link.publishes(
                self._channel, self._queue, bodies, is_persistent=self._is_persistent
            )
        )
        await self.link.room()

    def _remark(self) -> str:
        news = self._nacked_growth.of(len(self.failed_numbers))
        return (" blocked" if self.link.is_blocked else "") + (f" nacked {news}" if news else "")

    def _hear(self, method: Method, _body: bytes) -> None:
        if isinstance(method, Ack):
            self._note(method.delivery_tag, method.is_multiple, self.confirmed_numbers)
        elif isinstance(method, Nack):
            self._note(method.delivery_tag, method.is_multiple, self.failed_numbers)
        elif isinstance(method, Close):
            self.closed_text = method.reply_text
            self.stop()

    def _note(self, tag: int, is_multiple: bool, book: set[int]) -> None:
        if not is_multiple:
            book.add(tag)
            return
        both = (self.confirmed_numbers, self.failed_numbers)
        new = [
            number
            for number in range(self._answered + 1, tag + 1)
            if number not in both[0] and number not in both[1]
        ]
        book.update(new)
        self._answered = max(self._answered, tag)


class AmqpConsumer(AckingConsumer["AmqpLink", tuple[int, bytes]]):
    """Takes with its channel's prefetch; see ``AmqpControl.consume``."""

    def __init__(self, control: AmqpControl, name: str, *, is_acking: bool) -> None:
        super().__init__(name, control.link)
        self.is_acking = is_acking
        self.unacked_peak = 0
        self._channel = control.channel
        self._begin(self._settle())

    def take(self, tag: int, body: bytes) -> None:
        # What a body is padded with is not kept.
        self._in_hand.append((tag, body.rstrip()))
        self.unacked_peak = max(self.unacked_peak, self.unacked)

    async def ack(self, messages: int) -> None:
        taken = [self._in_hand.popleft() for _ in range(min(messages, self.unacked))]
        self.link.send(self._channel, *[Ack(tag) for tag, _ in taken])
        self.bodies.extend(body for _, body in taken)


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

    async def consume(self, name: str, queue: str, *, is_acking: bool = True) -> AmqpConsumer:
        consumer = self._consumers[name] = AmqpConsumer(self, name, is_acking=is_acking)
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
# answer of its channel, ``send`` only writes, what nobody asked for goes to whoever listens on
# that channel. ``connection.blocked`` is kept in ``notices`` with the time at which it was heard.


PERSISTENT: Final = b"\x10\x00\x02"
"""Properties of a message that says nothing but delivery-mode 2."""
TRANSIENT: Final = b"\x00\x00"
RESTING_BYTES: Final = 1 << 16
"""What the system keeps for a client that does not read."""
_UNASKED: Final = (Deliver, Return, Ack, Nack, Cancel, CloseChannel)
_WITH_CONTENT: Final = (Deliver, Return, GetOk)
_CAPABILITIES: Final = ("basic.nack", "connection.blocked", "publisher_confirms")

Listener = Callable[[Method, bytes], None]
"""Told of what a channel was not asked for, with the body if there is one."""


class Notice(NamedTuple):
    """``connection.blocked`` with its reason, or ``unblocked`` without."""

    at_s: float
    reason: str


class AmqpLink(SocketLink):
    """One connection and its channels; made by ``connect``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.notices: Final[list[Notice]] = []
        """What was heard of alarms, in order."""
        self.closed_by_broker = ""
        """The broker's words, if it closed the connection."""
        self._frames: Final = AmqpFrames(frame_max=0, is_greeted=True)
        self._frame_max = 0
        self._answers: Final[dict[int, asyncio.Queue[Method]]] = {}
        self._listeners: Final[dict[int, Listener]] = {}
        self._partial: Final[dict[int, _Content]] = {}

    @classmethod
    async def connect(cls, endpoint: str, name: str) -> AmqpLink:
        """Connect as guest to virtual host ``/``."""
        link = cls(*await open_socket(endpoint))
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

    def publishes(
        self, channel: int, queue: str, bodies: list[bytes], *, is_persistent: bool = True
    ) -> bytes:
        """The frames of publishes to the default exchange; for ``write``."""
        front = method_frame(channel, Publish(0, "", queue))
        properties = PERSISTENT if is_persistent else TRANSIENT
        return b"".join(
            [front + content_frames(channel, properties, body, self._frame_max) for body in bodies]
        )

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

    # Listening.

    async def _answer(self, channel: int) -> Method:
        answer = await asyncio.wait_for(self._answers[channel].get(), ANSWER_SECONDS_MAX)
        if isinstance(answer, ConnectionClose):
            raise PenstockError(f"the broker closed the connection: {answer.reply_text}")
        return answer

    def _heard(self, data: bytes) -> None:
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
                self._tell(channel, method, b"")
        elif frame.kind in (FRAME_HEADER, FRAME_BODY):
            content = self._partial[channel]
            if content.is_complete_with(frame):
                del self._partial[channel]
                self._tell(channel, content.method, b"".join(content.pieces))

    def _tell(self, channel: int, method: Method, body: bytes) -> None:
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
