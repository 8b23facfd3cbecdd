"""Storage for tests: files in memory, and a disk that loses power on command.

``MemoryStorage`` never fails and is as fast as a dict. ``SimulatedStorage`` keeps two views of each
file, what the process reads back (page cache) and what the medium holds:

* ``write`` and ``truncate`` change the cache, ``sync`` makes a file's bytes durable;
* names are durable after ``sync_dir`` of their directory, in the order in which they changed;
* ``kill()`` is the death of the process: the cache survives, still not synced;
* ``crash()`` is the loss of power: per file the bytes since the last sync are lost, kept, cut at a
  random byte, or kept with holes of zeros, and each directory keeps a prefix of its changes;
* a failed sync leaves bytes that read back well and that no later sync makes durable, which is what
  ext4 does (P4).

All chance comes from one seeded generator. Both satisfy ``log.storage.Storage``; after ``kill`` or
``crash`` handles of the old storage are dead.
"""

from __future__ import annotations

import builtins
import errno
import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

NO_CAPACITY: Final = 1 << 50
"""Bytes of an unlimited disk."""


class MemoryFile:
    """One open file of a ``MemoryStorage``."""

    __slots__ = ("_content",)

    def __init__(self, content: bytearray) -> None:
        self._content = content

    def write(self, data: bytes) -> int:
        self._content += data
        return len(data)

    def read(self, at: int, size: int) -> bytes:
        """At most ``size`` bytes from ``at``; fewer at the end of the file."""
        return bytes(self._content[at : at + size])

    def size(self) -> int:
        return len(self._content)

    def truncate(self, size: int) -> None:
        """Cut the file back to ``size`` bytes."""
        del self._content[size:]

    def sync(self) -> None:
        """Nothing to do: memory is as durable as it gets."""

    def close(self) -> None: ...


class MemoryStorage:
    """Files in a dict; everything succeeds."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.dirs: set[str] = {""}

    def open(self, path: str, *, create: bool) -> MemoryFile:
        """Open for reading and appending."""
        content = self.files.get(path)
        if content is None:
            if not create or _parent(path) not in self.dirs:
                raise _missing(path)
            content = self.files[path] = bytearray()
        return MemoryFile(content)

    def list(self, path: str) -> builtins.list[str]:
        """Names in a directory, sorted."""
        if path not in self.dirs:
            raise _missing(path)
        names = [p for p in (*self.files, *self.dirs) if p and _parent(p) == path]
        return sorted(p.rpartition("/")[2] for p in names)

    def exists(self, path: str) -> bool:
        """True for a file or directory."""
        return path in self.files or path in self.dirs

    def size(self, path: str) -> int:
        if path not in self.files:
            raise _missing(path)
        return len(self.files[path])

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents; one that exists is fine."""
        while path:
            self.dirs.add(path)
            path = _parent(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file over ``target``."""
        if source not in self.files:
            raise _missing(source)
        self.files[target] = self.files.pop(source)

    def remove(self, path: str) -> None:
        """Unlink a file; open handles go on."""
        if path not in self.files:
            raise _missing(path)
        del self.files[path]

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        if path not in self.dirs:
            raise _missing(path)
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self.dirs.remove(path)

    def sync_dir(self, path: str) -> None: ...

    def free_bytes(self) -> int:
        return NO_CAPACITY


class SimulatedFile:
    """One open file of a ``SimulatedStorage``."""

    __slots__ = ("_node", "_path", "_storage")

    def __init__(self, storage: SimulatedStorage, path: str, node: Node) -> None:
        self._storage = storage
        self._path = path
        self._node = node

    def write(self, data: bytes) -> int:
        """Append; may take fewer bytes than offered, as ``os.write`` may."""
        storage, content = self._storage, self._node.content
        kind = storage.admit("write", self._path, (FaultKind.SHORT, FaultKind.LOST))
        room = storage.free_bytes()
        taken = min(len(data), room)
        if kind is FaultKind.SHORT:
            taken = min(taken, len(data) // 2)
        elif kind is FaultKind.LOST:
            self._node.doomed.append((len(content), len(content) + taken))
        if data and taken == 0 and kind is None:
            raise os_error(FaultKind.ENOSPC, "write", self._path)
        content += data if taken == len(data) else data[:taken]
        storage.used_bytes += taken
        return taken

    def read(self, at: int, size: int) -> bytes:
        """At most ``size`` bytes from ``at``."""
        self._storage.admit("read", self._path)
        return bytes(self._node.content[at : at + size])

    def size(self) -> int:
        """Bytes in the file, as the process sees it."""
        return len(self._node.content)

    def truncate(self, size: int) -> None:
        """Cut back to ``size``; durable only after the next sync."""
        self._storage.admit("truncate", self._path)
        self._storage.used_bytes -= max(0, len(self._node.content) - size)
        self._node.truncate(size)

    def sync(self) -> None:
        """Make the file's bytes durable, or fail and doom what was not."""
        try:
            self._storage.admit("sync", self._path)
        except OSError:
            self._node.sync_failed()
            raise
        self._node.sync()

    def close(self) -> None:
        """Forget the handle; closing never syncs."""


class SimulatedStorage:
    """A directory tree on a disk that can fail, fill up and lose power."""

    def __init__(self, seed: int | random.Random = 0, *, plan: FaultPlan | None = None) -> None:
        self.rng = seed if isinstance(seed, random.Random) else random.Random(seed)
        self.plan = plan or FaultPlan()
        self.capacity_bytes = NO_CAPACITY
        self.used_bytes = 0
        self._names: dict[str, Node | None] = {"": None}  # None marks a directory
        self._durable_names: dict[str, Node | None] = {"": None}
        # Changes per directory since its last sync: (name, node or None, is_removed).
        self._pending: dict[str, list[list[tuple[str, Node | None, bool]]]] = {}
        self._is_dead = False

    def admit(self, verb: str, path: str, allowed: tuple[FaultKind, ...] = ()) -> FaultKind | None:
        """Count a call and raise if it is to fail; kinds in ``allowed`` are returned instead."""
        if self._is_dead:
            raise OSError(errno.EBADF, "this storage died with its process", path)
        kind = self.plan.strike(verb)
        if kind is None or kind in allowed:
            return kind
        if kind is FaultKind.LOST:
            return None
        raise os_error(kind, verb, path)

    def open(self, path: str, *, create: bool) -> SimulatedFile:
        """Open for reading and appending."""
        self.admit("open", path)
        node = self._names.get(path)
        if node is None:
            if path in self._names:
                raise OSError(errno.EISDIR, "Is a directory", path)
            if not create or _parent(path) not in self._names:
                raise _missing(path)
            node = Node()
            self._change(_parent(path), (path, node, False))
        return SimulatedFile(self, path, node)

    def list(self, path: str) -> builtins.list[str]:
        """Names in a directory, sorted."""
        self.admit("list", path)
        if self._names.get(path, self) is not None:
            raise _missing(path)
        return sorted(p.rpartition("/")[2] for p in self._names if p and _parent(p) == path)

    def exists(self, path: str) -> bool:
        """True for a file or directory."""
        return path in self._names

    def size(self, path: str) -> int:
        self.admit("size", path)
        node = self._names.get(path)
        if node is None:
            raise _missing(path)
        return len(node.content)

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents; one that exists is fine."""
        self.admit("make_dir", path)
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            if name not in self._names:
                self._change(_parent(name), (name, None, False))

    def rename(self, source: str, target: str) -> None:
        """Move a file over ``target``: after a crash the one or the other, never neither."""
        self.admit("rename", source)
        node = self._names.get(source)
        if node is None:
            raise _missing(source)
        replaced = self._names.get(target)
        if replaced is not None:
            self.used_bytes -= len(replaced.content)
        self._change(_parent(target), (source, node, True), (target, node, False))

    def remove(self, path: str) -> None:
        """Unlink a file; open handles go on."""
        self.admit("remove", path)
        node = self._names.get(path)
        if node is None:
            raise _missing(path)
        self.used_bytes -= len(node.content)
        self._change(_parent(path), (path, node, True))

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        self.admit("remove_dir", path)
        if self._names.get(path, self) is not None:
            raise _missing(path)
        if any(_parent(each) == path for each in self._names if each):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self._change(_parent(path), (path, None, True))

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        self.admit("sync_dir", path)
        for change in self._pending.pop(path, ()):
            _apply(self._durable_names, change)

    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)

    def kill(self) -> SimulatedStorage:
        """The storage as the next process finds it after ``kill -9``: everything written is there.

        What was not synced is still not: a later power cut can take it.
        """
        heir = self._heir()
        heir._names = self._names
        heir._durable_names = self._durable_names
        heir._pending = self._pending
        heir.used_bytes = self.used_bytes
        return heir

    def crash(self) -> SimulatedStorage:
        """The storage as found when power is back."""
        heir = self._heir()
        names = dict(self._durable_names)
        for directory in sorted(self._pending):
            changes = self._pending[directory]
            for change in changes[: heir.rng.randint(0, len(changes))]:
                _apply(names, change)
        survivors: dict[int, Node] = {}
        for path in sorted(names):
            node = names[path]
            if not _is_reachable(path, names):
                continue
            if node is not None and id(node) not in survivors:
                survivors[id(node)] = node.after_power_cut(heir.rng)
                heir.used_bytes += len(survivors[id(node)].content)
            heir._names[path] = None if node is None else survivors[id(node)]
        heir._durable_names = dict(heir._names)
        return heir

    def _heir(self) -> SimulatedStorage:
        self._is_dead = True
        heir = SimulatedStorage(self.rng, plan=self.plan)
        heir.capacity_bytes = self.capacity_bytes
        return heir

    def _change(self, directory: str, *change: tuple[str, Node | None, bool]) -> None:
        _apply(self._names, builtins.list(change))
        self._pending.setdefault(directory, []).append(builtins.list(change))


def _apply(names: dict[str, Node | None], change: list[tuple[str, Node | None, bool]]) -> None:
    for name, node, is_removed in change:
        if is_removed:
            names.pop(name, None)
        else:
            names[name] = node


def _is_reachable(path: str, names: dict[str, Node | None]) -> bool:
    while path:
        path = _parent(path)
        if path not in names:
            return False
    return True


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such file or directory", path)


# ---- medium -------------------------------------------------------------------------------------
# One simulated file: what the process reads back, and what the medium will hold after a power cut.
#
# The cache is one bytearray; the medium agrees with a prefix of it (files are append-only), except
# after an unsynced truncation, when it still holds more. See ``storage.py`` for the whole disk.


HOLE_BYTES: Final = 512
"""Granularity in which unsynced bytes may be missing after a power cut: one sector."""


class Node:
    """A file's bytes as the process sees them, and how far the medium agrees."""

    __slots__ = ("content", "doomed", "durable_bytes", "shadow")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable_bytes = 0
        # What the medium holds when the cache was cut below it; None while it is a prefix.
        self.shadow: bytes | None = None
        # Ranges that read back well and will not survive a power cut, synced or not.
        self.doomed: list[tuple[int, int]] = []

    def truncate(self, size: int) -> None:
        """Cut the cache; the medium may still hold more."""
        if size < self.durable_bytes and self.shadow is None:
            self.shadow = bytes(self.content[: self.durable_bytes])
        self.durable_bytes = min(self.durable_bytes, size)
        del self.content[size:]
        self.doomed = [(a, min(b, size)) for a, b in self.doomed if a < size]

    def sync(self) -> None:
        """The medium holds what the cache holds."""
        self.durable_bytes = len(self.content)
        self.shadow = None

    def sync_failed(self) -> None:
        """The kernel forgot that these bytes are dirty: no later sync writes them."""
        if self.durable_bytes < len(self.content):
            self.doomed.append((self.durable_bytes, len(self.content)))

    def after_power_cut(self, rng: random.Random) -> Node:
        """What is found when power is back."""
        survivor = Node()
        written, synced = len(self.content), self.durable_bytes
        fate = rng.randrange(4) if written > synced or self.shadow is not None else 0
        if fate == 0 and self.shadow is not None:
            survivor.content = bytearray(self.shadow)
        elif fate == 0:
            survivor.content = self.content[:synced]
        elif fate == 1:
            survivor.content = bytearray(self.content)
        else:
            survivor.content = self.content[: rng.randint(synced, written)]
            if fate == 3:
                _punch(survivor.content, synced, rng)
        for start, end in self.doomed:
            if rng.random() < 0.5:
                stop = min(end, len(survivor.content))
                survivor.content[start:stop] = bytes(max(0, stop - start))
        survivor.sync()
        return survivor


def _punch(content: bytearray, start: int, rng: random.Random) -> None:
    """Zero some of the sectors since the last sync: they reach the medium in any order."""
    for at in range(start, len(content), HOLE_BYTES):
        if rng.random() < 0.3:
            end = min(at + HOLE_BYTES, len(content))
            content[at:end] = bytes(end - at)


# ---- faults -------------------------------------------------------------------------------------
# Which storage call fails, and how: the fault plan of a simulated disk.
#
# Calls are counted by verb and in total, so a plan can say "the third sync" as well as "the 57th
# call of any kind" (SQLite's way, T7). A plan is plain data; the simulated storage asks it before
# each call and does what it says.


ANY: Final = "any"
"""Counts every verb: the n-th call, whatever it is."""

VERBS: Final = (
    "open", "list", "size", "make_dir", "rename", "remove", "remove_dir", "sync_dir",
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
