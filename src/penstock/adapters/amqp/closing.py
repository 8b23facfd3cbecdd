"""How a connection ends in words: our close, its answer, the texts of operators and shutdown.

    error of the peer   close(code, text, class, method) ... close-ok, end of stream, or time is up
    the peer's close    close-ok ... end of stream, or time is up
    the broker stops    close 320, and the socket is closed behind it

While an answer is awaited everything else is thrown away: it could only be about what is gone.
Not here: when (``session.py``).
"""

from typing import Final

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.frames import method_frame
from penstock.wire.amqp.methods.connection import Close, CloseOk

CLOSE_OK: Final = method_frame(0, CloseOk())


def close_frame(error: AmqpError) -> bytes:
    """connection.close for this error."""
    close = Close(int(error.code), error.reply_text, error.class_id, error.method_id)
    return method_frame(0, close)


def shutdown() -> AmqpError:
    """What peers are told when the broker stops."""
    text = "broker forced connection closure with reason 'shutdown'"
    return AmqpError(ReplyCode.CONNECTION_FORCED, text)


class Farewell:
    """Waits for the peer's close-ok, however its bytes are cut; nothing else is read any more."""

    __slots__ = ("_tail", "until_ms")

    def __init__(self, until_ms: int) -> None:
        self.until_ms: Final = until_ms
        """Then the peer is cut off."""
        self._tail = b""

    def is_heard(self, data: bytes) -> bool:
        """True when close-ok is in these bytes or ends with them."""
        whole = self._tail + data
        self._tail = whole[-(len(CLOSE_OK) - 1) :]
        return CLOSE_OK in whole
