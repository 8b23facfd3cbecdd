"""The story's broker: its own process on free ports and a directory that is thrown away."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from penstock.cli.asking import send
from penstock.model.errors import NotFound, PenstockError
from penstock.server.ready_file import find_ready

START_S_MAX: Final = 30.0
STOP_S_MAX: Final = 15.0
COMMAND: Final = (
    sys.executable, "-m", "penstock", "up", "--bind", "127.0.0.1", "--faults",
    "--rocketmq", "0", "--rocketmq-broker", "0", "--amqp", "0", "--pulsar", "0",
    "--flight", "0", "--http", "0",
)  # fmt: skip
"""Nothing but defaults, except that it is nobody else's broker."""


class Household:
    """One broker process."""

    def __init__(self, directory: Path) -> None:
        self.data: Final = directory / "data"
        self.log: Final = directory / "broker.log"
        self.endpoints: dict[str, str] = {}
        self.peak_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the broker."""
        assert self._process is not None
        return self._process.pid

    def open(self) -> None:
        """Start it, and return once every listener accepts."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                (*COMMAND, "--data", str(self.data)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the story, which then stops the broker in its turn.
                start_new_session=True,
            )
        until = time.monotonic() + START_S_MAX
        while True:
            with contextlib.suppress(NotFound):
                self.endpoints = find_ready(self.data).endpoints
                return
            if self._process.poll() is not None or time.monotonic() > until:
                self.close()
                raise PenstockError(f"the broker did not start: {_end_of(self.log)}")
            time.sleep(0.02)

    def close(self) -> None:
        """Stop it, as an operator would."""
        process, self._process = self._process, None
        if process is None:
            return
        self._measure(process.pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ask(self, method: str, path: str, order: dict[str, Any] | None = None) -> Any:
        """The JSON of a good answer; raises what the broker said otherwise."""
        host, _, port = self.endpoints["http"].rpartition(":")
        status, answer = send(method, path, order, at=(host.strip("[]"), int(port)))
        if status != 200:
            raise PenstockError(f"{method} {path}: {answer}")
        return answer

    def memory_bytes(self) -> int:
        """The most that was resident so far; 0 where there is no /proc."""
        if self._process is not None:
            self._measure(self._process.pid)
        return self.peak_bytes

    def _measure(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            status = Path("/proc", str(pid), "status").read_text()
            for line in status.splitlines():
                if line.startswith("VmHWM:"):
                    self.peak_bytes = max(self.peak_bytes, int(line.split()[1]) * 1024)


def _end_of(log: Path) -> str:
    with contextlib.suppress(OSError):
        return os.linesep.join(log.read_text(errors="replace").splitlines()[-5:])
    return "it said nothing"
