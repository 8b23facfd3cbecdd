"""The data source ``penstock``: its name, its columns, its readers.

Spark finds it through the package ``pyspark_penstock`` without registration, and makes it anew in
several processes; so making it does nothing but read the options.

Not here: the readers (``readers.py``).
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.spark.options import BadOption, read_options
from penstock.spark.schema import full_schema

if TYPE_CHECKING:
    from penstock.spark.readers import PenstockReader, PenstockStreamReader


VERSION_MIN: Final = (4, 2)
"""Before it Spark tells a Python source neither where a batch begins nor how far it may go."""


def check_version(version: str) -> None:
    """Raise for a PySpark that is too old, before its imports fail in words that help nobody."""
    if tuple(int(each) for each in version.split(".")[:2]) < VERSION_MIN:
        raise BadOption(
            f"format('penstock') needs PySpark {'.'.join(map(str, VERSION_MIN))} or newer, this is"
            f" {version}; pip install 'penstock-broker[spark]' brings one that works"
        )


class PenstockSource(DataSource):
    """Topics as tables and streams."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_version(pyspark.__version__)
        self.chosen = read_options(options)

    @classmethod
    def name(cls) -> str:
        """What ``format`` is called with."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns, unless the user gives a narrower schema."""
        return full_schema(self.chosen)

    def reader(self, schema: StructType) -> "PenstockReader":
        from penstock.spark.readers import PenstockReader

        return PenstockReader(self.chosen, schema)

    def streamReader(self, schema: StructType) -> "PenstockStreamReader":
        from penstock.spark.readers import PenstockStreamReader

        given = self.chosen
        if given.ending or given.ending_at_ms >= 0 or given.ending_times:
            raise BadOption(
                "a stream has no end: endingOffsets is for spark.read; use trigger(availableNow)"
            )
        return PenstockStreamReader(given, schema)
