"""The lock on a data directory: one broker at a time.

``<data>/lock`` holds the pid of the owner and is locked with flock, which the kernel lets go of
when the process ends, however it ends. So the file itself means nothing: it may stay, be deleted
while nobody runs, or hold garbage.
"""

import fcntl
import os
from pathlib import Path
from typing import Final

from penstock.model.errors import StartRefused

LOCK_NAME: Final = "lock"
_PID_BYTES_MAX: Final = 32


class DirectoryLock:
    """Held from ``acquire`` to ``release``."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_NAME
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock or raise ``StartRefused`` naming the process that has it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as problem:
            raise StartRefused(
                f"cannot write to data directory {self._path.parent}: {problem.strerror}; choose"
                " another one with --data or change its rights"
            ) from problem
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            owner = os.pread(fd, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise StartRefused(
                f"data directory {self._path.parent} is in use by process {owner or 'unknown'};"
                " stop it, or choose another directory with --data"
            ) from problem
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Let go; the file stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
