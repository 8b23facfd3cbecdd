"""``spark.readStream.format("penstock")``: Spark's interface of a streaming source.

Spark makes one instance in a process of its own for the query, and another that goes to executors
by pickle and only reads; so everything that lives (connection, lease, measurements) is made when
it is first needed, and is never pickled.

Spark ends the query's process by SIGTERM and does not call ``stop``: a handler turns it into an
exit, on whose way ``stop`` is called. That is a courtesy to the broker's view; the lease does not
depend on it.

Not here: positions and limits (``query.py``), where rows come from (``upstream.py``), what runs on
executors (``tasks.py``).
"""

import contextlib
import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.model.errors import PenstockError
from penstock.model.spark_batch import BatchProgress
from penstock.spark.options import SourceOptions
from penstock.spark.query import BatchPlanner, ending, starting
from penstock.spark.schema import columns_of
from penstock.spark.tasks import RangePartition, ReadRange, TaskReader, rows
from penstock.spark.upstream import Position, Upstream, position, queue_order

ROWS_UNLIMITED: Final = 2**62
"""Any limit but "all" tells Spark that batches are limited; which numbers, is our business."""
STOP_REPORT_S: Final = 1.0


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A query's source."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.columns = columns_of(schema)
        self._planner: BatchPlanner | None = None
        self._lease_keeper: LeaseKeeper | None = None
        self._is_stopped = False

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _for_executors(self)

    # On the driver's side

    def initialOffset(self) -> dict[str, Any]:
        return self._started().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """A limit, so that Spark asks for batches and not for everything."""
        return ReadMaxRows(self.options.rows_max or ROWS_UNLIMITED)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` is acknowledged."""
        query = self._started()
        end = query.following(start, is_unlimited=isinstance(limit, ReadAllAvailable))
        if self._lease_keeper is None:
            self._lease_keeper = LeaseKeeper(open_upstream(self.options))
            at = msgspec.structs.replace(position(start), checkpoint=query.checkpoint)
            self._lease_keeper.start(at)
        return end

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on up to what there is now."""
        self._started().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._started().latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch: by its start and end and nothing else."""
        return partitions(position(start), position(end), self.options, self.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it comes a batch late; ``latestOffset`` acknowledges."""

    def stop(self) -> None:
        """Report the stop, once; the lease is kept for the next run."""
        if self._is_stopped or self._planner is None:
            return
        self._is_stopped = True
        if self._lease_keeper is not None:
            self._lease_keeper.stop()
        upstream = new_upstream(dataclasses.replace(self.options, retry_s=STOP_REPORT_S))
        with contextlib.suppress(PenstockError):
            progress = BatchProgress(checkpoint=self._planner.checkpoint)
            upstream.report(progress, state="stopped")
            upstream.close()

    # On executors

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, RangePartition):
            return iter(())
        schema = to_arrow_schema(self.schema, timezone="UTC")
        return rows(open_upstream(self.options), partition.wanted, self.options, schema)

    def _started(self) -> BatchPlanner:
        if self._planner is None:
            self._planner = BatchPlanner(self.options, open_upstream(self.options))
            exit_on_sigterm()
        return self._planner


def _for_executors(
    reader: "PenstockReader | PenstockStreamReader",
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What is pickled goes to executors, and there only rows are read."""
    options = reader.options
    is_light = not (options.is_rocketmq or options.path)
    return (TaskReader if is_light else type(reader)), (options, reader.schema)


def exit_on_sigterm() -> None:
    """Have SIGTERM run the ways out of this process; only where it is ours to decide."""
    is_default = signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None)
    if is_default and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit_once)


def _exit_once(*_: object) -> None:
    # A second one must not interrupt the first one's way out.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


# ---- batch reader -------------------------------------------------------------------------------
# ``spark.read.format("penstock")``: from one position to another, once.


class PenstockReader(DataSourceReader):
    """Plans on the driver's side, reads on executors; holds nothing open."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.columns = columns_of(schema)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _for_executors(self)

    def partitions(self) -> list[InputPartition]:
        """The tasks of the read, as things are now."""
        upstream = open_upstream(self.options)
        found = upstream.resolve()
        start = starting(self.options, upstream, found)
        end = ending(self.options, upstream, found)
        return partitions(start, end, self.options, self.columns)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark makes a partition of its own when there is none.
        if not isinstance(partition, RangePartition):
            return iter(())
        schema = to_arrow_schema(self.schema, timezone="UTC")
        return rows(open_upstream(self.options), partition.wanted, self.options, schema)


# ---- partitions ---------------------------------------------------------------------------------
# How a batch is cut into tasks: by queue, and queues into ranges when more tasks are wanted.
#
# ``maxRecordsPerPartition`` bounds a range; ``minPartitions`` cuts the longest queues until there
# are so many ranges. Order is kept inside a range only.
#
# Invariant: the same start and end always give the same ranges, and they cover it exactly: a batch
# that is done again after a crash reads the same rows.


def partitions(
    start: Position, end: Position, options: SourceOptions, columns: tuple[str, ...]
) -> list[InputPartition]:
    """The tasks of a batch; empty queues have none."""
    wholes = [
        ReadRange(
            topic=topic,
            queue=queue,
            start=start.begin_of(end, topic, queue),
            end=end.offsets[topic][queue],
            epoch=end.epoch,
            incarnation=end.incarnations.get(topic, {}).get(queue, 0),
            columns=columns,
            checkpoint=end.checkpoint,
        )
        for topic in sorted(end.offsets)
        for queue in sorted(end.offsets[topic], key=queue_order)
        if end.offsets[topic][queue] > start.begin_of(end, topic, queue)
    ]
    return [RangePartition(each) for each in cut(wholes, options)]


def cut(wholes: list[ReadRange], options: SourceOptions) -> list[ReadRange]:
    """Ranges of at most ``maxRecordsPerPartition`` rows, and at least ``minPartitions`` of them."""
    total = sum(each.end - each.start for each in wholes)
    found = []
    for each in wholes:
        rows = each.end - each.start
        pieces = 1
        if options.partition_rows_max:
            pieces = -(-rows // options.partition_rows_max)
        if options.partitions_min > len(wholes):
            pieces = max(pieces, -(-rows * options.partitions_min // total))
        found += _cut_one(each, min(pieces, rows))
    return found


def _cut_one(whole: ReadRange, pieces: int) -> list[ReadRange]:
    rows = whole.end - whole.start
    edges = [whole.start + rows * number // pieces for number in range(pieces + 1)]
    return [
        dataclasses.replace(whole, start=edges[number], end=edges[number + 1])
        for number in range(pieces)
    ]


# ---- the lease ----------------------------------------------------------------------------------
# Keeps a query's lease alive while Spark works on a batch (F18).
#
# Polls renew the lease by themselves; between two of them lies a whole batch, and a batch may take
# an hour. The source's process has nothing to do then, so a thread of it says now and then that the
# query lives. A lease that cannot be renewed is only a warning: reads will tell whether data is
# gone.


KEEP_S: Final = 20.0

_log = logging.getLogger(__name__)


class LeaseKeeper:
    """One thread, from ``start`` to ``stop``."""

    def __init__(self, upstream: Upstream, *, every_s: float = KEEP_S) -> None:
        self._upstream: Final = upstream
        self._every_s: Final = every_s
        self._ended: Final = threading.Event()

    def start(self, at: Position) -> None:
        """Take the lease for a query that stands at ``at``, and keep it."""
        self.renew_lease(at)
        # Only polls move the position: this thread could be late with it.
        nowhere = Position(checkpoint=at.checkpoint)
        thread = threading.Thread(
            target=self._run, args=(nowhere,), name="penstock-lease", daemon=True
        )
        thread.start()

    def stop(self) -> None:
        """End; the lease lives on for its time, so that a query can be started again."""
        self._ended.set()

    def renew_lease(self, at: Position) -> None:
        """Renew the lease now; a position without offsets moves nothing."""
        try:
            broken = self._upstream.renew_lease(at)
        except PenstockError as problem:
            _log.warning("the lease could not be renewed: %s", problem)
            return
        if broken:
            _log.warning("the broker keeps this query's data no longer: %s", broken)

    def _run(self, at: Position) -> None:
        while not self._ended.wait(self._every_s):
            self.renew_lease(at)


# ---- connections --------------------------------------------------------------------------------
# The upstreams of a process: one for each set of options, kept while the process lives.
#
# Spark uses a worker's process for many tasks, so connections are made once. Each kind of upstream
# is imported when it is first needed: none needs what the others do.


UPSTREAMS_MAX: Final = 32
"""Connections a process keeps; beyond it all are dropped and made anew."""

_open: dict[tuple[int, SourceOptions], Upstream] = {}


def open_upstream(options: SourceOptions) -> Upstream:
    """The upstream of this process for these options; made when it is first asked for."""
    # By process: gRPC's threads do not survive the fork by which Spark makes its workers.
    key = (os.getpid(), options)
    if key not in _open:
        if len(_open) >= UPSTREAMS_MAX:
            drop_upstreams()
        _open[key] = new_upstream(options)
    return _open[key]


def new_upstream(options: SourceOptions) -> Upstream:
    """Another one, for those who close it themselves."""
    if options.is_rocketmq:
        from penstock.spark.rocketmq import RocketMqUpstream

        return RocketMqUpstream(options)
    if options.path:
        from penstock.bulk.offline import OfflineBulk
        from penstock.spark.over_flight import OfflineUpstream

        return OfflineUpstream(options, OfflineBulk(options.path))
    from penstock.spark.over_flight import FlightUpstream

    return FlightUpstream(options)


def drop_upstreams() -> None:
    """Forget all; those of another process are not ours to close."""
    for (process, _), upstream in list(_open.items()):
        if process == os.getpid():
            upstream.close()
    _open.clear()
