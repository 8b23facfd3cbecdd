"""The bulk lane of one broker: the socket it answers on, and the Flight process beside it (D18).

``lifecycle.py`` reserves the port with all others, calls ``open`` once the engine is there and
``stop`` before connections are closed. The ready file does not wait for the process: the broker is
ready in its 0.4 s, Arrow takes longer to load, and clients of Flight try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

import msgspec

from penstock.bulk import link
from penstock.bulk.link import SOCKET_NAME
from penstock.engine.broker import Engine
from penstock.engine.spark.query import QueryRefused
from penstock.engine.spark.query_service import QueryService
from penstock.model.errors import StartRefused
from penstock.model.queries import AnyRequest, AnyResponse
from penstock.server.listener import open_sockets
from penstock.settings.load import Settings

logger = logging.getLogger(__name__)

FLIGHT: Final = "flight"


class BulkLane:
    """Everything of the bulk lane that lives in the broker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reserved: list[socket.socket] = []
        self._links: BulkLinkServer | None = None
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
            logger.warning("flight is off: it needs pyarrow; pip install 'penstock-broker[spark]'")
            return
        self._reserved = open_sockets(FLIGHT, listeners.addresses, port)
        host, number = self._reserved[0].getsockname()[:2]
        self.endpoint = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"

    async def open(self, directory: Path, engine: Engine, asked: Callable[[], None]) -> None:
        """Answer on the socket, and let the process start beside everything else."""
        loop = asyncio.get_running_loop()
        self._links = BulkLinkServer(directory, engine.queries, loop, asked)
        await self._links.start()
        if self._reserved:
            names = [each.getsockname() for each in self._reserved]
            self.process = FlightProcess(
                command_of(
                    directory,
                    [name[0] for name in names],
                    names[0][1],
                    idle_ms_max=self._settings.spark.read_idle_ms_max,
                    stage_hold_ms_max=self._settings.spark.stage_hold_ms_max,
                ),
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


# ---- flight -------------------------------------------------------------------------------------
# The Flight process: started beside the broker, watched, and started again when it dies (D18).
#
# It is another process because Arrow and gRPC must not share the broker's loop, memory or fate. The
# broker reserves its port (bound, never listening), so that a taken one is told at the start and
# the number is known before the process is up; it starts beside the broker, which does not wait for
# it: whoever connects in that second is refused and tries again.
#
# It never outlives the broker: its standard input is a pipe that only the broker holds, and
# ``flight_child.py`` ends it when that breaks, also after ``kill -9``.
#
# Not here: what it does (``penstock.bulk``).


PAUSE_MS_MIN: Final = 200
"""First pause after a death; it doubles up to ``spark.flight_restart_ms_max``."""
STEADY_SECONDS: Final = 60.0
"""A process that ran this long begins with the first pause again."""
STOP_SECONDS_MAX: Final = 2.0
MISSING: Final = "off: pyarrow is not installed; pip install 'penstock-broker[spark]'"
"""What the banner says instead of an address."""


def is_arrow_there() -> bool:
    """True when the Flight process could run; nothing is imported to find out."""
    return importlib.util.find_spec("pyarrow") is not None


def command_of(
    directory: Path, hosts: Sequence[str], port: int, *, idle_ms_max: int, stage_hold_ms_max: int
) -> list[str]:
    """How the Flight process is started: on one port of all these addresses."""
    command = [
        sys.executable, "-m", "penstock.server.flight_child",
        "--data", str(directory), "--port", str(port), "--socket", str(directory / SOCKET_NAME),
        "--idle-ms-max", str(idle_ms_max), "--stage-hold-ms-max", str(stage_hold_ms_max),
    ]  # fmt: skip
    return [*command, *(part for host in hosts for part in ("--host", host))]


class FlightProcess:
    """Keeps one process running."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        restart_ms_max: int,
        sleep: Callable[[float], asyncio.Future[None]] | None = None,
    ) -> None:
        self._command = tuple(command)
        self._restart_ms_max = restart_ms_max
        self._sleep = sleep or asyncio.sleep
        self._task: asyncio.Task[None] | None = None
        self._birth: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.starts = 0
        self.deaths = 0

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """End it: asked first, then killed."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._birth is not None:
            # It may be on its way into the world: nobody else would end it.
            with contextlib.suppress(OSError):
                self._process = await self._birth
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
            except TimeoutError:
                process.kill()
                await process.wait()

    def abandon(self) -> None:
        """The loop ends without ``stop``: the broken pipe ends the process."""
        if self._task is not None:
            self._task.cancel()
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self._process.returncode is None:
                self._process.kill()

    async def _keep(self) -> None:
        pause_ms = PAUSE_MS_MIN
        while True:
            began = time.monotonic()
            code = await self._run()
            ran_s = time.monotonic() - began
            self.deaths += 1
            pause_ms = PAUSE_MS_MIN if ran_s >= STEADY_SECONDS else pause_ms
            logger.warning(
                "the Flight process ended and is started again",
                extra={"code": code, "ran_s": round(ran_s, 1), "in_ms": pause_ms},
            )
            await self._sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, max(PAUSE_MS_MIN, self._restart_ms_max))

    async def _run(self) -> int | str:
        """One life; its exit code, or why it could not be started."""
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        birth = asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=nothing)
        self._birth = asyncio.get_running_loop().create_task(birth)
        try:
            self._process = await asyncio.shield(self._birth)
        except OSError as error:
            return str(error)
        self.starts += 1
        logger.info("the Flight process is started", extra={"child_pid": self._process.pid})
        return await self._process.wait()


# ---- bulk link ----------------------------------------------------------------------------------
# The broker's end of ``<data>/bulk.sock``: frames in, questions answered, frames out (D18).
#
# Whoever can open the socket owns the data directory, so there is no login. A link that sends what
# is no frame or no question is closed, and only it. At most ``IN_FLIGHT_MAX`` questions of a link
# wait; then it is not read until one is answered. Nor is a link that does not read its answers.
#
# Not here: the answers (``engine/spark/query_service.py``), who asks (``bulk/broker.py``).


LINKS_MAX: Final = 64
"""Connections at a time; the Flight process has one."""
PATH_BYTES_MAX: Final = 100
"""A socket's address has room for about so many; deeper directories are reached by handle."""


class BulkLinkConnection(asyncio.Protocol):
    """One connection; satisfies ``query_service.QueryOutlet``."""

    def __init__(self, server: BulkLinkServer) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._held = 0
        self._is_slow = False
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.joined(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone: what it waits for is dropped."""
        del exc
        self._is_closed = True
        self._server.left(self)

    def data_received(self, data: bytes) -> None:
        """Part of a question, or several."""
        self._buffer += data
        self._serve()

    def pause_writing(self) -> None:
        """It does not read its answers."""
        self._is_slow = True
        self._look()

    def resume_writing(self) -> None:
        self._is_slow = False
        self._serve()

    def answered(self, request: AnyRequest, answer: AnyResponse | QueryRefused) -> None:
        """A question that had to wait has its answer."""
        self._held -= 1
        if isinstance(answer, QueryRefused):
            self._write(link.encode_problem(request.id, answer.kind, str(answer)))
        else:
            self._write(link.encode_response(request.id, answer))
        if self._buffer:
            # Not now: the engine is in its turn.
            self._server.loop.call_soon(self._serve)
        self._look()

    def close(self) -> None:
        """Close it once everything written has left."""
        self._is_closed = True
        self._transport.close()

    def _serve(self) -> None:
        """Answer what is complete, as far as there is room for it to wait."""
        try:
            while self._may_serve and (payload := self._next_payload()) is not None:
                self._ask(link.decode_request(payload))
        except (msgspec.MsgspecError, ValueError) as problem:
            logger.warning("a bulk link said what is no question", extra={"why": str(problem)})
            self._is_closed = True
            self._transport.abort()
        except Exception:
            logger.exception("a question of a bulk link could not be answered")
            self._is_closed = True
            self._transport.abort()
        self._look()

    @property
    def _may_serve(self) -> bool:
        return not (self._is_slow or self._is_closed) and self._held < link.IN_FLIGHT_MAX

    def _next_payload(self) -> bytes | None:
        buffer, head = self._buffer, link.LENGTH_BYTES
        if len(buffer) < head:
            return None
        end = head + link.frame_length(bytes(buffer[:head]))
        if len(buffer) < end:
            return None
        payload = bytes(buffer[head:end])
        del buffer[:end]
        return payload

    def _ask(self, request: AnyRequest) -> None:
        try:
            answer = self._server.queries.handle(request, self)
        except QueryRefused as refused:
            self._write(link.encode_problem(request.id, refused.kind, str(refused)))
        else:
            if answer is None:
                self._held += 1
            else:
                self._write(link.encode_response(request.id, answer))
        self._server.asked()

    def _write(self, frame: bytes) -> None:
        if not self._is_closed:
            self._transport.write(frame)

    def _look(self) -> None:
        """Read only while what is read can be served."""
        if self._is_closed:
            return
        if self._may_serve:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


class BulkLinkServer:
    """The socket and all its connections."""

    def __init__(
        self,
        directory: Path,
        queries: QueryService,
        loop: asyncio.AbstractEventLoop,
        asked: Callable[[], None],
    ) -> None:
        self.path: Final = directory / link.SOCKET_NAME
        self.queries: Final = queries
        self.loop: Final = loop
        self.asked: Final = asked
        """Called after each question: it may have changed something that a turn must look at."""
        self._links: set[BulkLinkConnection] = set()
        self._socket = _bound(self.path)
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        self._server = await self.loop.create_unix_server(
            lambda: BulkLinkConnection(self), sock=self._socket
        )

    def stop(self) -> None:
        """Close the socket and every link; the file goes."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        for each in list(self._links):
            each.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def joined(self, each: BulkLinkConnection) -> bool:
        """A new link; False when there are too many."""
        if len(self._links) >= LINKS_MAX:
            return False
        self._links.add(each)
        return True

    def left(self, each: BulkLinkConnection) -> None:
        self._links.discard(each)
        self.queries.disconnected(each)


def _bound(path: Path) -> socket.socket:
    """A listening socket of this name; one that a killed broker left behind is replaced."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    handle = -1
    try:
        path.unlink(missing_ok=True)
        name = str(path)
        if len(os.fsencode(name)) > PATH_BYTES_MAX:
            handle = os.open(path.parent, os.O_RDONLY)
            name = f"/proc/self/fd/{handle}/{path.name}"
        listening.bind(name)
        path.chmod(0o600)
        listening.listen(LINKS_MAX)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise StartRefused(
            f"socket {path} cannot be made: {error.strerror}; use --data with another path"
        ) from None
    finally:
        if handle >= 0:
            os.close(handle)
    return listening
