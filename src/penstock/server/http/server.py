"""The HTTP server: uvicorn's protocol on our own listener, with limits it does not have.

uvicorn brings the parsing and ASGI; its ``Server`` is left out, because our listener already knows
how to accept under pressure (T9) and our loop needs no second set of signal handlers and timers.
Added here: a connection limit of its own, and a time limit from the first byte of a request to the
end of its answer, without which slow writers would hold all connections for ever (T10). Who asks
nothing gives its place to whoever comes; when all are busy, health checks are answered still.
"""

import asyncio
from typing import Any, Final, cast

from starlette.applications import Starlette
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock.adapters.contract import Peer
from penstock.server.http.app import HEALTH_ONLY
from penstock.server.listener import ConnectionPlace

HEAD_BYTES_MAX: Final = 16 * 1024
KEEP_ALIVE_SECONDS: Final = 15


class LimitedHttpProtocol(H11Protocol):
    """One HTTP connection with a limit and a deadline."""

    def __init__(self, place: ConnectionPlace, seconds_max: float, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._place = place
        self._seconds_max = seconds_max
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer; it has to ask something in time."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._place.end = self.transport.abort
        self._begin()
        if self._place.is_released:  # it had to make room already
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._begin()
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Answered: now the keep-alive time counts."""
        self._end()
        self._place.idle()
        super().on_response_complete()
        self._look()
        if self._place.is_for_health and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)
        self._place.release()

    def _look(self) -> None:
        """With a request under way, perhaps one that came right behind the last, it may stay."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._place.busy()

    def _begin(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._seconds_max, self.transport.abort)

    def _end(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class HttpServer:
    """Makes the HTTP connections of one application."""

    def __init__(
        self,
        app: Starlette,
        *,
        loop: asyncio.AbstractEventLoop,
        request_ms_max: int,
    ) -> None:
        self._config = Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        self._config.load()
        self._state = ServerState()
        self._loop = loop
        self._seconds_max = request_ms_max / 1000

    def protocol(self, peer: Peer, place: ConnectionPlace) -> asyncio.Protocol:
        """The protocol of a new connection."""
        del peer
        return LimitedHttpProtocol(
            place,
            self._seconds_max,
            config=self._config,
            server_state=self._state,
            app_state={HEALTH_ONLY: place.is_for_health},
            _loop=self._loop,
        )

    def stop(self) -> None:
        """Let answers under way end, close the rest."""
        for connection in list(self._state.connections):
            connection.shutdown()
