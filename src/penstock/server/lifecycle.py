"""A broker from start to stop: what is opened in which order, and closed in the reverse.

Start: data directory and lock, ports bound (so that a taken one is told before a long recovery),
recovery, engine, turns, protocol listeners, HTTP, ready file; then, beside the running broker, the
Flight process (``flight.py``). Until the ready file is there nothing has been promised. What is
behind the HTTP port is built by the first who asks (``http/door.py``).

Stop, on SIGTERM, Ctrl-C or ``request_stop``: remove the ready file, accept nobody, read no more,
finish and confirm what was received, let connections say goodbye, write the last snapshot, unlock.
A second signal ends the waiting for peers. A broker that is killed instead loses nothing that was
confirmed; the clean stop only saves the next start its recovery.

A failed sync (P4) or a mistake of our own stops it, too, and ``run`` raises what happened.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.engine.broker import Engine
from penstock.model.clock import SteadyClock
from penstock.model.errors import PenstockError
from penstock.server.banner import amber_marks, banner_lines, print_banner
from penstock.server.bulk import FLIGHT, BulkLane
from penstock.server.clock import SystemClock
from penstock.server.faults import Faults
from penstock.server.heap import settle_heap
from penstock.server.household import Housekeeper
from penstock.server.http.door import HttpDoor
from penstock.server.listener import Listener, MakeProtocol, open_sockets
from penstock.server.opening import Opened, lock_directory, open_engine
from penstock.server.places import Places
from penstock.server.protocols import Listening, built_in
from penstock.server.ready_file import NAME, remove_ready, write_ready
from penstock.server.running import Running
from penstock.settings.load import Settings
from penstock.telemetry.log_format import set_up_logging

if TYPE_CHECKING:
    from penstock.server.http.server import HttpServer

logger = logging.getLogger(__name__)

HTTP: Final = "http"
STOP_REASON: Final = "the broker is stopping"
UNDO_SECONDS: Final = 5.0
"""How long the end of a start that failed waits for the disk: nothing is closed under its feet."""
INSECURE_SECONDS: Final = 60.0
"""How often an open, unprotected address is complained about (A8)."""


class Broker:
    """One broker process: ``start``, ``wait``, ``stop``, each once and in this order."""

    def __init__(self, settings: Settings, *, listening: Sequence[Listening] | None = None) -> None:
        self.settings: Final = settings
        self.clock: Final = SteadyClock(SystemClock())
        self.faults: Final = Faults() if settings.broker.faults else None
        self.endpoints: dict[str, str] = {}
        """Name of a listener -> ``host:port``, once started."""
        self._listening = built_in(settings) if listening is None else listening
        self.bulk: Final = BulkLane(settings) if listening is None else None
        """Spark's way in; a broker with listeners of its own choice has none."""
        self._sockets: dict[str, list[socket.socket]] = {}
        self._listeners: list[Listener] = []
        self._ready_files: list[Path] = []
        self._farewells: list[Callable[[], Awaitable[None]]] = []
        self._opened: Opened
        self._running: Running
        self._end: asyncio.Future[None]
        # Whatever was opened is closed in the reverse order, also when the start fails half-way.
        self._undo = contextlib.ExitStack()

    @property
    def engine(self) -> Engine:
        """The engine, once started."""
        return self._opened.engine

    def wake(self) -> None:
        """Something was asked of the engine on this loop, not through a socket: take a turn."""
        self._running.turns.request()

    async def start(self, before_ready: Callable[[], None] | None = None) -> None:
        """Open everything; when that fails, all that was opened is closed again."""
        self._end = asyncio.get_running_loop().create_future()
        try:
            self._open()
            self._serve()
            if self.bulk is not None:
                await self._open_bulk(self.bulk)
            if before_ready is not None:
                before_ready()
            self._announce()
        except BaseException:
            self._undo.close()
            raise

    async def wait(self) -> None:
        """Until a stop is wanted; raises when the disk or the engine failed."""
        await asyncio.shield(self._end)

    def request_stop(self) -> None:
        """End ``wait``; a second call ends the waiting of ``stop``. To be called on the loop."""
        if not self._end.done():
            self._end.set_result(None)
        else:
            self._running.pumps.hurry()

    async def stop(self) -> None:
        """Close everything in order; what was confirmed is safe whatever happens in here."""
        running, loop = self._running, asyncio.get_running_loop()
        until = loop.time() + self.settings.broker.stop_ms_max / 1000

        def left() -> float:
            return max(0.1, until - loop.time())

        running.view.state = "stopping"
        for path in self._ready_files:
            remove_ready(path)
        for listener in self._listeners:
            if listener.name != HTTP:  # /readyz says "stopping" as long as there is something left
                listener.stop()
        with self._undo:
            for say_goodbye in self._farewells:
                await say_goodbye()
            # What was received is finished and confirmed first; then everybody is told. A third of
            # the time for each: that, the peers, and the last of the disk.
            running.pumps.hush()
            if not self.engine.is_failed:
                await running.turns.drain(left() / 3)
            await running.pumps.stop(STOP_REASON, left() / 2)
            is_drained = not self.engine.is_failed and await running.turns.drain(left())
            is_quiet = running.stop(left())
            if is_drained and is_quiet:
                self._opened.store.close(self.engine.final_cursors())
                logger.info("stopped cleanly")
            else:
                logger.warning("stopped without a last snapshot; the next start recovers the log")

    # The start, step by step.

    def _open(self) -> None:
        """Directory, ports, log, engine."""
        settings, listeners = self.settings, self.settings.listeners
        directory, lock = lock_directory(settings.broker.data)
        self._undo.callback(lock.release)
        self._ready_files = [directory / NAME]
        if settings.broker.ready_file:
            self._ready_files.append(Path(settings.broker.ready_file).absolute())
        for path in self._ready_files:  # left by a broker that was killed
            remove_ready(path)
        ports = {each.factory.protocol: each.port for each in self._listening}
        if (http_port := listeners.port(HTTP)) is not None:
            ports[HTTP] = http_port
        for name, port in ports.items():
            self._sockets[name] = open_sockets(
                name, listeners.addresses, port, receive_bytes=listeners.receive_buffer_bytes
            )
            for each in self._sockets[name]:
                self._undo.callback(each.close)
        if self.bulk is not None:
            self._undo.callback(self.bulk.close)
            self.bulk.reserve()
        self._opened = open_engine(directory, lock, settings, self.clock, self.faults)
        self._undo.callback(self._opened.store.release)

    def _serve(self) -> None:
        """Turns and probes, protocol listeners, then HTTP."""
        loop = asyncio.get_running_loop()
        self._running = Running(
            self._opened,
            self.settings,
            self.clock,
            loop=loop,
            faults=self.faults,
            failed=self._failed,
        )
        self._running.start()
        self._undo.callback(self._running.stop, UNDO_SECONDS)
        pumps = self._running.pumps
        for each in self._listening:
            self._listen(each.factory.protocol, pumps.places, pumps.maker(each.factory))
        self._open_households(loop)
        if HTTP in self._sockets:
            self._serve_http(loop)
        if not self.settings.listeners.is_loopback:
            self._complain(loop)

    def _open_households(self, loop: asyncio.AbstractEventLoop) -> None:
        """What connections of a protocol share; nobody is accepted before the loop runs again."""
        for each in self._listening:
            if each.open is not None:
                ticking = each.open(self.engine, self.clock, dict(self.endpoints))
                keeper = Housekeeper(ticking, self.clock, loop, self._running.turns.request)
                self._undo.callback(keeper.stop)
            if each.join is not None:
                join = each.join()
                join.start()
                self._undo.callback(join.cancel)
                self._farewells.append(join.stop)

    async def _open_bulk(self, bulk: BulkLane) -> None:
        await bulk.open(self._opened.directory, self.engine, self._running.turns.request)
        self._undo.callback(bulk.close)
        self._farewells.append(bulk.stop)
        if bulk.endpoint:
            self.endpoints[FLIGHT] = bulk.endpoint

    def _serve_http(self, loop: asyncio.AbstractEventLoop) -> None:
        places = self._running.http_places
        door = HttpDoor(lambda: self._build_http(places, loop))
        self._undo.callback(door.stop)
        self._listen(HTTP, places, door.protocol)

    def _build_http(self, places: Places, loop: asyncio.AbstractEventLoop) -> "HttpServer":
        from penstock.server.administration import Administration
        from penstock.server.http.app import make_app
        from penstock.server.http.management.api import ManagementApi
        from penstock.server.http.server import HttpServer

        desks = [each.desk() for each in self._listening if each.desk is not None]
        administration = Administration(self.engine, self.clock, self.wake, desks)
        routes = [
            route
            for each in self._listening
            if each.house is not None
            for route in ManagementApi(each.house(), self.wake, self.endpoints).routes()
        ]
        return HttpServer(
            make_app(self._running.view, self.faults, administration, routes),
            places,
            loop=loop,
            request_ms_max=self.settings.listeners.handshake_ms_max,
        )

    def _listen(self, name: str, places: Places, maker: MakeProtocol) -> None:
        loop = asyncio.get_running_loop()
        listener = Listener(name, self._sockets[name], places, maker, loop=loop)
        listener.start()
        self._listeners.append(listener)
        self._undo.callback(listener.stop)
        self.endpoints[name] = listener.endpoint

    def _announce(self) -> None:
        self._running.view.state = "running"
        for path in self._ready_files:
            self._undo.callback(remove_ready, path)
            write_ready(path, self.endpoints)
        if self.bulk is not None:
            self.bulk.launch()

    def _failed(self, error: PenstockError) -> None:
        self._running.view.state = "failed"
        if not self._end.done():
            self._end.set_exception(error)

    def _complain(self, loop: asyncio.AbstractEventLoop) -> None:
        logger.warning("open to others without TLS or login; bind localhost if that is not meant")
        timer = loop.call_later(INSECURE_SECONDS, self._complain, loop)
        self._undo.callback(timer.cancel)

    def banner(self, start_seconds: float) -> None:
        """Print endpoints and limits."""
        lines = banner_lines(
            self.settings,
            self._opened.directory,
            self.endpoints,
            self._running.figures,
            start_seconds=start_seconds,
            is_arrow_missing=self.bulk is not None and self.bulk.is_missing,
        )
        print_banner(lines, amber_marks(self.settings))


def run(settings: Settings, *, listening: Sequence[Listening] | None = None) -> int:
    """Start a broker and run it until a signal; the exit code, or the ``PenstockError`` raised."""
    set_up_logging(settings.broker.log_level, is_json=settings.broker.is_log_json)
    began = time.perf_counter()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run(Broker(settings, listening=listening), began))
    return 0


async def _run(broker: Broker, began: float) -> None:
    loop = asyncio.get_running_loop()

    def take_signals() -> None:
        # Not earlier: a long recovery may be interrupted at once. Not later: whoever saw the ready
        # file may ask for a clean stop.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, broker.request_stop)

    await broker.start(take_signals)
    settle_heap()
    broker.banner(time.perf_counter() - began)
    try:
        await broker.wait()
    finally:
        await broker.stop()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Prefer uvloop where it is installed: 5-18 % less CPU and half the memory per connection."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
