"""Getting and putting rows over Flight, for whoever has only Python and pyarrow: executors (D15).

One ``RowClient`` is one connection to the Flight port (``host:port``), made when it is first
needed; it may be pickled, and the copy connects by itself. Calls may come from several threads.

What passes (the Flight process restarts, too many readers at once) is tried again until
``patience_s`` are over, then it is a ``BulkError`` of kind "unreachable". A read goes on behind the
last row it gave, so rows never come twice. A put cannot go on after a break: whoever has the rows
puts them again, under another name.

Run-ahead: without ``grpc.http2.bdp_probe=0`` gRPC buffers more than 100 MB for a reader that does
not read; with it, about ``LOOKAHEAD_BYTES``.

Not here: questions of the driver (``client.py``), who answers (``flight.py``). Nothing here may
import a compiled module but pyarrow's: ``penstock spark package`` puts this file into a zip.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, Final, Self

import pyarrow as pa
from pyarrow import flight

from penstock.bulk.tickets import BulkError, Summary, Ticket, decode_summary, to_json
from penstock.model.spark_batch import (
    BAD_REQUEST,
    UNREACHABLE,
    BatchProgress,
    StageCommand,
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
LOOKAHEAD_BYTES: Final = 4 * 1024 * 1024
FLIGHT_OPTIONS: Final = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
]
"""For everybody who connects with ``pyarrow.flight`` directly, too."""


class RowClient:
    """Talks to one Flight port."""

    def __init__(self, endpoint: str, *, patience_s: float = PATIENCE_S) -> None:
        self.endpoint: Final = endpoint
        self.patience_s: Final = patience_s
        self.summary = Summary()
        """Of the last ``read`` that was read to its end."""
        self._lock = threading.Lock()
        self._connection: Any = None

    def __reduce__(self) -> tuple[Callable[..., RowClient], tuple[type[RowClient], str, float]]:
        """The description only; the copy connects by itself."""
        return _connect_anew, (type(self), self.endpoint, self.patience_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call makes another."""
        self._drop_connection()

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

    # Questions

    def report(
        self, subscription: str, progress: BatchProgress, *, state: str = "running", text: str = ""
    ) -> None:
        """Tell the broker how a batch went; for ``REPORT_S_MAX`` at most, then it is given up."""
        said = {"subscription": subscription, "state": state, "text": text}
        body = json.dumps({**said, "progress": asdict(progress)}).encode()
        patience_s = min(self.patience_s, REPORT_S_MAX)
        self.call("report", body, call_s_max=patience_s, patience_s=patience_s)

    def call(
        self, name: str, body: bytes, *, call_s_max: float = CALL_S_MAX, patience_s: float
    ) -> bytes:
        """An action of the Flight server: its body and its answer are JSON."""

        def once() -> bytes:
            options = flight.FlightCallOptions(timeout=call_s_max)
            results = self._connected().do_action(flight.Action(name, body), options)
            return b"".join(result.body.to_pybytes() for result in results)

        retry = _Backoff(patience_s)
        while True:
            try:
                return once()
            except (pa.ArrowException, OSError) as problem:
                self._drop_connection()
                retry.pause(_as_bulk_error(problem, self.endpoint))

    # The connection

    def _chunks(self, ticket: Ticket) -> Iterator[tuple[pa.RecordBatch, Summary]]:
        reader = self._connected().do_get(flight.Ticket(ticket.encode()))
        try:
            for chunk in reader:
                note = chunk.app_metadata
                if note is None:
                    raise BulkError(
                        BAD_REQUEST, f"{self.endpoint} is no Penstock: rows say nothing"
                    )
                yield chunk.data, decode_summary(note.to_pybytes())
        finally:
            # Without this the server would go on decoding for a reader that has left.
            reader.cancel()

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
        descriptor = flight.FlightDescriptor.for_command(to_json(self._command))
        writer, notes = connection.do_put(descriptor, first.schema)
        try:
            writer.write_batch(first)
            rows = first.num_rows
            for batch in rest:
                self.has_begun = True
                writer.write_batch(batch)
                rows += batch.num_rows
            writer.write_metadata(json.dumps({"rows": rows}).encode())
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
        return StageReceipt(**json.loads(receipt.to_pybytes()))


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


def _connect_anew(kind: type[RowClient], endpoint: str, patience_s: float) -> RowClient:
    return kind(endpoint, patience_s=patience_s)


def _as_bulk_error(problem: Exception, endpoint: str) -> BulkError:
    """What the server said, if it said something; else that it could not be reached."""
    if isinstance(problem, BulkError):
        return problem
    extra = getattr(problem, "extra_info", b"")
    if extra:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            said = json.loads(extra)
            return BulkError(said["kind"], said["text"])
    return BulkError(
        UNREACHABLE, f"no answer from Penstock's Flight port {endpoint}: {_plainly(str(problem))}"
    )


def _plainly(said: str) -> str:
    """What everybody meets in plain words, the rest in those of gRPC."""
    if "Connection refused" in said:
        return "nothing listens there; is the broker up?"
    if "Deadline Exceeded" in said:
        return "it did not answer in time"
    return " ".join(said.split())[:300]


def _sum(before: Summary, so_far: Summary) -> Summary:
    return Summary(
        next_offset=so_far.next_offset,
        rows=before.rows + so_far.rows,
        read=before.read + so_far.read,
        lost=before.lost + so_far.lost,
        dropped=before.dropped + so_far.dropped,
        bytes=before.bytes + so_far.bytes,
    )
