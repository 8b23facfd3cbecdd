"""Times from ``exec`` to ready: an empty directory, and a large log after ``kill -9``.

A real ``penstock up`` in a child process; "ready" is the ready file, which is written when every
listener accepts. For the recovery figure a child fills a log of the wanted size and is killed in
the middle of it, so that the last snapshot is as old as it is in real life.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

READY_SECONDS_MAX: Final = 120.0
NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"

_FILLER: Final = """
import sys
from pathlib import Path
from benchmarks.engine.backlog import fill_backlog
fill_backlog(Path(sys.argv[1]), messages=1 << 40, body_bytes=int(sys.argv[2]), per_commit=1,
             progress=lambda done, of: None)
"""


def time_to_ready(directory: Path, flags: Sequence[str] = ()) -> float:
    """Seconds from starting the process to its ready file; the broker is stopped again."""
    ready = directory.parent / "ready.json"
    ready.unlink(missing_ok=True)
    began = time.perf_counter()
    # As ./penstock starts it: with bytecode, whatever the shell of this machine prefers.
    environ = {key: value for key, value in os.environ.items() if key != NO_BYTECODE}
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "up", "--data", str(directory), "--http", "0",
         "--ready-file", str(ready), *flags],
        stdout=subprocess.DEVNULL,
        env=environ,
    )  # fmt: skip
    try:
        while not ready.exists():
            if process.poll() is not None or time.perf_counter() - began > READY_SECONDS_MAX:
                raise RuntimeError(f"the broker on {directory} did not become ready")
            time.sleep(0.001)
        return time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def killed_log(directory: Path, *, log_bytes: int, body_bytes: int) -> int:
    """Fill ``directory`` until its log has ``log_bytes``, then kill the writer; size reached."""
    process = subprocess.Popen([sys.executable, "-c", _FILLER, str(directory), str(body_bytes)])
    try:
        while (size := _log_size(directory)) < log_bytes:
            if process.poll() is not None:
                raise RuntimeError("the process that fills the log ended early")
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    return size


def drop_indexes(directory: Path) -> None:
    """Delete everything that can be made again from the log."""
    for name in ("index", "keys", "delayed"):
        shutil.rmtree(directory / name, ignore_errors=True)


def _log_size(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "log").glob("*.seg"))
