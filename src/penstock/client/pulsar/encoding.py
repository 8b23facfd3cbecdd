"""The bytes of a SEND: one message alone, a batch of them, or the chunks of a large one.

    | total u32, command size u32 | SEND | 0x0e01, crc32c | metadata size u32 | metadata | payload |

A batch's payload is, for each message, its size, what is said of it, and its body. It is compressed
as a whole. A batch of one is sent as a message alone. A message that is larger than the broker
takes is compressed, and cut into chunks of the same sequence id.

A large payload is never copied: a frame is two pieces, the payload and what is before it.
Sheet: pulsar.md 1.1, 1.2.

Invariants: a frame's checksum is that of its bytes; sequence ids of a batch count upwards.
Not here: when a batch is full (``batching.py``), what becomes of a frame (``pending.py``).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c
import msgspec

from penstock.client.pulsar.compression import Compression, compress
from penstock.client.pulsar.errors import InvalidUse
from penstock.client.pulsar.message import Message, check_text
from penstock.wire.pulsar.frames import CHECKSUM_MAGIC
from penstock.wire.pulsar.hot_commands import varint
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    CompressionType,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)

PROPERTIES_MAX: Final = 10_000
CHUNK_BYTES_MIN: Final = 1024
CHUNKS_MAX: Final = 10_000
TIME_MS_MAX: Final = 2**63 - 1
"""What a frame can say."""
_SIZE: Final = Struct(">I")
_SIZES: Final = Struct(">II")
_SMALL_PAYLOAD: Final = 16 * 1024
"""Smaller ones are copied into one piece: a socket takes few pieces sooner than many."""
_VARINTS_CACHED: Final = 4_096

_varint: Final = lru_cache(maxsize=_VARINTS_CACHED)(varint)
"""Of sizes, which come again and again."""


def _number(value: int) -> bytes:
    """Of sequence ids, which never do: the same, quicker where they are small."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return varint(value)


class Extras(NamedTuple):
    """What few messages have besides body and key."""

    is_key_encoded: bool = False
    ordering_key: bytes | None = None
    properties: tuple[tuple[str, str], ...] = ()
    event_time_ms: int = 0
    deliver_at_ms: int = 0
    is_null: bool = False
    replicate_to: tuple[str, ...] = ()


class Content(msgspec.Struct, eq=False, gc=False):
    """One message to send, checked; a ``Send`` (``pending.py``) has one."""

    payload: bytes
    key: str | None = None
    extras: Extras | None = None
    sequence_id: int | None = None
    """The sender's own; None = it is counted here."""

    @property
    def size_bytes(self) -> int:
        """What it takes of the bounds."""
        size = len(self.payload)
        if self.key is not None:
            size += len(self.key)
        extras = self.extras
        if extras is not None:
            size += sum(len(name) + len(value) for name, value in extras.properties)
        return size

    @property
    def can_be_batched(self) -> bool:
        """A delivery time and its clusters hold for a whole entry."""
        extras = self.extras
        return extras is None or not (extras.deliver_at_ms or extras.replicate_to)


def content_of(message: Message, payload: bytes, now_ms: int) -> Content:
    """Raises ``InvalidUse`` when a message cannot be sent as it is."""
    key, is_key_encoded = message.key, False
    if isinstance(key, bytes):
        key, is_key_encoded = b64encode(key).decode(), True
    elif isinstance(key, str):
        check_text("a message's key", key)
    elif key is not None:
        raise InvalidUse(f"a message's key is a str or bytes, not {type(key).__name__}")
    sequence_id = message.sequence_id
    if sequence_id is not None and not (isinstance(sequence_id, int) and 0 <= sequence_id < 2**63):
        raise InvalidUse(f"sequence_id is {sequence_id!r}; a number from 0 on is needed")
    ordering_key = message.ordering_key
    if ordering_key is not None and not isinstance(ordering_key, bytes):
        raise InvalidUse(f"an ordering key is bytes, not {type(ordering_key).__name__}; encode it")
    extras: Extras | None = Extras(
        is_key_encoded,
        ordering_key,
        _pairs(message.properties) if message.properties else (),
        _time_of("event_time_ms", message.event_time_ms),
        _delivery_of(message, now_ms),
        message.value is None,
        _clusters(message.replicate_to),
    )
    if extras == _NO_EXTRAS:
        extras = None
    return Content(payload, key, extras, sequence_id)


_NO_EXTRAS: Final = Extras()


def _pairs(properties: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(properties, Mapping):
        raise InvalidUse(f"properties are a map of str to str, not {properties!r}")
    if len(properties) > PROPERTIES_MAX:
        raise InvalidUse(f"a message has {len(properties)} properties, limit {PROPERTIES_MAX}")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidUse(f"property {name!r} is {value!r}; names and values are str")
        check_text("property", name)
        check_text(f"property {name!r} is", value)
    return tuple(properties.items())


def _clusters(given: Sequence[str]) -> tuple[str, ...]:
    if given == ():
        return ()
    is_list = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    if not is_list or not all(isinstance(each, str) for each in given):
        raise InvalidUse(f"replicate_to is {given!r}; a list with the names of clusters is needed")
    for each in given:
        check_text("replicate_to", each)
    return tuple(given)


def _delivery_of(message: Message, now_ms: int) -> int:
    at_ms, after_ms = message.deliver_at_ms, message.deliver_after_ms
    if at_ms is not None and after_ms is not None:
        raise InvalidUse("give deliver_at_ms or deliver_after_ms, not both")
    if after_ms is not None:
        at_ms = now_ms + _time_of("deliver_after_ms", after_ms)
        if at_ms > TIME_MS_MAX:
            raise InvalidUse(f"deliver_after_ms is {after_ms}; so many milliseconds are too many")
        return at_ms
    return _time_of("deliver_at_ms", at_ms)


def _time_of(name: str, given: int | None) -> int:
    if given is None:
        return 0
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= TIME_MS_MAX:
        raise InvalidUse(f"{name} is {given!r}; milliseconds as an int are needed")
    return given


# ---- frames -------------------------------------------------------------------------------------


class Pieces(NamedTuple):
    """One frame, to be written piece by piece."""

    head: bytes
    payload: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.head) + len(self.payload)


class SendEncoder:
    """Makes the frames of one producer."""

    __slots__ = (
        "_compression",
        "_send_front",
        "chunk_bytes_max",
        "max_message_size",
        "name",
        "schema_version",
    )

    def __init__(self, producer_id: int, compression: Compression) -> None:
        self._compression = compression
        self._send_front = b"\x08" + varint(producer_id) + b"\x10"
        self.name = ""
        """The producer's, as the broker said it."""
        self.schema_version = b""
        self.max_message_size = 0
        """As the broker said it; 0 = it has not said anything yet."""
        self.chunk_bytes_max = 0
        """Smaller chunks than the broker would take; 0 = as large as possible. Without chunking
        -1."""

    def alone(self, content: Content, sequence_id: int, publish_ms: int) -> list[Pieces]:
        """One message, in as many frames as it needs; raises ``InvalidUse`` if it is too large."""
        metadata = self._metadata(sequence_id, publish_ms)
        describe(metadata, content)
        extras = content.extras
        if extras is not None:
            if extras.deliver_at_ms:
                metadata.deliver_at_time = extras.deliver_at_ms
            metadata.replicate_to.extend(extras.replicate_to)
        payload = self._compressed(metadata, content.payload)
        is_cut = 0 < self.chunk_bytes_max < len(payload)
        if len(payload) <= self.max_message_size and not is_cut:
            raw = metadata.SerializeToString()
            return [frame(self._send_front + _number(sequence_id), raw, payload)]
        return self._chunks(metadata, payload)

    def batch(
        self, contents: Sequence[Content], sequence_ids: Sequence[int], publish_ms: int
    ) -> Pieces | None:
        """Several messages as one entry; None = the broker does not take so much at a time."""
        first, last = sequence_ids[0], sequence_ids[-1]
        metadata = self._metadata(first, publish_ms)
        metadata.num_messages_in_batch = len(contents)
        head = contents[0]
        # Key-shared goes by the first message of a batch; the others have their own inside.
        if head.key is not None:
            metadata.partition_key = head.key
        if head.extras is not None:
            if head.extras.is_key_encoded:
                metadata.partition_key_b64_encoded = True
            if head.extras.ordering_key is not None:
                metadata.ordering_key = head.extras.ordering_key
        metadata.highest_sequence_id = last
        payload = self._compressed(metadata, batch_payload(contents, sequence_ids))
        if len(payload) > self.max_message_size:
            return None
        send = b"".join((
            self._send_front, _number(first), b"\x18", _varint(len(contents)), b"\x30",
            _number(last),
        ))  # fmt: skip
        return frame(send, metadata.SerializeToString(), payload)

    def _metadata(self, sequence_id: int, publish_ms: int) -> MessageMetadata:
        metadata = MessageMetadata(
            producer_name=self.name, sequence_id=sequence_id, publish_time=publish_ms
        )
        if self.schema_version:
            metadata.schema_version = self.schema_version
        return metadata

    def _compressed(self, metadata: MessageMetadata, payload: bytes) -> bytes:
        how = self._compression
        if how is Compression.NONE:
            return payload
        metadata.compression = _WIRE_COMPRESSION[how]
        metadata.uncompressed_size = len(payload)
        return compress(payload, how)

    def _chunks(self, metadata: MessageMetadata, payload: bytes) -> list[Pieces]:
        """One message as several entries; consumers put it together again."""
        if self.chunk_bytes_max < 0:
            raise InvalidUse(
                f"a message of {len(payload)} bytes is larger than the broker takes"
                f" ({self.max_message_size}); send less, or open the producer with"
                f" chunking_enabled=True"
            )
        sequence_id = metadata.sequence_id
        metadata.uuid = f"{self.name}-{sequence_id}"
        metadata.total_chunk_msg_size = len(payload)
        # Whatever these numbers will be, they take no more room than that.
        metadata.num_chunks_from_msg = metadata.chunk_id = CHUNKS_MAX
        room = self.max_message_size - metadata.ByteSize()
        if room < min(CHUNK_BYTES_MIN, len(payload)):
            raise InvalidUse(
                f"a message of {len(payload)} bytes leaves {max(room, 0)} bytes for a chunk beside"
                f" its properties; the broker takes {self.max_message_size}: shorten them"
            )
        step = min(room, self.chunk_bytes_max or room)
        count = -(-len(payload) // step)
        if count > CHUNKS_MAX:
            raise InvalidUse(
                f"a message of {len(payload)} bytes would be {count} chunks, limit {CHUNKS_MAX}"
            )
        metadata.num_chunks_from_msg = count
        send = self._send_front + _number(sequence_id) + b"\x38\x01"
        found = []
        for number in range(count):
            metadata.chunk_id = number
            part = payload[number * step : (number + 1) * step]
            found.append(frame(send, metadata.SerializeToString(), part))
        return found


_WIRE_COMPRESSION: Final = {
    Compression.LZ4: CompressionType.LZ4,
    Compression.ZLIB: CompressionType.ZLIB,
    Compression.ZSTD: CompressionType.ZSTD,
    Compression.SNAPPY: CompressionType.SNAPPY,
}


def describe(said: MessageMetadata | SingleMessageMetadata, content: Content) -> None:
    """What is said of a message alone and of one in a batch alike."""
    if content.key is not None:
        said.partition_key = content.key
    extras = content.extras
    if extras is None:
        return
    if extras.is_key_encoded:
        said.partition_key_b64_encoded = True
    if extras.ordering_key is not None:
        said.ordering_key = extras.ordering_key
    if extras.properties:
        said.properties.extend(
            [KeyValue(key=name, value=value) for name, value in extras.properties]
        )
    if extras.event_time_ms:
        said.event_time = extras.event_time_ms
    if extras.is_null:
        said.null_value = True


def batch_payload(contents: Sequence[Content], sequence_ids: Sequence[int]) -> bytes:
    """The messages of a batch, one behind the other, not compressed."""
    pieces: list[bytes] = []
    for content, sequence_id in zip(contents, sequence_ids, strict=True):
        payload, key = content.payload, content.key
        if content.extras is not None:
            single = SingleMessageMetadata(payload_size=len(payload), sequence_id=sequence_id)
            describe(single, content)
            said = single.SerializeToString()
        elif key is None:
            said = b"\x18" + _varint(len(payload)) + b"\x40" + _number(sequence_id)
        else:
            raw = key.encode()
            said = b"".join((
                b"\x12", _varint(len(raw)), raw, b"\x18", _varint(len(payload)), b"\x40",
                _number(sequence_id),
            ))  # fmt: skip
        pieces += (_SIZE.pack(len(said)), said, payload)
    return b"".join(pieces)


_SEND_MARK: Final = b"\x08" + varint(BaseCommand.SEND) + b"\x32"


def frame(send: bytes, metadata: bytes, payload: bytes) -> Pieces:
    """``send`` is the inside of the SEND command."""
    command = _SEND_MARK + _varint(len(send)) + send
    head = _SIZE.pack(len(metadata)) + metadata
    if len(payload) <= _SMALL_PAYLOAD:
        head, payload = head + payload, b""
        crc = google_crc32c.value(head)
    else:
        crc = google_crc32c.extend(google_crc32c.value(head), payload)
    total = 4 + len(command) + 6 + len(head) + len(payload)
    front = _SIZES.pack(total, len(command)) + command + CHECKSUM_MAGIC + _SIZE.pack(crc)
    return Pieces(front + head, payload)
