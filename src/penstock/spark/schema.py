"""The columns of a row as Spark sees them, and which of them are read.

A schema of the user's may name fewer columns, in any order: only those are read. Spark does not
tell a Python source which columns a query uses, so this is how to read less.

Not here: Arrow's types, which are made from these (``readers.py``).
"""

import difflib
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.bulk.tickets import ASKABLE, COLUMNS, MESSAGE_ID
from penstock.spark.options import BadOption, SourceOptions

SPARK_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "queue": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "born_timestamp": TimestampType(),
    "key": StringType(),
    "tag": StringType(),
    "properties": MapType(StringType(), StringType()),
    "protocol": StringType(),
    "body": BinaryType(),
    MESSAGE_ID: StringType(),
}


def full_schema(options: SourceOptions) -> StructType:
    """All columns, without those that the options leave out."""
    left_out = set() if options.has_properties else {"properties"}
    left_out |= set() if options.has_body else {"body"}
    return StructType(
        [StructField(name, SPARK_TYPES[name]) for name in COLUMNS if name not in left_out]
    )


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns a schema wants; raises ``BadOption`` for one that is not there or of a type."""
    for field in schema.fields:
        wanted = SPARK_TYPES.get(field.name)
        if wanted is None:
            close = difflib.get_close_matches(field.name, ASKABLE, n=1, cutoff=0.4)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(ASKABLE)}"
            raise BadOption(f"schema: there is no column {field.name!r}; {hint}")
        if field.dataType != wanted:
            raise BadOption(
                f"schema: column {field.name} is {wanted.simpleString()}, not"
                f" {field.dataType.simpleString()}; read it as that and cast it in the query"
            )
    return tuple(schema.fieldNames())
