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

import builtins
import errno
import random
from typing import Final

from penstock.testing.faults import FaultKind, FaultPlan, os_error
from penstock.testing.medium import Node

NO_CAPACITY: Final = 1 << 50
"""Bytes of an unlimited disk."""


class MemoryFile:
    """One open file of a ``MemoryStorage``."""

    __slots__ = ("_content",)

    def __init__(self, content: bytearray) -> None:
        self._content = content

    def write(self, data: bytes) -> int:
        """Append ``data``."""
        self._content += data
        return len(data)

    def read(self, at: int, size: int) -> bytes:
        """At most ``size`` bytes from ``at``; fewer at the end of the file."""
        return bytes(self._content[at : at + size])

    def size(self) -> int:
        """Bytes in the file."""
        return len(self._content)

    def truncate(self, size: int) -> None:
        """Cut the file back to ``size`` bytes."""
        del self._content[size:]

    def sync(self) -> None:
        """Nothing to do: memory is as durable as it gets."""

    def close(self) -> None:
        """Nothing to do."""


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
        """Bytes in a file."""
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

    def sync_dir(self, path: str) -> None:
        """Nothing to do."""

    def free_bytes(self) -> int:
        """There is always room."""
        return NO_CAPACITY


class SimulatedFile:
    """One open file of a ``SimulatedStorage``."""

    __slots__ = ("_node", "_path", "_storage")

    def __init__(self, storage: "SimulatedStorage", path: str, node: Node) -> None:
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
        """Bytes in a file."""
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

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        self.admit("sync_dir", path)
        for change in self._pending.pop(path, ()):
            _apply(self._durable_names, change)

    def free_bytes(self) -> int:
        """Room left on the disk."""
        return max(0, self.capacity_bytes - self.used_bytes)

    def kill(self) -> "SimulatedStorage":
        """The storage as the next process finds it after ``kill -9``: everything written is there.

        What was not synced is still not: a later power cut can take it.
        """
        heir = self._heir()
        heir._names = self._names
        heir._durable_names = self._durable_names
        heir._pending = self._pending
        heir.used_bytes = self.used_bytes
        return heir

    def crash(self) -> "SimulatedStorage":
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

    def _heir(self) -> "SimulatedStorage":
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
