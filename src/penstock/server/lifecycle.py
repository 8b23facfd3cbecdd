"""A broker from start to stop: what is opened in which order, and closed in the reverse.

Start: data directory and lock, ports bound (so that a taken one is told before a long recovery),
recovery, engine, turns, protocol listeners, HTTP, ready file; then, beside the running broker, the
Flight process (``flight.py``). Until the ready file is there nothing has been promised. What is
behind the HTTP port is built by the first who asks (``http/lazy.py``).

Stop, on SIGTERM, Ctrl-C or ``request_stop``: remove the ready file, accept nobody, read no more,
finish and confirm what was received, let connections say goodbye, write the last snapshot, unlock.
A second signal ends the waiting for peers; SIGHUP does nothing. A broker that is killed instead
loses nothing that was confirmed; the clean stop only saves the next start its recovery.

A failed sync (P4) or a mistake of our own stops it, too, and ``run`` raises what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from penstock import __version__
from penstock.engine.broker import Engine
from penstock.flow.alarms import parse_limit
from penstock.flow.reason import Reason
from penstock.model.clock import Clock, SteadyClock
from penstock.model.errors import PenstockError, StartRefused
from penstock.model.ids import size_text
from penstock.server.faults import Faults, QueueHold
from penstock.server.flight import FLIGHT, MISSING, BulkLane
from penstock.server.http.lazy import LazyHttpServer
from penstock.server.listener import (
    ConnectionLimit,
    Listener,
    MakeProtocol,
    http_limit,
    open_sockets,
    protocol_limit,
)
from penstock.server.opening import DataDirectory, lock_directory, open_engine
from penstock.server.pacing import Pacing
from penstock.server.probes import (
    AlarmLimits,
    LoopLag,
    Machine,
    Probes,
    Sampling,
    disk_bytes,
    run_delays,
    trimmer,
)
from penstock.server.protocols import DeadlineDriver, HttpPort, ProtocolBinding, built_in
from penstock.server.pump import PumpContext, Pumps
from penstock.server.ready_file import NAME, remove_ready, write_ready
from penstock.server.turns import Turns
from penstock.server.view import BrokerView
from penstock.settings.load import Settings
from penstock.telemetry.log_format import set_up_logging

if TYPE_CHECKING:
    from starlette.applications import Starlette

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

    def __init__(
        self, settings: Settings, *, protocols: Sequence[ProtocolBinding] | None = None
    ) -> None:
        self.settings: Final = settings
        self.clock: Final = SteadyClock(SystemClock())
        self.faults: Final = Faults() if settings.broker.faults else None
        self.endpoints: dict[str, str] = {}
        """Name of a listener -> ``host:port``, once started."""
        self._protocols = built_in(settings) if protocols is None else protocols
        self.bulk: Final = BulkLane(settings) if protocols is None else None
        """Spark's way in; a broker with listeners of its own choice has none."""
        self._sockets: dict[str, list[socket.socket]] = {}
        self._listeners: list[Listener] = []
        self._ready_files: list[Path] = []
        self._before_drain: list[Callable[[], Awaitable[None]]] = []
        self._opened: DataDirectory
        self._running: BrokerRuntime
        self._end: asyncio.Future[None]
        # Whatever was opened is closed in the reverse order, also when the start fails half-way.
        self._undo = contextlib.ExitStack()

    @property
    def engine(self) -> Engine:
        return self._opened.engine

    def wake(self) -> None:
        """Something was asked of the engine on this loop, not through a socket: take a turn."""
        self._running.turns.request_turn()

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
            for stop_part in self._before_drain:
                await stop_part()
            # What was received is finished and confirmed first; then everybody is told. A third of
            # the time for each: that, the peers, and the last of the disk.
            running.pumps.drain()
            if not self.engine.is_failed:
                await running.turns.drain(left() / 3)
            await running.pumps.stop(STOP_REASON, left() / 2)
            is_drained = not self.engine.is_failed and await running.turns.drain(left())
            is_quiet = running.stop(left())
            draining = self.engine.statistics().draining
            if draining:
                logger.warning(
                    "publishes that were held when their channel was closed are lost by the stop",
                    extra={"messages": draining},
                )
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
        self._bind_protocols(is_optional=False)
        if (http_port := listeners.port(HTTP)) is not None:
            self._bind(HTTP, http_port)
        for each in self._protocols:
            if each.http is not None:
                self._bind(each.http.name, each.http.port)
        if self.bulk is not None:
            self._undo.callback(self.bulk.close)
            self.bulk.reserve()
        # Last: these must not take a port that another listener was given.
        self._bind_protocols(is_optional=True)
        self._opened = open_engine(directory, lock, settings, self.clock, self.faults)
        self._undo.callback(self._opened.store.release)

    def _bind_protocols(self, *, is_optional: bool) -> None:
        for each in self._protocols:
            if bool(each.when_taken) == is_optional:
                with self._tolerated(each):
                    self._bind(each.factory.protocol, each.port)

    def _bind(self, name: str, port: int) -> None:
        listeners = self.settings.listeners
        self._sockets[name] = open_sockets(
            name, listeners.addresses, port, receive_bytes=listeners.receive_buffer_bytes
        )
        for each in self._sockets[name]:
            self._undo.callback(each.close)

    @contextlib.contextmanager
    def _tolerated(self, binding: ProtocolBinding) -> Iterator[None]:
        """Go on without an optional listener whose port cannot be had."""
        try:
            yield
        except StartRefused:
            if not binding.when_taken:
                raise
            name = binding.factory.protocol
            for each in self._sockets.pop(name, ()):
                each.close()
            logger.warning(
                "listener %s is absent, port %d is taken: %s",
                name,
                binding.port,
                binding.when_taken,
            )

    def _serve(self) -> None:
        """Turns and probes, protocol listeners, then HTTP."""
        loop = asyncio.get_running_loop()
        self._running = BrokerRuntime(
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
        for each in self._protocols:
            if each.factory.protocol in self._sockets:
                with self._tolerated(each):
                    self._listen(each.factory.protocol, pumps.limit, pumps.maker(each.factory))
        self._open_protocols(loop)
        if HTTP in self._sockets:
            self._serve_http(HTTP, self._http_app)
        for each in self._protocols:
            if each.http is not None:
                self._serve_http(each.http.name, partial(self._own_http_app, each.http))
        if not self.settings.listeners.is_loopback:
            self._complain(loop)

    def _open_protocols(self, loop: asyncio.AbstractEventLoop) -> None:
        """What connections of a protocol share; nobody is accepted before the loop runs again."""
        for each in self._protocols:
            if each.open is not None:
                timers = each.open(self.engine, self.clock, dict(self.endpoints))
                driver = DeadlineDriver(timers, self.clock, loop, self._running.turns.request_turn)
                self._undo.callback(driver.stop)
            if each.join is not None:
                join = each.join()
                join.start()
                self._undo.callback(join.cancel)
                self._before_drain.append(join.stop)

    async def _open_bulk(self, bulk: BulkLane) -> None:
        await bulk.open(self._opened.directory, self.engine, self._running.turns.request_turn)
        self._undo.callback(bulk.close)
        self._before_drain.append(bulk.stop)
        if bulk.endpoint:
            self.endpoints[FLIGHT] = bulk.endpoint

    def _serve_http(self, name: str, make_app: Callable[[], Starlette]) -> None:
        loop = asyncio.get_running_loop()

        def build() -> HttpServer:
            from penstock.server.http.server import HttpServer

            request_ms_max = self.settings.listeners.handshake_ms_max
            return HttpServer(make_app(), loop=loop, request_ms_max=request_ms_max)

        door = LazyHttpServer(build)
        self._undo.callback(door.stop)
        self._listen(name, self._running.http_limit, door.protocol)

    def _http_app(self) -> Starlette:
        """Health, metrics, what operators see and do, and what protocols add."""
        from penstock.server.admin import Administration
        from penstock.server.http.app import make_app

        admins = [each.admin() for each in self._protocols if each.admin is not None]
        administration = Administration(
            self.engine, self.clock, self.wake, admins, self._running.alarm_limits
        )
        routes = [
            route
            for each in self._protocols
            if each.routes is not None
            for route in each.routes(self.wake, self.endpoints)
        ]
        return make_app(self._running.view, self.faults, administration, routes)

    def _own_http_app(self, own: HttpPort) -> Starlette:
        from penstock.server.http.app import make_app

        return make_app(self._running.view, routes=own.routes(self.wake, self.endpoints))

    def _listen(self, name: str, limit: ConnectionLimit, maker: MakeProtocol) -> None:
        loop = asyncio.get_running_loop()
        listener = Listener(name, self._sockets[name], limit, maker, loop=loop)
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
            self._running.resources,
            start_seconds=start_seconds,
            is_arrow_missing=self.bulk is not None and self.bulk.is_missing,
        )
        print_banner(lines, amber_marks(self.settings))


def run(settings: Settings, *, protocols: Sequence[ProtocolBinding] | None = None) -> int:
    """Start a broker and run it until a signal; the exit code, or the ``PenstockError`` raised."""
    set_up_logging(settings.broker.log_level, is_json=settings.broker.is_log_json)
    began = time.perf_counter()
    # The end of a terminal or of an ssh session is no wish to stop. Ignored and not handled: so it
    # is for the Flight process, too, which inherits it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run(Broker(settings, protocols=protocols), began))
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


# ---- running ------------------------------------------------------------------------------------
# What runs on the loop around one engine: turns, connections, probes, the loop's own clock.
#
# Put together here, started by ``lifecycle.py`` before the first listener accepts and stopped by it
# after the last connection is gone.


class BrokerRuntime:
    """The moving parts of one broker."""

    def __init__(
        self,
        opened: DataDirectory,
        settings: Settings,
        clock: Clock,
        *,
        loop: asyncio.AbstractEventLoop,
        faults: Faults | None,
        failed: Callable[[PenstockError], None],
    ) -> None:
        engine = opened.engine
        self._opened = opened
        self._settings = settings
        self._loop = loop
        self._faults = faults
        self._machine = Machine()
        self._alarms: set[Reason] = set()
        self.resources: Final = self._measure()
        self.probes: Final = self._make_probes()
        self.turns: Final = Turns(
            engine,
            loop,
            clock,
            Pacing(settings.storage),
            failed=failed,
            before_sync=faults.before_sync if faults is not None else None,
            after_turn=self.probes.look_after_writes,
        )
        context = PumpContext(engine, self.turns, clock, loop, settings.listeners)
        self.pumps: Final = Pumps(context, protocol_limit(settings.listeners))
        self.http_limit: Final = http_limit(settings.listeners)
        self.lag: Final = LoopLag(loop)
        self._sampling = Sampling(engine.sampler, clock, loop)
        self.view: Final = BrokerView(
            settings,
            clock,
            engine=engine,
            store=opened.store,
            turns=self.turns,
            pumps=self.pumps,
            probes=self.probes,
            lag=self.lag,
            http_limit=self.http_limit,
            marks=amber_marks(settings),
        )
        if faults is not None:
            faults.queue_hold = QueueHold(engine, self.turns, loop)
            faults.changed = self.probes.look

    def start(self) -> None:
        """Begin to take turns and to look at the machine."""
        self.turns.start()
        self.probes.start()
        self.lag.start()
        self._sampling.start()

    def stop(self, seconds_max: float) -> bool:
        """End all of it; False when the commit thread still waits for the disk."""
        self.probes.stop()
        self.lag.stop()
        self._sampling.stop()
        is_quiet = self.turns.stop(seconds_max)
        self._machine.close()
        return is_quiet

    def _measure(self) -> ResourceLimits:
        flow = self._settings.flow
        memory_total = self._machine.memory_bytes()
        disk_total, disk_free = disk_bytes(self._opened.directory)
        return ResourceLimits(
            memory_total=memory_total,
            memory_limit=parse_limit(flow.memory_limit, memory_total),
            disk_free=disk_free,
            disk_limit=parse_limit(flow.disk_free_limit, disk_total),
            is_rss_exact=self._machine.is_rss_exact,
        )

    @property
    def alarm_limits(self) -> AlarmLimits:
        """What raises the alarms, for operators to see and to change."""

        def totals() -> tuple[int, int]:
            return self.resources.memory_total, disk_bytes(self._opened.directory)[0]

        return AlarmLimits(self.probes, self._opened.engine.alarms, totals)

    def _make_probes(self) -> Probes:
        engine, resources = self._opened.engine, self.resources
        # Figures first: limits are judged at once, and "0 bytes free" would be an alarm.
        engine.set_alarm("memory", self._rss_bytes())
        engine.set_alarm("disk", self._free_bytes())
        engine.set_alarm_limits(
            memory_bytes=resources.memory_limit, disk_free_bytes=resources.disk_limit
        )
        return Probes(
            engine,
            self._loop,
            rss_bytes=self._rss_bytes,
            free_bytes=self._free_bytes,
            written=lambda: self._opened.store.end_position,
            memory_limit=resources.memory_limit,
            disk_limit=resources.disk_limit,
            check_ms=self._settings.flow.alarm_check_ms,
            looked=self._looked,
            trim=trimmer(),
            run_delays=run_delays,
        )

    def _looked(self) -> None:
        self._tell_alarms()
        self.view.take_events()
        self.turns.request_turn()

    def _tell_alarms(self) -> None:
        """One line when an alarm is raised and one when it is over, also with nobody connected."""
        raised = self._opened.engine.alarms.raised
        for reason in raised.keys() - self._alarms:
            extra = {"alarm": reason.value, "culprit": raised[reason]}
            logger.warning("alarm raised, publishers wait", extra=extra)
        for reason in self._alarms - raised.keys():
            logger.info("alarm cleared", extra={"alarm": reason.value})
        self._alarms = set(raised)

    def _rss_bytes(self) -> int:
        faults = self._faults
        if faults is not None and faults.memory_bytes is not None:
            return faults.memory_bytes
        return self._machine.rss_bytes()

    def _free_bytes(self) -> int:
        faults = self._faults
        if faults is not None and faults.disk_bytes is not None:
            return faults.disk_bytes
        return disk_bytes(self._opened.directory)[1]


# ---- banner -------------------------------------------------------------------------------------
# What ``penstock up`` prints when it is ready: where to connect, and the limits in force.


AMBER: Final = "\x1b[33m"
PLAIN: Final = "\x1b[0m"
SCHEMES: Final = {
    "http": "http://",
    "amqp": "amqp://guest:guest@",
    "pulsar": "pulsar://",
    "pulsar_http": "http://",
}
"""So that what is shown can be given to a client as it is (``pika.URLParameters``)."""


class ResourceLimits(NamedTuple):
    """What was measured while starting."""

    memory_total: int
    memory_limit: int
    disk_free: int
    disk_limit: int
    is_rss_exact: bool = True


def amber_marks(settings: Settings) -> list[str]:
    """Promises that were weakened by choice; shown wherever the broker shows itself (P3)."""
    marks = []
    durability = settings.storage.durability
    if durability != "fsync":
        marks.append(f"durability {durability}: a confirm does not mean that the disk has it")
    if not settings.listeners.is_loopback:
        marks.append(f"insecure: {settings.listeners.bind} is open to others without TLS or login")
    if settings.broker.faults:
        marks.append("faults: anybody on this machine can make the disk fail on purpose")
    return marks


def banner_lines(
    settings: Settings,
    data: Path,
    endpoints: Mapping[str, str],
    resources: ResourceLimits,
    *,
    start_seconds: float,
    is_arrow_missing: bool = False,
) -> list[str]:
    """The lines, without colour."""
    flow, storage = settings.flow, settings.storage
    lines = [f"Penstock {__version__} is ready after {start_seconds:.2f} s"]
    lines += [f"  {name:<16} {SCHEMES.get(name, '')}{at}" for name, at in endpoints.items()]
    if is_arrow_missing:
        lines.append(f"  {'flight':<16} {MISSING}")
    if not endpoints:
        lines.append("  no listener is on")
    lines.append(f"  {'data':<16} {data}, {size_text(resources.disk_free)} free")
    if storage.durability == "fsync":
        lines.append(f"  {'durability':<16} fsync: a confirm means that the disk has it")
    lines += [
        f"  {'memory limit':<16} {size_text(resources.memory_limit)} of "
        f"{size_text(resources.memory_total)}; publishers wait above it",
        f"  {'disk limit':<16} {size_text(resources.disk_limit)} free; publishers wait below it",
        f"  {'in flight':<16} at most {size_text(flow.inflight_bytes_max)} of messages in memory",
        f"  {'write buffers':<16} {storage.write_buffers_max} of "
        f"{size_text(storage.write_buffer_bytes)} for bytes the disk does not have yet",
    ]
    if not resources.is_rss_exact:
        lines.append("  memory is the peak, not the present: this system does not tell it")
    return lines


def print_banner(lines: list[str], marks: list[str], out: TextIO | None = None) -> None:
    """Print the lines and, in amber where there is colour, the marks."""
    out = sys.stdout if out is None else out
    is_colourful = out.isatty()
    for line in lines:
        print(line, file=out)
    for mark in marks:
        text = f"  ! {mark}"
        print(f"{AMBER}{text}{PLAIN}" if is_colourful else text, file=out)
    print("  Ctrl-C or SIGTERM stops it cleanly", file=out, flush=True)


# ---- heap ---------------------------------------------------------------------------------------
# Garbage collection of a process whose live objects are mostly messages in flight.
#
# Measured (design, performance 5.2): freezing what exists at start and collecting rarely halves the
# cost of making tracked objects; per-message objects are not tracked at all.


THRESHOLDS: Final = (100_000, 50, 100)


def settle_heap() -> None:
    """Once, when everything is set up: what exists now is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


# ---- clock --------------------------------------------------------------------------------------
# The machine's clock, the only one in a running broker; tests use ``testing.ManualClock``.


class SystemClock:
    """Both kinds of time from the operating system."""

    __slots__ = ()

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""
        return time.monotonic_ns() // 1_000_000
