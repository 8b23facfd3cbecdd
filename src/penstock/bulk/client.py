"""The client's side of the bulk lane: questions to the broker and rows of it, over Flight.

One ``BulkClient`` is one connection to the Flight port (``host:port``), made when it is first
needed; it may be pickled, and the copy connects by itself. Calls may come from several threads.

What passes (the Flight process restarts, too many readers at once) is tried again until
``patience_s`` are over, then it is a ``BulkError`` of kind "unreachable". A read goes on behind the
last row it gave, so rows never come twice.

Rows go the other way with ``put_stage`` and become visible with ``commit_batch`` (D19). A put
cannot go on after a break: whoever has the rows puts them again, under another name; a commit that
broke is asked for again, which changes nothing when it was done.

Run-ahead: without ``grpc.http2.bdp_probe=0`` gRPC buffers more than 100 MB for a reader that does
not read; with it, about ``LOOKAHEAD_BYTES``.

Not here: the messages (``model/queries.py``, ``link.py``), reading files (``offline.py``).
Imports the model and the messages only (D15): Spark executors load nothing of the broker.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyarrow import flight

from penstock.bulk.link import BulkError, Problem, Summary, Ticket
from penstock.model.queries import (
    BAD_REQUEST,
    HELD,
    RESPONSES,
    UNREACHABLE,
    AbortBatchRequest,
    AbortBatchResponse,
    AnyRequest,
    AnyResponse,
    BatchProgress,
    CommitBatchRequest,
    CommitBatchResponse,
    LeaseRequest,
    LeaseResponse,
    OffsetMap,
    OffsetsByTimeRequest,
    OffsetsByTimeResponse,
    PollRequest,
    PollResponse,
    ReleaseRequest,
    ReportRequest,
    ResolveRequest,
    ResolveResponse,
    SinkStateRequest,
    SinkStateResponse,
    StageCommand,
    StageEnd,
    StageReceipt,
)

PATIENCE_S: Final = 30.0
"""A Flight process that died is back in seconds; longer is an outage that a query should see."""
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 2.0
CALL_S_MAX: Final = 10.0
"""Beside the wait that a poll asks for."""
REPORT_S_MAX: Final = 2.0
"""For telling how a batch went: the end of a task must not wait for a broker that is away."""
COMMIT_WAIT_MS: Final = 15_000
"""How long one question for a commit waits at the broker; then it is asked again."""
COMMIT_PATIENCE_S: Final = 600.0
"""How long a commit waits for topics that are above their limit, in all."""
LOOKAHEAD_BYTES: Final = 4 * 1024 * 1024
FLIGHT_OPTIONS: Final = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
]
"""For everybody who connects with ``pyarrow.flight`` directly, too."""


class BulkClient:
    """Talks to one Flight port."""

    def __init__(self, endpoint: str, *, patience_s: float = PATIENCE_S) -> None:
        self.endpoint: Final = endpoint
        self.patience_s: Final = patience_s
        self.summary = Summary()
        """Of the last ``read`` that was read to its end."""
        self._lock = threading.Lock()
        self._connection: Any = None

    def __reduce__(self) -> tuple[Callable[..., "BulkClient"], tuple[str, float]]:
        """The description only; the copy connects by itself."""
        return _client, (self.endpoint, self.patience_s)

    def __enter__(self) -> "BulkClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Questions

    def resolve(
        self, topics: list[str] | None = None, *, pattern: str | None = None
    ) -> ResolveResponse:
        """Topics, their queues and what can be read of each."""
        answer = self.ask(ResolveRequest(topics=topics, pattern=pattern))
        assert isinstance(answer, ResolveResponse)
        return answer

    def poll(self, request: PollRequest[int]) -> PollResponse[int]:
        """Where the next batch ends; waits at the broker up to ``request.wait_ms``."""
        answer = self.ask(request, wait_s=request.wait_ms / 1000)
        assert isinstance(answer, PollResponse)
        return answer

    def by_time(self, topic: str, at_ms: int) -> OffsetMap:
        """First offsets stored at or after a time."""
        answer = self.ask(OffsetsByTimeRequest(topic=topic, at_ms=at_ms))
        assert isinstance(answer, OffsetsByTimeResponse)
        return answer.offsets

    def lease(self, question: LeaseRequest) -> LeaseResponse:
        """Keep what a subscription has not processed."""
        answer = self.ask(question)
        assert isinstance(answer, LeaseResponse)
        return answer

    def release(self, subscription: str, *, is_final: bool = False) -> None:
        self.ask(ReleaseRequest(subscription=subscription, is_final=is_final))

    def report(
        self, subscription: str, progress: BatchProgress, *, state: str = "running", text: str = ""
    ) -> None:
        """Tell the broker how a batch went; for ``REPORT_S_MAX`` at most, then it is given up."""
        report = ReportRequest(subscription=subscription, progress=progress, state=state, text=text)
        self.ask(report, patience_s=min(self.patience_s, REPORT_S_MAX))

    def ask(
        self, question: AnyRequest, *, wait_s: float = 0.0, patience_s: float | None = None
    ) -> AnyResponse:
        """Any question of ``link.ACTIONS``."""
        name = str(question.__struct_config__.tag)
        body = msgspec.json.encode(question)
        call_s_max = CALL_S_MAX + wait_s if patience_s is None else patience_s
        patience_s = self.patience_s if patience_s is None else patience_s

        def call() -> bytes:
            options = flight.FlightCallOptions(timeout=call_s_max)
            results = self._connected().do_action(flight.Action(name, body), options)
            return b"".join(result.body.to_pybytes() for result in results)

        return msgspec.json.decode(self._with_retries(call, patience_s), type=RESPONSES[name])

    # Rows

    def read(self, ticket: Ticket) -> Iterator[pa.RecordBatch]:
        """The rows of a ticket; after a break it goes on behind the last batch it gave.

        ``summary`` says afterwards what became of the range.
        """
        total = Summary(next_offset=ticket.start)
        retry = _Backoff(self.patience_s)
        while total.next_offset < ticket.end:
            before = total
            rest = replace(ticket, start=before.next_offset)
            try:
                for batch, so_far in self._chunks(rest):
                    total = _sum(before, so_far)
                    retry.restart()
                    if batch.num_rows:
                        yield batch
                if total.next_offset < ticket.end:
                    raise BulkError(UNREACHABLE, f"rows ended at {total.next_offset}, too early")
            except (pa.ArrowException, OSError, BulkError) as problem:
                self._drop_connection()
                retry.pause(_as_bulk_error(problem, self.endpoint))
        self.summary = total

    # Staged writes

    def put_stage(self, command: StageCommand, batches: Iterable[pa.RecordBatch]) -> StageReceipt:
        """Put rows beside the log; they are durable when this returns, and visible to nobody.

        Waits while the broker has no room for them. A break is tried again before the first batch
        was taken out of ``batches``; later it is an error of kind "unreachable", and the rows are
        put again under another name (``command.stage``). Without rows nothing is put.
        """
        rest = iter(batches)
        first = next(rest, None)
        if first is None:
            return StageReceipt(name=command.name, rows=0)
        retry = _Backoff(self.patience_s)
        while True:
            put = _Put(command)
            try:
                return put.run(self._connected(), first, rest)
            except (pa.ArrowException, OSError, BulkError) as problem:
                self._drop_connection()
                error = _as_bulk_error(problem, self.endpoint)
                if put.has_begun:
                    raise error from None
                retry.pause(error)

    def commit_batch(
        self, request: CommitBatchRequest, *, patience_s: float = COMMIT_PATIENCE_S
    ) -> CommitBatchResponse:
        """The puts it names become visible together; returns when that is durable.

        Waits for topics above their limit; after ``patience_s`` an error of kind "held" says for
        which. Nothing is visible then, and the same commit may be asked for again.
        """
        deadline = time.monotonic() + patience_s
        while True:
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            request.wait_ms = min(COMMIT_WAIT_MS, left_ms)
            answer = self.ask(request, wait_s=request.wait_ms / 1000)
            assert isinstance(answer, CommitBatchResponse)
            if not answer.held:
                return answer
            if not left_ms:
                raise BulkError(
                    HELD,
                    f"batch {request.batch} of sink '{request.sink}' waited {patience_s:.0f} s and "
                    f"is not committed: {answer.held}",
                )

    def abort_batch(self, request: AbortBatchRequest) -> AbortBatchResponse:
        """Puts that count no more; a batch that is committed stays so."""
        answer = self.ask(request)
        assert isinstance(answer, AbortBatchResponse)
        return answer

    def sink_state(self, sink: str, query: str) -> SinkStateResponse:
        """The last batch of a query that is visible in a sink."""
        answer = self.ask(SinkStateRequest(sink=sink, query=query))
        assert isinstance(answer, SinkStateResponse)
        return answer

    def close(self) -> None:
        """Close the connection; the next call makes another."""
        self._drop_connection()

    def _chunks(self, ticket: Ticket) -> Iterator[tuple[pa.RecordBatch, Summary]]:
        reader = self._connected().do_get(flight.Ticket(ticket.encode()))
        try:
            for chunk in reader:
                note = chunk.app_metadata
                if note is None:
                    raise BulkError(
                        BAD_REQUEST, f"{self.endpoint} is no Penstock: rows say nothing"
                    )
                yield chunk.data, msgspec.json.decode(note.to_pybytes(), type=Summary)
        finally:
            # Without this the server would go on decoding for a reader that has left.
            reader.cancel()

    def _with_retries(self, call: Callable[[], bytes], patience_s: float) -> bytes:
        retry = _Backoff(patience_s)
        while True:
            try:
                return call()
            except (pa.ArrowException, OSError) as problem:
                self._drop_connection()
                retry.pause(_as_bulk_error(problem, self.endpoint))

    def _connected(self) -> Any:
        with self._lock:
            if self._connection is None:
                self._connection = flight.connect(
                    f"grpc://{self.endpoint}", generic_options=FLIGHT_OPTIONS
                )
            return self._connection

    def _drop_connection(self) -> None:
        """Forget it without closing: other threads may be reading from it."""
        with self._lock:
            self._connection = None


class _Put:
    """One try of a put."""

    def __init__(self, command: StageCommand) -> None:
        self._command = command
        self.has_begun = False
        """True once more than the first batch was taken: it cannot be tried again."""

    def run(
        self, connection: Any, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
    ) -> StageReceipt:
        """Send everything, then wait for the receipt.

        The last word says how many rows there were: without it the server drops what came, so a
        source of rows that fails half-way leaves nothing behind.
        """
        descriptor = flight.FlightDescriptor.for_command(msgspec.json.encode(self._command))
        writer, notes = connection.do_put(descriptor, first.schema)
        try:
            writer.write_batch(first)
            rows = first.num_rows
            for batch in rest:
                self.has_begun = True
                writer.write_batch(batch)
                rows += batch.num_rows
            writer.write_metadata(msgspec.json.encode(StageEnd(rows=rows)))
            writer.done_writing()
            receipt = notes.read()
        except BaseException:
            # Closed in any case; what it says then is not more than what is known already.
            with contextlib.suppress(pa.ArrowException, OSError):
                writer.close()
            raise
        writer.close()
        if receipt is None:
            raise BulkError(UNREACHABLE, "the put ended without a receipt")
        return msgspec.json.decode(receipt.to_pybytes(), type=StageReceipt)


class _Backoff:
    """Pauses between attempts, until there were enough of them."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.restart()

    def restart(self) -> None:
        """Something worked: begin anew."""
        self._pause_s = PAUSE_S
        self._deadline = time.monotonic() + self._patience_s

    def pause(self, problem: BulkError) -> None:
        """Wait before the next attempt, or raise what cannot be cured by waiting."""
        if problem.kind != UNREACHABLE or time.monotonic() + self._pause_s > self._deadline:
            raise problem
        # Many executors lose their stream at the same moment and should not return as one.
        time.sleep(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)


def _client(endpoint: str, patience_s: float) -> BulkClient:
    return BulkClient(endpoint, patience_s=patience_s)


def _as_bulk_error(problem: Exception, endpoint: str) -> BulkError:
    """What the server said, if it said something; else that it could not be reached."""
    if isinstance(problem, BulkError):
        return problem
    extra = getattr(problem, "extra_info", b"")
    if extra:
        try:
            said = msgspec.json.decode(extra, type=Problem)
            return BulkError(said.kind, said.text)
        except msgspec.MsgspecError:
            pass
    return BulkError(
        UNREACHABLE, f"no answer from Penstock's Flight port {endpoint}: {str(problem)[:300]}"
    )


def _sum(before: Summary, so_far: Summary) -> Summary:
    return Summary(
        next_offset=so_far.next_offset,
        rows=before.rows + so_far.rows,
        read=before.read + so_far.read,
        lost=before.lost + so_far.lost,
        dropped=before.dropped + so_far.dropped,
        bytes=before.bytes + so_far.bytes,
    )
