"""An AMQP client in a few lines, for scenes: one socket, its channels, what the broker says.

It speaks with ``wire/amqp`` over asyncio, like any client of RabbitMQ: ``call`` waits for the
answer of its channel, ``publish`` only writes, what nobody asked for goes to whoever listens on
that channel. ``connection.blocked`` is kept in ``notices`` with the time at which it was heard.

Bound: the transport's own buffer; whoever publishes a lot awaits ``room``.
Not here: paces, windows and counts (``amqp_actors.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from socket import SO_RCVBUF, SOL_SOCKET
from typing import Final, NamedTuple

from penstock.model.errors import PenstockError
from penstock.wire.amqp.codes import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    PROTOCOL_HEADER,
)
from penstock.wire.amqp.frames import CONTENT_HEAD, AmqpFrames, Frame, content_frames, method_frame
from penstock.wire.amqp.methods import decode_method
from penstock.wire.amqp.methods.basic import Ack, Cancel, Deliver, GetOk, Nack, Publish, Return
from penstock.wire.amqp.methods.channel import Close as CloseChannel
from penstock.wire.amqp.methods.channel import Open as OpenChannel
from penstock.wire.amqp.methods.connection import (
    Blocked,
    Close,
    Open,
    StartOk,
    Tune,
    TuneOk,
    Unblocked,
)
from penstock.wire.amqp.methods.method import Method

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
        """Send frames."""
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
        """Read again."""
        self._may_read.set()

    def leave(self) -> None:
        """Hang up."""
        self._task.cancel()
        self._writer.transport.abort()

    # Listening.

    async def _answer(self, channel: int) -> Method:
        answer = await asyncio.wait_for(self._answers[channel].get(), ANSWER_SECONDS_MAX)
        if isinstance(answer, Close):
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
            if isinstance(method, Close):
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
