"""Message trace: who sent and who consumed each message, written to RocketMQ's trace topic.

``Trace`` collects records on the client's loop and sends them ten at a time, or after five
seconds, through whatever ``send`` it was given; ``SendTrace`` and ``ConsumeTrace`` are the hooks
that feed it. It never holds up what it traces: when trace messages cannot be sent, records wait
within a bound, then they are counted and forgotten.

Invariants: messages of the trace topic are not traced; at most ``SENDS_MAX`` trace messages are on
their way.
Not here: the text of a record (``trace_records.py``), when hooks are called (``producer/hooks.py``,
``consumer/hooks.py``).
"""

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final, NamedTuple, TypedDict

from penstock.client.consumer.results import Finished, ResultKind
from penstock.client.loop import client_loop
from penstock.client.message import Message, ReceivedMessage
from penstock.client.options import Option
from penstock.client.producer.hooks import EndContext, SendContext, SendHook
from penstock.client.producer.transaction_state import TransactionState
from penstock.client.trace_records import (
    BATCH_WAIT_MS,
    TRACE_TOPIC,
    ConsumeOutcome,
    TraceBatches,
    TracedKind,
    TraceRecord,
    consumed,
    consuming,
    published,
    transaction_ended,
)
from penstock.model.assignment import QueueRef

_log = logging.getLogger(__name__)

SENDS_MAX: Final = 4
"""Trace messages on their way at once; more would compete with what is traced."""
STOP_SECONDS_MAX: Final = 3.0

OUTCOMES: Final = {
    ResultKind.SUCCESS: ConsumeOutcome.SUCCESS,
    ResultKind.TIME_OUT: ConsumeOutcome.TIME_OUT,
    ResultKind.EXCEPTION: ConsumeOutcome.EXCEPTION,
    ResultKind.LATER: ConsumeOutcome.LATER,
}
STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}


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


class Trace:
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

    def _written(self, task: "asyncio.Task[None]") -> None:
        self._sends.discard(task)
        if len(self._batches):
            self._flush()


class SendTrace(SendHook):
    """Records every send and every end of a transaction."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def after(self, context: SendContext) -> None:
        """One record per message of the send; oneway sends leave none, nobody knows their end."""
        if context.is_oneway or context.messages[0].topic == self._trace.topic:
            return
        result = context.result
        cost_ms = context.cost_ms // len(context.messages)
        offset_ids = result.offset_message_id.split(",") if result is not None else []
        records = [
            published(
                at_ms=context.born_ms,
                group=context.group,
                topic=message.topic,
                message_id=unique_key,
                tag=message.tag or "",
                keys=" ".join(message.keys),
                store_host=context.address,
                body_bytes=len(message.body),
                cost_ms=cost_ms,
                kind=TracedKind(context.kind.value),
                offset_message_id=offset_id,
                is_ok=result is not None,
            )
            for message, unique_key, offset_id in itertools.zip_longest(
                context.messages, context.unique_keys, offset_ids[: len(context.messages)],
                fillvalue="",
            )
            if not isinstance(message, str)
        ]  # fmt: skip
        self._trace.record(*records)

    def transaction_ended(self, context: EndContext) -> None:
        """One record."""
        record = transaction_ended(
            at_ms=_wall_ms(),
            group=context.group,
            topic=context.topic,
            message_id=context.message_id,
            tag=context.tag,
            keys=context.keys,
            store_host=context.address,
            transaction_id=context.transaction_id,
            state=STATES[context.state],
            is_from_check=context.is_from_check,
        )
        self._trace.record(record)


class ConsumeTrace:
    """Records every call of a listener: what it got, and how it ended."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def before(self, group: str, queue: QueueRef, messages: Sequence[ReceivedMessage]) -> object:
        """One record per message; returns the request id."""
        request_id = os.urandom(16).hex().upper()
        at_ms = _wall_ms()
        self._trace.record(
            *[
                consuming(
                    at_ms=at_ms,
                    group=group,
                    request_id=request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=" ".join(message.keys),
                )
                for message in self._traced(messages)
            ]
        )
        return request_id

    def after(self, group: str, queue: QueueRef, finished: Finished, context: object) -> None:
        """One record per message, with the request id of ``before``."""
        outcome = OUTCOMES[finished.kind]
        cost_ms = int(finished.spent_ms / max(len(finished.messages), 1))
        at_ms = _wall_ms()
        self._trace.record(
            *[
                consumed(
                    at_ms=at_ms,
                    group=group,
                    request_id=str(context),
                    message_id=message.message_id,
                    cost_ms=cost_ms,
                    keys=" ".join(message.keys),
                    outcome=outcome,
                )
                for message in self._traced(finished.messages)
            ]
        )

    def _traced(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        return [
            each
            for each in messages
            if each.topic != self._trace.topic and each.property_value("TRACE_ON") != "false"
        ]


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
