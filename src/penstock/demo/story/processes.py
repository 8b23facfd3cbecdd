"""Spark's process as the story sees it: started, made slow, drained, ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.cli.http_client import send
from penstock.demo.story import QUERIES
from penstock.model.errors import NotFound, PenstockError
from penstock.server.ready_file import find_ready

END_S_MAX: Final = 5.0
READ_S_MAX: Final = 10.0
BATCHES_MAX: Final = 10_000
"""Of which the story keeps the figures; it has a hundred or two."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of a query."""

    query: str
    number: int
    rows: int
    ms: int


class Job:
    """The pipeline."""

    def __init__(self, directory: Path) -> None:
        self.out: Final = directory / "pipeline"
        self.log: Final = directory / "spark.log"
        self.state = "not started"
        self.text = ""
        self.batches: list[Batch] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def open(self, endpoint: str, target_s: float) -> None:
        """Start it; it is running when ``state`` says so."""
        self.out.mkdir(parents=True)
        self.state = "starting Java"
        command = (sys.executable, "-m", "penstock.demo.story.pipeline")
        flags = ("--endpoint", endpoint, "--out", str(self.out), "--target", str(target_s))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                (*command, *flags),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Java and Spark's workers with it: one signal ends them all.
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name="spark job", daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        """Whether every query has finished a batch."""
        return self.state == "running" and {each.query for each in self.batches} >= set(QUERIES)

    @property
    def is_over(self) -> bool:
        return self.state in ("drained", "failed")

    def last_batch(self, query: str) -> int:
        """The number of the last batch of a query that we were told of; -1 before the first."""
        return max((each.number for each in self.batches if each.query == query), default=-1)

    def slow_down(self, row_s: float) -> None:
        """From now on a row costs so much; 0 = as fast as it goes."""
        set_row_seconds(self.out / "slow", row_s)

    def drain(self) -> None:
        """Process all there is, and end; ``is_over`` says when."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write("drain\n")
                self._process.stdin.flush()

    def close(self) -> None:
        """End it, with everything that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S_MAX)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if self._reader is not None:
            self._reader.join(READ_S_MAX)
            if process.stdout is not None and not self._reader.is_alive():
                process.stdout.close()

    def why(self) -> str:
        """The last words of a job that failed."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return self.text or "\n".join(lines[-15:]) or "it said nothing"

    def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                self._note(json.loads(line))
        if self.state != "drained":
            self.state = "failed"

    def _note(self, said: dict[str, object]) -> None:
        self.state = str(said["state"])
        self.text = str(said.get("text", ""))
        if "query" in said and len(self.batches) < BATCHES_MAX:
            figures = [int(str(said[name])) for name in ("batch", "rows", "ms")]
            self.batches.append(Batch(str(said["query"]), *figures))


# The story's broker: its own process on free ports and a directory that is thrown away.


START_S_MAX: Final = 30.0
STOP_S_MAX: Final = 15.0
COMMAND: Final = (
    sys.executable, "-m", "penstock", "up", "--bind", "127.0.0.1", "--faults",
    "--rocketmq", "0", "--rocketmq-broker", "0", "--amqp", "0", "--pulsar", "0",
    "--flight", "0", "--http", "0",
)  # fmt: skip
"""Nothing but defaults, except that it is nobody else's broker."""


class Processes:
    """One broker process."""

    def __init__(self, directory: Path) -> None:
        self.data: Final = directory / "data"
        self.log: Final = directory / "broker.log"
        self.endpoints: dict[str, str] = {}
        self.peak_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
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


# Makes Spark's transformation slow on demand: a file says what one row costs.
#
# Runs in Spark's Python workers, which are started by Spark and can be reached by a file only.


LOOK_S: Final = 0.2
_seen: dict[str, tuple[float, float]] = {}
"""Path -> (when it was read, seconds per row); one entry per story."""


def row_seconds(path: str) -> float:
    """What the file says, looked at now and then."""
    now = time.monotonic()
    read_at, seconds = _seen.get(path, (0.0, 0.0))
    if now - read_at > LOOK_S:
        try:
            seconds = float(Path(path).read_text() or 0)
        except (OSError, ValueError):
            seconds = 0.0
        _seen[path] = (now, seconds)
    return seconds


def set_row_seconds(path: Path, seconds: float) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(str(seconds))
    draft.replace(path)


class Amount:
    """Multiplies price and quantity, which may take its time."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, cents: int, quantity: int) -> int:
        seconds = row_seconds(self._path)
        if seconds:
            time.sleep(seconds)
        return cents * quantity
