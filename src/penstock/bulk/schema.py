"""The Arrow types of the columns, exactly those that Spark wants."""

from typing import Final

import pyarrow as pa

from penstock.bulk.tickets import COLUMNS

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
}


def arrow_schema(columns: list[str] | None = None) -> pa.Schema:
    """The schema of some columns, in their order; of all for None."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns or COLUMNS])
