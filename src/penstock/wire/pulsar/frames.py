"""Pulsar's frames: bytes in, commands and what follows them out, and back.

    simple   | total u32 | command size u32 | BaseCommand |
    payload  | total u32 | command size u32 | BaseCommand | tail |
    tail     | 0x0e01, crc32c u32 | metadata size u32 | MessageMetadata | payload |

``total`` counts what is behind itself. Magic and checksum may be missing; the checksum is that of
everything behind it. A tail follows SEND and MESSAGE; it is kept and passed on as it came.
Sheet: pulsar.md 1.1.

Invariants: however the bytes are cut, the frames are the same; a frame that can never be right is
refused from its first bytes, before room is made for it (T12); of a frame in progress no more is
kept than the frame and one read; its tail is copied once.
Not here: what a tail says (``metadata.py``); many frames of one kind in a row (``runs.py``); what a
command means (``adapters/pulsar``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NoReturn, Protocol

import google_crc32c
import msgspec
from google.protobuf.message import DecodeError

from penstock.model.record import Record
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, KeyValue

MAX_MESSAGE_SIZE: Final = 5 * 1024 * 1024
"""What CONNECTED tells a client unless the settings say otherwise."""
COMMAND_BYTES_MAX: Final = (1 << 20) + (64 << 10)
"""A command without its tail: the largest schema, or more ids than a consumer may have unacked.
Nothing of it is done in pieces before it is read."""
PAIRS_MAX: Final = 10_000
"""Properties in one list of a command."""
FRAME_HEADROOM: Final = 10 * 1024 - 4
"""A frame may have so much more than the largest message; its length word counts, too."""
NO_ID: Final = 2**64 - 1
"""-1 as it stands on the wire: no request, no entry; as ledger and entry both: earliest."""
LATEST: Final = 2**63 - 1
"""As ledger and entry both: the end of the topic."""

CHECKSUM_MAGIC: Final = b"\x0e\x01"
CHECKSUM_BYTES: Final = 6
"""Of magic and checksum together."""
_CHECKSUM_STEP: Final = 64 * 1024
_SMALL_CHUNK: Final = 4 * 1024

_SEND: Final = int(BaseCommand.SEND)
_ACK: Final = int(BaseCommand.ACK)
_IN_RUNS: Final = frozenset((_SEND, _ACK))
_SIZES: Final = Struct(">II")
_SIZE: Final = Struct(">I")


class ServerError(IntEnum):
    """Codes of ERROR, SEND_ERROR and failed answers, with Pulsar's names."""

    UnknownError = 0
    MetadataError = 1
    PersistenceError = 2
    AuthenticationError = 3
    AuthorizationError = 4
    ConsumerBusy = 5
    ServiceNotReady = 6
    ProducerBlockedQuotaExceededError = 7
    ProducerBlockedQuotaExceededException = 8
    ChecksumError = 9
    UnsupportedVersionError = 10
    TopicNotFound = 11
    SubscriptionNotFound = 12
    ConsumerNotFound = 13
    TooManyRequests = 14
    TopicTerminatedError = 15
    ProducerBusy = 16
    InvalidTopicName = 17
    IncompatibleSchema = 18
    ConsumerAssignError = 19
    TransactionCoordinatorNotFound = 20
    InvalidTxnStatus = 21
    NotAllowedError = 22
    TransactionConflict = 23
    TransactionNotFound = 24
    ProducerFenced = 25


class ProtocolVersion(IntEnum):
    """What a client of that version, or a later one, understands."""

    PING = 1
    REDELIVER = 2
    BATCHES = 4
    CHECKSUM = 6
    LOOKUP = 7
    CONSUMER_STATS = 8
    REACHED_END_OF_TOPIC = 9
    ACTIVE_CONSUMER_CHANGE = 12
    AUTH_CHALLENGE = 14
    GET_OR_CREATE_SCHEMA = 15
    ACK_RECEIPT = 17
    BROKER_ENTRY_METADATA = 18
    TC_CONNECT = 19
    TOPIC_MIGRATED = 20
    AUTO_CONSUME_SCHEMA = 21
    NEWEST = 21


Frame = tuple[BaseCommand, bytes]
"""One command, and the tail that followed it, empty but for SEND and MESSAGE."""


class SendRun(msgspec.Struct, gc=False):
    """SENDs of one producer, one behind the other, all of which may be stored as they are."""

    producer_id: int
    sequence_ids: list[int]
    records: list[Record]


class AckRun(msgspec.Struct, gc=False):
    """Individual ACKs of one consumer, of whole entries, that want no answer."""

    consumer_id: int
    ledger_id: int
    entries: list[int]


Run = SendRun | AckRun


class RunSource(Protocol):
    """Reads frames that are like those before them, many at a time (``runs.py``)."""

    def read(self, data: bytes, at: int, end: int) -> tuple[Run, int] | None:
        """The run that begins at ``at``, and where it ends; None = there is none."""
        ...

    def read_command(self, data: bytes) -> Run | None:
        """The run that a single command is, here without its frame; None = it is none."""
        ...

    def learn(self, command: BaseCommand, data: bytes, at: int, stop: int) -> None:
        """A command that was in no run, and where its frame lies."""
        ...


class FrameError(ValueError):
    """The peer's bytes are no frame. ``frames`` are those before it in the same read."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.frames: list[Frame | Run] = []


# The field's number is the type's value.
_FIELD_NAMES: Final = {
    field.number: field.name for field in BaseCommand.DESCRIPTOR.fields if field.number > 1
}


def signed(number: int) -> int:
    """An id as Pulsar means it: 2^64-1 is -1."""
    return number - 2**64 if number >= 2**63 else number


def encode(command: BaseCommand) -> bytes:
    """A simple frame."""
    data = command.SerializeToString()
    size = len(data)
    return _SIZES.pack(size + 4, size) + data


def payload_frame(command: bytes, tail: bytes) -> list[bytes]:
    """A frame with a tail, in pieces: the tail is not copied."""
    size = len(command)
    return [_SIZES.pack(size + 4 + len(tail), size) + command, tail]


def check(tail: bytes) -> bool:
    """Whether a tail is what its checksum says; one without a checksum is."""
    if not tail.startswith(CHECKSUM_MAGIC):
        return True
    if len(tail) < CHECKSUM_BYTES:
        return False
    said: int = _SIZE.unpack_from(tail, 2)[0]
    return crc32c(tail, CHECKSUM_BYTES) == said


def crc32c(data: bytes, start: int = 0) -> int:
    """Checksum from ``start`` on; what is large is not copied as a whole."""
    if len(data) <= _CHECKSUM_STEP:
        return int(google_crc32c.value(data[start:]))
    crc = 0
    for at in range(start, len(data), _CHECKSUM_STEP):
        crc = google_crc32c.extend(crc, data[at : at + _CHECKSUM_STEP])
    return int(crc)


def decode(data: bytes) -> BaseCommand:
    """The command in these bytes; raises ``FrameError`` if it is none that Pulsar knows."""
    try:
        command = BaseCommand.FromString(data)
    except DecodeError:
        raise FrameError(f"command of {len(data)} bytes that is no protobuf message") from None
    kind = command.type
    # Half as dear as what follows, for the commands there are most of.
    if kind == _SEND:
        send = command.send
        if send.HasField("producer_id") and send.HasField("sequence_id"):
            return command
    elif kind == _ACK and command.ack.IsInitialized():
        return command
    if not command.IsInitialized():
        if not command.HasField("type"):
            raise FrameError("command of an unknown type")
        raise FrameError(f"command of type {kind} without a field it must have")
    if not command.HasField(_FIELD_NAMES[kind]):
        raise FrameError(f"command of type {kind} without its {_FIELD_NAMES[kind]}")
    if kind in _WITH_PROPERTIES:
        lists = _WITH_PROPERTIES[kind](command)
        if max([len(pairs) for pairs in lists]) > PAIRS_MAX:
            raise FrameError(f"command of type {kind} with more than {PAIRS_MAX} properties")
        if not _are_texts(lists):
            raise FrameError(f"command of type {kind} with a property that is no text")
    return command


# Properties of messages may be any bytes (protocol.proto), those of commands may not: they are
# stored, compared and shown.
_WITH_PROPERTIES: Final[dict[int, Callable[[BaseCommand], Sequence[Sequence[KeyValue]]]]] = {
    BaseCommand.PRODUCER: lambda it: (it.producer.metadata, it.producer.schema.properties),
    BaseCommand.SUBSCRIBE: lambda it: (
        it.subscribe.metadata,
        it.subscribe.subscription_properties,
        it.subscribe.schema.properties,
    ),
    BaseCommand.LOOKUP: lambda it: (it.lookup_topic.properties,),
    BaseCommand.GET_TOPICS_OF_NAMESPACE: lambda it: (it.get_topics_of_namespace.properties,),
    BaseCommand.GET_OR_CREATE_SCHEMA: lambda it: (it.get_or_create_schema.schema.properties,),
}


def _are_texts(lists: Iterable[Iterable[KeyValue]]) -> bool:
    return all(
        type(text) is str for pairs in lists for pair in pairs for text in (pair.key, pair.value)
    )


class FrameParser:
    """The bytes of one connection, cut into frames and, where somebody reads them, runs of frames.

    A large tail is collected as the reads it came in and joined when it is whole. Small reads are
    put together at once: a peer that sends byte by byte must not cost an object for each.
    """

    __slots__ = ("_chunks", "_command", "_failure", "_head", "_head_wanted", "_missing", "_runs",
                 "frame_bytes_max", "held_bytes")  # fmt: skip

    def __init__(
        self,
        *,
        max_message_size: int = MAX_MESSAGE_SIZE,
        runs: Callable[[int], RunSource] | None = None,
    ) -> None:
        """``runs`` is told how long a frame may be; without it there are only single frames."""
        self.frame_bytes_max = max_message_size + FRAME_HEADROOM
        self._runs = None if runs is None else runs(self.frame_bytes_max)
        self.held_bytes = 0
        """What is kept of a frame that is not complete."""
        self._failure: FrameError | None = None
        self._head = bytearray()
        self._head_wanted = 4
        self._command: BaseCommand | None = None
        self._chunks: list[bytes | bytearray | memoryview] = []
        self._missing = 0

    def feed(self, data: bytes) -> list[Frame | Run]:
        """The frames these bytes complete.

        Raises ``FrameError``, with the frames before the bad one; from then on nothing is read.
        """
        if self._failure is not None:
            raise FrameError(str(self._failure))
        frames: list[Frame | Run] = []
        try:
            if self._command is not None:
                data = self._collect(self._command, data, frames)
            elif self._head:
                self._head += data
                if len(self._head) < self._head_wanted:
                    self.held_bytes = len(self._head)
                    return frames
                data = bytes(self._head)
                self._head.clear()
            if data:
                self._cut(data, frames)
        except FrameError as error:
            self._failure = error
            self.close()
            error.frames = frames
            raise
        return frames

    def close(self) -> None:
        """The peer is given up: what it sent is room for others."""
        self._head.clear()
        self._command = None
        self._chunks.clear()
        self.held_bytes = 0

    def _cut(self, data: bytes, frames: list[Frame | Run]) -> None:
        at, end = 0, len(data)
        limit, runs = self.frame_bytes_max, self._runs
        while end - at >= 8:
            if runs is not None and (found := runs.read(data, at, end)) is not None:
                frames.append(found[0])
                at = found[1]
                continue
            total, size = _SIZES.unpack_from(data, at)
            if not (4 <= size + 4 <= total <= limit and size <= COMMAND_BYTES_MAX):
                self._refuse(total, size)
            tail_at = at + 8 + size
            if tail_at > end:
                self._keep_head(data, at, 8 + size)
                return
            raw = data[at + 8 : tail_at]
            stop = at + 4 + total
            if runs is not None and stop == tail_at and (run := runs.read_command(raw)) is not None:
                frames.append(run)
                at = stop
                continue
            command = decode(raw)
            if stop > end:
                self._command = command
                self._chunks.append(memoryview(data)[tail_at:])
                self._missing = stop - end
                self.held_bytes = end - tail_at
                return
            frames.append((command, data[tail_at:stop]))
            if runs is not None and command.type in _IN_RUNS:
                runs.learn(command, data, at, stop)
            at = stop
        if end - at >= 4:
            (total,) = _SIZE.unpack_from(data, at)
            if not 4 <= total <= limit:
                self._refuse(total, 0)
        self._keep_head(data, at, 8 if end - at >= 4 else 4)

    def _keep_head(self, data: bytes, at: int, wanted: int) -> None:
        self._head += memoryview(data)[at:]
        self._head_wanted = wanted
        self.held_bytes = len(self._head)

    def _collect(self, command: BaseCommand, data: bytes, frames: list[Frame | Run]) -> bytes:
        """More of a tail; the rest of ``data`` that is behind it."""
        size = len(data)
        chunks = self._chunks
        if size < self._missing:
            self._missing -= size
            self.held_bytes += size
            if size >= _SMALL_CHUNK:
                chunks.append(data)
            elif isinstance(chunks[-1], bytearray):
                chunks[-1] += data
            else:
                chunks.append(bytearray(data))
            return b""
        chunks.append(memoryview(data)[: self._missing])
        frames.append((command, b"".join(chunks)))
        rest = data[self._missing :]
        self.close()
        return rest

    def _refuse(self, total: int, size: int) -> NoReturn:
        if total > self.frame_bytes_max:
            raise FrameError(f"frame of {total} bytes announced, limit {self.frame_bytes_max}")
        if total < 4:
            raise FrameError(f"frame of {total} bytes announced, at least 4 needed")
        if COMMAND_BYTES_MAX < size <= total:
            raise FrameError(f"command of {size} bytes announced, limit {COMMAND_BYTES_MAX}")
        raise FrameError(f"command of {size} bytes announced in a frame of {total}")
