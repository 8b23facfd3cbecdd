"""A broker of our own for the time of a command: a process, a directory, its endpoints.

    with private_broker(scratch / "a", ("--amqp", "5672")) as endpoints:
        endpoints["amqp"]

Found by its ready file; what it printed is part of the error when it does not start.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from penstock.model.errors import PenstockError

START_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.02


@contextlib.contextmanager
def private_broker(data: Path, flags: Sequence[str]) -> Iterator[dict[str, str]]:
    """A broker process with these flags; its endpoints."""
    from penstock.server.ready_file import find_ready

    said = data.with_suffix(".output")
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "up", "--data", str(data), *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + START_SECONDS_MAX
        while not (data / "ready.json").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise PenstockError(f"a broker did not start: {said.read_text()[-500:]}")
            time.sleep(POLL_SECONDS)
        yield find_ready(data).endpoints
    finally:
        process.terminate()
        process.wait()
