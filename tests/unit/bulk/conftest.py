"""What tests of the bulk lane share: data on disk, and a broker that is only a socket."""

import socket
import threading

import pytest

from kit.bulk_data import BulkData
from penstock.bulk.broker import BrokerClient
from penstock.bulk.flight import BulkServer
from penstock.bulk.link import (
    LENGTH_BYTES,
    SOCKET_NAME,
    decode_request,
    encode_problem,
    encode_response,
    frame_length,
)
from penstock.bulk.offline import OfflineBulk
from penstock.bulk.tickets import BulkError, Ticket
from penstock.model.queries import (
    EmptyResponse,
    IndexFile,
    LeaseResponse,
    LocateResponse,
    OffsetsByTimeResponse,
    PollRequest,
    PollResponse,
)


@pytest.fixture
def data(tmp_path):
    made = BulkData(tmp_path / "data")
    yield made
    made.store.release()


@pytest.fixture
def rows():
    """All rows of a ticket as dictionaries."""

    def read(bulk, topic="orders", queue=0, start=0, end=None, **fields):
        if end is None:
            end = bulk.resolve([topic]).topics[0].queues[queue].end
        ticket = Ticket(topic=topic, queue=queue, start=start, end=end, **fields)
        return [row for batch in bulk.read(ticket) for row in batch.to_pylist()]

    return read


class FakeBroker:
    """Answers on a socket what the data directory of a stopped broker says."""

    def __init__(self, directory):
        self.offline = OfflineBulk(directory)
        self.asked = []
        self.problem = None
        """(kind, text) to answer with, once."""
        self.hangs_up = 0
        """How many questions are answered by closing the connection."""
        self.gate = threading.Event()
        """Polls wait for it."""
        self.gate.set()
        self.most_polls = 0
        self._polls = 0
        self._lock = threading.Lock()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(directory / SOCKET_NAME))
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._server.close()

    def _accept(self):
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer):
        with peer, peer.makefile("rb") as stream:
            while head := stream.read(LENGTH_BYTES):
                question = decode_request(stream.read(frame_length(head)))
                self.asked.append(question)
                if self.hangs_up:
                    self.hangs_up -= 1
                    return
                threading.Thread(target=self._reply, args=(peer, question), daemon=True).start()

    def _reply(self, peer, question):
        problem, self.problem = self.problem, None
        try:
            if problem is not None:
                frame = encode_problem(question.id, *problem)
            else:
                frame = encode_response(question.id, self._answer(question))
        except BulkError as error:
            frame = encode_problem(question.id, error.kind, str(error))
        peer.sendall(frame)

    def _answer(self, question):
        match type(question).__name__:
            case "ResolveRequest":
                return self.offline.resolve(question.topics, pattern=question.pattern)
            case "OffsetsByTimeRequest":
                return OffsetsByTimeResponse(
                    epoch=1, offsets=self.offline.by_time(question.topic, 0)
                )
            case "LeaseRequest":
                return LeaseResponse(ttl_ms=question.ttl_ms or 7)
            case "LocateRequest":
                return self._located(question)
            case "PollRequest":
                return self._polled(question)
        return EmptyResponse()

    def _polled(self, question: PollRequest):
        with self._lock:
            self._polls += 1
            self.most_polls = max(self.most_polls, self._polls)
        self.gate.wait(10)
        with self._lock:
            self._polls -= 1
        return PollResponse(
            epoch=1, ends=question.start, latest=question.start, lag_rows=question.wait_ms
        )

    def _located(self, question) -> LocateResponse:
        ticket = Ticket(
            topic=question.topic, queue=question.queue, start=question.start, end=question.end
        )
        located = self.offline.locate(ticket, question.start)
        located.run_start = 0
        located.files = [IndexFile(f.path, f.first_offset, f.entries) for f in located.files]
        return located


@pytest.fixture
def serve():
    """A Flight server and its fake broker over a directory."""
    opened = []

    def start(directory, **options):
        broker = FakeBroker(directory)
        line = BrokerClient(directory / SOCKET_NAME)
        server = BulkServer(directory, line, "grpc://127.0.0.1:0", **options)
        opened.append((broker, line, server))
        return broker, server

    yield start
    for broker, line, server in opened:
        server.shutdown()
        line.close()
        broker.close()
