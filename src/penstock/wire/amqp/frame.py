"""Frames: the envelope of everything AMQP says.

    byte  0       1            3          7               7 + size
          | type  | channel u16 | size u32 | payload       | 0xCE |
            1 method, 2 content header, 3 body, 8 heartbeat (channel 0, empty)

Big-endian. ``frame_max`` counts the whole frame. A frame is refused by its size field alone, before
anything is kept for it (T12), except for 8 bytes of grace that RabbitMQ gives as well.

Not here: what a payload means (``methods.py``, ``content.py``), the way in that a broker uses
(``inflow.py``: the same frames, many at a time).
"""

from struct import Struct
from typing import Final, NamedTuple

from penstock.wire.amqp.codes import (
    FRAME_END,
    FRAME_GRACE_BYTES,
    FRAME_HEARTBEAT,
    FRAME_MAX_MIN,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    PROTOCOL_HEADERS,
    AmqpError,
    ReplyCode,
    WrongProtocol,
    frame_error,
)
from penstock.wire.amqp.method import Method
from penstock.wire.inbox import FrameTooLarge, Inbox

HEAD: Final = Struct(">BHI")
END: Final = bytes((FRAME_END,))
HEARTBEAT: Final = HEAD.pack(FRAME_HEARTBEAT, 0, 0) + END
_SIZE: Final = Struct(">3xI")


class Frame(NamedTuple):
    """One frame without its envelope."""

    kind: int
    channel: int
    payload: bytes


class AmqpFrames:
    """The stream of one peer, cut into frames, one by one; tests and clients of ours use it."""

    __slots__ = ("_inbox", "_is_greeted")

    def __init__(self, *, frame_max: int = FRAME_MAX_MIN, is_greeted: bool = False) -> None:
        self._inbox = Inbox(_SIZE, frame_bytes_max=payload_max(frame_max), trailer_bytes=1)
        self._is_greeted = is_greeted

    def tune(self, frame_max: int) -> None:
        """Take what was negotiated; 0 = no limit but the size field's own."""
        self._inbox.frame_bytes_max = payload_max(frame_max)

    def feed(self, data: bytes) -> None:
        """Take what the socket gave."""
        self._inbox.feed(data)

    def frames(self) -> list[Frame]:
        """Every whole frame so far; an error comes with the call after the last good one."""
        if not self._is_greeted:
            greeting = self._inbox.take(8)
            if greeting is None:
                return []
            check_greeting(greeting)
            self._is_greeted = True
        try:
            raw = self._inbox.frames()
        except FrameTooLarge as problem:
            raise frame_error(str(problem)) from None
        return [parse_frame(data) for data in raw]


def check_greeting(data: bytes) -> None:
    """Raise ``WrongProtocol`` unless a client may open with these eight bytes."""
    if data not in PROTOCOL_HEADERS:
        raise WrongProtocol(ReplyCode.FRAME_ERROR, f"{data!r} is not AMQP 0-9-1")


def parse_frame(data: bytes) -> Frame:
    """A whole frame out of its envelope."""
    kind, channel, size = HEAD.unpack_from(data)
    if len(data) != size + FRAME_OVERHEAD or data[-1] != FRAME_END:
        raise bad_end(data[-1]).about(channel)
    return Frame(kind, channel, data[7:-1])


def bad_end(octet: int) -> AmqpError:
    """What to raise for a frame that does not end as frames do."""
    return frame_error(f"frame ends with {octet:#04x} and not with 0xce")


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A payload in its envelope."""
    return b"".join((HEAD.pack(kind, channel, len(payload)), payload, END))


def method_frame(channel: int, method: Method) -> bytes:
    """A method, ready to be sent."""
    return encode_frame(FRAME_METHOD, channel, method.encode())


def payload_max(frame_max: int) -> int:
    """The largest payload that is taken for a negotiated ``frame_max``."""
    return (frame_max or 1 << 32) - FRAME_OVERHEAD + FRAME_GRACE_BYTES
