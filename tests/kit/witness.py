"""A storage that can testify: what was synced, and when (T3).

It passes every call on to a real or simulated storage and keeps, per file, how many bytes a
*returned* sync covers. Bytes written while a sync runs are not covered by it, so the size is taken
before the call and believed only after it returned. A file whose name was not synced into its
directory is not covered at all.
"""

import builtins

from penstock.log.storage import File, Storage


class WitnessedFile:
    """One open file, watched."""

    __slots__ = ("_file", "_path", "_witness")

    def __init__(self, witness: "SyncWitness", path: str, file: File) -> None:
        self._witness = witness
        self._path = path
        self._file = file

    def write(self, data: bytes) -> int:
        """Append."""
        return self._file.write(data)

    def read(self, at: int, size: int) -> bytes:
        """Read."""
        return self._file.read(at, size)

    def size(self) -> int:
        """Bytes in the file."""
        return self._file.size()

    def truncate(self, size: int) -> None:
        """Cut; what is cut away is no longer covered."""
        self._file.truncate(size)
        covered = self._witness.covered
        covered[self._path] = min(covered.get(self._path, 0), size)

    def sync(self) -> None:
        """Sync, and remember what that covers."""
        covers = self._file.size()
        self._file.sync()
        self._witness.covered[self._path] = covers
        self._witness.syncs += 1

    def close(self) -> None:
        """Close."""
        self._file.close()


class SyncWitness:
    """A storage that remembers which bytes are durable."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.covered: dict[str, int] = {}
        """Path -> bytes covered by a sync that returned."""
        self.syncs = 0
        self._unsynced_names: dict[str, set[str]] = {}

    def is_durable(self, path: str, end: int) -> bool:
        """True when the file's first ``end`` bytes and its name would survive a power cut."""
        parent, _, name = path.rpartition("/")
        if name in self._unsynced_names.get(parent, ()):
            return False
        return self.covered.get(path, 0) >= end

    def open(self, path: str, *, create: bool) -> WitnessedFile:
        """Open; a new name is not durable yet."""
        is_new = create and not self._storage.exists(path)
        file = self._storage.open(path, create=create)
        if is_new:
            self._note_name(path)
        return WitnessedFile(self, path, file)

    def list(self, path: str) -> builtins.list[str]:
        """Names in a directory."""
        return self._storage.list(path)

    def exists(self, path: str) -> bool:
        """True for a file or directory."""
        return self._storage.exists(path)

    def size(self, path: str) -> int:
        """Bytes in a file."""
        return self._storage.size(path)

    def make_dir(self, path: str) -> None:
        """Make a directory."""
        self._storage.make_dir(path)

    def rename(self, source: str, target: str) -> None:
        """Move; the new name is not durable yet."""
        self._storage.rename(source, target)
        self.covered[target] = self.covered.pop(source, 0)
        self._note_name(target)

    def remove(self, path: str) -> None:
        """Unlink."""
        self._storage.remove(path)
        self.covered.pop(path, None)

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        self._storage.remove_dir(path)

    def sync_dir(self, path: str) -> None:
        """Names in the directory are durable once this returned."""
        self._storage.sync_dir(path)
        self._unsynced_names.pop(path, None)

    def free_bytes(self) -> int:
        """Room left."""
        return self._storage.free_bytes()

    def _note_name(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self._unsynced_names.setdefault(parent, set()).add(name)
