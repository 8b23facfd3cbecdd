"""``spark.read.format("penstock")``: from one position to another, once.

Not here: what the options mean (``options.py``, ``beginning.py``), reading (``reading.py``).
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark.beginning import ending, starting
from penstock.spark.connections import open_upstream
from penstock.spark.options import SourceOptions
from penstock.spark.partitions import RangePartition, partitions
from penstock.spark.reading import rows
from penstock.spark.schema import columns_of


class PenstockReader(DataSourceReader):
    """Plans on the driver's side, reads on executors; holds nothing open."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.columns = columns_of(schema)

    def partitions(self) -> list[InputPartition]:
        """The tasks of the read, as things are now."""
        upstream = open_upstream(self.options)
        found = upstream.found()
        start = starting(self.options, upstream, found)
        end = ending(self.options, upstream, found)
        return partitions(start, end, self.options, self.columns)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task."""
        # Spark makes a partition of its own when there is none.
        if not isinstance(partition, RangePartition):
            return iter(())
        schema = to_arrow_schema(self.schema, timezone="UTC")
        return rows(open_upstream(self.options), partition.wanted, self.options, schema)
