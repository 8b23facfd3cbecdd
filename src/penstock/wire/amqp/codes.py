"""The numbers of AMQP 0-9-1 and the one error that anything in this package raises.

``AmqpError`` carries what a close needs: reply code, text as RabbitMQ words it (``NAME - why``),
class and method of the command at fault, and the channel it came on. A hard code closes the
connection, a soft one only the channel. Sheet: amqp.md 1.1, 1.5.

Not here: the frames that say so (``methods/connection.py``, ``methods/channel.py``).
"""

from enum import IntEnum
from typing import Final

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
PROTOCOL_HEADERS: Final = frozenset((PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"))
"""What a client may open with; the second is 0-9, which differs in nothing we use."""

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE

FRAME_MAX_MIN: Final = 4096
"""Also the limit before tune-ok."""
FRAME_MAX: Final = 131_072
FRAME_OVERHEAD: Final = 8
"""Type, channel, size and end octet: ``frame_max`` counts them, a payload has that much less."""
FRAME_GRACE_BYTES: Final = 8
"""RabbitMQ forgives clients that take ``frame_max`` for the payload's limit."""

CLASS_BASIC: Final = 60
MESSAGE_BYTES_MAX: Final = 128 * 1024 * 1024
"""Larger ones are refused on their channel (406), as RabbitMQ 3.x does by default."""
SHORT_BYTES_MAX: Final = 255
"""A short string; its length is one octet."""


class ReplyCode(IntEnum):
    """Why a channel or connection is closed, or a message comes back."""

    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def is_hard(self) -> bool:
        """True when the whole connection is closed."""
        return self not in _SOFT


_SOFT: Final = frozenset((311, 312, 313, 403, 404, 405, 406))


class AmqpError(ValueError):
    """What the peer (or the caller) sent cannot be carried or obeyed."""

    def __init__(
        self,
        code: ReplyCode,
        text: str,
        *,
        class_id: int = 0,
        method_id: int = 0,
        channel: int = 0,
    ) -> None:
        super().__init__(f"{code.name} - {text}")
        self.code: Final = code
        self.class_id = class_id
        self.method_id = method_id
        self.channel = channel

    @property
    def reply_text(self) -> str:
        """The text of the close, cut to what a short string holds."""
        encoded = str(self).encode("utf-8", "replace")
        return encoded[:SHORT_BYTES_MAX].decode("utf-8", "ignore")

    def about(self, channel: int, class_id: int = 0, method_id: int = 0) -> "AmqpError":
        """The same error with the place it happened at, as far as it was not known."""
        self.channel = self.channel or channel
        self.class_id = self.class_id or class_id
        self.method_id = self.method_id or method_id
        return self


class WrongProtocol(AmqpError):
    """The first eight bytes are not AMQP 0-9-1: answer ``PROTOCOL_HEADER`` and hang up."""


def frame_error(text: str) -> AmqpError:
    """501: the bytes are not laid out as a frame."""
    return AmqpError(ReplyCode.FRAME_ERROR, text)


def syntax_error(text: str) -> AmqpError:
    """502: a field has a value it cannot have."""
    return AmqpError(ReplyCode.SYNTAX_ERROR, text)
