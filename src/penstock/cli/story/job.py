"""Spark's process as the story sees it: started, made slow, drained, ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.cli.story.slowness import set_row_seconds

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
        command = (sys.executable, "-m", "penstock.cli.story.pipeline")
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
        """Whether both queries have finished a batch."""
        return self.state == "running" and {each.query for each in self.batches} >= {"rows", "sums"}

    @property
    def is_over(self) -> bool:
        """Ended, well or not."""
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
