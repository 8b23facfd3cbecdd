"""A RocketMQ cluster as upstream (``endpoint = rocketmq://host:9876``), through Penstock's client.

A queue is ``broker:number``, because every broker of a cluster counts its own. Ranges are read by
plain pulls, without joining a group, in as many processes as Spark likes. When the user names a
``subscription``, processed positions are stored under that group, so that RocketMQ's own tools show
the query's lag.

What RocketMQ does not have: sizes (no ``maxBytesPerTrigger``), leases (retention does not wait for
the query), incarnations (a topic made anew is seen only when it is shorter than before), back
pressure. Filters are evaluated by its brokers.

Not here: the protocol (``penstock.client``), a Penstock's own lane (``over_flight.py``).
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Final, TypeVar

import pyarrow as pa

from penstock.bulk.layout import arrow_schema
from penstock.bulk.tickets import SQL92, BulkError, Summary
from penstock.client import (
    Admin,
    BodyUnreadable,
    ClientError,
    NoRoute,
    PullConsumer,
    QueueRef,
    ReceivedMessage,
    TimedOut,
    Unreachable,
)
from penstock.model.queries import PollRequest, PollResponse
from penstock.model.spark_batch import BAD_REQUEST, NO_TOPIC, UNREACHABLE, BatchProgress
from penstock.spark.options import ROCKETMQ, SourceOptions
from penstock.spark.tasks import ReadRange
from penstock.spark.upstream import OffsetsByQueue, Position, SourceQueue, SourceQueues, local_poll
from penstock.wire.rocketmq.properties import SYSTEM_NAMES

HIDDEN: Final = re.compile(
    r"%(RETRY|DLQ|SYS)%.*|rmq_sys_.*|RMQ_SYS_.*|SCHEDULE_TOPIC_X{4}|TBW102|SELF_TEST_TOPIC|"
    r"BenchmarkTest|OFFSET_MOVED_EVENT|DefaultCluster.*"
)
"""Topics that a pattern never means."""
LOOK_S: Final = 0.4
"""Between two looks for something new: nobody tells us."""
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 2.0

T = TypeVar("T")


class RocketMqUpstream:
    """One cluster, one set of topics; connections are made when they are first needed."""

    def __init__(self, options: SourceOptions) -> None:
        self._options: Final = options
        self._servers: Final = options.endpoint.removeprefix(ROCKETMQ).split(";")
        self._admin: Admin | None = None
        self._consumer: PullConsumer | None = None
        self._noted: dict[QueueRef, int] = {}
        self._summary = Summary()

    def resolve(self) -> SourceQueues:
        """Topics, their queues and what can be read of each."""
        return self._patiently(self._resolve)

    def at_time(self, topic: str, at_ms: int) -> dict[str, int]:
        """First offsets stored at or after a time."""
        at = self._patiently(lambda: self._asking().offsets_at(topic, at_ms))
        return {_name(queue): offset for queue, offset in at.items()}

    def poll(self, request: PollRequest[str]) -> PollResponse[str]:
        """How far the next batch may go; looks again once when there is nothing yet."""
        self._note(request.start)
        answer = local_poll(self.resolve(), request)
        if answer.lag_rows < max(1, request.rows_min) and request.wait_ms:
            time.sleep(min(request.wait_ms / 1000, LOOK_S))
            answer = local_poll(self.resolve(), request)
        return answer

    def read(self, wanted: ReadRange) -> Iterator[pa.RecordBatch]:
        """Rows of a range; after a break it goes on behind the last row it gave."""
        broker, _, number = wanted.queue.rpartition(":")
        queue = QueueRef(wanted.topic, broker, int(number))
        total = Summary(next_offset=wanted.start)
        deadline = time.monotonic() + self._options.retry_s
        pause = PAUSE_S
        while total.next_offset < wanted.end:
            try:
                for messages in self._chunks(queue, total, wanted.end):
                    deadline = time.monotonic() + self._options.retry_s
                    if messages:
                        yield batch_of(messages, queue, wanted.columns)
            except (Unreachable, TimedOut) as problem:
                if time.monotonic() + pause > deadline:
                    raise self._unreachable(problem) from None
                self.close()
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_S_MAX)
        self._summary = total

    def summary(self) -> Summary:
        """What became of the range that was read last."""
        return self._summary

    def renew_lease(self, start: Position) -> str:
        """RocketMQ keeps nothing for a reader."""
        return ""

    def report(
        self, progress: BatchProgress, *, state: str = "running", text: str = ""
    ) -> None: ...

    def close(self) -> None:
        """Give the connections back."""
        for each in (self._admin, self._consumer):
            if each is not None:
                with suppress(ClientError):
                    each.stop()
        self._admin = self._consumer = None

    # Private, in call order

    def _resolve(self) -> SourceQueues:
        options = self._options
        admin = self._asking()
        names: Sequence[str] = options.topics
        if options.pattern:
            pattern = re.compile(options.pattern)
            there = admin.topics()
            names = [each for each in there if pattern.fullmatch(each) and not HIDDEN.match(each)]
        queues = []
        for topic in sorted(names):
            try:
                stats = admin.topic_stats(topic)
            except NoRoute:
                raise self._no_topic(topic) from None
            queues += [
                SourceQueue(
                    topic=topic, queue=_name(each), earliest=of.min_offset, end=of.max_offset
                )
                for each, of in sorted(stats.items())
            ]
        return SourceQueues(epoch=0, queues=queues)

    def _no_topic(self, topic: str) -> BulkError:
        close = get_close_matches(topic, self._asking().topics(), n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return BulkError(NO_TOPIC, f"{self._options.endpoint} has no topic {topic!r}{hint}")

    def _note(self, start: OffsetsByQueue) -> None:
        """Store what is processed, where it has changed."""
        if not self._options.is_named:
            return
        for topic, queues in start.items():
            for name, offset in queues.items():
                broker, _, number = name.rpartition(":")
                queue = QueueRef(topic, broker, int(number))
                if self._noted.get(queue) == offset:
                    continue
                # For people's eyes only: a query must not fail because of it.
                with suppress(ClientError):
                    self._pulling().commit(queue, offset)
                    self._noted[queue] = offset

    def _chunks(self, queue: QueueRef, total: Summary, end: int) -> Iterator[list[ReceivedMessage]]:
        """Messages of one pull after the other; ``total`` says how far they go."""
        wanted = self._options.filter
        tags = wanted.text if wanted is not None and wanted.kind != SQL92 else "*"
        sql = wanted.text if wanted is not None and wanted.kind == SQL92 else None
        consumer = self._pulling()
        while total.next_offset < end:
            at = total.next_offset
            count = min(self._options.rows_per_batch, 1024, end - at)
            try:
                result = consumer.pull(queue, at, max_messages=count, tags=tags, sql=sql)
            except (Unreachable, TimedOut):
                raise
            except ClientError as problem:
                raise BulkError(BAD_REQUEST, str(problem)) from None
            messages = [each for each in result.messages if at <= each.offset < end]
            following = min(end, max(result.next_offset, at))
            if result.max_offset <= at or result.min_offset >= end:
                following = end
            if following == at:
                raise Unreachable(queue.broker, f"no message from offset {at} on, and no reason")
            # Below the queue's beginning they are lost; else a filter passed them over.
            lost = max(0, min(result.min_offset, following) - at)
            if wanted is None:
                lost = following - at - len(messages)
            total.next_offset = following
            total.rows += len(messages)
            total.lost += lost
            total.read += following - at - lost
            total.bytes += sum(each.stored_bytes for each in messages)
            yield messages

    def _asking(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self._servers)
            self._admin.start()
        return self._admin

    def _pulling(self) -> PullConsumer:
        if self._consumer is None:
            group = self._options.subscription
            self._consumer = PullConsumer(self._servers, group, registers_group=False)
            self._consumer.start()
        return self._consumer

    def _patiently(self, call: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._options.retry_s
        pause = PAUSE_S
        while True:
            try:
                return call()
            except (Unreachable, TimedOut) as problem:
                if time.monotonic() + pause > deadline:
                    raise self._unreachable(problem) from None
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_S_MAX)

    def _unreachable(self, problem: ClientError) -> BulkError:
        return BulkError(UNREACHABLE, f"no answer from {self._options.endpoint}: {problem}")


def batch_of(
    messages: list[ReceivedMessage], queue: QueueRef, columns: tuple[str, ...]
) -> pa.RecordBatch:
    """Messages as Arrow, only the columns that are wanted."""
    makers: dict[str, Callable[[], list[object]]] = {
        "topic": lambda: [queue.topic] * len(messages),
        "queue": lambda: [queue.queue] * len(messages),
        "offset": lambda: [each.offset for each in messages],
        "timestamp": lambda: [each.stored_at_ms * 1000 for each in messages],
        "born_timestamp": lambda: [each.born_at_ms * 1000 for each in messages],
        # As everywhere else (D16): what a message is ordered by, else the first of its keys.
        "key": lambda: [each.ordering_key or next(iter(each.keys), None) for each in messages],
        "tag": lambda: [each.tag for each in messages],
        "properties": lambda: [_own_properties(each) for each in messages],
        "protocol": lambda: ["rocketmq"] * len(messages),
        "body": lambda: [_body(each) for each in messages],
        "message_id": lambda: [each.message_id or None for each in messages],
    }
    schema = arrow_schema(list(columns))
    return pa.RecordBatch.from_arrays(
        [pa.array(makers[field.name](), type=field.type) for field in schema], schema=schema
    )


def _own_properties(message: ReceivedMessage) -> list[tuple[str, str]]:
    """The user's own, as a Penstock gives them."""
    return [pair for pair in message.properties.items() if pair[0] not in SYSTEM_NAMES]


def _body(message: ReceivedMessage) -> bytes:
    """As it was stored, when it cannot be inflated: one bad message must not stop a query."""
    try:
        return message.body
    except BodyUnreadable:
        return message.stored.body


def _name(queue: QueueRef) -> str:
    return f"{queue.broker}:{queue.queue}"
