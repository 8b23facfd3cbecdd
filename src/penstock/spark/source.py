"""The data source ``penstock``: its name, its columns, its readers and writers; the sink of flows.

Spark finds it through the package ``pyspark_penstock`` without registration, and makes it anew in
several processes; so making it does nothing but read the options.

Not here: the readers (``readers.py``), the writers (``sink.py``).
"""

import dataclasses
import json
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.spark.options import BadOption, SourceOptions, read_options, read_sink_options
from penstock.spark.schema import full_schema

if TYPE_CHECKING:
    from penstock.spark.readers import PenstockReader, PenstockStreamReader
    from penstock.spark.sink import PenstockStreamWriter, PenstockWriter


VERSION_MIN: Final = (4, 2)
"""Before it Spark tells a Python source neither where a batch begins nor how far it may go."""
LETTER_TOPICS: Final = "letters"
"""Option of the sink of flows."""


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

    @property
    def chosen(self) -> SourceOptions:
        """The options of a read; a write has others."""
        return read_options(self.options)

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

    def writer(self, schema: StructType, overwrite: bool) -> "PenstockWriter":
        from penstock.spark.sink import PenstockWriter, check_columns

        options = read_sink_options(self.options)
        if overwrite:
            raise BadOption(
                "a topic is appended to and never overwritten: use mode('append'); to begin anew,"
                " delete the topic or give another one"
            )
        check_columns(schema, options)
        return PenstockWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "PenstockStreamWriter":
        from penstock.spark.sink import PenstockStreamWriter, check_columns

        options = read_sink_options(self.options)
        if overwrite:
            raise BadOption("a topic is appended to: outputMode('complete') has no meaning for it")
        if options.transactional_id:
            raise BadOption(
                "transactionalId and batch are for df.write: a stream counts its own batches"
            )
        check_columns(schema, options)
        return PenstockStreamWriter(options)


class FlowSink(DataSource):
    """The sink of flows: the limits of the topics of their letters do not hold their batches.

    Known to sessions of the runner only (``pipelines/query.py``); no option of ``penstock`` does
    the same.
    """

    @classmethod
    def name(cls) -> str:
        return "penstock_flow"

    def streamWriter(self, schema: StructType, overwrite: bool) -> "PenstockStreamWriter":
        from penstock.spark.sink import PenstockStreamWriter

        given = dict(self.options)
        topics = tuple(json.loads(given.pop(LETTER_TOPICS)))
        made = PenstockSource(given).streamWriter(schema, overwrite)
        return PenstockStreamWriter(dataclasses.replace(made.options, passing=topics))
