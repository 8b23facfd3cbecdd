"""The reckoning: what Spark wrote, read by another program, against what the broker confirmed.

Parquet is read with pyarrow and not with the Spark that wrote it. Which files count is what the
sink's log says (``_spark_metadata``): one that a failed task left behind is not part of the result.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

WINDOW_US: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class Reckoning:
    """What is in the two Parquet directories."""

    numbers: list[int]
    """Of every row, as often as it is there."""
    windows: int
    """Closed windows, by item."""
    wrong_windows: int
    """Whose orders or revenue are not those of the rows."""
    revenue: int


def reckon(out: Path) -> Reckoning:
    """Read both directories and compare the one with the other."""
    rows = _table(out / "rows", ["id", "item", "amount", "timestamp"])
    orders: Counter[tuple[int, str]] = Counter()
    revenue: Counter[tuple[int, str]] = Counter()
    for item, amount, at_us in zip(rows["item"], rows["amount"], rows["timestamp"], strict=True):
        window = (at_us // WINDOW_US * WINDOW_US, item)
        orders[window] += 1
        revenue[window] += amount
    sums = _table(out / "sums", ["start", "item", "orders", "revenue"])
    found = list(zip(sums["start"], sums["item"], sums["orders"], sums["revenue"], strict=True))
    wrong = sum(
        (orders[start, item], revenue[start, item]) != (count, amount)
        for start, item, count, amount in found
    )
    repeated = len(found) - len({(start, item) for start, item, _, _ in found})
    return Reckoning(rows["id"], len(found), wrong + repeated, sum(revenue.values()))


def committed_files(directory: Path) -> list[Path]:
    """The files that the sink's log names, each once."""
    log = directory / "_spark_metadata"
    paths: dict[str, None] = {}
    for batch in sorted(log.iterdir()) if log.is_dir() else ():
        if batch.name.startswith("."):
            continue
        # The first line is the version of the format; compacted batches repeat the ones before.
        for line in batch.read_text().splitlines()[1:]:
            paths[json.loads(line)["path"]] = None
    return [Path(unquote(urlsplit(each).path)) for each in paths]


def _table(directory: Path, columns: list[str]) -> dict[str, list[Any]]:
    """Columns as lists; times in microseconds."""
    import pyarrow as pa
    from pyarrow import parquet

    found: dict[str, list[Any]] = {name: [] for name in columns}
    for path in committed_files(directory):
        table = parquet.read_table(path, columns=columns)
        for name in columns:
            column = table[name]
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            found[name] += column.to_pylist()
    return found
