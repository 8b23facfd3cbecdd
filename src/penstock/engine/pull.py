"""skeleton"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from penstock.engine.filter_port import Filter
from penstock.engine.host import Host, IndexEntry, SubscribedQueue
from penstock.model.record import Record


class PullStatus(Enum):
    FOUND = "found"
    NO_NEW = "no-new"
    FILTERED = "filtered"
    OFFSET_TOO_SMALL = "offset-too-small"
    OFFSET_TOO_LARGE = "offset-too-large"
    REMOVED = "removed"


class Pull(msgspec.Struct):
    outlet: PullOutlet
    queue: SubscribedQueue
    offset: int
    messages_max: int = 32
    bytes_max: int = 262144
    filter: Filter | None = None
    deadline_ms: int = 0  # monotonic; 0 = answer at once
    token: int = 0


class PullResult(msgspec.Struct):
    status: PullStatus
    records: list[Record]
    entries: list[IndexEntry]
    next_offset: int
    min_offset: int
    max_offset: int


class PullOutlet(Protocol):
    def answered(self, pull: Pull, result: PullResult) -> None: ...


class PullDesk:
    def __init__(self, host: Host) -> None: ...
    def read(self, pull: Pull) -> PullResult: ...
    def pull(self, pull: Pull) -> PullResult | None: ...  # None = held, answered later
    def arrived(self, queue: SubscribedQueue) -> None: ...
    def due(self, now_ms: int) -> None: ...
    def cancel(self, outlet: PullOutlet) -> None: ...
    def next_deadline_ms(self) -> int | None: ...
