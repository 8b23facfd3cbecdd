"""Reading one range on an executor, and looking whether it was all there.

``rows`` gives Arrow batches of exactly the schema Spark wants. When a range is done it must add up:
messages looked at, lost and dropped are as many as the range is long, and offsets, where they are
read, rise and stay inside. With ``failOnDataLoss`` a lost message is an error, else it is counted
and told to the broker.

It also takes the time: what the rows cost to get (read) and how long Spark took until it wanted
more (the transformation, and a sink that is written while reading).

Not here: connections (``upstream.py``), which ranges there are (``partitions.py``).
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from pyspark import TaskContext

from penstock.bulk.link import DATA_LOSS, BulkError, Summary
from penstock.model.errors import PenstockError
from penstock.model.progress import BatchProgress
from penstock.spark.losses import ADVICE
from penstock.spark.options import SourceOptions
from penstock.spark.upstream import Range, Upstream

_log = logging.getLogger(__name__)


def rows(upstream: Upstream, wanted: Range, options: SourceOptions, schema: Any) -> Iterator[Any]:
    """The Arrow batches of a range, in ``schema`` (Arrow's)."""
    seen = Seen(wanted)
    batches = upstream.read(wanted)
    read_s = waited_s = 0.0
    while True:
        before = time.monotonic()
        batch = next(batches, None)
        read_s += time.monotonic() - before
        if batch is None:
            break
        seen.check(batch)
        before = time.monotonic()
        yield _fitted(batch, schema)
        waited_s += time.monotonic() - before
    summary = upstream.summary()
    check_complete(wanted, summary, seen.rows, is_strict=options.fails_on_data_loss)
    if summary.lost:
        _log.warning("%d messages of %s are lost, going on", summary.lost, _name(wanted))
    _tell(upstream, summary, read_s, waited_s, lost_of=_name(wanted))


class Seen:
    """Looks at the offsets that pass."""

    def __init__(self, wanted: Range) -> None:
        self._wanted = wanted
        self._next = wanted.start
        self.rows = 0

    def check(self, batch: Any) -> None:
        """Offsets rise and stay inside the range; looks at the first and the last of a batch."""
        self.rows += batch.num_rows
        if "offset" not in self._wanted.columns or not batch.num_rows:
            return
        offsets = batch.column("offset")
        first, last = offsets[0].as_py(), offsets[batch.num_rows - 1].as_py()
        is_rising = self._next <= first and first + batch.num_rows - 1 <= last
        if not is_rising or last >= self._wanted.end:
            raise BulkError(
                DATA_LOSS,
                f"{_name(self._wanted)}: rows {first} to {last} ({batch.num_rows}) came where"
                f" {self._next} was next; the answer is not to be trusted",
            )
        self._next = last + 1


def check_complete(wanted: Range, summary: Summary, given: int, *, is_strict: bool) -> None:
    """Raise unless the range adds up."""
    length = wanted.end - wanted.start
    counted = summary.read + summary.lost + summary.dropped
    if summary.next_offset != wanted.end or counted != length or given != summary.rows:
        raise BulkError(
            DATA_LOSS,
            f"{_name(wanted)}: {given} rows of {counted} messages up to {summary.next_offset}; the"
            f" range has {length}",
        )
    if summary.lost and is_strict:
        raise BulkError(DATA_LOSS, f"{summary.lost} messages of {_name(wanted)} are lost{ADVICE}")


def _fitted(batch: Any, schema: Any) -> Any:
    """The same columns under Spark's schema, which Spark compares to the letter."""
    if batch.schema.equals(schema):
        return batch
    return type(batch).from_arrays(
        [batch.column(field.name).cast(field.type) for field in schema], schema=schema
    )


def _tell(
    upstream: Upstream, summary: Summary, read_s: float, waited_s: float, *, lost_of: str
) -> None:
    """What the task took, for the broker's view of the query; best effort."""
    batch = task_property("streaming.sql.batchId")
    if batch is None and not summary.lost:
        return
    progress = BatchProgress(
        rows=summary.rows,
        bytes=summary.bytes,
        read_ms=read_s * 1000,
        transform_ms=waited_s * 1000,
        batch_id=int(batch) if batch else -1,
        query_id=task_property("sql.streaming.queryId") or "",
    )
    text = f"{summary.lost} messages of {lost_of} lost" if summary.lost else ""
    with contextlib.suppress(PenstockError, msgspec.MsgspecError):
        upstream.report(progress, text=text)


def task_property(name: str) -> str | None:
    """A property of the running task; None where no task runs."""
    context = TaskContext.get()
    return context.getLocalProperty(name) if context is not None else None


def _name(wanted: Range) -> str:
    return f"[{wanted.start}, {wanted.end}) of queue {wanted.queue} of topic {wanted.topic!r}"
