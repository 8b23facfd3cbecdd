"""The Flight server: rows by ticket, questions to the broker as actions (D18).

    do_get(ticket)       rows of a range (``link.py``); each batch says where the range stands
    do_action(name, b)   a question of ``link.ACTIONS`` in JSON, answered by the broker
    list_flights         every topic, one endpoint for each queue with its ticket
    get_flight_info      the same for one topic (path) or for a command in JSON (``ReadCommand``)

So plain pyarrow needs nothing of ours: ``get_flight_info``, then ``do_get`` of each endpoint.

Bounds: ``STREAMS_MAX`` reads at a time, one more waits ``STREAM_WAIT_S`` and is then told to come
again; of these, ``DECODERS_MAX`` make a batch at a time. A batch is made when gRPC has room for it,
which is about 4 MiB ahead of a reader that connects with ``client.FLIGHT_OPTIONS``.

Errors carry ``link.Problem`` as JSON in their ``extra_info``. Not here: decoding (``reading.py``).
"""

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from pyarrow import flight

from penstock.bulk.broker import BrokerClient
from penstock.bulk.columns import known_origins
from penstock.bulk.gather import SegmentMaps
from penstock.bulk.layout import arrow_schema
from penstock.bulk.link import ROWS_PER_BATCH, BulkError, Problem, RowFilter, Ticket, decode_ticket
from penstock.bulk.reading import BatchStream, read_ticket
from penstock.model.queries import (
    ACTIONS,
    BAD_REQUEST,
    UNREACHABLE,
    AnyRequest,
    LocateRequest,
    LocateResponse,
    ResolveRequest,
    ResolveResponse,
    TopicRange,
)

STREAMS_MAX: Final = 32
"""Reads at a time; each may hold a batch or two in memory, so this bounds it at about 1 GiB."""
STREAM_WAIT_S: Final = 10.0
DECODERS_MAX: Final = max(2, os.cpu_count() or 2)
"""Batches made at the same time: more than cores would only take turns."""

_log = logging.getLogger(__name__)
_QUESTIONS: Final[msgspec.json.Decoder[AnyRequest]] = msgspec.json.Decoder(AnyRequest)


class ReadCommand(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to read, for ``get_flight_info``: a topic, and what its tickets shall say."""

    topic: str
    columns: list[str] | None = None
    filter: RowFilter | None = None
    fail_on_data_loss: bool = True
    rows_per_batch: int = ROWS_PER_BATCH
    check: bool = False


class BrokerDirectory:
    """The data directory of a living broker; satisfies ``reading.RowSource``."""

    def __init__(self, directory: Path, broker: BrokerClient) -> None:
        self.directory: Final = directory
        self.maps: Final = SegmentMaps(directory)
        self.origins: Final = known_origins()
        self._broker = broker

    def locate(self, ticket: Ticket, start: int) -> LocateResponse:
        """Ask the broker where the entries are."""
        question = LocateRequest(
            topic=ticket.topic, queue=ticket.queue, start=start, end=ticket.end
        )
        answer = self._broker.ask("locate", question)
        assert isinstance(answer, LocateResponse)
        return answer


class BulkServer(flight.FlightServerBase):
    """Serves one data directory; pyarrow calls every method in a thread of its own.

    It reads files and asks the broker; it holds no state that a restart would lose.
    """

    def __init__(
        self,
        directory: Path,
        broker: BrokerClient,
        location: str,
        *,
        streams_max: int = STREAMS_MAX,
        beside: "BulkServer | None" = None,
    ) -> None:
        """``beside``: the same server on another address; what is bounded is bounded for both."""
        super().__init__(location)
        self._broker = broker
        self._source: BrokerDirectory
        self._streams: threading.BoundedSemaphore
        self._decoders: threading.BoundedSemaphore
        if beside is not None:
            self._source, self._streams = beside._source, beside._streams
            self._decoders = beside._decoders
            return
        self._source = BrokerDirectory(directory, broker)
        self._streams = threading.BoundedSemaphore(streams_max)
        self._decoders = threading.BoundedSemaphore(DECODERS_MAX)

    # Rows

    def do_get(self, context: Any, ticket: Any) -> Any:
        try:
            wanted = decode_ticket(ticket.ticket)
            stream = read_ticket(self._source, wanted)
        except Exception as problem:
            raise _flight_error(problem) from None
        return flight.GeneratorStream(arrow_schema(wanted.columns), self._batches(stream))

    def _batches(self, stream: BatchStream) -> Iterator[Any]:
        """One batch after the other, each with the state of its range."""
        if not self._streams.acquire(timeout=STREAM_WAIT_S):
            raise _flight_error(BulkError(UNREACHABLE, "too many reads at a time; come again"))
        try:
            while True:
                with self._decoders:
                    step = next(stream, None)
                if step is None:
                    return
                batch, so_far = step
                yield batch, msgspec.json.encode(so_far)
        except BulkError as problem:
            raise _flight_error(problem) from None
        except OSError as problem:
            _log.warning("a read failed", extra={"why": str(problem)})
            raise _flight_error(
                BulkError(UNREACHABLE, f"reading the log failed: {problem}")
            ) from None
        except Exception as problem:
            raise _flight_error(problem) from None
        finally:
            # Also when the reader has left: pyarrow then closes this generator.
            self._streams.release()

    # Questions

    def do_action(self, context: Any, action: Any) -> Any:
        name = action.type
        try:
            if name not in ACTIONS:
                raise BulkError(
                    BAD_REQUEST, f"there is no action {name!r}, only {', '.join(ACTIONS)}"
                )
            answer = self._broker.ask(name, _question(name, action.body.to_pybytes()))
        except Exception as problem:
            raise _flight_error(problem) from None
        return iter([flight.Result(msgspec.json.encode(answer))])

    def list_actions(self, context: Any) -> Any:
        return [(name, "see penstock.bulk.link") for name in ACTIONS]

    # Topics for those who know nothing of ours

    def list_flights(self, context: Any, criteria: bytes) -> Any:
        """Every topic; ``criteria`` is a regular expression of names."""
        try:
            resolved = self._resolved(ResolveRequest(pattern=criteria.decode() or None))
        except Exception as problem:
            raise _flight_error(problem) from None
        for topic in resolved.topics:
            yield _described(topic, resolved.epoch, ReadCommand(topic=topic.name))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """The queues of one topic and a ticket for what each has now."""
        try:
            command = _command(descriptor)
            resolved = self._resolved(ResolveRequest(topics=[command.topic]))
            return _described(resolved.topics[0], resolved.epoch, command, descriptor)
        except Exception as problem:
            raise _flight_error(problem) from None

    def _resolved(self, question: ResolveRequest) -> ResolveResponse:
        answer = self._broker.ask("resolve", question)
        assert isinstance(answer, ResolveResponse)
        return answer


def _question(name: str, body: bytes) -> AnyRequest:
    """The question in the body of an action; ``do`` need not be said twice."""
    try:
        fields = msgspec.json.decode(body or b"{}", type=dict[str, msgspec.Raw])
        fields["do"] = msgspec.Raw(msgspec.json.encode(name))
        return _QUESTIONS.decode(msgspec.json.encode(fields))
    except msgspec.MsgspecError as problem:
        raise BulkError(BAD_REQUEST, f"action {name!r}: {problem}") from None


def _command(descriptor: Any) -> ReadCommand:
    if descriptor.path:
        return ReadCommand(topic=b"/".join(descriptor.path).decode())
    try:
        return msgspec.json.decode(descriptor.command or b"", type=ReadCommand)
    except msgspec.MsgspecError as problem:
        raise BulkError(
            BAD_REQUEST, f'name a topic as path, or a command like {{"topic": "orders"}}: {problem}'
        ) from None


def _described(topic: TopicRange, epoch: int, command: ReadCommand, descriptor: Any = None) -> Any:
    """A topic as Flight tells it: one endpoint, without a place of its own, for each queue."""
    endpoints, rows = [], 0
    for queue in topic.queues:
        ticket = Ticket(
            topic=topic.name,
            queue=queue.queue,
            start=queue.earliest,
            end=queue.end,
            epoch=epoch,
            incarnation=queue.incarnation,
            columns=command.columns,
            filter=command.filter,
            fail_on_data_loss=command.fail_on_data_loss,
            rows_per_batch=command.rows_per_batch,
            check=command.check,
        )
        endpoints.append(flight.FlightEndpoint(ticket.encode(), []))
        rows += queue.end - queue.earliest
    if descriptor is None:
        descriptor = flight.FlightDescriptor.for_path(topic.name)
    size = sum(queue.bytes for queue in topic.queues)
    return flight.FlightInfo(arrow_schema(command.columns), descriptor, endpoints, rows, size)


def _flight_error(problem: Exception) -> Exception:
    """The error as Flight carries it; a mistake of ours is told to the log and to nobody else."""
    if not isinstance(problem, (BulkError, ValueError)):
        _log.error("a question failed by our mistake", exc_info=problem)
        problem = BulkError(UNREACHABLE, "an internal error; the broker's log says which")
    kind = problem.kind if isinstance(problem, BulkError) else BAD_REQUEST
    extra = msgspec.json.encode(Problem(kind=kind, text=str(problem)))
    error = flight.FlightUnavailableError if kind == UNREACHABLE else flight.FlightServerError
    made: Exception = error(str(problem), extra_info=extra)
    return made
