"""``df.writeStream.format("penstock")`` and ``df.write``: rows become messages, each exactly once.

Tasks put their rows beside the log (``write``, on executors); when all have, the driver names the
puts that count, and they appear together (``commit``). What no commit names is never seen: tasks
that were tried again, speculative ones, batches that failed (D19).

A batch of a stream is known by (sink, query, batch), so that Spark may repeat it. A plain write,
also one inside ``foreachBatch``, has a key of its own, unless ``transactionalId`` and ``batch`` say
which one it is. With ``guarantee`` "at-least-once" rows are visible as each task ends, and a task
that is tried again doubles its own.

Executors need Python, pyspark and pyarrow only, as in ``tasks.py``; the commit is the driver's.
Not here: options (``options.py``), what the broker makes of it (``engine/spark``).
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.model.errors import PenstockError
from penstock.model.spark_batch import (
    AT_LEAST_ONCE,
    NO_BODY,
    STAGE_COLUMNS,
    TWO_TIMES,
    StageCommand,
)
from penstock.spark.options import BadOption, SinkOptions
from penstock.spark.tasks import begin_task, open_client, spark_query, task_property

if TYPE_CHECKING:
    from penstock.bulk.client import BulkClient

_log = logging.getLogger(__name__)

_TEXT: Final = (StringType,)
_TIME: Final = (TimestampType, TimestampNTZType, LongType)
COLUMN_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "topic": _TEXT,
    "key": _TEXT,
    "tag": _TEXT,
    "properties": (MapType, BinaryType),
    "body": (BinaryType, StringType),
    "message_id": _TEXT,
    "expire": _TIME,
    "delay_ms": (LongType, IntegerType),
    "deliver_at": _TIME,
}
"""What each column of ``STAGE_COLUMNS`` may be."""
FROM_KAFKA: Final = {"value": "body", "headers": "properties", "partition": "key"}
"""What people bring along under another name."""
ABORT_S: Final = 2.0


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise ``BadOption`` for rows that are no messages, with what to do."""
    for field in schema.fields:
        allowed = COLUMN_TYPES.get(field.name)
        if allowed is None:
            nearest = FROM_KAFKA.get(field.name)
            close = difflib.get_close_matches(field.name, STAGE_COLUMNS, n=1, cutoff=0.5)
            hint = nearest or (close[0] if close else "")
            hint = f"did you mean {hint}?" if hint else f"there are {', '.join(STAGE_COLUMNS)}"
            raise BadOption(
                f"column {field.name!r} is none of a message; {hint} Select and rename what is to"
                " be written, or put it into the body: to_json(struct(*)) as body"
            )
        if not isinstance(field.dataType, allowed):
            names = " or ".join(each.typeName() for each in allowed)
            raise BadOption(
                f"column {field.name} is {field.dataType.simpleString()}, but must be {names};"
                " cast it"
            )
    names_given = set(schema.fieldNames())
    if "body" not in names_given:
        raise BadOption(NO_BODY)
    if "topic" not in names_given and not options.topic:
        raise BadOption("to which topic? Give the option topic, or each row its own in a column")
    if {"delay_ms", "deliver_at"} <= names_given:
        raise BadOption(TWO_TIMES)


@dataclass(frozen=True)
class StagedPut(WriterCommitMessage):
    """What one task has put: its name at the broker, and whose batch it is of."""

    name: str
    rows: int
    query: str
    batch: int
    put_ms: float = 0.0
    spark_query: str = ""


def put(options: SinkOptions, query: str, batch: int, batches: Iterator[Any]) -> StagedPut:
    """The rows of one task, beside the log."""
    begin_task()
    context = TaskContext.get()
    command = StageCommand(
        sink=options.name,
        query=query,
        batch=batch,
        # A batch that is done again has the same numbers of partition, attempt and task.
        stage=uuid.uuid4().hex,
        partition=context.partitionId() if context is not None else 0,
        topic=options.topic,
        guarantee=options.guarantee,
        spark_query=spark_query(),
        passing=options.passing,
    )
    timed = _Timed(batches)
    began = time.monotonic()
    receipt = open_client(options.endpoint, options.retry_s).put_stage(command, timed)
    put_ms = (time.monotonic() - began - timed.waited_s) * 1000
    return StagedPut(receipt.name, receipt.rows, query, batch, put_ms, command.spark_query)


class _Timed:
    """Batches with rows, and how long Spark took to make them: the rest of a put is ours."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.waited_s = 0.0

    def __iter__(self) -> Iterator[Any]:
        while True:
            before = time.monotonic()
            batch = next(self._batches, None)
            self.waited_s += time.monotonic() - before
            if batch is None:
                return
            if batch.num_rows:
                yield batch


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """Made anew for every batch; tasks write with a copy of it, the driver commits with another."""

    def __init__(self, options: SinkOptions) -> None:
        self.options: Final = options

    def write(self, iterator: Iterator[Any]) -> StagedPut:
        query, batch = spark_query(), task_property("streaming.sql.batchId")
        if not query or batch is None:
            raise BadOption(
                "this Spark does not tell a task which query and batch it writes for; use"
                " foreachBatch and df.write with transactionalId and batch"
            )
        return put(self.options, query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        puts = _puts(messages)
        # Without a task there is no query to commit for, and nothing to be seen.
        if puts:
            commit(self.options, puts[0].query, batchId, puts, is_streaming=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort(self.options, batchId, _puts(messages))


class PenstockWriter(DataSourceArrowWriter):
    """One write; the copy that commits has the same key as those that write."""

    def __init__(self, options: SinkOptions) -> None:
        self.options: Final = options
        self.key: Final = options.transactional_id or f"write-{uuid.uuid4().hex}"
        self.batch: Final = max(options.batch, 0)

    def write(self, iterator: Iterator[Any]) -> StagedPut:
        return put(self.options, self.key, self.batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self.options, self.key, self.batch, _puts(messages), is_streaming=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self.options, self.batch, _puts(messages))


def _puts(messages: list[WriterCommitMessage | None]) -> list[StagedPut]:
    """Those of a failed task are None."""
    return [each for each in messages if isinstance(each, StagedPut)]


def commit(
    options: SinkOptions, query: str, batch: int, puts: list[StagedPut], *, is_streaming: bool
) -> None:
    """Make these puts visible together; waits while their topics are above their limits."""
    if options.guarantee == AT_LEAST_ONCE:
        return
    from penstock.model.queries import CommitBatchRequest
    from penstock.model.spark_batch import StagedRows

    request = CommitBatchRequest(
        sink=options.name,
        query=query,
        batch=batch,
        stages=[StagedRows(name=each.name, rows=each.rows) for each in puts if each.rows],
        is_streaming=is_streaming,
        checkpoint=query if is_streaming else "",
        is_single=not (is_streaming or options.transactional_id),
        put_ms=max((each.put_ms for each in puts), default=0.0),
        spark_query=puts[0].spark_query if puts else "",
        passing=list(options.passing),
    )
    with _driver_client(options) as client:
        answer = client.commit_batch(request, patience_s=options.commit_s)
    if answer.is_replay:
        _log.info("batch %d of sink %s was there already", batch, options.name)


def abort(options: SinkOptions, batch: int, puts: list[StagedPut]) -> None:
    """Free what was put, as far as it is known; the broker ends the rest in time."""
    if not puts or options.guarantee == AT_LEAST_ONCE:
        return
    from penstock.model.queries import AbortBatchRequest

    request = AbortBatchRequest(
        sink=options.name,
        query=puts[0].query,
        batch=batch,
        stages=[each.name for each in puts if each.rows],
    )
    with contextlib.suppress(PenstockError), _driver_client(options, ABORT_S) as client:
        client.abort_batch(request)


def _driver_client(options: SinkOptions, patience_s: float | None = None) -> BulkClient:
    """Questions want more than executors have."""
    from penstock.bulk.client import BulkClient

    return BulkClient(options.endpoint, patience_s=patience_s or options.retry_s)
