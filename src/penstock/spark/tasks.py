"""What runs in Spark's executors: reading one range, and looking whether it was all there.

``rows`` gives Arrow batches of exactly the schema Spark wants. When a range is done it must add
up: messages looked at, lost and dropped are as many as the range is long, and offsets, where they
are read, rise and stay inside. With ``failOnDataLoss`` a lost message is an error, else it is
counted and told to the broker. It also takes the time: what the rows cost to get (read) and how
long Spark took until it wanted more (the transformation, and a sink that is written while reading).

A reader of a Penstock goes to executors as a ``TaskReader``, which needs Python, pyspark and
pyarrow: the zip of ``penstock spark package`` is enough there. Readers of a data directory or of a
RocketMQ go as they are and need Penstock installed.

Not here: how a batch is cut into ranges (``readers.py``), writing (``sink.py``).
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.bulk.rows import RowClient
from penstock.bulk.tickets import BulkError, Summary, Ticket
from penstock.model.errors import PenstockError
from penstock.model.spark_batch import DATA_LOSS, BatchProgress
from penstock.spark.options import SourceOptions

CLIENTS_MAX: Final = 32
"""Connections a process keeps; beyond it all are dropped and made anew."""

ADVICE: Final = (
    "; set failOnDataLoss=false to go on with what there is, or begin with a new checkpoint"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRange:
    """A part of a queue, as a task reads it."""

    topic: str
    queue: str
    start: int
    end: int
    epoch: int = 0
    incarnation: int = 0
    columns: tuple[str, ...]
    checkpoint: str = ""
    """Of the query it is read for; empty in a batch read."""


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: ReadRange) -> None:
        self.wanted = wanted

    def __repr__(self) -> str:
        each = self.wanted
        return f"RangePartition({each.topic}/{each.queue} [{each.start}, {each.end}))"


class TaskReader:
    """A reader of a Penstock as executors have it."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options: Final = options
        self.schema: Final = schema

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark makes a partition of its own when there is none.
        if not isinstance(partition, RangePartition):
            return iter(())
        schema = to_arrow_schema(self.schema, timezone="UTC")
        return rows(FlightRows(self.options), partition.wanted, self.options, schema)


class RowUpstream(Protocol):
    """Where the rows of a task come from, and who is told how it went."""

    def read(self, wanted: ReadRange) -> Iterator[Any]:
        """Rows as ``pyarrow.RecordBatch`` es."""
        ...

    def summary(self) -> Summary:
        """What became of the range that was read last."""
        ...

    def report(
        self, progress: BatchProgress, *, state: str = "running", text: str = ""
    ) -> None: ...


class FlightRows:
    """Rows of one Flight port."""

    def __init__(self, options: SourceOptions) -> None:
        self._options: Final = options
        self._client: Final = open_client(options.endpoint, options.retry_s)

    def read(self, wanted: ReadRange) -> Iterator[Any]:
        return self._client.read(ticket(wanted, self._options))

    def summary(self) -> Summary:
        return self._client.summary

    def report(self, progress: BatchProgress, *, state: str = "running", text: str = "") -> None:
        self._client.report(self._options.subscription, progress, state=state, text=text)


_begun: Final = itertools.count(1)


def begin_task() -> None:
    """To be called first by whatever Spark runs in a worker's process.

    Spark has a worker collect garbage after each task, and that looks at everything that was ever
    imported: 20 to 50 ms, in a reader and in a writer. What is there at the begin of tasks 2, 4, 8
    and so on has just been found to be none, and is not looked at again. That often, since some
    things are imported late; not each time, since what a task leaves behind would stay for good.
    """
    if TaskContext.get() is None:
        return
    number = next(_begun)
    if number > 1 and number.bit_count() == 1:
        gc.freeze()


_clients: Final[dict[tuple[int, str, float], RowClient]] = {}


def open_client(endpoint: str, patience_s: float) -> RowClient:
    """The connection of this process; Spark uses a worker's process for many tasks."""
    # By process: gRPC's threads do not survive the fork by which Spark makes its workers.
    key = (os.getpid(), endpoint, patience_s)
    if key not in _clients:
        if len(_clients) >= CLIENTS_MAX:
            _clients.clear()
        _clients[key] = RowClient(endpoint, patience_s=patience_s)
    return _clients[key]


def ticket(wanted: ReadRange, options: SourceOptions) -> Ticket:
    """The bulk lane's ticket for a range.

    Those who accept loss accept offsets of another epoch, too.
    """
    is_strict = options.fails_on_data_loss
    return Ticket(
        topic=wanted.topic,
        queue=int(wanted.queue),
        start=wanted.start,
        end=wanted.end,
        epoch=wanted.epoch if is_strict else 0,
        incarnation=wanted.incarnation if is_strict else 0,
        columns=list(wanted.columns),
        filter=options.filter,
        fail_on_data_loss=is_strict,
        rows_per_batch=options.rows_per_batch,
        check=options.checks_records,
    )


def rows(
    upstream: RowUpstream, wanted: ReadRange, options: SourceOptions, schema: Any
) -> Iterator[Any]:
    """The Arrow batches of a range, in ``schema`` (Arrow's)."""
    begin_task()
    _introduce(upstream, wanted)
    check = OffsetCheck(wanted)
    batches = upstream.read(wanted)
    read_s = waited_s = 0.0
    while True:
        before = time.monotonic()
        batch = next(batches, None)
        read_s += time.monotonic() - before
        if batch is None:
            break
        check.batch(batch)
        before = time.monotonic()
        yield _fitted(batch, schema)
        waited_s += time.monotonic() - before
    summary = upstream.summary()
    check_complete(wanted, summary, check.rows, is_strict=options.fails_on_data_loss)
    if summary.lost:
        _log.warning("%d messages of %s are lost, going on", summary.lost, _name(wanted))
    _tell(upstream, summary, read_s, waited_s, wanted=wanted)


class OffsetCheck:
    """Looks at the offsets that pass."""

    def __init__(self, wanted: ReadRange) -> None:
        self._wanted = wanted
        self._next = wanted.start
        self.rows = 0

    def batch(self, batch: Any) -> None:
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


def check_complete(wanted: ReadRange, summary: Summary, given: int, *, is_strict: bool) -> None:
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


def _introduce(upstream: RowUpstream, wanted: ReadRange) -> None:
    """Say which query of Spark's the rows are for, before anybody writes them; best effort.

    A put of that query may have to wait for what only this query can free (its lease, under the
    disk alarm), and this task for the put: said at its end it would come too late. A broker that
    was started anew has forgotten it.
    """
    query = spark_query()
    if query and wanted.checkpoint:
        progress = BatchProgress(query_id=query, checkpoint=wanted.checkpoint)
        with contextlib.suppress(PenstockError, ValueError):
            upstream.report(progress)


def _tell(
    upstream: RowUpstream, summary: Summary, read_s: float, waited_s: float, *, wanted: ReadRange
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
        query_id=spark_query(),
        checkpoint=wanted.checkpoint,
    )
    text = f"{summary.lost} messages of {_name(wanted)} lost" if summary.lost else ""
    with contextlib.suppress(PenstockError, ValueError):
        upstream.report(progress, text=text)


def task_property(name: str) -> str | None:
    """A property of the running task; None where no task runs."""
    context = TaskContext.get()
    return context.getLocalProperty(name) if context is not None else None


def spark_query() -> str:
    """Spark's id of the streaming query that the running task is of; empty where there is none."""
    return task_property("sql.streaming.queryId") or ""


def _name(wanted: ReadRange) -> str:
    return f"[{wanted.start}, {wanted.end}) of queue {wanted.queue} of topic {wanted.topic!r}"
