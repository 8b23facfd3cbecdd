"""All queue indexes of a store, and the rule when their tails are written.

A tail is handed to the commit thread when it has ``QUEUE_TAIL_BYTES_MAX``; all tails are when
together they may have half of ``index_tail_bytes_max``, and at every snapshot. So memory is bounded
for one busy queue as well as for 50,000 quiet ones, and no queue holds a file open.

A durable queue has a catalog row from the moment it is created: the same transaction commits before
any sync of records that name it (D6). Queues with transient ids have none, and a restart forgets
them.

Not here: one index (``queue_index.py``), the files (``side_files.py``).
"""

from collections.abc import Sequence
from typing import Final

from penstock.log.catalog import Op
from penstock.log.definitions import Definitions
from penstock.log.index_files import ENTRY_BYTES
from penstock.log.queue_index import QueueIndex
from penstock.log.side_files import SideFiles
from penstock.model.errors import AlreadyExists, NotFound
from penstock.model.ids import is_transient_id

QUEUE_KIND: Final = "queue"
QUEUE_TAIL_BYTES_MAX: Final = 4096 * ENTRY_BYTES


class IndexSet:
    """Queue indexes by id; knows which changed since the last snapshot."""

    def __init__(
        self,
        files: SideFiles,
        definitions: Definitions,
        *,
        entries_max: int,
        tail_bytes_max: int,
    ) -> None:
        self._files = files
        self._definitions = definitions
        self._entries_max = entries_max
        self._planned_at_bytes = max(tail_bytes_max // 2, ENTRY_BYTES)
        self._unplanned_bytes = 0
        self._dirty: list[QueueIndex] = []
        self.by_id: dict[int, QueueIndex] = {}

    def get(self, queue_id: int) -> QueueIndex:
        """The index of an existing queue."""
        index = self.by_id.get(queue_id)
        if index is None:
            raise NotFound(f"the store has no queue {queue_id}")
        return index

    def create(self, queue_id: int, incarnation: int) -> QueueIndex:
        """A new, empty queue."""
        if queue_id in self.by_id:
            raise AlreadyExists(f"queue {queue_id} is in the store already; ids are never reused")
        index = self.make(queue_id, incarnation)
        if not is_transient_id(queue_id):
            self._definitions.note((QUEUE_KIND, str(queue_id), index.state()))
        return index

    def make(self, queue_id: int, incarnation: int) -> QueueIndex:
        """The object alone, without a row (recovery has the row already)."""
        index = QueueIndex(queue_id, incarnation, self._files, entries_max=self._entries_max)
        self.by_id[queue_id] = index
        return index

    def drop(self, queue_id: int) -> None:
        """Delete a queue: its entries can be read no more and its records lose a reason to stay."""
        index = self.get(queue_id)
        del self.by_id[queue_id]
        index.drop()
        if not is_transient_id(queue_id):
            self._definitions.note((QUEUE_KIND, str(queue_id), None))

    def take_in(self, touched: Sequence[QueueIndex], position: int, size_bytes: int) -> None:
        """Staged entries become visible: their records are written, the last at ``position``.

        ``size_bytes``: at least what the entries of all these queues take.
        """
        for index in touched:
            unplanned_bytes = index.take_staged(position)
            if not index.is_dirty:
                index.is_dirty = True
                self._dirty.append(index)
            if unplanned_bytes >= QUEUE_TAIL_BYTES_MAX:
                index.plan_flush()
        self._unplanned_bytes += size_bytes
        if self._unplanned_bytes > self._planned_at_bytes:
            self._plan_all()

    def trim(self, queue_id: int, min_offset: int) -> None:
        """Entries below ``min_offset`` lost their records to retention."""
        index = self.by_id.get(queue_id)
        if index is not None and min_offset > index.min_offset:
            index.trim(min_offset)
            if not index.is_dirty:
                index.is_dirty = True
                self._dirty.append(index)

    def capture(self) -> list[Op]:
        """Plan every tail and give the rows of all queues that changed since the last call."""
        self._plan_all()
        ops: list[Op] = []
        for index in self._dirty:
            index.is_dirty = False
            if self.by_id.get(index.queue_id) is index and not is_transient_id(index.queue_id):
                ops.append((QUEUE_KIND, str(index.queue_id), index.state()))
        self._dirty.clear()
        return ops

    @property
    def dirty_count(self) -> int:
        """Queues that the next snapshot has to write."""
        return len(self._dirty)

    def _plan_all(self) -> None:
        for index in self._dirty:
            if self.by_id.get(index.queue_id) is index:
                index.plan_flush()
        self._unplanned_bytes = 0
