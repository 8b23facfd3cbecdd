"""Many small files of a table become few large ones, and no reader sees a row twice or misses one.

A reader lists a directory and opens what it found; so all files of a directory are replaced in one
step: a second directory gets the merged files and hard links to those that stay, and the two change
places (``renameat2`` with ``RENAME_EXCHANGE``). What listed the old directory and opens a file
afterwards fails with "no such file" and is run again; it never sees half of each.

A flow may go on writing meanwhile: merging happens beside the table, and only the exchange takes
the table's lock. Files of a batch that is being published are left alone.

Not here: Delta, whose own log does it (``table_sink.py``).
"""

import contextlib
import ctypes
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.pipelines.table import Table, TableError, sync_directory, told
from penstock.pipelines.table_sink import GROUP_BYTES, ROWS_PER_GROUP

TARGET_BYTES: Final = 256 * 1024 * 1024
SMALL: Final = 0.5
"""Of the target: a file above it is large enough."""
FILES_MAX: Final = 1000
"""In one merged file: so many are held open one after the other, and named in one error."""
REASON_CHARACTERS_MAX: Final = 200
AT_FDCWD: Final = -100
RENAME_EXCHANGE: Final = 2


@dataclass(frozen=True)
class Compacted:
    """What became of a table."""

    directories: int = 0
    before: int = 0
    """Files that were merged."""
    after: int = 0
    """Files they became."""
    rows: int = 0
    bytes: int = 0

    def and_also(self, other: "Compacted") -> "Compacted":
        return Compacted(
            self.directories + other.directories,
            self.before + other.before,
            self.after + other.after,
            self.rows + other.rows,
            self.bytes + other.bytes,
        )


def compact(
    table: Table,
    *,
    target_bytes: int = TARGET_BYTES,
    exchange: "Callable[[Path, Path], None] | None" = None,
) -> Compacted:
    """Merge what is small, directory by directory."""
    if not table.control.is_dir():
        raise TableError(f"{table.path} is no table of a flow: {table.control} is not there")
    try:
        with table.compacting(), told(table.path):
            shutil.rmtree(table.control / "exchange", ignore_errors=True)
            total = Compacted()
            for directory in sorted({each.parent for each in table.files()}):
                done = _compact_directory(table, directory, target_bytes, exchange or exchanged)
                total = total.and_also(done)
            return total
    except BlockingIOError:
        raise TableError(f"table {table.path} is being compacted by somebody else") from None


def plan(files: Sequence[tuple[str, int]], target_bytes: int) -> list[list[str]]:
    """Which files become one: neighbours by name, small ones, up to the target together."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, length in files:
        is_large = length >= SMALL * target_bytes
        if is_large or size + length > target_bytes or len(groups[-1]) >= FILES_MAX:
            groups.append([])
            size = 0
        if not is_large:
            groups[-1].append(name)
            size += length
    return [group for group in groups if len(group) > 1]


def merged_name(names: Sequence[str]) -> str:
    """Sorted by name it stands where the first of them stood."""
    return f"{Path(names[0]).stem}+{len(names) - 1}-{uuid.uuid4().hex[:8]}.parquet"


def _compact_directory(
    table: Table, directory: Path, target_bytes: int, exchange: "Callable[[Path, Path], None]"
) -> Compacted:
    place = table.path / directory
    # In this order: what is published behind the first line is not among the files.
    sizes = [(name, (place / name).stat().st_size) for name in _parquet_names(place)]
    untouched = {Path(each).name for each in table.undecided_paths()}
    groups = plan([each for each in sizes if each[0] not in untouched], target_bytes)
    if not groups:
        return Compacted()
    other = table.control / "exchange" / uuid.uuid4().hex
    other.mkdir(parents=True)
    rows = size = 0
    for names in groups:
        merged = other / merged_name(names)
        rows += merge([place / name for name in names], merged)
        size += merged.stat().st_size
    gone = {name for names in groups for name in names}
    with table.locked():
        # Also what came while the others were merged.
        for each in sorted(place.iterdir()):
            if each.name in gone:
                continue
            if each.is_dir():
                raise TableError(
                    f"{place} holds directories beside its files, and only whole directories can"
                    " be exchanged; was the table partitioned in another way before?"
                )
            os.link(each, other / each.name)
        sync_directory(other)
        exchange(place, other)
        sync_directory(place.parent)
        sync_directory(other.parent)
    shutil.rmtree(other, ignore_errors=True)
    return Compacted(1, len(gone), len(groups), rows, size)


def merge(sources: Sequence[Path], target: Path) -> int:
    """Write the rows of all, in this order, into one file; how many there are.

    Its row groups are bounded as those of flows are: a replay takes one at a time into memory.
    """
    with _legible(sources[0]):
        schema: Any = pq.read_schema(sources[0])
        options = {"compression": _compression(sources[0])}
    rows = 0
    with pq.ParquetWriter(target, schema, **options) as writer:
        waiting: list[Any] = []
        waiting_rows = waiting_bytes = 0
        for batch in _batches(sources, schema):
            is_full = waiting_rows >= ROWS_PER_GROUP or waiting_bytes + batch.nbytes > GROUP_BYTES
            if waiting and is_full:
                writer.write_table(pa.Table.from_batches(waiting, schema))
                waiting, waiting_rows, waiting_bytes = [], 0, 0
            waiting.append(batch)
            waiting_rows += batch.num_rows
            waiting_bytes += batch.nbytes
            rows += batch.num_rows
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema))
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return rows


def _batches(sources: Sequence[Path], schema: Any) -> Iterator[Any]:
    """The rows of all, none of them larger than a row group: those of flows are bounded."""
    for source in sources:
        with _legible(source), pq.ParquetFile(source) as file:
            if not file.schema_arrow.equals(schema):
                raise TableError(
                    f"{source} has other columns than {sources[0]}; files of different schemas"
                    " are not merged: compact before a flow's columns change"
                )
            for group in range(file.num_row_groups):
                yield from file.iter_batches(batch_size=ROWS_PER_GROUP, row_groups=[group])


@contextlib.contextmanager
def _legible(source: Path) -> Iterator[None]:
    """What keeps a file from being read is told with its name."""
    try:
        yield
    except (pa.ArrowException, OSError) as problem:
        why = " ".join(str(problem).split())[:REASON_CHARACTERS_MAX]
        raise TableError(
            f"{source} cannot be read as Parquet: {why}; the other files are whole: put it right or"
            " take it away, and compact again"
        ) from None


def exchanged(one: Path, other: Path) -> None:
    """Two directories change places in one step."""
    library: Any = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(one), os.fsencode(other))
    if hasattr(library, "renameat2"):
        failed = library.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)
    elif hasattr(library, "renamex_np"):  # macOS
        failed = library.renamex_np(*names, RENAME_EXCHANGE)
    else:
        failed = -1
    if failed:
        raise TableError(
            f"{one}: this file system cannot exchange two directories in one step"
            f" ({os.strerror(ctypes.get_errno())}), and readers would see rows twice or not at all;"
            " use larger roll_rows and roll_time instead, or Delta"
        )


def _parquet_names(place: Path) -> list[str]:
    return sorted(each.name for each in place.glob("*.parquet"))


def _compression(path: Path) -> str:
    """As the first column of the first row group has it."""
    with pq.ParquetFile(path) as file:
        if not file.metadata.num_row_groups or not file.metadata.num_columns:
            return "zstd"
        found = str(file.metadata.row_group(0).column(0).compression).lower()
    return "none" if found == "uncompressed" else found
