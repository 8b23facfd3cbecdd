"""Tickets of the bulk lane: which rows are wanted, what became of them, why there are none (D18).

    {"topic": "orders", "queue": 0, "from": 0, "to": 50000, "epoch": 1,
     "columns": ["offset", "body"], "filter": {"kind": "tag", "text": "A || B"}}

A ticket names a range of one queue and nothing of files: it stays good as long as the messages
do, and the same ticket gives the same rows. Rows that the filter does not want are not there.

Every batch carries a ``Summary`` as JSON in its metadata: where the range stands after it. That
of the last batch (which may have no rows) says ``next`` = ``to``, so a reader knows that nothing
was cut off, and one that was interrupted goes on at ``next``.

Plain Python, because executors of Spark make them (D15). Not here: who gets the rows (``rows.py``),
who reads what others sent (``reading.py``).
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Final

from penstock.model.errors import PenstockError
from penstock.model.spark_batch import KINDS, UNREACHABLE


class BulkError(PenstockError):
    """Why rows or an answer cannot be had; ``kind`` is one of ``KINDS``."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind: Final = kind if kind in KINDS else UNREACHABLE

    def __reduce__(self) -> tuple[type[BulkError], tuple[str, str]]:
        """Errors of executors travel to the driver."""
        return BulkError, (self.kind, str(self))


COLUMNS: Final = (
    "topic",
    "queue",
    "offset",
    "timestamp",
    "born_timestamp",
    "key",
    "tag",
    "properties",
    "protocol",
    "body",
)
"""All columns of a row, in the order a reader gets them unless it says otherwise."""
MESSAGE_ID: Final = "message_id"
"""A column for who asks for it by name: the id that a message's publisher or its client gave it."""
ASKABLE: Final = (*COLUMNS, MESSAGE_ID)
TAG: Final = "tag"
SQL92: Final = "sql92"
ROWS_PER_BATCH: Final = 10_000
"""Spark's sweet spot is 5,000 to 10,000 rows."""
ROWS_PER_BATCH_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows are wanted: ``kind`` is "tag" (``A || B``) or "sql92"."""

    kind: str
    text: str


NUMBER_MAX: Final = (1 << 62) - 1
"""Of queues and offsets; what is larger fits no index."""

WIRE_NAMES: Final = {"start": "from", "end": "to", "next_offset": "next"}
"""Fields that have another name in JSON, where Python's words stand in no one's way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """One range of one queue."""

    topic: str
    queue: int
    start: int
    """``from`` in JSON."""
    end: int
    """``to`` in JSON: the first offset that is not read."""
    epoch: int = 0
    """When it is not 0 and not the log's, the read is refused (kind "epoch")."""
    incarnation: int = 0
    """When it is not 0 and not the queue's, the topic was made anew: refused (kind "epoch")."""
    columns: list[str] | None = None
    """In this order; None = all."""
    filter: RowFilter | None = None
    fail_on_data_loss: bool = True
    """False: what is lost is left out and counted."""
    rows_per_batch: int = ROWS_PER_BATCH
    check: bool = False
    """Check the crc of every record: costs a pass over all bytes."""

    def __post_init__(self) -> None:
        if not 0 <= self.queue <= NUMBER_MAX or not 0 <= self.start <= self.end <= NUMBER_MAX:
            raise ValueError(f"range [{self.start}, {self.end}) of queue {self.queue} is no range")
        if not 1 <= self.rows_per_batch <= ROWS_PER_BATCH_MAX:
            raise ValueError(f"rows_per_batch is 1 to {ROWS_PER_BATCH_MAX}")
        columns = self.columns if self.columns is not None else COLUMNS
        unknown = [name for name in columns if name not in ASKABLE]
        if unknown or not columns or len(set(columns)) != len(columns):
            raise ValueError(f"columns are some of {', '.join(ASKABLE)}, not {unknown or columns}")
        if self.filter is not None and self.filter.kind not in (TAG, SQL92):
            raise ValueError(f"a filter is of kind tag or sql92, not {self.filter.kind!r}")

    def encode(self) -> bytes:
        return to_json(self)


@dataclass(kw_only=True, slots=True)
class Summary:
    """What became of a range so far: ``read + lost + dropped`` is ``next_offset - from``."""

    next_offset: int = 0
    """Everything below is done; ``next`` in JSON."""
    rows: int = 0
    """Rows given."""
    read: int = 0
    """Messages looked at: rows and those that the filter did not want."""
    lost: int = 0
    """Messages that should be there and are not: removed by retention, or damaged."""
    dropped: int = 0
    """Transient messages that a restart dropped, as it should (D6)."""
    bytes: int = 0
    """Record bytes of what was read."""


def decode_summary(data: bytes) -> Summary:
    """The summary in a batch's metadata; raises ``ValueError`` for what is none."""
    found = json.loads(data)
    return Summary(
        **{
            field.name: int(found.get(WIRE_NAMES.get(field.name, field.name), 0))
            for field in fields(Summary)
        }
    )


def to_json(value: Any) -> bytes:
    """A dataclass without the fields that have their default, under its names in JSON."""
    given = asdict(value)
    said = {
        WIRE_NAMES.get(field.name, field.name): given[field.name]
        for field in fields(value)
        if field.default is MISSING or getattr(value, field.name) != field.default
    }
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
