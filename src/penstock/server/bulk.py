"""The bulk lane of one broker: the socket it answers on, and the Flight process beside it (D18).

``lifecycle.py`` reserves the port with all others, calls ``open`` once the engine is there and
``stop`` before connections are closed. The ready file does not wait for the process: the broker is
ready in its 0.4 s, Arrow takes longer to load, and clients of Flight try again.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.engine.broker import Engine
from penstock.server.bulk_link import BulkLinks
from penstock.server.flight import FlightProcess, command_of, is_arrow_there
from penstock.server.listener import open_sockets
from penstock.settings.load import Settings

logger = logging.getLogger(__name__)

FLIGHT: Final = "flight"


class BulkLane:
    """Everything of the bulk lane that lives in the broker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reserved: list[socket.socket] = []
        self._links: BulkLinks | None = None
        self.process: FlightProcess | None = None
        self.is_missing = False
        """True when Flight is wanted and cannot be had."""
        self.endpoint = ""
        """``host:port`` of the Flight process; empty without one."""

    def reserve(self) -> None:
        """Take the port, so that nobody else does; it never listens itself."""
        listeners = self._settings.listeners
        port = listeners.port(FLIGHT)
        if port is None:
            return
        if not is_arrow_there():
            self.is_missing = True
            logger.warning("flight is off: it needs pyarrow; pip install 'penstock[spark]'")
            return
        self._reserved = open_sockets(FLIGHT, listeners.addresses, port)
        host, number = self._reserved[0].getsockname()[:2]
        self.endpoint = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"

    async def open(self, directory: Path, engine: Engine, asked: Callable[[], None]) -> None:
        """Answer on the socket, and let the process start beside everything else."""
        loop = asyncio.get_running_loop()
        self._links = BulkLinks(directory, engine.queries, loop, asked)
        await self._links.start()
        if self._reserved:
            names = [each.getsockname() for each in self._reserved]
            self.process = FlightProcess(
                command_of(directory, [name[0] for name in names], names[0][1]),
                restart_ms_max=self._settings.spark.flight_restart_ms_max,
            )

    def launch(self) -> None:
        """Start the process; called when the broker is ready, so that it does not compete."""
        if self.process is not None:
            self.process.start()

    async def stop(self) -> None:
        """End the process, close the socket."""
        if self.process is not None:
            await self.process.stop()
        self.close()

    def close(self) -> None:
        """Let go of everything at once; also after a start that failed half-way."""
        if self.process is not None:
            self.process.abandon()
        if self._links is not None:
            self._links.stop()
            self._links = None
        for each in self._reserved:
            each.close()
        self._reserved = []
