"""Bytes as they arrive, cut into whole frames: the buffer all codecs share.

A peer may send one byte at a time or a thousand frames at once; both must cost linear time and
bounded memory. It therefore keeps what it was fed as one growing buffer with a read mark,
hands out frames as ``bytes`` and moves the rest to the front only when the dead part is the larger
one. A frame that announces more than ``frame_bytes_max`` is refused from its length field alone,
before anything is allocated for it (T12).

Not here: what a frame looks like inside; each codec passes the shape of its length field.
"""

from struct import Struct
from typing import Final

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Default ceiling of one frame: RocketMQ's frameMaxLength; AMQP and Pulsar negotiate less."""


class FrameTooLarge(ValueError):
    """A length field asks for more than the limit; the peer is at fault."""


class FrameTooSmall(ValueError):
    """A length field is below what a frame needs at least; the peer is at fault."""


class FrameBuffer:
    """A receive buffer that yields frames of one layout: ``prefix``, payload, ``trailer_bytes``.

    ``prefix`` unpacks to one integer, the number of bytes that follow it (trailer excluded).
    """

    __slots__ = ("_buffer", "_prefix", "_start", "_trailer_bytes", "frame_bytes_max", "least_bytes")

    def __init__(
        self,
        prefix: Struct,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        least_bytes: int = 0,
        trailer_bytes: int = 0,
    ) -> None:
        self._buffer = bytearray()
        self._start = 0
        self._prefix = prefix
        self._trailer_bytes = trailer_bytes
        self.frame_bytes_max = frame_bytes_max
        self.least_bytes = least_bytes

    def __len__(self) -> int:
        """Bytes fed and not handed out yet."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes) -> None:
        """Take what the socket gave."""
        self._buffer += data

    def frames(self, count_max: int = 1 << 30) -> list[bytes]:
        """Every whole frame so far, at most ``count_max``, prefix and trailer included.

        Raises ``FrameTooLarge`` or ``FrameTooSmall`` when the next frame can never be valid; frames
        before it are handed out first, by this call, and the error comes with the next one.
        """
        found: list[bytes] = []
        buffer, at, end = self._buffer, self._start, len(self._buffer)
        prefix_bytes = self._prefix.size
        while len(found) < count_max and end - at >= prefix_bytes:
            (size,) = self._prefix.unpack_from(buffer, at)
            if size > self.frame_bytes_max or size < self.least_bytes:
                if found:
                    break
                self._refuse(size)
            stop = at + prefix_bytes + size + self._trailer_bytes
            if stop > end:
                break
            found.append(bytes(buffer[at:stop]))
            at = stop
        self._start = at
        self._compact()
        return found

    def peek(self, size: int) -> bytes:
        """The next ``size`` bytes, or as many as there are; they stay."""
        return bytes(self._buffer[self._start : self._start + size])

    def clear(self) -> None:
        """Forget what is not handed out."""
        self._buffer = bytearray()
        self._start = 0

    def take(self, size: int) -> bytes | None:
        """Exactly ``size`` raw bytes, or None while fewer are there; for handshakes."""
        if len(self) < size:
            return None
        data = bytes(self._buffer[self._start : self._start + size])
        self._start += size
        self._compact()
        return data

    def _refuse(self, size: int) -> None:
        if size > self.frame_bytes_max:
            raise FrameTooLarge(f"frame of {size} bytes announced, limit {self.frame_bytes_max}")
        raise FrameTooSmall(f"frame of {size} bytes announced, at least {self.least_bytes} needed")

    def _compact(self) -> None:
        # Moving the rest only when the dead part outweighs it keeps the total cost linear.
        if self._start == len(self._buffer):
            self._buffer.clear()
            self._start = 0
        elif self._start > len(self._buffer) - self._start:
            del self._buffer[: self._start]
            self._start = 0
