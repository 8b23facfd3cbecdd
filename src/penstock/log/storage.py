"""Storage: the only way to files (A4), so that tests can own every source of chance.

Paths are relative to the data directory and separated by ``/``. A ``File`` grows at its end only;
reads name their place. Nothing is durable by itself:

* ``File.sync`` makes the bytes of one file durable (fdatasync);
* ``Storage.sync_dir`` makes names durable: after create, rename, remove and make_dir;
* ``File.write`` may take fewer bytes than offered: whoever writes checks the answer.

Errors are ``OSError`` as the system gives them; a missing name is ``FileNotFoundError``; EINTR
never shows (Python retries). ``sync`` may run in another thread while the owner writes and reads.

Not here: which files exist (``segment.py``, ``index.py``), what to do about errors.
"""

import builtins
import fcntl
import os
from pathlib import Path
from typing import Final, Protocol

from penstock.model.errors import StartRefused

FILE_MODE: Final = 0o640
"""Messages are nobody else's business."""


class File(Protocol):
    """One open file."""

    def write(self, data: bytes) -> int:
        """Append ``data``; how many bytes were taken, which may be fewer than offered."""
        ...

    def read(self, at: int, size: int) -> bytes:
        """At most ``size`` bytes from byte ``at``; fewer only at the end of the file."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut the file back to ``size`` bytes; durable after the next sync."""
        ...

    def sync(self) -> None:
        """Make every byte written so far durable, or raise."""
        ...

    def close(self) -> None:
        """Give the handle back; closing never syncs. A second close does nothing."""
        ...


class Storage(Protocol):
    """A directory tree."""

    def open(self, path: str, *, create: bool) -> File:
        """Open for reading and appending; ``create`` makes the file when it is missing."""
        ...

    def list(self, path: str) -> builtins.list[str]:
        """Names in a directory, sorted."""
        ...

    def exists(self, path: str) -> bool:
        """True for a file or directory."""
        ...

    def size(self, path: str) -> int: ...

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents; one that exists is fine."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file over ``target`` in one step."""
        ...

    def remove(self, path: str) -> None:
        """Unlink a file; open handles go on reading."""
        ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory; ``OSError`` when it is not empty, or not there."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def free_bytes(self) -> int:
        """Bytes an ordinary user may still write."""
        ...


class DiskFile:
    """A file of the operating system; satisfies ``File``."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes) -> int:
        """Append ``data`` with one system call."""
        return os.write(self._fd, data)

    def read(self, at: int, size: int) -> bytes:
        """At most ``size`` bytes from ``at``."""
        data = os.pread(self._fd, size, at)
        if len(data) == size or not data:
            return data
        # The system may give less than asked before the end; only an empty answer is the end.
        pieces = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, at + got)):
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """The file's bytes, and its size, reach the disk."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class DiskStorage:
    """A directory of the operating system; satisfies ``Storage``.

    ``is_read_only`` is for looking into a data directory that belongs to someone else: a running
    broker, a copy, a read-only mount.
    """

    def __init__(self, root: Path | str, *, is_read_only: bool = False) -> None:
        self.root: Final = str(root)
        self._flags: Final = os.O_CLOEXEC | (
            os.O_RDONLY if is_read_only else os.O_RDWR | os.O_APPEND
        )

    def open(self, path: str, *, create: bool) -> DiskFile:
        """Open a file; appends go to its end whatever happened to it before (O_APPEND)."""
        flags = self._flags | os.O_CREAT if create else self._flags
        return DiskFile(os.open(self._full(path), flags, FILE_MODE))

    def list(self, path: str) -> builtins.list[str]:
        """Names in a directory, sorted."""
        return sorted(os.listdir(self._full(path)))

    def exists(self, path: str) -> bool:
        """True for a file or directory."""
        return os.path.exists(self._full(path))

    def size(self, path: str) -> int:
        return os.stat(self._full(path)).st_size

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        os.makedirs(self._full(path), mode=0o700, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        """Move a file over ``target``."""
        os.replace(self._full(source), self._full(target))

    def remove(self, path: str) -> None:
        os.unlink(self._full(path))

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(self._full(path))

    def sync_dir(self, path: str) -> None:
        """Make names durable: fsync of the directory itself."""
        fd = os.open(self._full(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        """What statvfs grants to an ordinary user."""
        room = os.statvfs(self.root)
        return room.f_bavail * room.f_frsize

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root


# ---- lock ---------------------------------------------------------------------------------------
# The lock on a data directory: one broker at a time.
#
# ``<data>/lock`` holds the pid of the owner and is locked with flock, which the kernel lets go of
# when the process ends, however it ends. So the file itself means nothing: it may stay, be deleted
# while nobody runs, or hold garbage.


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
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
