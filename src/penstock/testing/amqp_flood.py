"""A flood of publishes: one socket, one thread, the same message as fast as the broker takes it.

    with AmqpFlood(endpoint, exchange="", key="hot", body=b"x" * 20) as flood: ...

No confirms, no counting of answers: it is there to make something the bottleneck. ``sent`` is what
the socket has taken, which is ahead of what the broker has read.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Final

from penstock.wire.amqp.codes import PROTOCOL_HEADER
from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods.basic import Publish
from penstock.wire.amqp.methods.channel import Open as OpenChannel
from penstock.wire.amqp.methods.connection import Open, StartOk, TuneOk

CHUNK_BYTES: Final = 64 * 1024
FRAME_BYTES: Final = 128 * 1024
READ_BYTES: Final = 64 * 1024
PERSISTENT: Final = b"\x10\x00\x02"
TRANSIENT: Final = b"\x00\x00"


class AmqpFlood:
    """Publishes from ``with`` to the end of it."""

    def __init__(
        self,
        endpoint: str,
        *,
        exchange: str,
        key: str,
        body: bytes,
        is_persistent: bool = True,
    ) -> None:
        host, _, port = endpoint.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)))
        self._greet()
        properties = PERSISTENT if is_persistent else TRANSIENT
        one = method_frame(1, Publish(0, exchange, key)) + content_frames(
            1, properties, body, FRAME_BYTES
        )
        self._per_chunk = max(1, CHUNK_BYTES // len(one))
        self._chunk = one * self._per_chunk
        self.sent = 0
        self._is_over = False
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._flood, self._drain)
        ]

    def __enter__(self) -> AmqpFlood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        # Whoever waits in send or recv is woken by it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _greet(self) -> None:
        for data in (
            PROTOCOL_HEADER,
            method_frame(0, StartOk({}, "PLAIN", b"\0guest\0guest")),
            method_frame(0, TuneOk(2047, FRAME_BYTES, 0)) + method_frame(0, Open("/")),
            method_frame(1, OpenChannel()),
        ):
            self._socket.sendall(data)
            self._socket.recv(READ_BYTES)

    def _flood(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_over:
                self._socket.sendall(self._chunk)
                self.sent += self._per_chunk

    def _drain(self) -> None:
        """What the broker says is of no interest, but it must not be kept from saying it."""
        with contextlib.suppress(OSError):
            while self._socket.recv(READ_BYTES):
                pass
