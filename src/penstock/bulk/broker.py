"""The Flight process as its broker's client: questions over ``<data>/bulk.sock``.

Many threads ask, one connection carries them, at most ``IN_FLIGHT_MAX`` at a time; the others wait
here. Polls, puts and commits, which the broker may hold for a while, never take the last
``SHORT_ONLY`` slots, so a read that begins is not kept waiting by queries that have nothing to
read. When more of them ask than there are slots, each waits less at the broker.

A connection that breaks fails the questions on it, as "unreachable": the clients ask again, and the
next question connects anew. Nothing here outlives a broker but this object.

Not here: the messages (``link.py``), who asks (``flight.py``).
"""

import contextlib
import itertools
import logging
import os
import socket
import threading
from pathlib import Path
from typing import Final

import msgspec

from penstock.bulk.link import (
    IN_FLIGHT_MAX,
    LENGTH_BYTES,
    Reply,
    decode_reply,
    decode_response,
    encode_request,
    frame_length,
)
from penstock.bulk.tickets import BulkError
from penstock.model.queries import (
    AnyRequest,
    AnyResponse,
    CommitBatchRequest,
    PollRequest,
    StageRoomRequest,
)
from penstock.model.spark_batch import BAD_REQUEST, UNREACHABLE

SHORT_ONLY: Final = 4
"""Slots that polls leave to questions that are answered at once."""
CONNECT_S_MAX: Final = 2.0
ADDRESS_BYTES_MAX: Final = 100
"""The system takes 107; whoever needs more goes through the directory."""
ANSWER_S_MAX: Final = 15.0
"""Beside the wait a poll asks for; a broker that needs longer is as good as gone."""

_log = logging.getLogger(__name__)


class _Waiting:
    """A question on its way."""

    __slots__ = ("done", "reply")

    def __init__(self) -> None:
        self.done: Final = threading.Event()
        self.reply: Reply | None = None


class _Connection:
    """One connection; a thread of its own reads the answers."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(CONNECT_S_MAX)
        try:
            _connect(self._socket, path)
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(None)
        self._waiting: dict[int, _Waiting] = {}
        self._lock = threading.Lock()
        self.is_broken = False
        threading.Thread(target=self._read, name="bulk answers", daemon=True).start()

    def ask(self, question: AnyRequest, wait_s: float) -> Reply:
        """Send, and wait for the answer; raises ``OSError`` when it cannot come any more."""
        waiting = _Waiting()
        frame = encode_request(question)
        with self._lock:
            if self.is_broken:
                raise ConnectionResetError("the broker closed the connection")
            self._waiting[question.id] = waiting
            self._socket.sendall(frame)
        try:
            if not waiting.done.wait(wait_s):
                raise TimeoutError(f"no answer within {wait_s:.0f} s")
        finally:
            with self._lock:
                self._waiting.pop(question.id, None)
        if waiting.reply is None:
            raise ConnectionResetError("the broker closed the connection")
        return waiting.reply

    def close(self) -> None:
        """Fail what waits; the reading thread ends."""
        with self._lock:
            self.is_broken = True
            waiting = list(self._waiting.values())
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for each in waiting:
            each.done.set()

    def _read(self) -> None:
        try:
            while True:
                size = frame_length(self._exactly(LENGTH_BYTES))
                reply = decode_reply(self._exactly(size))
                with self._lock:
                    waiting = self._waiting.get(reply.id)
                if waiting is not None:
                    waiting.reply = reply
                    waiting.done.set()
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as problem:
            _log.info("the line to the broker is down", extra={"why": str(problem)})
        finally:
            self.close()
            self._socket.close()

    def _exactly(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size:
            piece = self._socket.recv(min(size, 1 << 20))
            if not piece:
                raise EOFError("the broker closed the connection")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def _connect(peer: socket.socket, path: Path) -> None:
    """Connect; a path that is too long for an address is reached through its directory."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        peer.connect(str(path))
        return
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        peer.connect(f"/proc/self/fd/{handle}/{path.name}")
    finally:
        os.close(handle)


class BrokerClient:
    """Asks the broker; threads share it."""

    def __init__(self, path: Path, *, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        self._path = path
        self._numbers = itertools.count(1)
        self._slots = threading.BoundedSemaphore(in_flight_max)
        self._poll_slots_max = max(1, in_flight_max - SHORT_ONLY)
        self._poll_slots = threading.BoundedSemaphore(self._poll_slots_max)
        self._polls = 0
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    def ask(self, name: str, question: AnyRequest) -> AnyResponse:
        """The answer; raises ``BulkError`` with the broker's own words or "unreachable"."""
        if not isinstance(question, (PollRequest, CommitBatchRequest, StageRoomRequest)):
            return self._answered(name, question, ANSWER_S_MAX)
        with self._lock:
            self._polls += 1
            share = min(1.0, self._poll_slots_max / self._polls)
        try:
            question.wait_ms = int(question.wait_ms * share)
            wait_s = ANSWER_S_MAX + question.wait_ms / 1000
            with self._poll_slots:
                return self._answered(name, question, wait_s)
        finally:
            with self._lock:
                self._polls -= 1

    def close(self) -> None:
        """Close the connection; questions that wait fail."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _answered(self, name: str, question: AnyRequest, wait_s: float) -> AnyResponse:
        try:
            with self._slots:
                question.id = next(self._numbers)
                reply = self._connected().ask(question, wait_s)
        except OSError as problem:
            self.close()
            raise BulkError(UNREACHABLE, f"the broker does not answer: {problem}") from None
        if reply.error is not None:
            raise BulkError(reply.error.kind, reply.error.text)
        try:
            return decode_response(name, reply.ok)
        except msgspec.MsgspecError as problem:
            raise BulkError(BAD_REQUEST, f"the broker's answer makes no sense: {problem}") from None

    def _connected(self) -> _Connection:
        with self._lock:
            if self._connection is None or self._connection.is_broken:
                self._connection = _Connection(self._path)
            return self._connection
