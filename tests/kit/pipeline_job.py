"""A pipeline whose commit dies at a chosen step, with all that belongs to it (``dying.py``).

    PENSTOCK_DIE=letters python -m kit.pipeline_job FILE.toml [FLOW ...]

Every flow of the file, or those that are named, runs until one of them has come to that step.
"""

import sys
from pathlib import Path

from pyspark.sql.types import StructType

from kit.dying import die_at, may_die
from penstock.pipelines import table_sink
from penstock.pipelines.flow_file import load_pipeline
from penstock.pipelines.launch import RunOptions, launch
from penstock.pipelines.table import Batch, Table
from penstock.spark.session import local_session

STEPS = ("staged", "prepared", "letters", "renamed", "files")
"""Nothing is decided; decided; the letters are out; the files are in place, but not in Delta's log;
the files are out, but not noted as such."""


class DyingWriter(table_sink.TableWriter):
    """Of a batch that has something to publish."""

    def commit_batch(self, found: Batch) -> None:
        if found.files and found.letters:
            die_at("staged")
        super().commit_batch(found)

    def finish(self, table: Table, batch: Batch) -> bool:
        if batch.files and batch.letters:
            die_at("prepared")
        return super().finish(table, batch)

    def publish_letters(self, batch: Batch) -> bool:
        found = super().publish_letters(batch)
        die_at("letters")
        return found

    def publish_files(self, table: Table, batch: Batch) -> None:
        if self.options.kind == "delta" and batch.letters and batch.files:
            table.publish(batch)
            die_at("renamed")
        super().publish_files(table, batch)
        if batch.letters:
            die_at("files")


class DyingSink(table_sink.TableSink):
    """The table's sink under its own name."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:
        del overwrite
        return DyingWriter(table_sink.TableOptions.of(self.options), schema)


def main() -> None:
    """Run the pipeline until it dies."""
    may_die()
    pipeline = load_pipeline(Path(sys.argv[1]))
    session = local_session("job", is_brief=True, cores=2)
    vars(table_sink)["TableSink"] = DyingSink
    launch(
        pipeline,
        pipeline.only(tuple(sys.argv[2:])),
        RunOptions(),
        show=lambda figures: print(*(each.line() for each in figures), flush=True),
        is_stopping=lambda: False,
        session=session,
    )


if __name__ == "__main__":
    main()
