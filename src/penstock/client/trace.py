"""Message trace: who sent and who consumed each message, written to RocketMQ's trace topic.

``Trace`` collects records on the client's loop and sends them ten at a time, or after five
seconds, through whatever ``send`` it was given; the hooks of ``producer/tracing.py`` and
``consumer/tracing.py`` feed it. It never holds up what it traces: when trace messages cannot be
sent, records wait within a bound, then they are counted and forgotten.

Invariants: messages of the trace topic are not traced; at most ``SENDS_MAX`` trace messages are on
their way.
Not here: the text of a record (``trace_records.py``).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final, NamedTuple, TypedDict

from penstock.client.loop import client_loop
from penstock.client.message import Message
from penstock.client.options import Option
from penstock.client.trace_records import BATCH_WAIT_MS, TRACE_TOPIC, TraceBatches, TraceRecord

_log = logging.getLogger(__name__)

SENDS_MAX: Final = 4
"""Trace messages on their way at once; more would compete with what is traced."""
STOP_SECONDS_MAX: Final = 3.0


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
