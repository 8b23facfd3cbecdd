"""Tails of SEND and MESSAGE as Pulsar's clients make them: single messages, batches, compressed.

Written from the sheet: of ``penstock.wire.pulsar`` only the message classes are used.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import cramjam
import google_crc32c
import msgspec

from penstock.wire.pulsar.protocol_pb2 import (
    CompressionType,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)

PRODUCER = "standalone-0-7"
PUBLISH_MS = 1_763_400_000_000
COMPRESSIONS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


class PulsarMessage(msgspec.Struct):
    """One message, as a client's user gives it."""

    body: bytes = b""
    key: str = ""
    properties: Mapping[str, str] = {}
    ordering_key: bytes = b""
    event_ms: int = 0
    is_null: bool = False
    is_compacted_out: bool = False
    sequence_id: int | None = None


def numbered_messages(count: int, start: int = 0) -> list[PulsarMessage]:
    """Messages whose body is their number; odd and even ones have another tag."""
    return [
        PulsarMessage(
            b"%d" % number,
            f"k{number % 3}",
            {"TAGS": "odd" if number % 2 else "even", "number": str(number)},
            sequence_id=number,
        )
        for number in range(start, start + count)
    ]


def single_tail(
    message: PulsarMessage | bytes, *, compression: str = "NONE", has_crc: bool = True, **more: Any
) -> bytes:
    """A message that is sent by itself; ``more``: further fields of its metadata."""
    one = message if isinstance(message, PulsarMessage) else PulsarMessage(message)
    metadata = _metadata(**more)
    metadata.properties.extend(_pairs(one.properties))
    if one.key:
        metadata.partition_key = one.key
    if one.ordering_key:
        metadata.ordering_key = one.ordering_key
    if one.event_ms:
        metadata.event_time = one.event_ms
    if one.is_null:
        metadata.null_value = True
    return tail(metadata, packed(metadata, one.body, compression), has_crc=has_crc)


def batch_tail(
    *messages: PulsarMessage | bytes, compression: str = "NONE", has_crc: bool = True, **more: Any
) -> bytes:
    """These messages as one batch, also when it is one message."""
    each = [one if isinstance(one, PulsarMessage) else PulsarMessage(one) for one in messages]
    metadata = _metadata(**{"num_messages_in_batch": len(each), **more})
    if each and each[0].key:
        metadata.partition_key = each[0].key
    if each and each[0].ordering_key:
        metadata.ordering_key = each[0].ordering_key
    payload = b"".join([_in_batch(one) for one in each])
    return tail(metadata, packed(metadata, payload, compression), has_crc=has_crc)


def tail(metadata: MessageMetadata | bytes, payload: bytes, *, has_crc: bool = True) -> bytes:
    """Metadata and payload in a frame's second half."""
    raw = metadata if isinstance(metadata, bytes) else metadata.SerializePartialToString()
    checked = len(raw).to_bytes(4, "big") + raw + payload
    if not has_crc:
        return checked
    return b"\x0e\x01" + int(google_crc32c.value(checked)).to_bytes(4, "big") + checked


def packed(metadata: MessageMetadata, payload: bytes, compression: str) -> bytes:
    """The payload compressed, and the metadata saying so."""
    if compression == "NONE":
        return payload
    metadata.MergeFrom(MessageMetadata(compression=compression, uncompressed_size=len(payload)))
    if compression == "ZLIB":
        return zlib.compress(payload)
    if compression == "LZ4":
        return bytes(cramjam.lz4.compress_block(payload, store_size=False))
    if compression == "ZSTD":
        return bytes(cramjam.zstd.compress(payload))
    return bytes(cramjam.snappy.compress_raw(payload))


def unpacked(metadata: MessageMetadata, payload: bytes) -> bytes:
    """The payload as it was before ``packed``."""
    kind, size = metadata.compression, metadata.uncompressed_size
    if kind == CompressionType.NONE:
        return payload
    if kind == CompressionType.ZLIB:
        return zlib.decompress(payload)
    if kind == CompressionType.LZ4:
        return bytes(cramjam.lz4.decompress_block(payload, output_len=size))
    if kind == CompressionType.ZSTD:
        return bytes(cramjam.zstd.decompress(payload))
    return bytes(cramjam.snappy.decompress_raw(payload))


def _metadata(**more: Any) -> MessageMetadata:
    given = {"producer_name": PRODUCER, "sequence_id": 0, "publish_time": PUBLISH_MS, **more}
    return MessageMetadata(**given)


def _in_batch(message: PulsarMessage) -> bytes:
    single = SingleMessageMetadata(payload_size=len(message.body))
    single.properties.extend(_pairs(message.properties))
    if message.key:
        single.partition_key = message.key
    if message.ordering_key:
        single.ordering_key = message.ordering_key
    if message.event_ms:
        single.event_time = message.event_ms
    if message.is_null:
        single.null_value = True
    if message.is_compacted_out:
        single.compacted_out = True
    if message.sequence_id is not None:
        single.sequence_id = message.sequence_id
    raw = single.SerializeToString()
    return len(raw).to_bytes(4, "big") + raw + message.body


def _pairs(properties: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in properties.items()]
