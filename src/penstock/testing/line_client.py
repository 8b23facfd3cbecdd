"""The client side of the line protocol: a plain socket that speaks and hears whole lines.

It never blocks unless asked to (``ask``, ``wait_for``), so one test thread can drive many of them.
A connection that broke is an ordinary end: ``is_over`` turns True and what was heard stays.
"""

import contextlib
import select
import socket
import time
from typing import Final

READ_BYTES: Final = 65536
WAIT_SECONDS_MAX: Final = 20.0
"""A broker that says nothing for this long is broken; tests fail with a sentence, not a hang."""


class LineClient:
    """One connection to a line broker."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=WAIT_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._inbox = b""
        self._outbox = bytearray()
        self._heard: list[list[str]] = []
        self.is_over = False

    def fileno(self) -> int:
        """For ``select``."""
        return self._socket.fileno()

    def say(self, *lines: str) -> None:
        """Queue lines and send as much as the socket takes now."""
        for line in lines:
            self._outbox += line.encode() + b"\n"
        self.flush()

    @property
    def unsent_bytes(self) -> int:
        """Said, and not taken by the socket yet."""
        return len(self._outbox)

    def flush(self) -> None:
        """Send as much as the socket takes now."""
        while self._outbox and not self.is_over:
            try:
                sent = self._socket.send(self._outbox)
            except BlockingIOError:
                return
            except OSError:
                self.is_over = True
                return
            del self._outbox[:sent]

    def hear(self) -> list[list[str]]:
        """Lines that arrived, split into words; never waits."""
        chunks = [self._inbox]
        while not self.is_over:
            try:
                chunk = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                self.is_over = True
                break
            if not chunk:
                self.is_over = True
            chunks.append(chunk)
        *lines, self._inbox = b"".join(chunks).split(b"\n")
        heard, self._heard = self._heard, []
        return heard + [line.decode().split(" ") for line in lines]

    def wait_for(self, *words: str, seconds_max: float = WAIT_SECONDS_MAX) -> list[str]:
        """The first line that begins with ``words``; the others are heard again later."""
        until = time.monotonic() + seconds_max
        others: list[list[str]] = []
        while True:
            heard = self.hear()
            for at, line in enumerate(heard):
                if tuple(line[: len(words)]) == words:
                    self._heard = others + heard[at + 1 :]
                    return line
                if line[0] == "ERROR":
                    raise ConnectionError(f"broker said {' '.join(line)} instead of {words}")
                others.append(line)
            left = until - time.monotonic()
            if self.is_over or left <= 0:
                why = "connection lost" if self.is_over else f"silence for {seconds_max} s"
                raise ConnectionError(f"{why} while waiting for {' '.join(words)}")
            self.flush()
            select.select([self._socket], [self._socket] if self._outbox else [], [], left)

    def ask(self, line: str, *answer: str) -> list[str]:
        """Say a line and wait for its answer."""
        self.say(line)
        return self.wait_for(*answer)

    def close(self) -> None:
        """Hang up."""
        self.is_over = True
        with contextlib.suppress(OSError):
            self._socket.close()
