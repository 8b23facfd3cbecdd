"""The way out: deliver, get-ok and return frames with their contents, confirms, acks and nacks.

    | 01 ch size, 60 60, ctag | tag u64 | redelivered | names | CE 02 ch size, 60 0, body size |
    |<----- front, known ---->|                       origin   <---- middle, known ----------->
    | flags, properties | CE 03 ch size | body | CE |
     origin              <-- known --->  origin

Everything but the tag comes out of the record as it went in, so properties are byte-identical.
For records of one shape the known parts are made once (``_Template``); a list of deliveries is one
``bytes``. Bodies that do not fit one frame of the reader are split by ``content_frames``.

Bound: ``TEMPLATES_KEPT`` templates per consumer.
Not here: delivery tags and who gets what (``adapters/amqp``), which tags may be confirmed together
(``flow/confirms.py``).
"""

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from penstock.model.record import Record, Shape
from penstock.wire.amqp.codes import (
    CLASS_BASIC,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD,
)
from penstock.wire.amqp.frames import CONTENT_HEAD, END, HEAD, content_frames, encode_frame
from penstock.wire.amqp.methods.basic import GetOk, Return
from penstock.wire.amqp.methods.method import IDS, Method, short_bytes

TEMPLATES_KEPT: Final = 256
_DELIVER: Final = IDS.pack(CLASS_BASIC, 60)
_TAG_BYTES: Final = 9
"""Delivery tag and redelivered."""


class DeliveryEncoder:
    """Frames for one consumer."""

    __slots__ = ("_channel", "_ctag", "_frame_max", "_templates")

    def __init__(self, channel: int, consumer_tag: str, frame_max: int) -> None:
        self._channel = channel
        self._ctag = short_bytes(consumer_tag)
        self._frame_max = frame_max
        self._templates: dict[Shape, _Template | None] = {}

    def encode(
        self, records: list[Record], first_tag: int, redelivered: Sequence[bool] | None = None
    ) -> bytes:
        """The frames of these, tags counting up from ``first_tag``; None = none is redelivered."""
        pieces: list[bytes] = []
        shape: Shape | None = None
        template: _Template | None = None
        tag = first_tag
        is_again = False
        for record in records:
            if record.shape is not shape:
                shape = record.shape
                template = self._template(shape)
                if template is not None:
                    front, middle, body_front, split, pack = template
            if redelivered is not None:
                is_again = redelivered[tag - first_tag]
            if template is None:
                pieces.append(self._encode_split(record.origin, shape, tag, is_again))
            else:
                names, props, body = split(record.origin)
                pieces.append(
                    pack(front, tag, is_again, names, middle, props, body_front, body, END)
                )
            tag += 1
        return b"".join(pieces)

    def _template(self, shape: Shape) -> "_Template | None":
        """None: the body does not fit one frame, or there is none."""
        template = self._templates.get(shape)
        if template is None and shape not in self._templates:
            if len(self._templates) >= TEMPLATES_KEPT:
                self._templates.clear()
            room = (self._frame_max or 1 << 31) - FRAME_OVERHEAD
            if 0 < shape.body_len <= room:
                template = _template_of(self._channel, self._ctag, shape)
            self._templates[shape] = template
        return template

    def _encode_split(self, origin: bytes, shape: Shape, tag: int, is_redelivered: bool) -> bytes:
        names = origin[: shape.props_at]
        payload = b"".join(
            (_DELIVER, self._ctag, tag.to_bytes(8, "big"), bytes((is_redelivered,)), names)
        )
        method = encode_frame(FRAME_METHOD, self._channel, payload)
        properties = origin[shape.props_at : shape.body_at]
        body = origin[shape.body_at : shape.body_at + shape.body_len]
        return method + content_frames(self._channel, properties, body, self._frame_max)


class _Template(NamedTuple):
    """The known parts of deliveries of one shape, and the way to put them together."""

    front: bytes
    middle: bytes
    body_front: bytes
    split: Callable[[bytes], tuple[bytes, ...]]
    """Names, properties and body of an origin."""
    pack: Callable[..., bytes]
    """Front, tag, redelivered, names, middle, properties, front of the body, body, end."""


def _template_of(channel: int, ctag: bytes, shape: Shape) -> _Template:
    names, props, body = shape.props_at, shape.props_len, shape.body_len
    method_bytes = len(_DELIVER) + len(ctag) + _TAG_BYTES + names
    front = HEAD.pack(FRAME_METHOD, channel, method_bytes) + _DELIVER + ctag
    middle = b"".join(
        (
            END,
            HEAD.pack(FRAME_HEADER, channel, CONTENT_HEAD.size + props),
            CONTENT_HEAD.pack(CLASS_BASIC, 0, body),
        )
    )
    body_front = END + HEAD.pack(FRAME_BODY, channel, body)
    pack = Struct(f">{len(front)}sQ?{names}s{len(middle)}s{props}s{len(body_front)}s{body}sc").pack
    # Not unpack: behind the body may be keys that no reader is to see (``origin.py``).
    split = Struct(f"{names}s{props}s{body}s").unpack_from
    return _Template(front, middle, body_front, split, pack)


def get_ok_frames(
    channel: int,
    record: Record,
    delivery_tag: int,
    *,
    is_redelivered: bool,
    messages: int,
    frame_max: int,
) -> bytes:
    exchange, routing_key = names_of(record)
    method = GetOk(delivery_tag, is_redelivered, exchange, routing_key, messages)
    return with_content(channel, method, record, frame_max)


def return_frames(channel: int, record: Record, code: int, text: str, frame_max: int) -> bytes:
    """basic.return and the message."""
    return with_content(channel, Return(code, text, *names_of(record)), record, frame_max)


def with_content(channel: int, method: Method, record: Record, frame_max: int) -> bytes:
    """A method and the content of a stored message behind it."""
    front = encode_frame(FRAME_METHOD, channel, method.encode())
    return front + content_frames(channel, record.properties, record.body, frame_max)


def names_of(record: Record) -> tuple[str, str]:
    """Exchange and routing key of a stored message."""
    origin = record.origin
    end = 1 + origin[0]
    return origin[1:end].decode(), origin[end + 1 : record.shape.props_at].decode()


# ---- acks and nacks -----------------------------------------------------------------------------
# | | 01 ch u16 size 13 | class 60 | 80 ack, 120 nack | tag u64 | bits: multiple, requeue | CE |

_FRAME: Final = Struct(">BHIHHQBB")
_PAYLOAD_BYTES: Final = 13
_ACK: Final = 80
_NACK: Final = 120


def ack_frame(channel: int, tag: int, *, is_multiple: bool = False) -> bytes:
    return _FRAME.pack(
        FRAME_METHOD, channel, _PAYLOAD_BYTES, CLASS_BASIC, _ACK, tag, is_multiple, FRAME_END
    )


def nack_frame(
    channel: int, tag: int, *, is_multiple: bool = False, is_requeue: bool = False
) -> bytes:
    bits = is_multiple | is_requeue << 1
    return _FRAME.pack(
        FRAME_METHOD, channel, _PAYLOAD_BYTES, CLASS_BASIC, _NACK, tag, bits, FRAME_END
    )


def confirm_frames(
    channel: int, upto: int | None, singles: Iterable[int], *, is_ack: bool = True
) -> bytes:
    """What ``flow.confirm_frames.Answers`` says: one cumulative answer, then single ones."""
    answer = ack_frame if is_ack else nack_frame
    pieces = [] if upto is None else [answer(channel, upto, is_multiple=True)]
    pieces += [answer(channel, tag) for tag in singles]
    return b"".join(pieces)
