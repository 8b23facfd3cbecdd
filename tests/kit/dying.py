"""``kill -9`` of a whole Spark at a chosen step of a commit: its driver, its JVM, its workers.

Spark commits in a Python worker of its own; that worker kills the driver and the JVM above it, then
itself, so nothing of the run is left to go on.
"""

import os
import signal
from pathlib import Path

STEP = "PENSTOCK_DIE"
"""Variable of the environment: the step that is the last one."""
DRIVER = "PENSTOCK_DIE_DRIVER"


def may_die() -> bool:
    """Call it in the driver, before Spark starts: workers inherit what is noted here."""
    os.environ[DRIVER] = str(os.getpid())
    return bool(os.environ.get(STEP))


def die_at(step: str) -> None:
    """Kill the driver, Spark and this process, if this is where it is to happen."""
    if os.environ.get(STEP) == step:
        for pid in (int(os.environ[DRIVER]), java_above(os.getpid()), os.getpid()):
            os.kill(pid, signal.SIGKILL)


def java_above(pid: int) -> int:
    """The JVM that a worker process belongs to."""
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
