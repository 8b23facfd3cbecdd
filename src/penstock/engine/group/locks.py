"""Queue locks: who of a group may read a queue in order, while it says so often enough.

A lock is granted when the queue is free, the asker's own, or its holder has been silent for longer
than ``LOCK_MS``; asking again renews it. Only its owner gives a lock back early. A member that dies
loses its locks by silence alone: it may still be working on what it took.

Invariants: a queue of a group has at most one living lock; bounded in groups and queues.
Not here: how often members ask (they do, every 20 s), what order means (the adapter's deliveries).
"""

from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

QueueT = TypeVar("QueueT", bound=Hashable)

LOCK_MS: Final = 60_000
"""Silence after which a lock is anybody's."""

GROUPS_MAX: Final = 10_000

LOCKS_PER_GROUP_MAX: Final = 10_000
"""Queues one group may hold; more are not granted."""


class QueueLocks(Generic[QueueT]):
    """All locks: group -> queue -> (owner, when it last asked)."""

    __slots__ = ("_groups", "groups_max", "lock_ms", "per_group_max")

    def __init__(
        self,
        lock_ms: int = LOCK_MS,
        *,
        groups_max: int = GROUPS_MAX,
        per_group_max: int = LOCKS_PER_GROUP_MAX,
    ) -> None:
        self.lock_ms = lock_ms
        self.groups_max = groups_max
        self.per_group_max = per_group_max
        self._groups: dict[str, dict[QueueT, tuple[str, int]]] = {}

    def lock(self, group: str, queues: Sequence[QueueT], owner: str, now_ms: int) -> list[QueueT]:
        """Ask for locks, or renew them: those that are granted, in the order asked for."""
        held = self._groups.get(group)
        if held is None:
            if len(self._groups) >= self.groups_max:
                self.sweep(now_ms)
            if len(self._groups) >= self.groups_max or not queues:
                return []
            held = self._groups[group] = {}
        granted = []
        for queue in dict.fromkeys(queues):
            entry = held.get(queue)
            if entry is None and len(held) >= self.per_group_max:
                continue
            if entry is None or entry[0] == owner or self._is_expired(entry, now_ms):
                held[queue] = (owner, now_ms)
                granted.append(queue)
        return granted

    def unlock(self, group: str, queues: Sequence[QueueT], owner: str) -> list[QueueT]:
        """Give locks back; those of others stay. What was given back."""
        held = self._groups.get(group, {})
        returned = []
        for queue in queues:
            entry = held.get(queue)
            if entry is not None and entry[0] == owner:
                del held[queue]
                returned.append(queue)
        if not held:
            self._groups.pop(group, None)
        return returned

    def owner(self, group: str, queue: QueueT, now_ms: int) -> str | None:
        entry = self._groups.get(group, {}).get(queue)
        return None if entry is None or self._is_expired(entry, now_ms) else entry[0]

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether some member of the group holds a living lock."""
        held = self._groups.get(group, {})
        return any(not self._is_expired(entry, now_ms) for entry in held.values())

    def forget(self, group: str) -> None:
        self._groups.pop(group, None)

    def sweep(self, now_ms: int) -> int:
        """Drop what has expired, and say how much; nothing depends on it but memory."""
        dropped = 0
        for group, held in list(self._groups.items()):
            expired = [queue for queue, entry in held.items() if self._is_expired(entry, now_ms)]
            dropped += len(expired)
            for queue in expired:
                del held[queue]
            if not held:
                del self._groups[group]
        return dropped

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def _is_expired(self, entry: tuple[str, int], now_ms: int) -> bool:
        return now_ms - entry[1] > self.lock_ms
