"""The door of the HTTP listener: nothing behind it is built before somebody knocks.

uvicorn, starlette and the pages are the dearest part of a start, in time and in memory, and many
brokers are never asked anything over HTTP. So the port is open from the start and the first
connection builds the rest: some fifty milliseconds, once.

Not here: the server itself (``server.py``), its pages (``app.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.adapters.contract import Peer
    from penstock.server.http.server import HttpServer
    from penstock.server.listener import ConnectionPlace


class LazyHttpServer:
    """Makes the connections of a server that is built by the first of them."""

    def __init__(self, build: Callable[[], HttpServer]) -> None:
        self._build = build
        self._server: HttpServer | None = None

    def protocol(self, peer: Peer, place: ConnectionPlace) -> asyncio.Protocol:
        """The protocol of a new connection."""
        if self._server is None:
            self._server = self._build()
        return self._server.protocol(peer, place)

    def stop(self) -> None:
        """Let answers under way end, close the rest."""
        if self._server is not None:
            self._server.stop()
