"""Spark's source for a directory of Parquet: its rows in the order in which they came, at a rate.

Made for replays: what a flow archived goes to a topic again. Which files there are is noted when a
replay begins (``files.json`` in the flow's state) and does not change on the way; a position is the
number of rows before it, so a replay that was stopped goes on at its row.

The rows of a batch are one task, so that order is kept; more tasks (``tasks``) are faster and keep
it within files only. A replay ends by itself.

Not here: where rows go (``query.py``), how files are named (``table.py``).
"""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StringType, StructField, StructType

from penstock.model.errors import PenstockError
from penstock.pipelines.table import Table, partition_values, write_durably
from penstock.spark.options import PAUSED

FORMAT: Final = "penstock_archive"
FILES: Final = "files.json"
VERSION: Final = 1
ROWS_MAX: Final = 100_000
"""Of a batch without a rate."""
BURST_S: Final = 2.0
"""Of a rate: what may come at once when nothing came for a while."""
LEAST_S: Final = 0.5
"""Of a rate: a batch is worth its cost from here on."""
ROWS_PER_BATCH: Final = 10_000
PAUSE_S: Final = 0.1


class ArchiveError(PenstockError):
    """An archive that cannot be replayed as it is."""


class ArchiveFile(NamedTuple):
    """A file and how many rows it has."""

    path: str
    """Relative to the archive."""
    rows: int


class Part(NamedTuple):
    """Rows of one file."""

    path: str
    start: int
    end: int


def files_of(archive: str, state: str) -> list[ArchiveFile]:
    """The files of a replay: noted once, the same in every process and every run."""
    note = Path(state) / FILES
    if note.exists():
        data = json.loads(note.read_text("utf-8"))
        if data["archive"] != archive:
            raise ArchiveError(
                f"this replay began with {data['archive']}, not with {archive}; --reset begins anew"
            )
        return [ArchiveFile(*each) for each in data["files"]]
    root = Path(archive)
    found = [
        ArchiveFile(str(each), pq.read_metadata(root / each).num_rows)
        for each in Table(root).files()
    ]
    if not found:
        raise ArchiveError(f"there is no Parquet file in {root}; which directory is the archive?")
    note.parent.mkdir(parents=True, exist_ok=True)
    write_durably(note, json.dumps({"version": VERSION, "archive": archive, "files": found}))
    return found


def parts_between(files: list[ArchiveFile], start: int, end: int) -> list[Part]:
    """The rows from one position to another, file by file."""
    parts: list[Part] = []
    first = 0
    for file in files:
        low, high = max(start - first, 0), min(end - first, file.rows)
        if low < high:
            parts.append(Part(file.path, low, high))
        first += file.rows
        if first >= end:
            break
    return parts


class Pace:
    """How many rows may go now: a bucket that fills at a rate."""

    def __init__(
        self,
        rate: float,
        rows_max: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        """``rate`` 0 = no limit but ``rows_max``."""
        self._rate: Final = rate
        self._rows_max: Final = rows_max
        self._clock: Final = clock
        self._rest: Final = rest
        self._filled_at = clock()
        self._rows = 0.0

    def take(self, wanted: int) -> int:
        """At least one row of those wanted; waits until there are enough to be worth it."""
        wanted = min(wanted, self._rows_max)
        if not self._rate:
            return wanted
        least = min(wanted, max(1, int(self._rate * LEAST_S)))
        self._fill()
        if self._rows < least:
            self._rest((least - self._rows) / self._rate)
            self._fill()
        given = max(1, min(wanted, int(self._rows)))
        self._rows -= given
        return given

    def _fill(self) -> None:
        now = self._clock()
        room = max(1.0, self._rate * BURST_S)
        self._rows = min(room, self._rows + (now - self._filled_at) * self._rate)
        self._filled_at = now


class ArchiveSource(DataSource):
    """``readStream.format("penstock_archive")``; known to sessions of the runner only."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Columns of the first file, and those that directories are named by, as text."""
        archive = self.options["archive"]
        first = files_of(archive, self.options["state"])[0]
        found = from_arrow_schema(pq.read_schema(Path(archive) / first.path))
        named = [StructField(name, StringType()) for name in partition_values(first.path)]
        return StructType([*found.fields, *named])

    def streamReader(self, schema: StructType) -> "ArchiveReader":
        return ArchiveReader(dict(self.options), schema)


class ArchivePartition(InputPartition):
    """What one task reads."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts


class ArchiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A replay's source."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.archive = options["archive"]
        self.state = options["state"]
        self.pause_file = options.get("pausefile") or options.get("pauseFile", "")
        self.rate = float(options.get("rate", 0))
        self.rows_max = int(options.get("maxrows") or options.get("maxRows") or 0) or ROWS_MAX
        self.tasks = int(options.get("tasks", 0)) or 1
        self.schema = schema
        self._files: list[ArchiveFile] = []
        self._pace: Pace | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pace": None, "_files": []}

    @property
    def files(self) -> list[ArchiveFile]:
        if not self._files:
            self._files = files_of(self.archive, self.state)
        return self._files

    @property
    def total(self) -> int:
        return sum(each.rows for each in self.files)

    def initialOffset(self) -> dict[str, Any]:
        return {"version": VERSION, "row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        left = self.total - start["row"]
        if not left:
            return start
        if self.pause_file and os.path.exists(self.pause_file):
            Path(self.pause_file).write_text(PAUSED)
            time.sleep(PAUSE_S)
            return start
        if self._pace is None:
            self._pace = Pace(self.rate, self.rows_max)
        rows = left if isinstance(limit, ReadAllAvailable) else self._pace.take(left)
        return {"version": VERSION, "row": start["row"] + rows}

    def reportLatestOffset(self) -> dict[str, Any]:
        return {"version": VERSION, "row": self.total}

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing: the end is known from the beginning."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = start["row"], end["row"]
        edges = [first + (last - first) * at // self.tasks for at in range(self.tasks + 1)]
        cut = [parts_between(self.files, low, high) for low, high in itertools.pairwise(edges)]
        return [ArchivePartition(parts) for parts in cut if parts]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: nobody else waits for it."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, ArchivePartition):
            schema = to_arrow_schema(self.schema, timezone="UTC")
            for part in partition.parts:
                yield from read_part(Path(self.archive), part, schema)


def read_part(archive: Path, part: Part, schema: Any) -> Iterator[Any]:
    """Rows of a file as Arrow batches of this schema."""
    try:
        file = pq.ParquetFile(archive / part.path)
    except FileNotFoundError:
        raise ArchiveError(
            f"{archive / part.path} is gone since the replay began: the archive was compacted, or"
            " files of it deleted; --reset replays from its beginning"
        ) from None
    values = partition_values(part.path)
    with file:
        first = 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if first + rows > part.start and first < part.end:
                at = first
                for batch in file.iter_batches(ROWS_PER_BATCH, row_groups=[group]):
                    low = max(part.start - at, 0)
                    high = min(part.end - at, batch.num_rows)
                    if low < high:
                        yield fitted(batch.slice(low, high - low), schema, values)
                    at += batch.num_rows
            first += rows


def fitted(batch: Any, schema: Any, values: dict[str, str | None]) -> Any:
    """The batch with the columns of the archive's first file; what it does not have is null."""
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at >= 0:
            columns.append(batch.column(at).cast(field.type))
        elif values.get(field.name) is not None:
            columns.append(pa.array([values[field.name]] * batch.num_rows, field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
