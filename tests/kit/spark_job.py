"""A Spark query in a process of its own, to be killed: copies a topic into Parquet files.

    python -m kit.spark_job --endpoint 127.0.0.1:8815 --topic orders --place DIR [--to TOPIC]

Without ``--result`` it runs until somebody ends it. With it, it goes up to what there is now, and
then writes the bodies of all rows in the files, one a line: Spark itself says what is in them.
With ``--to`` the rows go to another topic instead, and the result is what is there; and with
``PENSTOCK_DIE`` its commit dies before or behind what the broker does of it (``dying.py``).
"""

import argparse
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from kit.dying import die_at, may_die
from penstock.spark.session import local_session, register_source
from penstock.spark.sink import PenstockStreamWriter, StagedPut
from penstock.spark.source import PenstockSource

ROWS = 300
ROWS_LAST = 5000
SCHEMA = "queue int, offset long, body binary"
STEPS = ("staged", "committed")
"""Rows are beside the log; they are in it, and Spark does not know."""


class DyingWriter(PenstockStreamWriter):
    """Of a batch with rows."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if any(isinstance(each, StagedPut) and each.rows for each in messages):
            die_at("staged")
        super().commit(messages, batchId)
        die_at("committed")


class DyingSource(PenstockSource):
    """The sink under another name."""

    @classmethod
    def name(cls) -> str:
        return "penstock_dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:
        return DyingWriter(super().streamWriter(schema, overwrite).options)


def main() -> None:
    """Run the query."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--rows", help="rows of a batch; by default few, or many to come to an end")
    parser.add_argument("--partitions", default="2")
    parser.add_argument("--zip", help="what executors need, where they have nothing of ours")
    parser.add_argument("--to", help="a topic, instead of files")
    parser.add_argument("--result", type=Path)
    parser.add_argument("--master", default="local[2,4]")
    given = parser.parse_args()
    dies = may_die()
    # The session's own files are this process's; a killed one must not leave locks behind.
    spark = local_session(
        "spark-job",
        is_brief=True,
        settings={"spark.master": given.master, "spark.executor.memory": "512m"},
    )
    if given.zip:
        spark.sparkContext.addPyFile(given.zip)
        if given.to:
            # Else Spark finds it by itself.
            register_source(spark)
    rows = (
        spark.readStream.format("penstock")
        .schema(SCHEMA)
        .option("endpoint", given.endpoint)
        .option("topics", given.topic)
        .option("startingOffsets", "earliest")
        .option("subscription", "spark-job")
        .option("maxRowsPerTrigger", given.rows or (ROWS if given.result is None else ROWS_LAST))
        .option("minPartitions", given.partitions)
        .load()
    )
    if given.to:
        rows = rows.select("body")
        target = {"endpoint": given.endpoint, "topic": given.to}
        if dies:
            spark.dataSource.register(DyingSource)
        kind = DyingSource.name() if dies else PenstockSource.name()
        writer = rows.writeStream.format(kind).options(**target)
    else:
        writer = rows.writeStream.format("parquet").option("path", str(given.place / "out"))
    writer = writer.option("checkpointLocation", str(given.place / "checkpoint"))
    if given.result is not None:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    if given.result is not None:
        if given.to:
            written = spark.read.format("penstock").option("endpoint", given.endpoint)
            table = written.schema("body binary").option("topics", given.to).load()
        else:
            table = spark.read.parquet(str(given.place / "out"))
        found = table.collect()
        given.result.write_text("".join(f"{bytes(each.body).decode()}\n" for each in found))
    spark.stop()


if __name__ == "__main__":
    main()
