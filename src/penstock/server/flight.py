"""The Flight process: started beside the broker, watched, and started again when it dies (D18).

It is another process because Arrow and gRPC must not share the broker's loop, memory or fate. The
broker reserves its port (bound, never listening), so that a taken one is told at the start and the
number is known before the process is up; it starts beside the broker, which does not wait for it:
whoever connects in that second is refused and tries again.

It never outlives the broker: its standard input is a pipe that only the broker holds, and
``flight_child.py`` ends it when that breaks, also after ``kill -9``.

Not here: what it does (``penstock.bulk``), its questions (``bulk_link.py``).
"""

import asyncio
import contextlib
import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from penstock.bulk.link import SOCKET_NAME

logger = logging.getLogger(__name__)

PAUSE_MS_MIN: Final = 200
"""First pause after a death; it doubles up to ``spark.flight_restart_ms_max``."""
STEADY_SECONDS: Final = 60.0
"""A process that ran this long begins with the first pause again."""
STOP_SECONDS_MAX: Final = 2.0
MISSING: Final = "off: pyarrow is not installed; pip install 'penstock[spark]'"
"""What the banner says instead of an address."""


def is_arrow_there() -> bool:
    """True when the Flight process could run; nothing is imported to find out."""
    return importlib.util.find_spec("pyarrow") is not None


def command_of(directory: Path, hosts: Sequence[str], port: int) -> list[str]:
    """How the Flight process is started: on one port of all these addresses."""
    command = [
        sys.executable, "-m", "penstock.server.flight_child",
        "--data", str(directory), "--port", str(port), "--socket", str(directory / SOCKET_NAME),
    ]  # fmt: skip
    return [*command, *(part for host in hosts for part in ("--host", host))]


class FlightProcess:
    """Keeps one process running."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        restart_ms_max: int,
        sleep: Callable[[float], "asyncio.Future[None]"] | None = None,
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
