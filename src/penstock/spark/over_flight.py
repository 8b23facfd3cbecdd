"""A Penstock as upstream: a broker through its Flight port, or a stopped one's directory (D18).

A data directory (``path``) is a stopped broker's or a copy; executors read the same path, so it
must be there on every machine.

Not here: retries and the connection (``bulk/client.py``), what a query makes of it (``query.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.bulk.client import BulkClient
from penstock.bulk.tickets import Summary
from penstock.model.queries import (
    LeaseRequest,
    OffsetMap,
    PollRequest,
    PollResponse,
    ResolveResponse,
)
from penstock.model.spark_batch import BatchProgress
from penstock.spark.options import SourceOptions
from penstock.spark.tasks import ReadRange, ticket
from penstock.spark.upstream import (
    OffsetsByQueue,
    Position,
    SourceQueue,
    SourceQueues,
    local_poll,
)

if TYPE_CHECKING:
    # The engine behind it takes half a second to import, which a query of a broker does not need.
    from penstock.bulk.offline import OfflineBulk


class FlightUpstream:
    """One Flight port, one set of topics."""

    def __init__(self, options: SourceOptions, client: BulkClient | None = None) -> None:
        self._options: Final = options
        self._client = client or BulkClient(options.endpoint, patience_s=options.retry_s)
        self._topics: Final = list(options.topics) or None
        self._pattern: Final = options.pattern or None
        self._optional: Final = list(options.optional_topics)

    def resolve(self) -> SourceQueues:
        """Topics, their queues and what can be read of each."""
        found = self._client.resolve(self._topics, pattern=self._pattern, optional=self._optional)
        return _queues(found)

    def at_time(self, topic: str, at_ms: int) -> dict[str, int]:
        """First offsets stored at or after a time."""
        return with_text_queues(self._client.by_time(topic, at_ms)).get(topic, {})

    def poll(self, request: PollRequest[str]) -> PollResponse[str]:
        """How far the next batch may go; waits at the broker, which numbers its queues."""
        answer = self._client.poll(
            PollRequest(
                subscription=self._options.subscription,
                checkpoint=request.checkpoint,
                topics=self._topics,
                pattern=self._pattern,
                optional=self._optional,
                start=with_queue_numbers(request.start),
                epoch=request.epoch,
                rows_max=request.rows_max,
                own_rows_max=request.own_rows_max,
                bytes_max=request.bytes_max,
                rows_min=request.rows_min,
                wait_ms=request.wait_ms,
                report=request.report,
            )
        )
        return PollResponse(
            epoch=answer.epoch,
            ends=with_text_queues(answer.ends),
            latest=with_text_queues(answer.latest),
            starts=with_text_queues(answer.starts),
            incarnations=with_text_queues(answer.incarnations),
            rows=answer.rows,
            bytes=answer.bytes,
            lag_rows=answer.lag_rows,
            lag_bytes=answer.lag_bytes,
            lag_ms=answer.lag_ms,
            lost=answer.lost,
            held=answer.held,
        )

    def read(self, wanted: ReadRange) -> Iterator[Any]:
        return self._client.read(ticket(wanted, self._options))

    def summary(self) -> Summary:
        """What became of the range that was read last."""
        return self._client.summary

    def renew_lease(self, start: Position) -> str:
        """Take the lease, or renew it."""
        leased = self._client.lease(
            LeaseRequest(
                subscription=self._options.subscription,
                checkpoint=start.checkpoint,
                topics=self._topics,
                pattern=self._pattern,
                optional=self._optional,
                ttl_ms=int(self._options.lease_ttl_s * 1000),
                start=with_queue_numbers(start.offsets),
            )
        )
        return (leased.text or "the lease was broken") if leased.is_broken else ""

    def report(self, progress: BatchProgress, *, state: str = "running", text: str = "") -> None:
        self._client.report(self._options.subscription, progress, state=state, text=text)

    def close(self) -> None:
        self._client.close()


def _queues(resolved: ResolveResponse) -> SourceQueues:
    return SourceQueues(
        epoch=resolved.epoch,
        queues=[
            SourceQueue(
                topic=topic.name,
                queue=str(each.queue),
                incarnation=each.incarnation,
                earliest=each.earliest,
                end=each.end,
                bytes=each.bytes,
            )
            for topic in resolved.topics
            for each in topic.queues
        ],
    )


def with_queue_numbers(offsets: OffsetsByQueue) -> OffsetMap:
    """Numbers for queues, as the bulk lane has them."""
    return {
        topic: {int(queue): number for queue, number in queues.items()}
        for topic, queues in offsets.items()
    }


def with_text_queues(offsets: OffsetMap) -> OffsetsByQueue:
    """Texts for queues, as checkpoints have them."""
    return {
        topic: {str(queue): number for queue, number in queues.items()}
        for topic, queues in offsets.items()
    }


class OfflineUpstream:
    """One data directory; nobody is told of progress and nothing has to be held."""

    def __init__(self, options: SourceOptions, bulk: OfflineBulk) -> None:
        self._options: Final = options
        self._bulk: Final = bulk

    def resolve(self) -> SourceQueues:
        """Topics, their queues and what can be read of each."""
        options = self._options
        return _queues(
            self._bulk.resolve(list(options.topics) or None, pattern=options.pattern or None)
        )

    def at_time(self, topic: str, at_ms: int) -> dict[str, int]:
        """First offsets stored at or after a time."""
        return with_text_queues(self._bulk.by_time(topic, at_ms)).get(topic, {})

    def poll(self, request: PollRequest[str]) -> PollResponse[str]:
        """How far the next batch may go; never waits, because nothing comes."""
        return local_poll(self.resolve(), request)

    def read(self, wanted: ReadRange) -> Iterator[Any]:
        return self._bulk.read(ticket(wanted, self._options))

    def summary(self) -> Summary:
        """What became of the range that was read last."""
        return self._bulk.summary

    def renew_lease(self, start: Position) -> str:
        return ""

    def report(
        self, progress: BatchProgress, *, state: str = "running", text: str = ""
    ) -> None: ...

    def close(self) -> None:
        self._bulk.close()
