"""Tells the broker how each batch of a query went (F18).

    spark.streams.addListener(PenstockListener())

For every query that reads a Penstock the broker then knows its name, how long batches take, and
how that time is made up; ``penstock queries`` and ``/api/flow`` show it. Which broker and
subscription a query belongs to stands in the latest offset that the source reports.

How the time is divided: tasks report what reading took (``readers.py``), Spark what all tasks took
(``addBatch``), and the difference is the transformation; what a batch took outside its tasks
(commit of files, commit log) counts as the sink's. Spark runs a transformation and the writing of
its rows in the same tasks: which of them is slow is known when Penstock's writer times itself.

Reports are made on a thread of their own: a broker that does not answer must not hold up Spark's
listener bus. At most ``WAITING_MAX`` wait; more are dropped.

Not here: positions, which the source reports itself (``query.py``).
"""

import contextlib
import dataclasses
import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.bulk.client import BulkClient
from penstock.model.errors import PenstockError
from penstock.model.spark_batch import BatchProgress
from penstock.spark.causes import cause_of
from penstock.spark.options import ROCKETMQ

WAITING_MAX: Final = 256
REPORT_S: Final = 2.0
QUERIES_MAX: Final = 1024
FLOW_METRICS: Final = "penstock_flow"
"""Spark's observed metrics under which a flow counts (``pipelines/query.py``)."""

_log = logging.getLogger(__name__)


class QueryReport(msgspec.Struct, frozen=True):
    """What the listener has to say of one query: to which broker, about which subscription."""

    endpoint: str
    subscription: str
    progress: BatchProgress
    state: str = "running"
    text: str = ""


class PenstockListener(StreamingQueryListener):
    """One for all queries of a session."""

    def __init__(
        self,
        send: Callable[[QueryReport], None] | None = None,
        *,
        redacted: Callable[[str], str] = str,
        sources: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """``redacted`` takes secrets out of what the broker is told and shows.

        ``sources`` has endpoint and subscription of queries by their names: of one that fails in
        its first batch Spark says no more than its name.
        """
        self._by_name: Final = dict(sources or {})
        self._redacted: Final = redacted
        self._send: Final = send or ReportSender().send
        self._sources: dict[str, list[tuple[str, str, str]]] = {}
        """Endpoints, subscriptions and checkpoints by the id of a run."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Where it reads is not known yet, unless by its name.

        A query that was started again does its last batch first, and polls only then.
        """
        if event.name in self._by_name:
            endpoint, subscription = self._by_name[event.name]
            self._keep(str(event.runId), [(endpoint, subscription, "")])
            progress = BatchProgress(query_id=str(event.id), query_name=event.name or "")
            self._send(QueryReport(endpoint, subscription, progress))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        brokers = [each for each in map(broker_of, progress.sources) if each is not None]
        if not brokers:
            return
        self._keep(str(progress.runId), brokers)
        report = batch_progress(progress)
        state = "running" if progress.numInputRows else "idle"
        for endpoint, subscription, checkpoint in brokers:
            told = dataclasses.replace(report, checkpoint=checkpoint)
            self._send(QueryReport(endpoint, subscription, told, state))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        for endpoint, subscription, checkpoint in self._sources.get(str(event.runId), ()):
            progress = BatchProgress(query_id=str(event.id), checkpoint=checkpoint)
            self._send(QueryReport(endpoint, subscription, progress, "idle"))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """It was stopped, or it failed."""
        state, text = "stopped", ""
        if event.exception is not None:
            state, text = "failed", self._redacted(cause_of(event.exception))[:500]
        for endpoint, subscription, checkpoint in self._sources.pop(str(event.runId), ()):
            progress = BatchProgress(query_id=str(event.id), checkpoint=checkpoint)
            self._send(QueryReport(endpoint, subscription, progress, state, text))

    def _keep(self, run: str, brokers: list[tuple[str, str, str]]) -> None:
        if len(self._sources) >= QUERIES_MAX:
            self._sources.clear()
        self._sources[run] = brokers


def broker_of(source: Any) -> tuple[str, str, str] | None:
    """Endpoint, subscription and checkpoint of a source, if it reads a Penstock that runs."""
    try:
        latest = json.loads(source.latestOffset)
        endpoint, subscription = latest["endpoint"], latest["subscription"]
    except (TypeError, ValueError, KeyError):
        return None
    # A data directory has a path and a RocketMQ does not ask.
    is_penstock = not endpoint.startswith(ROCKETMQ) and endpoint.rpartition(":")[2].isdigit()
    return (endpoint, subscription, latest.get("checkpoint", "")) if is_penstock else None


def batch_progress(progress: Any) -> BatchProgress:
    spent = {name: float(each) for name, each in progress.durationMs.items()}
    outside = ("walCommit", "commitOffsets", "commitBatch")
    counted = flow_counts(progress)
    return BatchProgress(
        rows=int(progress.numInputRows),
        batch_ms=spent.get("triggerExecution", 0.0),
        work_ms=spent.get("addBatch", 0.0),
        sink_ms=sum(spent.get(name, 0.0) for name in outside),
        batch_id=int(progress.batchId),
        query_id=str(progress.id),
        query_name=progress.name or "",
        retries=int(counted.get("retries") or 0),
        dead=int(counted.get("dead") or 0),
    )


def flow_counts(progress: Any) -> dict[str, Any]:
    """What a flow (``penstock pipeline``) counts of its batch: rows, retries, dead."""
    found = (getattr(progress, "observedMetrics", None) or {}).get(FLOW_METRICS)
    return {} if found is None else dict(found.asDict())


class ReportSender:
    """Sends reports from a thread of its own."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[QueryReport] = queue.Queue(WAITING_MAX)
        self._clients: dict[str, BulkClient] = {}
        self._thread: threading.Thread | None = None

    def send(self, report: QueryReport) -> None:
        """Send it soon, unless too many wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-reports", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(report)

    def _run(self) -> None:
        while True:
            report = self._waiting.get()
            client = self._clients.get(report.endpoint)
            if client is None:
                client = self._clients[report.endpoint] = BulkClient(
                    report.endpoint, patience_s=REPORT_S
                )
            try:
                client.report(
                    report.subscription, report.progress, state=report.state, text=report.text
                )
            except PenstockError as problem:
                _log.warning("a batch could not be reported: %s", problem)
