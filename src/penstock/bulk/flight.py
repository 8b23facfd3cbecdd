"""The Flight server: rows by ticket, questions to the broker as actions (D18).

    do_get(ticket)       rows of a range (``link.py``); each batch says where the range stands
    do_put(command)      rows beside the log (``StageCommand`` as JSON); a receipt comes back (D19)
    do_action(name, b)   a question of ``link.ACTIONS`` in JSON, answered by the broker
    list_flights         every topic, one endpoint for each queue with its ticket
    get_flight_info      the same for one topic (path) or for a command in JSON (``ReadCommand``)

So plain pyarrow needs nothing of ours: ``get_flight_info``, then ``do_get`` of each endpoint.

Bounds: ``STREAMS_MAX`` reads at a time, three quarters of them from one address; one more waits
``STREAM_WAIT_S`` and is then told to come again. A read that takes nothing for ``IDLE_MS_MAX``
ends, and its connection with it. ``DECODERS_MAX`` make a batch at a time. A batch is made when gRPC
has room for it, which is about 4 MiB ahead of a reader that connects with
``client.FLIGHT_OPTIONS``. ``PUTS_MAX`` puts at a time, as reads; a put is not read while it waits
for room, so gRPC's window holds its sender.

Errors carry ``link.Problem`` as JSON in their ``extra_info``. Not here: decoding (``reading.py``).
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from pyarrow import flight

from penstock.adapters.contract import Peer
from penstock.bulk.broker import BrokerClient
from penstock.bulk.columns import known_origins
from penstock.bulk.gather import SegmentMaps
from penstock.bulk.layout import arrow_schema
from penstock.bulk.link import Problem
from penstock.bulk.reading import BatchStream, decode_ticket, read_ticket
from penstock.bulk.staging import HOLD_MS_MAX, StageWriter, remove_parts
from penstock.bulk.tickets import ROWS_PER_BATCH, BulkError, RowFilter, Ticket, to_json
from penstock.model.queries import (
    ACTIONS,
    AnyRequest,
    CommitBatchRequest,
    LeaseRequest,
    LocateRequest,
    LocateResponse,
    PollRequest,
    ResolveRequest,
    ResolveResponse,
    TopicRange,
)
from penstock.model.spark_batch import (
    BAD_REQUEST,
    UNREACHABLE,
    StageCommand,
    StageEnd,
    StageReceipt,
)

STREAMS_MAX: Final = 32
"""Reads at a time; each may hold a batch or two in memory, so this bounds it at about 1 GiB."""
STREAM_WAIT_S: Final = 10.0
PUTS_MAX: Final = 256
"""Puts at a time: a task may take long between two batches, and then costs nothing but this."""
IDLE_MS_MAX: Final = 30_000
"""Longer than any reader needs for a batch; ours come again by themselves, behind the last row."""
IDLE_CHECKS: Final = 10
"""Looks per ``IDLE_MS_MAX``: an idle read ends at most a tenth of it late."""
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
        idle_ms_max: int = IDLE_MS_MAX,
        stage_hold_ms_max: int = HOLD_MS_MAX,
        beside: "BulkServer | None" = None,
    ) -> None:
        """``beside``: the same server on another address; what is bounded is bounded for both."""
        super().__init__(location)
        self._broker = broker
        self._source: BrokerDirectory
        self._streams: StreamPlaces
        self._puts: StreamPlaces
        self._decoders: threading.BoundedSemaphore
        self._stage_hold_ms_max = stage_hold_ms_max
        if beside is not None:
            self._source, self._streams = beside._source, beside._streams
            self._puts, self._decoders = beside._puts, beside._decoders
            self._stage_hold_ms_max = beside._stage_hold_ms_max
            return
        self._source = BrokerDirectory(directory, broker)
        self._streams = StreamPlaces(streams_max, idle_ms_max / 1000)
        self._puts = StreamPlaces(PUTS_MAX, idle_ms_max / 1000)
        if removed := remove_parts(directory):
            _log.info("puts that broke were removed", extra={"puts": removed})
        self._decoders = threading.BoundedSemaphore(DECODERS_MAX)

    # Rows

    def do_get(self, context: Any, ticket: Any) -> Any:
        try:
            wanted = decode_ticket(ticket.ticket)
            stream = read_ticket(self._source, wanted)
        except Exception as problem:
            raise _flight_error(problem) from None
        rows = self._batches(stream, context.peer())
        return flight.GeneratorStream(arrow_schema(wanted.columns), rows)

    def _batches(self, stream: BatchStream, peer: str) -> Iterator[Any]:
        """One batch after the other, each with the state of its range."""
        place = self._streams.acquire(peer)
        if place is None:
            raise _flight_error(BulkError(UNREACHABLE, "too many reads at a time; come again"))
        try:
            while True:
                with self._decoders:
                    step = next(stream, None)
                if step is None:
                    return
                batch, so_far = step
                place.given_at_s = time.monotonic()
                yield batch, to_json(so_far)
                place.given_at_s = None
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
            self._streams.release(place)
            # Arrow would keep what the largest read took.
            pa.default_memory_pool().release_unused()

    # Rows the other way

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Rows of one task go beside the log; the receipt is the answer."""
        place: StreamPlace | None = None
        stage: StageWriter | None = None
        try:
            command = _stage_command(descriptor)
            place = self._puts.acquire(context.peer())
            if place is None:
                raise BulkError(UNREACHABLE, "too many puts at a time; come again")
            stage = StageWriter(
                self._source.directory,
                command,
                self._broker,
                maker=_maker(context.peer()),
                hold_ms_max=self._stage_hold_ms_max,
                is_cancelled=context.is_cancelled,
                encoders=self._decoders,
            )
            receipt = _put_rows(stage, reader)
            writer.write(pa.py_buffer(msgspec.json.encode(receipt)))
        except Exception as problem:
            if stage is not None:
                stage.drop()
            raise _flight_error(problem) from None
        finally:
            if place is not None:
                self._puts.release(place)

    # Questions

    def do_action(self, context: Any, action: Any) -> Any:
        name = action.type
        try:
            if name not in ACTIONS:
                raise BulkError(
                    BAD_REQUEST, f"there is no action {name!r}, only {', '.join(ACTIONS)}"
                )
            question = _question(name, action.body.to_pybytes())
            if isinstance(question, (PollRequest, LeaseRequest, CommitBatchRequest)):
                question.maker = _maker(context.peer())
            answer = self._broker.ask(name, question)
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


class StreamPlace:
    """The place of one read."""

    __slots__ = ("given_at_s", "host", "peer")

    def __init__(self, peer: str) -> None:
        self.peer: Final = peer
        self.host: Final = _host_and_port(peer)[0]
        self.given_at_s: float | None = None
        """Since when gRPC has a batch that the reader has not made room for; None: none."""


class StreamPlaces:
    """Reads at a time: bounded, bounded per address, and those that take nothing are ended.

    Arrow gives no way to end a stream whose write waits for its reader, so its socket is shut down:
    gRPC then ends all that was on it.
    """

    def __init__(self, streams_max: int, idle_s_max: float) -> None:
        self._streams_max = streams_max
        self._per_host_max = max(1, streams_max * 3 // 4)
        self._idle_s_max = idle_s_max
        self._taken: set[StreamPlace] = set()
        self._freed = threading.Condition()
        self._watch: threading.Thread | None = None

    def acquire(self, peer: str) -> StreamPlace | None:
        """A place, waited for; None when none became free in time."""
        place = StreamPlace(peer)
        with self._freed:
            if not self._freed.wait_for(lambda: self._has_room(place.host), STREAM_WAIT_S):
                return None
            self._taken.add(place)
            if self._watch is None:
                self._watch = threading.Thread(target=self._end_idle, daemon=True)
                self._watch.start()
        return place

    def release(self, place: StreamPlace) -> None:
        with self._freed:
            self._taken.discard(place)
            self._freed.notify_all()

    def _has_room(self, host: str) -> bool:
        own = sum(each.host == host for each in self._taken)
        return len(self._taken) < self._streams_max and own < self._per_host_max

    def _end_idle(self) -> None:
        """Runs for as long as there are reads."""
        while True:
            time.sleep(self._idle_s_max / IDLE_CHECKS)
            before_s = time.monotonic() - self._idle_s_max
            with self._freed:
                if not self._taken:
                    self._watch = None
                    return
                idle = [
                    each
                    for each in self._taken
                    if each.given_at_s is not None and each.given_at_s < before_s
                ]
            for place in idle:
                if shut_down(*_host_and_port(place.peer)):
                    _log.warning("a read that takes nothing was ended", extra={"peer": place.peer})
                self.release(place)


def _host_and_port(peer: str) -> tuple[str, int]:
    """Of gRPC's name of a peer: ``ipv4:127.0.0.1:4711``, ``ipv6:%5B::1%5D:4711``."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0


def _maker(peer: str) -> str:
    """For whom it counts what this peer makes, as on every other port."""
    host, port = _host_and_port(peer)
    return Peer(host, port, "", 0).maker if host else peer


def shut_down(host: str, port: int) -> bool:
    """Shut down the socket of this process that is connected to there; False: there is none."""
    for name in os.listdir("/dev/fd"):
        try:
            # A handle of our own: the number may be another file's at any moment.
            handle = os.dup(int(name))
        except OSError:
            continue
        try:
            connected = socket.socket(fileno=handle)
        except OSError:  # no socket
            os.close(handle)
            continue
        with connected, contextlib.suppress(OSError):
            if connected.family == socket.AF_UNIX:  # the link to the broker
                continue
            there, number = connected.getpeername()[:2]
            # gRPC takes IPv4 on a socket for both.
            if (there.removeprefix("::ffff:"), number) == (host, port):
                connected.shutdown(socket.SHUT_RDWR)
                return True
    return False


def _question(name: str, body: bytes) -> AnyRequest:
    """The question in the body of an action; ``do`` need not be said twice."""
    try:
        fields = msgspec.json.decode(body or b"{}", type=dict[str, msgspec.Raw])
        fields["do"] = msgspec.Raw(msgspec.json.encode(name))
        return _QUESTIONS.decode(msgspec.json.encode(fields))
    except msgspec.MsgspecError as problem:
        raise BulkError(BAD_REQUEST, f"action {name!r}: {problem}") from None


def _stage_command(descriptor: Any) -> StageCommand:
    try:
        return msgspec.json.decode(descriptor.command or b"", type=StageCommand)
    except msgspec.MsgspecError as problem:
        raise BulkError(
            BAD_REQUEST,
            'a put has a command like {"sink": "orders", "query": "q", "batch": 0, "stage": "a '
            f'uuid", "topic": "orders"}}: {problem}',
        ) from None


def _put_rows(stage: StageWriter, reader: Any) -> StageReceipt:
    """All rows of a put, up to the word that says how many there were."""
    end: StageEnd | None = None
    for chunk in reader:
        if chunk.data is not None and chunk.data.num_rows:
            stage.add(chunk.data)
        if chunk.app_metadata is not None:
            try:
                end = msgspec.json.decode(chunk.app_metadata.to_pybytes(), type=StageEnd)
            except msgspec.MsgspecError as problem:
                raise BulkError(BAD_REQUEST, f"the last word of a put: {problem}") from None
    if end is None:
        raise BulkError(
            BAD_REQUEST,
            "a put ends with metadata that says how many rows it had; this one broke, or its "
            "sender does not say so",
        )
    return stage.finish(end.rows)


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
