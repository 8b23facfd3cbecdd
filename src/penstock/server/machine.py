"""What the machine says about memory and disk: the figures behind the alarms (F3).

Linux tells through ``/proc`` and the cgroup files (v2 and v1, this process's group and all above
it); where they are missing, as on macOS, ``resource`` and ``sysconf`` stand in: RSS is then the
*peak*, which can raise the memory alarm but never clear it, and is said so at start.
"""

import os
import resource
import sys
from pathlib import Path
from typing import Final

NO_LIMIT_BYTES: Final = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63; anything above this is none."""


class Machine:
    """Reads the figures; ``root`` is ``/`` except in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._statm: int | None = None
        try:
            self._statm = os.open(root / "proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._statm = None

    @property
    def is_rss_exact(self) -> bool:
        """False where only the peak is known."""
        return self._statm is not None

    def rss_bytes(self) -> int:
        """Resident memory of this process now."""
        if self._statm is None:
            return peak_rss_bytes()
        return int(os.pread(self._statm, 128, 0).split()[1]) * self._page_bytes

    def memory_bytes(self) -> int:
        """Memory this process may use: RAM, or less where a cgroup says so."""
        ram = os.sysconf("SC_PHYS_PAGES") * self._page_bytes
        return min([ram, *self._cgroup_limits()])

    def close(self) -> None:
        """Give the file handle back."""
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None

    def _cgroup_limits(self) -> list[int]:
        try:
            lines = (self._root / "proc/self/cgroup").read_text().splitlines()
        except OSError:
            return []
        limits = []
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not controllers:
                limits += self._limits_upwards("sys/fs/cgroup", path, "memory.max")
            elif "memory" in controllers.split(","):
                limits += self._limits_upwards("sys/fs/cgroup/memory", path, _V1_LIMIT)
        return limits

    def _limits_upwards(self, mount: str, path: str, name: str) -> list[int]:
        """Limits of a group and of every group above it, down to the mount point itself.

        Inside a container the path often names a group that only the host sees: then the mount
        point is this process's own group, and it is always looked at.
        """
        top = self._root / mount
        group = top / path.lstrip("/")
        limits = []
        while True:
            try:
                text = (group / name).read_text().strip()
                if text.isdigit() and int(text) < NO_LIMIT_BYTES:
                    limits.append(int(text))
            except OSError:
                pass
            if group == top or top not in group.parents:
                return limits
            group = group.parent


_V1_LIMIT: Final = "memory.limit_in_bytes"


def peak_rss_bytes() -> int:
    """The most this process ever had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def disk_bytes(path: Path) -> tuple[int, int]:
    """(total, free to an ordinary user) of the file system that holds ``path``."""
    room = os.statvfs(path)
    return room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize


def boot_id(root: Path = Path("/")) -> str:
    """Names this run of the kernel; empty where nobody tells (then every start counts as new)."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
