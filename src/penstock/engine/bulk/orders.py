"""What is asked of the desk and what it answers, in the engine's words.

Field names are those of the messages on the socket (``penstock.bulk.link``), which lies above the
engine; ``server/bulk_answers.py`` turns one into the other.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from penstock.model.errors import PenstockError

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


class BatchProgress(msgspec.Struct, kw_only=True, frozen=True):
    """How a query did its last batch; times that are not known are 0."""

    rows: int = 0
    bytes: int = 0
    batch_ms: float = 0
    work_ms: float = 0
    """All of the batch's tasks, reading included, as Spark says."""
    read_ms: float = 0
    transform_ms: float = 0
    sink_ms: float = 0
    batch_id: int = -1
    query_id: str = ""
    query_name: str = ""

    def over(self, before: "BatchProgress") -> "BatchProgress":
        """This word, with what earlier ones said and this one does not know.

        A batch is told of by its tasks (read and transform), the listener (the whole, and sink) and
        the next poll (rows and the whole), in any order. Rows of a task are not the batch's.
        """
        is_whole = self.batch_ms > 0
        return BatchProgress(
            rows=self.rows if is_whole else before.rows,
            bytes=(self.bytes if is_whole else 0) or before.bytes,
            batch_ms=self.batch_ms or before.batch_ms,
            work_ms=self.work_ms or before.work_ms,
            read_ms=self.read_ms or before.read_ms,
            transform_ms=self.transform_ms or before.transform_ms,
            sink_ms=self.sink_ms or before.sink_ms,
            batch_id=self.batch_id if self.batch_id >= 0 else before.batch_id,
            query_id=self.query_id or before.query_id,
            query_name=self.query_name or before.query_name,
        )

    @property
    def slow_part(self) -> str:
        """read, transform or sink, whichever took longest; empty when that is not known.

        A task that read all its rows at once does not see what they cost behind it; Spark's own
        figure for the tasks does.
        """
        behind_ms = max(self.transform_ms, self.work_ms - self.read_ms)
        parts = {"read": self.read_ms, "transform": behind_ms, "sink": self.sink_ms}
        name = max(parts, key=lambda each: parts[each])
        return name if parts[name] > 0 else ""


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
