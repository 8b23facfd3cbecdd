"""Spark's writer of a table: tasks write Parquet with pyarrow, the driver's commit publishes it.

A batch may hold letters besides rows (column ``_letter``): retries and dead letters, which tasks
stage at the broker. Files and letters are decided together (``table.py``): the letters are
published first, then the files, each idempotent by writer and batch. So a batch that is done again
with another outcome, because a function of a user's is not the same every time, cannot leave a
message in both places or in none: the first outcome that was decided counts.

Delta is the same files with one entry in its log: ``deltalake`` writes it with the batch number as
a transaction of this writer, and a batch whose number is there already is not added again.

Tasks need a file system that they share with the driver, and Python, pyspark and pyarrow, as in
``spark/tasks.py``; the commit is the driver's. Options are texts, made by ``query.py``.
Not here: what readers may see and when (``table.py``).
"""

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.bulk.rows import PATIENCE_S
from penstock.bulk.tickets import BulkError
from penstock.model.spark_batch import NO_STAGE, StageCommand, StagedRows
from penstock.pipelines.letters import LETTER
from penstock.pipelines.table import (
    Batch,
    StagedFile,
    Table,
    TableError,
    file_name,
    partition_path,
    sync_directory,
    told,
)
from penstock.spark.tasks import begin_task, open_client, spark_query

FORMAT: Final = "penstock_table"
ROWS_PER_GROUP: Final = 128 * 1024
GROUP_BYTES: Final = 64 * 1024 * 1024
"""A row group is written when it has so many rows or bytes."""
WAITING_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all files of a task: then the largest row group is written as it is."""
OPEN_MAX: Final = 100
"""Files that a task writes at a time; with more partitions the longest unused is closed."""
LETTER_ROWS: Final = 5_000
"""Letters of one batch to the broker."""


class TableSink(DataSource):
    """``writeStream.format("penstock_table")``; known to sessions of the runner only."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TableWriter":
        del overwrite
        return TableWriter(TableOptions.of(self.options), schema)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What a writer knows; the same on the driver and in every task."""

    path: str
    kind: str = "parquet"
    writer: str
    generation: int = 1
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    endpoint: str = ""
    """Where letters go; empty = there are none."""
    sink: str = ""
    """The name that letters are known by at the broker."""
    letter_topics: tuple[str, ...] = ()
    """Where they may go."""

    @classmethod
    def of(cls, options: MutableMapping[str, str]) -> "TableOptions":
        given: dict[str, Any] = json.loads(options["table"])
        for name in ("partition_by", "letter_topics"):
            given[name] = tuple(given.get(name, ()))
        return cls(**given)

    def as_option(self) -> dict[str, str]:
        return {"table": json.dumps(self.__dict__)}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has to say when it is done."""

    batch: int
    files: tuple[StagedFile, ...]
    letters: tuple[str, ...]
    spark_query: str = ""
    """Whose lease and brake the letters are of: they are known by the writer's id."""


class TableWriter(DataSourceStreamArrowWriter):
    """Of one query: ``write`` in tasks, ``commit`` on the driver's side."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._spark_query = ""

    @cached_property
    def columns(self) -> Any:
        """What the table has, as Arrow: everything but letters."""
        full = to_arrow_schema(self.schema, timezone="UTC")
        return pa.schema([each for each in full if each.name != LETTER])

    # In a task.

    def write(self, iterator: Iterator[Any]) -> Written:
        begin_task()
        context = TaskContext.get()
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0) if context else 0
        return self.write_task(iterator, batch, context.partitionId() if context else 0)

    def write_task(self, batches: Iterable[Any], batch: int, task: int) -> Written:
        """The rows of one task, staged."""
        attempt = uuid.uuid4().hex
        files = TaskFiles(self.options, self.columns, batch, task, attempt)
        letters = TaskLetters(self.options, batch, task, attempt)
        with told(self.options.path):
            for each in batches:
                files.add(letters.without(each))
            return Written(batch, files.close(), letters.close(), spark_query())

    # On the driver's side.

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        said = [each for each in messages if isinstance(each, Written)]
        found = Batch(
            writer=self.options.writer,
            batch=batchId,
            files=tuple(file for each in said for file in each.files),
            letters=tuple(letter for each in said for letter in each.letters),
        )
        self._spark_query = said[0].spark_query if said else ""
        with told(self.options.path):
            self.commit_batch(found)

    def commit_batch(self, found: Batch) -> None:
        """Publish the batch, or what an earlier attempt at it has decided."""
        table = Table(self.options.path)
        if table.check(found.writer, found.batch):
            return
        decided = table.prepared(found.writer)
        if decided is not None and self.finish(table, decided) and decided.batch == found.batch:
            return
        if found.files or found.letters:
            table.prepare(found)
            if not self.finish(table, found):
                raise TableError(
                    f"batch {found.batch}: its retries and dead letters are not staged at the"
                    " broker any more; it is done again"
                )

    def finish(self, table: Table, batch: Batch) -> bool:
        """Bring a decided batch to its end; False = it was withdrawn, its letters are gone."""
        if batch.letters and not self.publish_letters(batch):
            table.withdraw(batch)
            return False
        self.publish_files(table, batch)
        table.done(batch)
        return True

    def publish_letters(self, batch: Batch) -> bool:
        from penstock.bulk.client import BulkClient
        from penstock.model.queries import CommitBatchRequest

        stages = [StagedRows(**json.loads(each)) for each in batch.letters]
        request = CommitBatchRequest(
            sink=self.options.sink,
            query=batch.writer,
            batch=batch.batch,
            stages=stages,
            checkpoint=batch.writer,
            spark_query=self._spark_query,
            passing=list(self.options.letter_topics),
        )
        with BulkClient(self.options.endpoint) as client:
            try:
                client.commit_batch(request)
            except BulkError as problem:
                if problem.kind != NO_STAGE:
                    raise
                return False
        return True

    def publish_files(self, table: Table, batch: Batch) -> None:
        if self.options.kind != "delta":
            table.publish(batch)
        elif batch.files and not is_in_delta(table, batch):
            table.publish(batch)
            add_to_delta(table, batch, self.columns, self.options.partition_by)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: an abort also follows a commit that failed after its decision."""


class TaskLetters:
    """Letters of one task: aside until its end, then staged at the broker."""

    def __init__(self, options: TableOptions, batch: int, task: int, attempt: str) -> None:
        self._options: Final = options
        self._command: Final = StageCommand(
            sink=options.sink,
            query=options.writer,
            batch=batch,
            stage=attempt,
            partition=task,
            spark_query=spark_query(),
            passing=options.letter_topics,
        )
        self._path: Path | None = None
        self._file: Any = None

    def without(self, batch: Any) -> Any:
        """The rows of a batch; its letters are kept."""
        at = batch.schema.get_field_index(LETTER)
        if at < 0:
            return batch
        column = batch.column(at)
        rest = batch.remove_column(at)
        if column.null_count == len(column):
            return rest
        is_letter = pc.is_valid(column)
        self._keep(column.filter(is_letter))
        return rest.filter(pc.invert(is_letter))

    def close(self) -> tuple[str, ...]:
        """Stage them; the names that a commit needs."""
        if self._path is None:
            return ()
        self._file.close()
        try:
            client = open_client(self._options.endpoint, PATIENCE_S)
            receipt = client.put_stage(self._command, _kept(self._path))
        finally:
            self._path.unlink(missing_ok=True)
        return (json.dumps({"name": receipt.name, "rows": receipt.rows}),)

    def _keep(self, letters: Any) -> None:
        flat = pa.RecordBatch.from_struct_array(letters)
        if self._path is None:
            # On disk: when every row of a task is bad, they do not fit into memory.
            given = self._command
            table = Table(self._options.path)
            self._path = table.staging(given.query, given.batch, given.stage) / "letters.arrow"
            self._file = pa.ipc.new_stream(str(self._path), flat.schema)
        self._file.write_batch(flat)


def _kept(path: Path) -> Iterator[Any]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            for at in range(0, batch.num_rows, LETTER_ROWS):
                yield batch.slice(at, LETTER_ROWS)


class TaskFiles:
    """Files of one task: one for each partition of the table that it has rows of, or more."""

    def __init__(
        self, options: TableOptions, columns: Any, batch: int, task: int, attempt: str
    ) -> None:
        self._options: Final = options
        self._batch: Final = batch
        self._task: Final = task
        self._attempt: Final = attempt
        self._stored: Final = pa.schema(
            [each for each in columns if each.name not in options.partition_by]
        )
        self._open: dict[str, _PartFile] = {}
        self._done: list[StagedFile] = []
        self._place: Path | None = None
        self._number = 0

    def add(self, batch: Any) -> None:
        if not batch.num_rows:
            return
        if self._options.partition_by:
            for values, rows in split(batch, self._options.partition_by):
                self._add(values, rows)
        else:
            self._add((), batch)

    def close(self) -> tuple[StagedFile, ...]:
        """Everything on disk, for good."""
        for part in list(self._open):
            self._close(part)
        if self._place is not None:
            # Names are as durable as what they name: of the attempt, its batch and its writer.
            for directory in (self._place, *self._place.parents[:3]):
                sync_directory(directory)
        return tuple(self._done)

    def _add(self, values: tuple[tuple[str, str | None], ...], rows: Any) -> None:
        part = partition_path(values)
        file = self._open.pop(part, None)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                self._close(next(iter(self._open)))
            file = self._new(part, dict(values))
        self._open[part] = file
        file.add(rows.select(self._stored.names))
        if sum(each.waiting_bytes for each in self._open.values()) > WAITING_BYTES_MAX:
            max(self._open.values(), key=lambda each: each.waiting_bytes).flush()

    def _new(self, part: str, values: dict[str, str | None]) -> "_PartFile":
        if self._place is None:
            table = Table(self._options.path)
            self._place = table.staging(self._options.writer, self._batch, self._attempt)
        number, self._number = self._number, self._number + 1
        name = file_name(
            self._options.generation, self._batch, self._task, number, attempt=self._attempt
        )
        return _PartFile(
            place=self._place / f"{number:03d}.staged",
            path=f"{part}/{name}" if part else name,
            values=values,
            schema=self._stored,
            compression=self._options.compression,
        )

    def _close(self, part: str) -> None:
        file = self._open.pop(part)
        control = Table(self._options.path).control
        self._done.append(file.close(control))


@dataclass(kw_only=True)
class _PartFile:
    """A file that is being written."""

    place: Path
    path: str
    values: dict[str, str | None]
    schema: Any
    compression: str
    rows: int = 0
    waiting_bytes: int = 0
    _waiting: list[Any] = field(default_factory=list)
    _waiting_rows: int = 0

    def __post_init__(self) -> None:
        self._writer = pq.ParquetWriter(self.place, self.schema, compression=self.compression)

    def add(self, batch: Any) -> None:
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        if self._waiting_rows >= ROWS_PER_GROUP or self.waiting_bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting).cast(self.schema))
        self.rows += self._waiting_rows
        self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0

    def close(self, control: Path) -> StagedFile:
        self.flush()
        self._writer.close()
        with self.place.open("rb") as file:
            os.fsync(file.fileno())
        return StagedFile(
            staged=str(self.place.relative_to(control)),
            path=self.path,
            rows=self.rows,
            bytes=self.place.stat().st_size,
            values=self.values,
        )


Values = tuple[tuple[str, str | None], ...]


def split(batch: Any, names: tuple[str, ...]) -> Iterator[tuple[Values, Any]]:
    """The rows of each partition, their order kept; mostly a batch is of one."""
    codes: Any = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    texts: list[Any] = []
    for name in names:
        column = pc.cast(batch.column(batch.schema.get_field_index(name)), pa.string())
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        texts.append(encoded.dictionary)
        codes = pc.add(pc.multiply(codes, len(encoded.dictionary)), encoded.indices)
    found = pc.unique(codes)
    for code in found:
        rest = code.as_py()
        values: list[tuple[str, str | None]] = []
        for name, dictionary in zip(reversed(names), reversed(texts), strict=True):
            rest, at = divmod(rest, len(dictionary))
            values.append((name, dictionary[at].as_py()))
        rows = batch if len(found) == 1 else batch.filter(pc.equal(codes, code))
        yield tuple(reversed(values)), rows


# ---- delta --------------------------------------------------------------------------------------


def is_in_delta(table: Table, batch: Batch) -> bool:
    """Whether the log has an entry for the batch, or for one that came later."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table.path)):
        return False
    last = DeltaTable(table.path).transaction_version(batch.writer)
    return last is not None and last >= batch.batch


def add_to_delta(table: Table, batch: Batch, columns: Any, partition_by: tuple[str, ...]) -> None:
    """One entry in the table's log for the files of a batch."""
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.transaction import AddAction, create_table_with_add_actions

    now_ms = int(time.time() * 1000)
    added: list[Any] = [
        AddAction(
            path=each.path,
            size=each.bytes,
            partition_values=each.values,
            modification_time=now_ms,
            data_change=True,
            stats=json.dumps({"numRecords": each.rows}),
        )
        for each in batch.files
    ]
    once = CommitProperties(app_transactions=[Transaction(batch.writer, batch.batch)])
    schema = Schema.from_arrow(columns)
    if not DeltaTable.is_deltatable(str(table.path)):
        create_table_with_add_actions(
            str(table.path),
            schema,
            added,
            mode="error",
            partition_by=list(partition_by),
            commit_properties=once,
        )
        return
    DeltaTable(table.path).create_write_transaction(
        added, "append", schema, partition_by=list(partition_by), commit_properties=once
    )


def compact_delta(path: Path, target_bytes: int) -> dict[str, Any]:
    """Merge small files by Delta's own means; readers of its log see one version or the other."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    if not DeltaTable.is_deltatable(str(path)):
        raise TableError(f"{path} is no Delta table (yet)")
    try:
        found: dict[str, Any] = DeltaTable(path).optimize.compact(target_size=target_bytes)
    except DeltaError as problem:
        # A flow that writes meanwhile is no problem; another compaction is.
        raise TableError(f"{path} cannot be compacted: {problem}") from None
    return found
