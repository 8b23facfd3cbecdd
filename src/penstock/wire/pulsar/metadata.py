"""What a SEND says of its message, and how a ``Record`` is made of it (D3).

    | 0x0e01, crc32c | metadata size u32 | MessageMetadata | payload              |
    0                                     props_at          body_at

The record's origin is this tail, byte for byte as it came, and a MESSAGE passes it on. A payload is
a batch when its metadata have the field ``num_messages_in_batch``, also when that is 1:

    | size u32 | SingleMessageMetadata | payload_size bytes |   repeated

A batch of N is one record of N messages. A batch of one is a record of one message: key, tag and
body are those of the message in it, if they can be reached without inflating.

Spans of the record: ``key`` is the partition key, ``tag`` the property TAGS, ``properties`` are the
metadata as a whole, ``body`` is the payload; ``born_ms`` is the event time, else the publish time.
Metadata that cannot be read are no reason to refuse a SEND (Pulsar takes it, too, and never
delivers it): its record has no spans at all, and ``is_readable`` says so.

Invariants: spans lie in the origin; nothing a peer says of a number of messages is believed beyond
what its bytes can hold.
Not here: opening batches, inflating bodies, what other protocols may know (``facts.py``).
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import Final

from google.protobuf.message import DecodeError

from penstock.model.record import SHAPES_KEPT, Record, RecordFlag, Shape, Wire
from penstock.wire.pulsar.frames import CHECKSUM_BYTES, CHECKSUM_MAGIC
from penstock.wire.pulsar.protocol_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata

TAGS: Final = "TAGS"
"""The property that is RocketMQ's tag and AMQP's type (D16)."""
BATCH_MESSAGES_MAX: Final = 100_000
"""Clients batch 1,000 by default. A record is at least a byte a message long (D2), so that a small
compressed batch that claims millions would cost the disk megabytes."""
MESSAGE_BYTES_MIN: Final = 6
"""Of one message in a batch: its size, and the one field that must be there."""
TIME_MS_MAX: Final = 253_402_300_799_999
"""End of the year 9999: later times are not believed, later deliveries are put there."""
SPAN_BYTES_MAX: Final = 0xFFFF
"""The log's limit for keys and tags; a longer one has no span."""

_PULSAR: Final = int(Wire.PULSAR)
_COMPRESSED: Final = int(RecordFlag.COMPRESSED)
_SIZE: Final = Struct(">I")
_UNREADABLE: Final = Shape(wire=_PULSAR)
_NONE: Final = (0, 0)


class Unreadable(ValueError):
    """Bytes that are no metadata of a message."""


def read_metadata(tail: bytes) -> tuple[MessageMetadata, int]:
    """The metadata of a tail, and where its payload begins; raises ``Unreadable``."""
    at, end = metadata_span(tail)
    return parse_metadata(tail[at:end]), end


def metadata_span(tail: bytes) -> tuple[int, int]:
    """From where to where the metadata lie; raises ``Unreadable``."""
    at = CHECKSUM_BYTES + 4 if tail.startswith(CHECKSUM_MAGIC) else 4
    if len(tail) < at:
        raise Unreadable(f"{len(tail)} bytes are too few for metadata")
    (size,) = _SIZE.unpack_from(tail, at - 4)
    if at + size > len(tail):
        raise Unreadable(f"metadata of {size} bytes announced, {len(tail) - at} are there")
    return at, at + size


def parse_metadata(data: bytes) -> MessageMetadata:
    """Raises ``Unreadable``."""
    try:
        metadata = MessageMetadata.FromString(data)
    except DecodeError:
        raise Unreadable(f"metadata of {len(data)} bytes that are no protobuf message") from None
    if not metadata.IsInitialized():
        raise Unreadable("metadata without a field they must have")
    return metadata


def publish_ms(record: Record) -> int:
    """When a client published a record, by its clock; of another protocol, when it was born."""
    if record.wire == _PULSAR and is_readable(record):
        return min(parse_metadata(record.properties).publish_time, TIME_MS_MAX)
    return record.born_ms


def is_readable(record: Record) -> bool:
    """Whether a Pulsar record is a message that a Pulsar client can read."""
    return record.shape.body_at > 0


# ---- records ------------------------------------------------------------------------------------


def make_record(tail: bytes, now_ms: int) -> Record:
    """The record of one SEND; ``tail`` is all of it behind the command."""
    try:
        at, end = metadata_span(tail)
        metadata = parse_metadata(tail[at:end])
    except Unreadable:
        return Record(tail, _UNREADABLE, now_ms)
    return record_of(tail, metadata, (at, end), now_ms)


def record_of(tail: bytes, metadata: MessageMetadata, span: tuple[int, int], now_ms: int) -> Record:
    """The same for who has read the metadata; ``span`` says where they lie."""
    at, end = span
    born_ms = metadata.event_time or metadata.publish_time
    flags = _COMPRESSED if metadata.compression else 0
    body_at, body_len = end, len(tail) - end
    key = tag = _NONE
    messages = 1
    if metadata.HasField("num_messages_in_batch"):
        messages = _believed(metadata, body_len)
        if is_batch_of_one(metadata) and not flags:
            single, body_at = _first_of_batch(tail, end)
            if single is not None:
                body_len = single.payload_size
                key = span_of(single.partition_key, tail, end)
                tag = tag_span(single.properties, tail, end)
                born_ms = single.event_time or born_ms
    elif metadata.properties:
        tag = tag_span(metadata.properties, tail, at)
    if key is _NONE and metadata.HasField("partition_key"):
        key = span_of(metadata.partition_key, tail, at)
    deliver_ms = metadata.deliver_at_time
    if deliver_ms:
        deliver_ms = min(max(deliver_ms, 0), TIME_MS_MAX)
    if not 0 < born_ms <= TIME_MS_MAX:
        born_ms = now_ms
    shape = shape_of(flags, messages, deliver_ms, *key, *tag, at, end - at, body_at, body_len)
    return Record(tail, shape, born_ms)


def is_batch_of_one(metadata: MessageMetadata) -> bool:
    """Whether the payload is a batch whose only message may be looked for; if it is inflated."""
    return (
        metadata.num_messages_in_batch == 1
        and metadata.HasField("num_messages_in_batch")
        and not metadata.encryption_keys
    )


@lru_cache(maxsize=SHAPES_KEPT)
def shape_of(flags: int, messages: int, deliver_ms: int, *spans: int) -> Shape:
    """``spans``: begin and length of key, tag, metadata, body."""
    return Shape(_PULSAR, 1, flags, 0, messages, 0, deliver_ms, *spans)


def _believed(metadata: MessageMetadata, payload_bytes: int) -> int:
    """How many messages a batch has; 1 when it says what cannot be."""
    messages = metadata.num_messages_in_batch
    room = payload_bytes
    if metadata.compression:
        room = max(room, metadata.uncompressed_size)
    if 0 < messages <= BATCH_MESSAGES_MAX and messages * MESSAGE_BYTES_MIN <= room:
        return messages
    return 1


def _first_of_batch(tail: bytes, at: int) -> tuple[SingleMessageMetadata | None, int]:
    """The only message of a batch of one, if it can be read, and where its payload begins."""
    try:
        return read_single(tail, at)
    except Unreadable:
        return None, at


def read_single(payload: bytes, at: int) -> tuple[SingleMessageMetadata, int]:
    """The message of a batch that begins at ``at``, and where its payload does.

    Raises ``Unreadable``; when it does not, the payload lies in these bytes.
    """
    if at + 4 > len(payload):
        raise Unreadable("a batch that ends in the middle of a message")
    (size,) = _SIZE.unpack_from(payload, at)
    body_at = at + 4 + size
    if body_at > len(payload):
        raise Unreadable("a batch that ends in the middle of a message")
    try:
        single = SingleMessageMetadata.FromString(payload[at + 4 : body_at])
    except DecodeError:
        raise Unreadable("a message of a batch without metadata") from None
    size = single.payload_size
    if size < 0 or size > len(payload) - body_at or not single.HasField("payload_size"):
        raise Unreadable("a message of a batch that does not say where it ends")
    return single, body_at


def tag_span(properties: Iterable[KeyValue], tail: bytes, at: int) -> tuple[int, int]:
    for pair in properties:
        if pair.key == TAGS:
            return span_of(pair.value, tail, at)
    return _NONE


def span_of(text: str | bytes, tail: bytes, at: int) -> tuple[int, int]:
    """Where these bytes are, at or behind ``at``: any place that has them is as good."""
    raw = octets(text)
    return (tail.find(raw, at), len(raw)) if 0 < len(raw) <= SPAN_BYTES_MAX else _NONE


# ---- the key of key_shared ----------------------------------------------------------------------


def ordering_key(record: Record) -> bytes:
    """What key_shared goes by: the ordering key, else the partition key, else a key of its own.

    Of a batch it is that of the whole: producers that want order by key batch by key.
    """
    try:
        metadata = parse_metadata(record.properties)
    except Unreadable:
        return b""
    key = _key_of(metadata)
    sequence_id = metadata.sequence_id
    if not key and (single := inner_message(record, metadata)) is not None:
        key = _key_of(single)
        sequence_id = single.sequence_id if single.HasField("sequence_id") else sequence_id
    return key or octets(metadata.producer_name) + b"-%d" % sequence_id


def inner_message(record: Record, metadata: MessageMetadata) -> SingleMessageMetadata | None:
    """What a batch of one says of the message in it; None = it is none, or not to be reached."""
    shape = record.shape
    if shape.body_at == shape.props_at + shape.props_len or not is_batch_of_one(metadata):
        return None
    return _first_of_batch(record.origin, shape.props_at + shape.props_len)[0]


def _key_of(metadata: MessageMetadata | SingleMessageMetadata) -> bytes:
    if metadata.ordering_key:
        return metadata.ordering_key
    key = octets(metadata.partition_key)
    if key and metadata.partition_key_b64_encoded:
        try:
            return b64decode(key)
        except NotBase64:
            return key
    return key


def octets(text: str | bytes) -> bytes:
    """A string of metadata as it lies there; one that is no UTF-8 is bytes already."""
    return text.encode() if isinstance(text, str) else text
