"""Frames, the envelope of everything AMQP says, and the contents that they carry.

    byte  0       1            3          7               7 + size
          | type  | channel u16 | size u32 | payload       | 0xCE |
            1 method, 2 content header, 3 body, 8 heartbeat (channel 0, empty)

Big-endian. ``frame_max`` counts the whole frame. A frame is refused by its size field alone, before
anything is kept for it (T12), except for 8 bytes of grace that RabbitMQ gives as well.

Not here: the arguments of methods (``methods/``), the parser that the broker uses (``parser.py``:
the same frames, many at a time).
"""

from struct import Struct
from typing import Final, NamedTuple

import msgspec

from penstock.model.record import Record
from penstock.wire.amqp.codes import (
    CLASS_BASIC,
    FRAME_BODY,
    FRAME_END,
    FRAME_GRACE_BYTES,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_MAX_MIN,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    MESSAGE_BYTES_MAX,
    PROTOCOL_HEADERS,
    AmqpError,
    ReplyCode,
    WrongProtocol,
    frame_error,
)
from penstock.wire.amqp.methods import decode_method
from penstock.wire.amqp.methods.basic import Ack, Nack, Reject
from penstock.wire.amqp.methods.method import Method
from penstock.wire.amqp.origin import (
    PUBLISH_IDS,
    Claims,
    ContentHeader,
    PublishHead,
    publish_head,
    read_content_header,
    record_of,
)
from penstock.wire.frame_buffer import FrameBuffer, FrameTooLarge

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
    """The stream of one peer, cut into frames one by one: for tests and our own clients."""

    __slots__ = ("_buffer", "_is_greeted")

    def __init__(self, *, frame_max: int = FRAME_MAX_MIN, is_greeted: bool = False) -> None:
        self._buffer = FrameBuffer(_SIZE, frame_bytes_max=payload_max(frame_max), trailer_bytes=1)
        self._is_greeted = is_greeted

    def tune(self, frame_max: int) -> None:
        """Take what was negotiated; 0 = no limit but the size field's own."""
        self._buffer.frame_bytes_max = payload_max(frame_max)

    def feed(self, data: bytes) -> None:
        """Take what the socket gave."""
        self._buffer.feed(data)

    def frames(self) -> list[Frame]:
        """Every whole frame so far; an error comes with the call after the last good one."""
        if not self._is_greeted:
            greeting = self._buffer.take(8)
            if greeting is None:
                return []
            check_greeting(greeting)
            self._is_greeted = True
        try:
            raw = self._buffer.frames()
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


# ---- contents -----------------------------------------------------------------------------------
# | header payload   | class u16 = 60 | weight u16 = 0 | body size u64 | flags u16, properties |
# | body payload     | as many bytes as a frame holds |
#
# A body of 0 bytes has no body frame. Frames of different channels may come in any order, those of
# one channel may not.

CONTENT_HEAD: Final = Struct(">HHQ")
CONTENT_FRONT: Final = CONTENT_HEAD.pack(CLASS_BASIC, 0, 0)[:4]
"""Class and weight: the same in every content header."""
CHANNEL_MAX: Final = 65_535
_PUBLISH: Final = 40


class Command(msgspec.Struct, gc=False):
    """A method without content."""

    channel: int
    method: Method


class PublishRun(msgspec.Struct, gc=False):
    """Publishes of one channel with the same names and claims, in the order they came."""

    channel: int
    head: PublishHead
    claims: Claims
    records: list[Record]


class AckRun(msgspec.Struct, gc=False):
    """Acks of one channel, in the order they came; each is multiple, or none is."""

    channel: int
    tags: list[int]
    is_multiple: bool


class SettleRun(msgspec.Struct, gc=False):
    """Nacks and rejects of one channel, acks among them, in the order they came; none multiple."""

    channel: int
    tags: list[int]
    words: bytes
    """What is said of each: the method's number, one more when the message goes back (requeue)."""


class ContentRefused(msgspec.Struct, gc=False):
    """A message that was read and dropped; the error is the channel's."""

    channel: int
    error: AmqpError


Event = Command | PublishRun | AckRun | SettleRun | ContentRefused


class PartialContent(msgspec.Struct, gc=False):
    """A publish whose content is not complete."""

    head: PublishHead
    properties: bytes = b""
    header: ContentHeader | None = None
    """None while the content header is awaited."""
    left_bytes: int = 0
    body: bytearray | None = None
    is_dropped: bool = False
    held_bytes: int = 0


class ContentAssembler:
    """Frames of one connection in, events out; keeps per channel a publish that is not complete.

    What is kept is counted in ``held_bytes`` (names, properties and body so far). A body is never
    longer than announced, and no space is made for what was only announced. A message above
    ``message_bytes_max`` is reported once, by ``ContentRefused``, and its body is read and dropped.
    Bound: one content each of at most ``channel_max`` channels; ``held_bytes`` is for the adapter
    to bound, against its connection's share (D22).
    """

    __slots__ = ("channel_max", "held_bytes", "message_bytes_max", "partials")

    def __init__(self, *, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self.message_bytes_max = message_bytes_max
        self.channel_max = CHANNEL_MAX
        self.held_bytes = 0
        self.partials: dict[int, PartialContent] = {}

    def take(self, kind: int, channel: int, payload: bytes, now_ms: int) -> Event | None:
        """One frame; None when nothing is complete by it."""
        if kind == FRAME_METHOD:
            return self._method(channel, payload)
        if kind == FRAME_HEARTBEAT:
            if channel or payload:
                raise _unexpected("heartbeat on a channel, or with a payload", channel)
            return None
        partial = self.partials.get(channel)
        if kind == FRAME_HEADER:
            if partial is None or partial.header is not None:
                raise _unexpected("got a content header where none is expected", channel)
            return self._header(channel, partial, payload, now_ms)
        if kind == FRAME_BODY:
            if partial is None or partial.header is None:
                raise _unexpected("got a content body where none is expected", channel)
            return self._body(channel, partial, payload, now_ms)
        raise frame_error(f"frame of unknown type {kind}").about(channel)

    def _method(self, channel: int, payload: bytes) -> Event | None:
        if channel in self.partials:
            text = "expected the rest of a content, got a method frame instead"
            raise _unexpected(text, channel)
        if payload[:4] != PUBLISH_IDS:
            method = decode_method(payload, channel)
            if type(method) is Ack:
                return AckRun(channel, [method.delivery_tag], method.is_multiple)
            if type(method) is Reject or (type(method) is Nack and not method.is_multiple):
                word = bytes((method.method_id + method.is_requeue,))
                return SettleRun(channel, [method.delivery_tag], word)
            return Command(channel, method)
        if not channel or len(self.partials) >= self.channel_max:
            text = (
                f"publish on channel {channel}: {len(self.partials)} channels have one that is not "
                f"complete, channel_max is {self.channel_max}"
            )
            if not channel:
                text = f"publish on channel 0, allowed are 1 to {CHANNEL_MAX}"
            raise AmqpError(ReplyCode.CHANNEL_ERROR, text).about(channel, CLASS_BASIC, _PUBLISH)
        try:
            head = publish_head(payload)
        except AmqpError as problem:
            raise problem.about(channel) from None
        self.partials[channel] = partial = PartialContent(head)
        self._hold(partial, len(payload))
        return None

    def _header(
        self, channel: int, partial: PartialContent, payload: bytes, now_ms: int
    ) -> Event | None:
        if len(payload) < CONTENT_HEAD.size + 2:
            raise _about_publish(frame_error(f"content header of {len(payload)} bytes"), channel)
        class_id, weight, size = CONTENT_HEAD.unpack_from(payload)
        if class_id != CLASS_BASIC:
            text = f"expected a content header for class 60, got one for class {class_id} instead"
            raise _unexpected(text, channel)
        if weight:
            text = f"content header with weight {weight}, it must be 0"
            raise _about_publish(frame_error(text), channel)
        partial.properties = payload[CONTENT_HEAD.size :]
        try:
            partial.header = read_content_header(partial.properties)
        except AmqpError as problem:
            raise _about_publish(problem, channel) from None
        partial.left_bytes = size
        if size > self.message_bytes_max:
            partial.is_dropped = True
            text = (
                f"message size {size} is larger than configured max size {self.message_bytes_max}"
            )
            error = AmqpError(ReplyCode.PRECONDITION_FAILED, text)
            return ContentRefused(channel, error.about(channel, CLASS_BASIC, _PUBLISH))
        if not size:
            return self._complete(channel, partial, b"", now_ms)
        self._hold(partial, len(payload))
        return None

    def _body(
        self, channel: int, partial: PartialContent, payload: bytes, now_ms: int
    ) -> Event | None:
        left = partial.left_bytes - len(payload)
        if left < 0:
            text = f"body frame of {len(payload)} bytes, {partial.left_bytes} are missing"
            raise _about_publish(frame_error(text), channel)
        partial.left_bytes = left
        if partial.body is None and not left and not partial.is_dropped:
            return self._complete(channel, partial, payload, now_ms)
        if partial.is_dropped:
            if not left:
                self._forget(channel, partial)
            return None
        if partial.body is None:
            partial.body = bytearray()
        # One buffer, not a list: a body in frames of one byte must not cost forty times its size.
        partial.body += payload
        self._hold(partial, len(payload))
        return None if left else self._complete(channel, partial, bytes(partial.body), now_ms)

    def _complete(
        self, channel: int, partial: PartialContent, body: bytes, now_ms: int
    ) -> PublishRun:
        self._forget(channel, partial)
        header = partial.header
        assert header is not None
        record = record_of(partial.head, header, partial.properties, body, now_ms)
        return PublishRun(channel, partial.head, header.claims, [record])

    def _hold(self, partial: PartialContent, size: int) -> None:
        partial.held_bytes += size
        self.held_bytes += size

    def _forget(self, channel: int, partial: PartialContent) -> None:
        del self.partials[channel]
        self.held_bytes -= partial.held_bytes


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Header and body frames of a content, none larger than ``frame_max`` (0 = no limit)."""
    payload = CONTENT_HEAD.pack(CLASS_BASIC, 0, len(body)) + properties
    pieces = [encode_frame(FRAME_HEADER, channel, payload)]
    room = (frame_max or 1 << 31) - FRAME_OVERHEAD
    starts = range(0, len(body), room)
    pieces += [encode_frame(FRAME_BODY, channel, body[at : at + room]) for at in starts]
    return b"".join(pieces)


def _unexpected(text: str, channel: int) -> AmqpError:
    return AmqpError(ReplyCode.UNEXPECTED_FRAME, text).about(channel)


def _about_publish(problem: AmqpError, channel: int) -> AmqpError:
    return problem.about(channel, CLASS_BASIC, _PUBLISH)
