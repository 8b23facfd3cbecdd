"""A pipeline whose commit dies at a chosen step, with everything that belongs to it: ``kill -9``.

    PENSTOCK_DIE=letters python -m kit.pipeline_job FILE.toml

Spark commits in a Python worker of its own; that worker kills the driver and its JVM, then itself,
so nothing of the run is left to go on.
"""

import os
import signal
import sys
from pathlib import Path

from pyspark.sql.types import StructType

from penstock.pipelines import table_sink
from penstock.pipelines.flow_file import load_pipeline
from penstock.pipelines.launch import RunOptions, launch
from penstock.pipelines.table import Batch, Table
from penstock.spark.session import local_session

STEPS = ("staged", "prepared", "letters", "files")
"""Nothing is decided; decided; the letters are out; the files are out, but not noted as such."""
STEP = "PENSTOCK_DIE"
DRIVER = "PENSTOCK_DIE_DRIVER"


def die_at(step: str) -> None:
    """Kill the driver, Spark and this process, if this is where it is to happen."""
    if os.environ.get(STEP) == step:
        for pid in (int(os.environ[DRIVER]), java_above(os.getpid()), os.getpid()):
            os.kill(pid, signal.SIGKILL)


def java_above(pid: int) -> int:
    """The JVM that a worker process belongs to."""
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


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
    os.environ[DRIVER] = str(os.getpid())
    pipeline = load_pipeline(Path(sys.argv[1]))
    session = local_session("job", is_brief=True, cores=2)
    vars(table_sink)["TableSink"] = DyingSink
    launch(
        pipeline,
        pipeline.flows,
        RunOptions(),
        show=lambda figures: print(*(each.line() for each in figures), flush=True),
        is_stopping=lambda: False,
        session=session,
    )


if __name__ == "__main__":
    main()
