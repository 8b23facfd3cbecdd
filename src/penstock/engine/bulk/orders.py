"""What is asked of the desk and what it answers, in the engine's words.

Field names are those of the messages on the socket (``penstock.bulk.link``), which lies above the
engine; ``server/bulk_answers.py`` turns one into the other.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from penstock.model.errors import PenstockError
from penstock.model.progress import BatchProgress

NO_TOPIC: Final = "no-topic"
DATA_LOSS: Final = "data-loss"
EPOCH: Final = "epoch"
BAD_REQUEST: Final = "bad-request"

OffsetMap = Mapping[str, Mapping[int, int]]
"""{topic: {queue: offset}}."""


class QueryRefused(PenstockError):
    """A question that cannot be answered; ``kind`` is for programs, the text for people."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind: Final = kind


class PollOrder(msgspec.Struct, kw_only=True, eq=False):
    """The question how far the next batch of a query may go."""

    subscription: str
    topics: list[str] | None = None
    pattern: str | None = None
    start: OffsetMap = {}
    epoch: int = 0
    rows_max: int = 0
    bytes_max: int = 0
    rows_min: int = 0
    wait_ms: int = 0
    report: BatchProgress | None = None
    token: int = 0
    """The asker's own number for it."""


class PollAnswer(msgspec.Struct, kw_only=True):
    """Where the next batch ends."""

    epoch: int
    ends: dict[str, dict[int, int]]
    latest: dict[str, dict[int, int]]
    starts: dict[str, dict[int, int]]
    incarnations: dict[str, dict[int, int]]
    rows: int = 0
    bytes: int = 0
    lag_rows: int = 0
    lag_bytes: int = 0
    held: str | None = None
    lost: str | None = None
    """Why offsets of ``start`` are gone, if they are."""


class PollOutlet(Protocol):
    """Whoever polls."""

    def polled(self, order: PollOrder, answer: PollAnswer | QueryRefused) -> None:
        """A poll that was held has its answer."""
        ...


class LeaseTold(msgspec.Struct, frozen=True):
    """A lease that broke, or was mended, for logs and events."""

    at_ms: int
    """Wall time."""
    event: str
    """``lease-broken`` or ``lease-mended``."""
    query: str
    cause: str
    text: str


class LocatedSpan(msgspec.Struct, frozen=True):
    """Where the index entries of a stretch of a queue are."""

    queue_id: int
    incarnation: int
    earliest: int
    end: int
    files: list[tuple[str, int, int]]
    """(path, first offset, entries)."""
    tail: bytes
