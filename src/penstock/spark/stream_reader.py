"""``spark.readStream.format("penstock")``: Spark's interface of a streaming source.

Spark makes one instance in a process of its own for the query, and another that goes to executors
by pickle and only reads; so everything that lives (connection, lease, measurements) is made when
it is first needed, and is never pickled.

Spark ends the query's process by SIGTERM and does not call ``stop``: a handler turns it into an
exit, on whose way ``stop`` is called. That is a courtesy to the broker's view; the lease does not
depend on it.

Not here: positions and limits (``query.py``), reading (``reading.py``).
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.model.errors import PenstockError
from penstock.model.progress import BatchProgress
from penstock.spark.connections import new_upstream, open_upstream
from penstock.spark.keeper import Keeper
from penstock.spark.offsets import position
from penstock.spark.options import SourceOptions
from penstock.spark.partitions import RangePartition, partitions
from penstock.spark.query import Query
from penstock.spark.reading import rows
from penstock.spark.schema import columns_of

ROWS_UNLIMITED: Final = 2**62
"""Any limit but "all" tells Spark that batches are limited; which numbers, is our business."""
FAREWELL_S: Final = 1.0


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A query's source."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.columns = columns_of(schema)
        self._query: Query | None = None
        self._keeper: Keeper | None = None
        self._is_stopped = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_query": None, "_keeper": None}

    # On the driver's side

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins."""
        return self._started().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """A limit, so that Spark asks for batches and not for everything."""
        return ReadMaxRows(self.options.rows_max or ROWS_UNLIMITED)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` is acknowledged."""
        query = self._started()
        end = query.following(start, is_unlimited=isinstance(limit, ReadAllAvailable))
        if self._keeper is None:
            self._keeper = Keeper(open_upstream(self.options))
            self._keeper.start(position(start))
        return end

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on up to what there is now."""
        self._started().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What the last poll saw."""
        return self._started().latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch: by its start and end and nothing else."""
        return partitions(position(start), position(end), self.options, self.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it comes a batch late; ``latestOffset`` acknowledges."""

    def stop(self) -> None:
        """Say good-bye, once; the lease is kept for the next run."""
        if self._is_stopped or self._query is None:
            return
        self._is_stopped = True
        if self._keeper is not None:
            self._keeper.stop()
        upstream = new_upstream(msgspec.structs.replace(self.options, retry_s=FAREWELL_S))
        with contextlib.suppress(PenstockError):
            upstream.report(BatchProgress(), state="stopped")
            upstream.close()

    # On executors

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task."""
        if not isinstance(partition, RangePartition):
            return iter(())
        schema = to_arrow_schema(self.schema, timezone="UTC")
        return rows(open_upstream(self.options), partition.wanted, self.options, schema)

    def _started(self) -> Query:
        if self._query is None:
            self._query = Query(self.options, open_upstream(self.options))
            exit_on_sigterm()
        return self._query


def exit_on_sigterm() -> None:
    """Have SIGTERM run the ways out of this process; only where it is ours to decide."""
    is_default = signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None)
    if is_default and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit_once)


def _exit_once(*_: object) -> None:
    # A second one must not interrupt the first one's way out.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)
