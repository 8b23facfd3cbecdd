"""Offsets at the broker: where the members of a clustering group share their progress.

They go to the master of the queue's broker and nowhere else: slaves do not keep offsets. A write
that fails is tried again with the next persist.

Not here: what was settled (``table.py``).
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from penstock.client.errors import ClientError
from penstock.model.assignment import QueueRef

_log = logging.getLogger(__name__)


class OffsetCalls(Protocol):
    """What the broker is asked; ``Calls`` answers it."""

    async def query_offset(self, queue: QueueRef, group: str) -> int | None:
        """The stored offset; None when there is none."""
        ...

    async def update_offset(
        self, queue: QueueRef, group: str, offset: int, *, oneway: bool = True
    ) -> None:
        """Store it."""
        ...


class RemoteOffsets:
    """The offset store of a clustering group."""

    def __init__(self, calls: OffsetCalls, group: str) -> None:
        self._calls = calls
        self._group = group

    async def read(self, queue: QueueRef) -> int | None:
        """The broker's offset; raises when the broker cannot be asked."""
        return await self._calls.query_offset(queue, self._group)

    async def write(self, offsets: Mapping[QueueRef, int]) -> Collection[QueueRef]:
        """Store all, side by side; answers are awaited, so a lost one is written again."""
        stored = await asyncio.gather(*(self._write(*each) for each in offsets.items()))
        return [queue for queue, is_stored in zip(offsets, stored, strict=True) if is_stored]

    async def _write(self, queue: QueueRef, offset: int) -> bool:
        try:
            await self._calls.update_offset(queue, self._group, offset, oneway=False)
        except ClientError as problem:
            _log.warning("offset not stored", extra={"queue": queue, "why": str(problem)})
            return False
        return True
