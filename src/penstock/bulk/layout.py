"""The bytes on disk as numpy sees them: record headers (D2) and index entries (D4).

Nothing is decided here: the header is described by ``log/format.py``, the entry by
``log/index.py``, and a test compares both with what those files read and write.

Every record begins at a multiple of ``ALIGNMENT`` in its segment, so a segment is a row of
overlapping headers, ``ALIGNMENT`` bytes apart, of which a list of places picks some.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.bulk.tickets import COLUMNS, MESSAGE_ID
from penstock.log.format import HEADER_BYTES, HEADER_FIELDS
from penstock.log.index import ENTRY_BYTES

Column = NDArray[Any]
"""One number, or one record, for each row."""

ALIGNMENT: Final = 8
HEADER: Final = np.dtype(HEADER_FIELDS)
_BYTES: Final = np.dtype((np.void, HEADER.itemsize))
ENTRY: Final = np.dtype(
    [
        ("position", "<u8"),
        ("first_offset", "<u8"),
        ("cumulative_bytes", "<u8"),
        ("store_ms", "<i8"),
        ("length", "<u4"),
        ("messages", "<u4"),
        ("tag_hash", "<i4"),
        ("flags", "<u4"),
    ]
)
assert HEADER.itemsize == HEADER_BYTES
assert ENTRY.itemsize == ENTRY_BYTES


def headers_at(segment: Any, size_bytes: int, places: Column) -> Column:
    """The headers that begin at these bytes of a segment; each must lie wholly in it."""
    count = (size_bytes - HEADER_BYTES) // ALIGNMENT + 1
    overlapping: Column = np.ndarray((count,), _BYTES, buffer=segment, strides=(ALIGNMENT,))
    found: Column = overlapping[places // ALIGNMENT].view(HEADER)
    return found


def picked(records: Column, rows: Column) -> Column:
    """Some records, in any order; as plain bytes, because numpy copies field by field."""
    found: Column = plain(records)[rows].view(records.dtype)
    return found


def plain(records: Column) -> Column:
    """The same records without their fields."""
    return records.view(np.dtype((np.void, records.dtype.itemsize)))


def kinds(numbers: Column) -> list[int]:
    """The different numbers of a column; nearly always there is one, which is quickly seen."""
    if not len(numbers):
        return []
    lowest, highest = int(numbers.min()), int(numbers.max())
    return [lowest] if lowest == highest else np.unique(numbers).tolist()


def entries_in(packed: bytes) -> Column:
    """Packed index entries as records."""
    return np.frombuffer(packed, ENTRY)


# ---- schema -------------------------------------------------------------------------------------
# The Arrow types of the columns, exactly those that Spark wants.


_TIME: Final = pa.timestamp("us", tz="UTC")
TYPES: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "queue": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIME,
    "born_timestamp": _TIME,
    "key": pa.string(),
    "tag": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "protocol": pa.string(),
    "body": pa.binary(),
    MESSAGE_ID: pa.string(),
}


def arrow_schema(columns: list[str] | None = None) -> pa.Schema:
    """The schema of some columns, in their order; of all for None."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns or COLUMNS])
