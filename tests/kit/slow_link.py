"""A network on loopback: connections to a port are carried on to another place, a little later.

For suites that were written for a server across a network and take its distance for granted, and
for clients whose connections are to be cut (``carried``: ``Link.cut``). What
arrives is passed on in order and ``one_way_ms`` later, in both directions; an end of either side is
the end of both. A piece that arrives meanwhile waits for the one before it, which is no matter for
questions and answers; the server itself is not slowed.

Not here: faults inside the broker (``server/faults.py``).
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Final

PIECE_BYTES: Final = 65_536
POLL_SECONDS: Final = 0.05
"""How soon a listener notices that it shall end."""

Place = tuple[str, int]
Request = socket.socket | tuple[bytes, socket.socket]
"""As socketserver has it; of a stream always a socket."""


@contextlib.contextmanager
def slow_link(host: str, port: int, to: Place, *, one_way_ms: int) -> Iterator[int]:
    """Carry what comes to this port, while the context lasts; the port (0: a free one)."""
    with carried(to, (host, port), one_way_ms=one_way_ms) as link:
        yield link.port


@contextlib.contextmanager
def carried(to: Place, at: Place = ("127.0.0.1", 0), *, one_way_ms: int = 0) -> Iterator["Link"]:
    """The same as an object, without delay if not told."""
    with Link(at, to, one_way_ms / 1000) as link:
        thread = threading.Thread(target=link.serve_forever, args=(POLL_SECONDS,))
        thread.start()
        try:
            yield link
        finally:
            link.shutdown()
            thread.join()
            link.cut()


class Link(ThreadingTCPServer):
    """Where it listens, and what it carries now."""

    allow_reuse_address = True
    one_way_seconds: float

    def __init__(self, at: Place, to: Place, one_way_seconds: float) -> None:
        self.address_family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
        self.to = to
        self.one_way_seconds = one_way_seconds
        self._carried: set[Request] = set()
        super().__init__(at, _Carrier)

    def process_request(self, request: Request, client_address: object) -> None:
        """Known before its thread begins, so that no connection outlives the link."""
        self._carried.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Request) -> None:
        """Carried to its end."""
        self._carried.discard(request)
        super().shutdown_request(request)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def cut(self) -> None:
        """End every connection there is; new ones are carried."""
        for each in list(self._carried):
            _end(each)


class _Carrier(BaseRequestHandler):
    server: Link
    request: socket.socket

    def handle(self) -> None:
        """Both directions of one connection."""
        seconds = self.server.one_way_seconds
        with (
            contextlib.suppress(OSError),
            socket.create_connection(self.server.to) as onward,
        ):
            back = threading.Thread(target=_carry, args=(onward, self.request, seconds))
            back.start()
            _carry(self.request, onward, seconds)
            back.join()


def _carry(source: socket.socket, sink: socket.socket, seconds: float) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE_BYTES):
            time.sleep(seconds)
            sink.sendall(data)
    time.sleep(seconds)
    _end(source)
    _end(sink)


def _end(each: Request) -> None:
    if isinstance(each, tuple):
        return
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
