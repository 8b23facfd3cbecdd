"""Message trace: who sent and who consumed each message, written to RocketMQ's trace topic.

``TraceDispatcher`` collects records on the client's loop and sends them ten at a time, or after
five seconds, through whatever ``send`` it was given; hooks of producers and consumers feed it. It
never holds up what it traces: when trace messages cannot be sent, records wait within a bound, then
they are counted and forgotten.

Invariants: messages of the trace topic are not traced; at most ``SENDS_MAX`` trace messages are on
their way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Annotated, Final, NamedTuple, TypedDict

from penstock.client.loop import client_loop
from penstock.client.message import Message
from penstock.client.options import Option

_log = logging.getLogger(__name__)

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
DEFAULT_REGION: Final = "DefaultRegion"
_TRANSACTION_COMMIT: Final = 2
"""The kind of message that RocketMQ writes of every end of a transaction."""

WAITING_MAX: Final = 2048
"""Records that wait for their trace message; RocketMQ's dispatcher queues as many contexts."""
BATCH_WAIT_MS: Final = 5_000
BATCH_CHARS_MAX: Final = 128_000
"""A trace message has at most so many bytes; records are ASCII but for user keys."""
SENDS_MAX: Final = 4
"""Trace messages on their way at once; more would compete with what is traced."""
STOP_SECONDS_MAX: Final = 3.0


class TraceDispatcher:
    """Collects records and sends them; ``record`` may be called from any thread."""

    def __init__(
        self,
        send: Callable[[Message], Awaitable[object]],
        *,
        topic: str = TRACE_TOPIC,
        records_max: int = 10,
    ) -> None:
        self.topic = topic
        self._send = send
        self._batches = TraceBatches(records_max)
        self._sends: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._sent = 0
        self._failed = 0

    @property
    def counts(self) -> TraceCounts:
        """What became of the records so far."""
        return TraceCounts(self._sent, self._batches.forgotten, self._failed)

    def record(self, *records: TraceRecord) -> None:
        """Take records; cheap, from any thread."""
        thread = client_loop()
        if thread.is_current:
            self._take(records)
        else:
            thread.post(self._take, records)

    async def stop(self) -> None:
        """Send what waits, and wait for it a little; on the client's loop."""
        self._is_stopped = True
        self._flush(is_last=True)
        if self._sends:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    asyncio.gather(*self._sends, return_exceptions=True), STOP_SECONDS_MAX
                )
        if self._timer is not None:
            self._timer.cancel()

    def _take(self, records: Sequence[TraceRecord]) -> None:
        loop = asyncio.get_running_loop()
        now_ms = int(loop.time() * 1000)
        is_full = False
        for record in records:
            is_full |= self._batches.add(record, now_ms)
        if is_full:
            self._flush()
        elif self._timer is None and not self._is_stopped:
            self._timer = loop.call_later(BATCH_WAIT_MS / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._flush()
        if len(self._batches) and not self._is_stopped:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(BATCH_WAIT_MS / 1000, self._on_timer)

    def _flush(self, *, is_last: bool = False) -> None:
        if len(self._sends) >= SENDS_MAX and not is_last:
            return
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        for text, keys in self._batches.due(now_ms, is_last=is_last):
            task = asyncio.create_task(self._write(text, keys))
            self._sends.add(task)
            task.add_done_callback(self._written)

    async def _write(self, text: str, keys: tuple[str, ...]) -> None:
        records = text.count("\x02")
        try:
            await self._send(Message(self.topic, text.encode(), keys=keys))
            self._sent += records
        except Exception as error:
            if not self._failed:
                _log.warning("message trace cannot be sent", extra={"error": str(error)})
            self._failed += records

    def _written(self, task: asyncio.Task[None]) -> None:
        self._sends.discard(task)
        if len(self._batches):
            self._flush()


class TraceOptions(TypedDict, total=False):
    """Options of whatever can be traced."""

    trace: Annotated[bool, Option(False, "Write a trace of every message to the trace topic.")]
    trace_topic: Annotated[str, Option(TRACE_TOPIC, "Where the trace goes.")]
    trace_batch_max: Annotated[
        int, Option(10, "Records of one trace message; fewer after 5 s.", minimum=1, maximum=20)
    ]


class TraceCounts(NamedTuple):
    """What became of trace records."""

    sent: int
    forgotten: int
    """No place: trace messages could not be sent as fast as records came."""
    failed: int
    """In trace messages that could not be sent."""


class TraceBatches:
    """Records that wait, bounded, and when the next trace message is due."""

    def __init__(self, records_max: int, *, waiting_max: int = WAITING_MAX) -> None:
        self._records_max = records_max
        self._waiting_max = waiting_max
        self._waiting: deque[TraceRecord] = deque()
        self._since_ms: int | None = None
        self.forgotten = 0
        """Records that found no place."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, record: TraceRecord, now_ms: int) -> bool:
        """Take a record; True when a batch is complete with it."""
        if len(self._waiting) >= self._waiting_max:
            self.forgotten += 1
            return False
        if self._since_ms is None:
            self._since_ms = now_ms
        self._waiting.append(record)
        return len(self._waiting) >= self._records_max

    def due(self, now_ms: int, *, is_last: bool = False) -> list[tuple[str, tuple[str, ...]]]:
        """(text, keys) of every trace message to send now; whole batches, and all that is old."""
        is_old = self._since_ms is not None and now_ms - self._since_ms >= BATCH_WAIT_MS
        found = []
        while self._waiting and (is_old or is_last or len(self._waiting) >= self._records_max):
            found.append(self._take())
        if not self._waiting:
            self._since_ms = None
        elif found:
            self._since_ms = now_ms
        return found

    def _take(self) -> tuple[str, tuple[str, ...]]:
        texts: list[str] = []
        keys: dict[str, None] = {}
        chars = 0
        while self._waiting and len(texts) < self._records_max:
            chars += len(self._waiting[0].text)
            if texts and chars > BATCH_CHARS_MAX:
                break
            record = self._waiting.popleft()
            texts.append(record.text)
            keys.update(dict.fromkeys(record.keys))
        return "".join(texts), tuple(keys)


# The text of a trace message, as RocketMQ's tools and dashboards read it:
#
#     record 02 record 02 ...      a record:  kind 01 field 01 field ...
#
# Kinds: ``Pub`` (a message was sent), ``SubBefore`` and ``SubAfter`` (a listener was called, and
# how it ended; both carry the same request id), ``EndTransaction``. One record per message, also
# where one call of a listener had many.


class ConsumeOutcome(IntEnum):
    """How a listener ended; the numbers are on the wire."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    NOTHING = 3
    LATER = 4


class TraceRecord(NamedTuple):
    """One record, ready to be sent, and the keys by which it shall be found."""

    text: str
    keys: tuple[str, ...]


def _record(keys: tuple[str, ...], *fields: object) -> TraceRecord:
    # A separator inside a field would make two fields of it, for every reader.
    texts = [str(each).replace(FIELD_END, " ").replace(RECORD_END, " ") for each in fields]
    return TraceRecord(FIELD_END.join(texts) + RECORD_END, tuple(key for key in keys if key))


def _flag(is_true: bool) -> str:
    return "true" if is_true else "false"


def publish_record(
    *,
    at_ms: int,
    group: str,
    topic: str,
    message_id: str,
    tag: str,
    keys: str,
    store_host: str,
    body_bytes: int,
    cost_ms: int,
    kind: int,
    offset_message_id: str,
    is_ok: bool,
) -> TraceRecord:
    """A message was sent, or could not be; ``kind`` is the value of a ``SendKind``."""
    return _record(
        (message_id, *keys.split()),
        "Pub", at_ms, DEFAULT_REGION, group, topic, message_id, tag, keys, store_host, body_bytes,
        cost_ms, kind, offset_message_id, _flag(is_ok),
    )  # fmt: skip


def consume_begin_record(
    *,
    at_ms: int,
    group: str,
    request_id: str,
    message_id: str,
    retry_times: int,
    keys: str,
) -> TraceRecord:
    """A listener is about to be called with a message."""
    return _record(
        (message_id, *keys.split()),
        "SubBefore", at_ms, DEFAULT_REGION, group, request_id, message_id, retry_times, keys,
    )  # fmt: skip


def consume_end_record(
    *,
    at_ms: int,
    group: str,
    request_id: str,
    message_id: str,
    cost_ms: int,
    keys: str,
    outcome: ConsumeOutcome,
) -> TraceRecord:
    """A listener was called with a message and ended."""
    is_ok = outcome is ConsumeOutcome.SUCCESS
    return _record(
        (message_id, *keys.split()),
        "SubAfter", request_id, message_id, cost_ms, _flag(is_ok), keys, int(outcome), at_ms, group,
    )  # fmt: skip


def transaction_record(
    *,
    at_ms: int,
    group: str,
    topic: str,
    message_id: str,
    tag: str,
    keys: str,
    store_host: str,
    transaction_id: str,
    state: str,
    is_from_check: bool,
) -> TraceRecord:
    """A transaction was decided; ``state`` is COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""
    return _record(
        (message_id, *keys.split()),
        "EndTransaction", at_ms, DEFAULT_REGION, group, topic, message_id, tag, keys, store_host,
        _TRANSACTION_COMMIT, transaction_id, state, _flag(is_from_check),
    )  # fmt: skip


def parse_records(text: str) -> list[list[str]]:
    """The records of a trace message, each as its fields; for those who look at traces."""
    return [each.split(FIELD_END) for each in text.split(RECORD_END) if each]
