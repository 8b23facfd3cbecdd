"""One turn's append, from the first parcel to the sync that covers it (D1, D5).

Everything in a frame is stored together or not at all: publishes, releases of delayed messages,
settlements, and dead letters beside the settlements that removed their originals.
"""

from __future__ import annotations

import msgspec

from penstock.engine.parcel import Parcel
from penstock.engine.queue import Queue
from penstock.log.encode import Appending


class Frame(msgspec.Struct, eq=False):
    """What one turn appends."""

    parcels: list[Parcel] = []
    batch: list[Appending] = []
    """Parcels' publications and everything else, in the order of the log."""
    runs: list[tuple[int, int]] = []
    """Stretches of the batch that are runs (``Parcel.is_run``), in order."""
    queues: dict[Queue, None] = {}
    """Queues that get a new message."""
    size: int = 0
    """Bytes of the parcels."""
    end_position: int = 0
    store_bytes: int = 0
    """Bytes in the log, headers included."""
    ends: dict[Queue, int] = {}
    """After the append: queue -> end of what this frame added."""

    def add(self, parcel: Parcel) -> None:
        """Take a parcel in."""
        self.parcels.append(parcel)
        start = len(self.batch)
        self.batch.extend(parcel.publications)
        if parcel.is_run:
            self.runs.append((start, len(self.batch)))
        self.size += parcel.size

    def append(self, item: Appending, queues: tuple[Queue, ...] = ()) -> None:
        """Take something else in: a settlement, a release, a dead letter."""
        self.batch.append(item)
        for queue in queues:
            self.queues[queue] = None
