"""Messages by key: (topic, key) -> positions, newest first (RocketMQ's index, useful to all).

Entries are 24 bytes: ``hash u64, position u64, store_ms i64``. The newest wait in memory in the
order of time; ``ENTRIES_MAX`` of them are sorted by hash and become one file named after the times
it covers, so a lookup reads a few blocks of the files its time range touches, newest file first.

A hash may lie: whoever looks up reads the record and compares the real key. Losing this index loses
nothing but the lookup of older messages; the entries still in memory go with a crash.

Not here: which keys a message has (``wire/<p>/facts.py``).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final

from penstock.log.side_files import SideFiles

KEYS_DIRECTORY: Final = "keys"
ENTRIES_MAX: Final = 16384
KEY_ENTRY: Final = Struct("<QQq")
BLOCK_ENTRIES: Final = 64
"""Entries read at a time once the first with the hash is found."""
_HASH: Final = Struct("<Q")
_SALT: Final = Struct("<Q")


class KeyFile:
    """One sorted file and the times it covers."""

    __slots__ = ("count", "first_ms", "last_ms", "number", "path")

    def __init__(self, path: str, count: int) -> None:
        first, last, number = path.rpartition("/")[2].removesuffix(".key").split("-")
        self.path: Final = path
        self.count: Final = count
        self.first_ms: Final = int(first)
        self.last_ms: Final = int(last)
        self.number: Final = int(number)


class KeyIndex:
    """The key index of a store."""

    def __init__(self, files: SideFiles, *, entries_max: int = ENTRIES_MAX) -> None:
        self._files = files
        self._entries_max = entries_max
        self._fresh: list[tuple[int, int, int]] = []
        self._unwritten: dict[str, list[tuple[int, int, int]]] = {}
        self._sealed: list[KeyFile] = []
        self._number = 0

    def add(self, topic_id: int, keys: Iterable[bytes], position: int, store_ms: int) -> None:
        """Note the keys of a message that was appended."""
        for key in keys:
            self._fresh.append((key_hash(topic_id, key), position, store_ms))
        if len(self._fresh) >= self._entries_max:
            self.seal()

    def lookup(
        self, topic_id: int, key: bytes, *, begin_ms: int, end_ms: int, count_max: int
    ) -> list[int]:
        """Positions of what was stored in [begin_ms, end_ms] and may have the key, newest first."""
        wanted = key_hash(topic_id, key)
        found = _matching(self._fresh, wanted, begin_ms, end_ms)
        for file in reversed(self._sealed):
            if len(found) >= count_max:
                break
            if file.last_ms >= begin_ms and file.first_ms <= end_ms:
                found += self._in_file(file, wanted, begin_ms, end_ms)
        return found[:count_max]

    def seal(self) -> None:
        """Turn what waits in memory into a sorted file."""
        fresh = self._fresh
        if not fresh:
            return
        times = [store_ms for _, _, store_ms in fresh]
        self._number += 1
        path = f"{KEYS_DIRECTORY}/{min(times):015d}-{max(times):015d}-{self._number:010d}.key"
        fresh.sort()
        self._files.append(path, b"".join([KEY_ENTRY.pack(*entry) for entry in fresh]), self)
        self._unwritten[path] = fresh
        self._sealed.append(KeyFile(path, len(fresh)))
        self._fresh = []

    def written(self, path: str, size: int) -> None:
        """All ``size`` bytes of a sealed file are on disk: memory need not keep them."""
        assert size == len(self._unwritten[path]) * KEY_ENTRY.size
        del self._unwritten[path]

    def trim(self, before_ms: int) -> None:
        """Messages stored before are gone; so go the files that cover nothing else."""
        while self._sealed and self._sealed[0].last_ms < before_ms:
            self._files.remove(self._sealed.pop(0).path)

    def restore(self, paths: Sequence[str]) -> None:
        for path in paths:
            file = KeyFile(path, self._files.planned_size(path) // KEY_ENTRY.size)
            self._sealed.append(file)
            self._number = max(self._number, file.number)
        self._sealed.sort(key=lambda file: file.number)

    @property
    def file_count(self) -> int:
        return len(self._sealed)

    def _in_file(self, file: KeyFile, wanted: int, begin_ms: int, end_ms: int) -> list[int]:
        entries = self._unwritten.get(file.path)
        if entries is None:
            read = self._files.read
            size = KEY_ENTRY.size
            at = bisect_left(
                range(file.count),
                wanted,
                key=lambda i: int(_HASH.unpack(read(file.path, i * size, _HASH.size))[0]),
            )
            entries = []
            while at < file.count:
                block = read(file.path, at * size, min(BLOCK_ENTRIES, file.count - at) * size)
                entries += KEY_ENTRY.iter_unpack(block)
                if entries[-1][0] != wanted:
                    break
                at += BLOCK_ENTRIES
        return _matching(entries, wanted, begin_ms, end_ms)


def key_hash(topic_id: int, key: bytes) -> int:
    """64 bits of (topic, key); the same in every process, unlike Python's own hash."""
    return int.from_bytes(blake2b(key, digest_size=8, salt=_SALT.pack(topic_id)).digest(), "little")


def _matching(
    entries: Sequence[tuple[int, int, int]], wanted: int, begin_ms: int, end_ms: int
) -> list[int]:
    """Positions with that hash and time, newest first."""
    return sorted(
        (
            position
            for hashed, position, store_ms in entries
            if hashed == wanted and begin_ms <= store_ms <= end_ms
        ),
        reverse=True,
    )
