"""Which storage call fails, and how: the fault plan of a simulated disk.

Calls are counted by verb and in total, so a plan can say "the third sync" as well as "the 57th call
of any kind" (SQLite's way, T7). A plan is plain data; the simulated storage asks it before each
call and does what it says.
"""

import errno
from dataclasses import dataclass
from enum import Enum
from typing import Final

ANY: Final = "any"
"""Counts every verb: the n-th call, whatever it is."""

VERBS: Final = (
    "open", "list", "size", "make_dir", "rename", "remove", "sync_dir",
    "write", "read", "truncate", "sync",
)  # fmt: skip


class FaultKind(Enum):
    """How a call fails."""

    EIO = errno.EIO
    ENOSPC = errno.ENOSPC
    SHORT = -1
    """A write takes only a part of its bytes and says so; other verbs fail with EIO."""
    LOST = -2
    """A write is taken, and never reaches the medium although syncs succeed: a lying drive."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Calls ``nth`` to ``nth + times - 1`` of ``verb`` (counted from 1) fail as ``kind``."""

    verb: str
    nth: int
    kind: FaultKind
    times: int = 1


class FaultPlan:
    """The faults to come, and the count of calls so far."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = list(faults)
        self.calls: dict[str, int] = dict.fromkeys(VERBS, 0)
        self.total = 0
        self.struck = 0
        """How many calls were made to fail: a test that planted a fault can see that it acted."""

    def fail_next(self, verb: str, kind: FaultKind, times: int = 1) -> None:
        """Make the next ``times`` calls of ``verb`` fail."""
        self.faults.append(Fault(verb, self._count(verb) + 1, kind, times))

    def clear(self) -> None:
        """From now on nothing fails."""
        self.faults.clear()

    def strike(self, verb: str) -> FaultKind | None:
        """Count one call; what goes wrong with it, if anything."""
        self.calls[verb] += 1
        self.total += 1
        if not self.faults:
            return None
        for fault in self.faults:
            if fault.verb in (verb, ANY) and 0 <= self._count(fault.verb) - fault.nth < fault.times:
                self.struck += 1
                return fault.kind
        return None

    def _count(self, verb: str) -> int:
        return self.total if verb == ANY else self.calls[verb]


def os_error(kind: FaultKind, verb: str, path: str) -> OSError:
    """The error a real file system would raise."""
    if kind is FaultKind.ENOSPC:
        return OSError(errno.ENOSPC, "No space left on device", path)
    return OSError(errno.EIO, f"Input/output error ({verb}, planned)", path)
