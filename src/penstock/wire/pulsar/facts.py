"""What others may know of a Pulsar message, and its batches opened (D15, D16).

    key         partition_key                        message id  property ``message_id``
    tag         property TAGS                        born        event_time, else publish_time
    deliver     deliver_at_time                      attempts    none: Pulsar does not store them
    properties  the user's, and of those that say how the body is to be read
                ``pulsar.null_value``, ``pulsar.compacted_out``, ``pulsar.encrypted``,
                ``pulsar.uuid``, ``pulsar.chunk_id``, ``pulsar.num_chunks_from_msg``

A message of a batch becomes a batch of one: the metadata of the batch, without what they say of its
first message and of its compression, and the message's own bytes behind them. So it is a message
that Pulsar's clients can read, too, should it become a dead letter.

Bodies are inflated for other protocols only, and never further than the producer said they would
grow, nor than the reader allows: room is made once, for what is allowed, and a payload that does
not fit is corrupt (T13). A chunk of a compressed message cannot be inflated by itself.

Invariants: nothing here raises but ``body``, and that only ``ValueError``: peers made these bytes.
Not here: records of SENDs (``metadata.py``); the opposite direction (``adapters/pulsar``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.model.record import Facts, Record, RecordFlag
from penstock.wire.pulsar.frames import MAX_MESSAGE_SIZE
from penstock.wire.pulsar.metadata import (
    TAGS,
    TIME_MS_MAX,
    Unreadable,
    inner_message,
    is_batch_of_one,
    is_readable,
    ordering_key,
    parse_metadata,
    read_single,
    shape_of,
    span_of,
    tag_span,
)
from penstock.wire.pulsar.protocol_pb2 import (
    CompressionType,
    MessageMetadata,
    SingleMessageMetadata,
)

MESSAGE_ID: Final = "message_id"
PREFIX: Final = "pulsar."
_COMPRESSED: Final = int(RecordFlag.COMPRESSED)
_Inflate = Callable[[bytes, bytearray], int]
"""Fills the room it is given, never more, and says how much of it."""
_CODECS: Final[dict[int, _Inflate]] = {}
with suppress(ImportError):  # there is not a wheel of it for every machine
    from cramjam import DecompressionError, lz4, snappy, zstd

    _CODECS[CompressionType.LZ4] = lambda data, room: lz4.decompress_block_into(
        data, room, output_len=len(room)
    )
    _CODECS[CompressionType.ZSTD] = zstd.decompress_into
    _CODECS[CompressionType.SNAPPY] = snappy.decompress_raw_into


class PulsarFacts:
    """Satisfies the engine's ``FactsReader``, ``OrderingKeyReader`` and ``BatchCodec``."""

    def keys(self, record: Record) -> list[bytes]:
        """The keys under which the record can be looked up: message id and partition key."""
        facts = self.facts(record)
        return [text.encode("utf-8", "replace") for text in (facts.message_id, facts.key) if text]

    def ordering_key(self, record: Record) -> bytes:
        return ordering_key(record)

    def properties(self, record: Record) -> dict[str, str]:
        """All of them: what an SQL92 filter may name."""
        found = _parts(record)
        return {} if found is None else _properties(*found)

    def facts(self, record: Record) -> Facts:
        found = _parts(record)
        if found is None:
            return Facts(born_ms=record.born_ms)
        metadata, single = found
        properties = _properties(metadata, single)
        source = metadata if single is None else single
        born_ms = single.event_time if single is not None else 0
        return Facts(
            key=_text(source.partition_key),
            tag=properties.pop(TAGS, ""),
            message_id=properties.pop(MESSAGE_ID, ""),
            born_ms=born_ms if 0 < born_ms <= TIME_MS_MAX else record.born_ms,
            expire_ms=record.expire_ms,
            deliver_ms=record.deliver_ms,
            properties=properties,
        )

    def body(self, record: Record, bytes_max: int) -> bytes:
        """The body as the producer's user gave it, at most ``bytes_max``.

        Of a batch that is shown whole, and of what cannot be read at all, the bytes as they came.
        """
        if not is_readable(record):
            return record.origin
        if record.messages > 1 or not record.flags & _COMPRESSED:
            return record.body
        metadata = parse_metadata(record.properties)
        plain = _plain(record, metadata, bytes_max)
        if not is_batch_of_one(metadata):
            return plain
        single, body_at = read_single(plain, 0)
        return plain[body_at : body_at + single.payload_size]

    def open_batch(self, record: Record, bytes_max: int) -> list[Record] | str:
        """Its messages, or why it cannot be opened."""
        try:
            batch = BatchPayload(record, bytes_max)
            return [batch.alone(each) for each in batch]
        except ValueError as problem:
            return str(problem)


def _parts(record: Record) -> tuple[MessageMetadata, SingleMessageMetadata | None] | None:
    """Metadata, and those of the one message in a batch of one; None = there are none."""
    try:
        metadata = parse_metadata(record.properties)
    except Unreadable:
        return None
    if record.flags & _COMPRESSED and record.messages == 1 and is_batch_of_one(metadata):
        try:
            return metadata, read_single(_plain(record, metadata, MAX_MESSAGE_SIZE), 0)[0]
        except ValueError:
            return metadata, None
    return metadata, inner_message(record, metadata)


def _properties(metadata: MessageMetadata, single: SingleMessageMetadata | None) -> dict[str, str]:
    source = metadata if single is None else single
    found = {_text(pair.key): _text(pair.value) for pair in source.properties}
    if source.null_value:
        found[PREFIX + "null_value"] = "true"
    if single is not None and single.compacted_out:
        found[PREFIX + "compacted_out"] = "true"
    if metadata.encryption_keys:
        found[PREFIX + "encrypted"] = "true"
    if metadata.num_chunks_from_msg > 1:
        found[PREFIX + "uuid"] = _text(metadata.uuid)
        found[PREFIX + "chunk_id"] = str(metadata.chunk_id)
        found[PREFIX + "num_chunks_from_msg"] = str(metadata.num_chunks_from_msg)
    return found


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


# ---- batches ------------------------------------------------------------------------------------


class BatchedMessage(NamedTuple):
    """One message of a batch."""

    number: int
    single: SingleMessageMetadata
    at: int
    """Where it begins in the payload, with what is said of it."""
    body_at: int


class BatchPayload:
    """A batch as it was before it was compressed, to be read message by message."""

    __slots__ = ("_head", "_metadata", "_payload", "count")

    def __init__(self, record: Record, bytes_max: int) -> None:
        """Raises ``ValueError`` when it cannot be opened, or is more than that when inflated."""
        self._metadata = parse_metadata(record.properties)
        self._payload = _plain(record, self._metadata, bytes_max)
        self._head = b""
        self.count: Final = record.messages

    def __iter__(self) -> Iterator[BatchedMessage]:
        """Raises ``ValueError`` at the first that cannot be read."""
        at = 0
        for number in range(self.count):
            try:
                single, body_at = read_single(self._payload, at)
            except Unreadable as problem:
                raise ValueError(f"corrupt: {problem}") from None
            yield BatchedMessage(number, single, at, body_at)
            at = body_at + single.payload_size

    def alone(self, message: BatchedMessage) -> Record:
        """One of its messages as a record by itself, without place and time."""
        head = self._head = self._head or _head_of_each(self._metadata)
        _, single, at, body_at = message
        size = single.payload_size
        origin = head + self._payload[at : body_at + size]
        key = span_of(single.partition_key, origin, len(head))
        tag = tag_span(single.properties, origin, len(head))
        body = len(head) + body_at - at, size
        shape = shape_of(0, 1, 0, *key, *tag, 4, len(head) - 4, *body)
        born_ms = single.event_time
        return Record(origin, shape, born_ms if born_ms <= TIME_MS_MAX else 0)


def _head_of_each(metadata: MessageMetadata) -> bytes:
    """What is before the bytes of each message, once it is alone."""
    outer = MessageMetadata()
    outer.CopyFrom(metadata)
    outer.num_messages_in_batch = 1
    for name in _OF_THE_WHOLE:
        outer.ClearField(name)
    raw = outer.SerializeToString()
    return len(raw).to_bytes(4, "big") + raw


_OF_THE_WHOLE: Final = (
    "compression", "uncompressed_size", "partition_key", "partition_key_b64_encoded",
    "ordering_key", "properties", "event_time", "null_value", "null_partition_key",
    "highest_sequence_id", "compacted_batch_indexes", "entry_hash_min", "entry_hash_max",
)  # fmt: skip
"""Said of a batch or copied from its first message."""


# ---- compression --------------------------------------------------------------------------------


def _plain(record: Record, metadata: MessageMetadata, bytes_max: int) -> bytes:
    """The payload as it was before it was compressed; raises ``ValueError``."""
    if metadata.encryption_keys:
        raise ValueError("encrypted")
    shape = record.shape
    payload = record.origin[shape.props_at + shape.props_len :]
    if not metadata.compression:
        return payload
    if metadata.num_chunks_from_msg > 1:
        raise ValueError("a part of a larger message that is compressed")
    return inflate(payload, metadata.compression, metadata.uncompressed_size, bytes_max)


def inflate(payload: bytes, compression: int, size: int, bytes_max: int) -> bytes:
    """A payload as it was, which must be ``size`` bytes; raises ``ValueError``."""
    if size > bytes_max:
        raise ValueError(f"more than {bytes_max} bytes when inflated")
    if compression == CompressionType.ZLIB:
        inflater = zlib.decompressobj()
        try:
            plain = inflater.decompress(payload, size + 1)
        except zlib.error as problem:
            raise ValueError(f"corrupt: {problem}") from None
        is_whole = inflater.eof and len(plain) == size
    else:
        codec = _CODECS.get(compression)
        if codec is None:
            name = CompressionType.Name(compression)
            raise ValueError(
                f"compressed with {name}, for which this build has no library (cramjam)"
            )
        room = bytearray(size)
        try:
            is_whole = codec(payload, room) == size
        except DecompressionError as problem:
            raise ValueError(f"corrupt: {problem}") from None
        plain = bytes(room)
    if not is_whole:
        raise ValueError(f"corrupt: not the {size} bytes it said when inflated")
    return plain
