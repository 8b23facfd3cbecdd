"""Batches of a protocol that exists only here: wire 3, until Pulsar's codec is there.

A batch is one record: a JSON head and a list of messages, which may be compressed, or pretend to be
encrypted. ``BatchFacts`` reads it, and the single messages it is opened into: everything a
``FactsReader`` may do. ``batch`` makes one. A batch of one is a record of one message, for the
engine as any other: the record's spans point at what is inside, and the reader finds the rest.
"""

import zlib

import msgspec

from penstock.model.record import Facts, Record, Shape, Wire
from penstock.wire.rocketmq.properties import format_properties, parse_properties

WIRE = int(Wire.PULSAR)


class BatchMessage(msgspec.Struct, array_like=True):
    """One message, as it lies in a batch."""

    body: bytes
    key: bytes = b""
    tag: bytes = b""
    properties: dict[str, str] = {}


class _Head(msgspec.Struct):
    """What a batch says of itself."""

    compression: str = ""
    is_encrypted: bool = False


def batch(
    *messages: BatchMessage | bytes,
    compression: str = "",
    is_encrypted: bool = False,
    count: int = 0,
    **shape: int,
) -> Record:
    """These messages as one record; ``count``: what it claims to hold."""
    each = [one if isinstance(one, BatchMessage) else BatchMessage(one) for one in messages]
    payload = msgspec.msgpack.encode(each)
    if compression == "zlib":
        payload = zlib.compress(payload)
    head = msgspec.json.encode(_Head(compression, is_encrypted)) + b"\n"
    origin = head + payload
    spans = {"body_at": len(head), "body_len": len(payload)}
    if len(each) == 1 and not compression:
        (only,) = each
        at = len(head)
        for name in ("body", "key", "tag"):
            part = getattr(only, name)
            spans[f"{name}_at"] = at = origin.index(part, at)
            spans[f"{name}_len"] = len(part)
            at += len(part)
    return Record(origin, Shape(wire=WIRE, messages=count or len(each), **spans, **shape))


def numbered(count: int, start: int = 0) -> list[BatchMessage]:
    """Messages whose body is their number; odd and even ones have another tag."""
    return [
        BatchMessage(
            b"%d" % number,
            b"k%d" % (number % 3),
            b"odd" if number % 2 else b"even",
            {"number": str(number)},
        )
        for number in range(start, start + count)
    ]


class BatchFacts:
    """Reads batches and their messages (``ports.FactsReader``, ``ports.BatchCodec``)."""

    def __init__(self) -> None:
        self.opened = 0
        """How often a batch was opened."""

    def keys(self, record: Record) -> list[bytes]:
        """Nothing is looked up by key here."""
        return []

    def properties(self, record: Record) -> dict[str, str]:
        """What a selector may name."""
        return self.facts(record).properties | {"TAGS": record.tag.decode()}

    def facts(self, record: Record) -> Facts:
        """Of one message; of a batch that is shown whole there are none."""
        if record.messages == 1 and (found := self.open_batch(record, len(record.origin))):
            record = record if isinstance(found, str) else found[0]
        is_single = record.messages == 1
        return Facts(
            key=record.key.decode(),
            tag=record.tag.decode(),
            properties=parse_properties(record.properties) if is_single else {},
        )

    def body(self, record: Record, bytes_max: int) -> bytes:
        """As it lies there."""
        return record.body

    def open_batch(self, record: Record, bytes_max: int) -> list[Record] | str:
        """Its messages, or why not."""
        self.opened += 1
        try:
            start = record.origin.find(b"\n") + 1
            head = msgspec.json.decode(record.origin[:start], type=_Head)
            if head.is_encrypted:
                return "encrypted"
            payload = record.origin[start:]
            if head.compression == "zlib":
                inflating = zlib.decompressobj()
                payload = inflating.decompress(payload, bytes_max)
                if inflating.unconsumed_tail:
                    return f"more than {bytes_max} bytes when inflated"
            elif head.compression:
                return f"compressed by {head.compression}, which is not known"
            found = msgspec.msgpack.decode(payload, type=list[BatchMessage])
        except (msgspec.MsgspecError, zlib.error) as problem:
            return f"corrupt: {problem}"
        return [_single(message) for message in found]


def _single(message: BatchMessage) -> Record:
    properties = format_properties(message.properties)
    key, tag = len(message.key), len(message.tag)
    shape = Shape(
        wire=WIRE,
        key_len=key,
        tag_at=key,
        tag_len=tag,
        props_at=key + tag,
        props_len=len(properties),
        body_at=key + tag + len(properties),
        body_len=len(message.body),
    )
    return Record(message.key + message.tag + properties + message.body, shape)
