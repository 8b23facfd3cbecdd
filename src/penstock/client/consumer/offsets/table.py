"""Progress of a group as this consumer knows it, over the store where it is kept.

``note`` is called at each settlement and costs a dict write; ``persist`` runs every few seconds and
when a queue is given up. Offsets only grow unless somebody says otherwise (a reset, a seek):
results arrive in any order, and a late one must not undo progress.

Invariant: what is written to the store was noted here; what did not change is not written again.
Not here: which offset may be noted (``process_queue.py``), where to begin without one
(``consume_from.py``).
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from penstock.model.assignment import QueueRef


class OffsetStore(Protocol):
    """Where offsets are kept. A user's own store is any object with these two methods."""

    async def read(self, queue: QueueRef) -> int | None:
        """The offset to go on at; None when the store knows of none. Raises when it cannot say."""
        ...

    async def write(self, offsets: Mapping[QueueRef, int]) -> Collection[QueueRef]:
        """Keep these; returns those that were kept (the others are written again next time)."""
        ...


class Offsets:
    """Offsets in memory, and which of them the store does not have yet."""

    def __init__(self, store: OffsetStore) -> None:
        self.store = store
        self._known: dict[QueueRef, int] = {}
        self._written: dict[QueueRef, int] = {}

    def get(self, queue: QueueRef) -> int | None:
        """The offset known here, without asking the store."""
        return self._known.get(queue)

    def note(self, queue: QueueRef, offset: int, *, is_increase_only: bool = True) -> None:
        """Everything below ``offset`` is settled."""
        known = self._known.get(queue)
        if known is None or offset > known or not is_increase_only:
            self._known[queue] = offset

    async def read(self, queue: QueueRef) -> int | None:
        """The store's offset, known here from now on; None when it has none."""
        offset = await self.store.read(queue)
        if offset is None or offset < 0:
            return None
        self._known[queue] = self._written[queue] = offset
        return offset

    async def persist(self, queues: Collection[QueueRef] | None = None) -> None:
        """Write what changed, of these queues or of all."""
        wanted = list(self._known) if queues is None else queues
        changed = {
            queue: offset
            for queue in wanted
            if (offset := self._known.get(queue)) is not None and self._written.get(queue) != offset
        }
        if not changed:
            return
        for queue in await self.store.write(changed):
            if queue in self._known:
                self._written[queue] = changed[queue]

    def forget(self, queue: QueueRef) -> None:
        """The queue is another member's now: what was known here grows stale."""
        self._known.pop(queue, None)
        self._written.pop(queue, None)

    def snapshot(self, topic: str | None = None) -> dict[QueueRef, int]:
        """The offsets known here, of one topic or of all."""
        return {q: o for q, o in self._known.items() if topic is None or q.topic == topic}
