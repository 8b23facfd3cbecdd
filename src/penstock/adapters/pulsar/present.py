"""Messages of other protocols as Pulsar shows them: facts in, the tail of a MESSAGE out (D16).

    key         partition_key                 born         event_time; publish_time is the store's
    message id  property ``message_id``       deliver      deliver_at_time
    tag         property TAGS                 properties   properties, as text
    attempts    what MESSAGE says as redelivery_count, beside what this subscription counts

A record that came over this wire is its own tail, byte for byte, also when it is a batch. The name
of its producer is that of the protocol it came by; its sequence number is its place in the log. The
body is the one its producer's user saw: inflated if that producer compressed it.

What a client of Pulsar could not take in one frame would end its connection, and again whenever it
comes back: such a body is left out, and the property ``penstock.unopened`` says so. A record of
several messages of another protocol, of which none stores any today, is a batch of as many, and the
first has the bytes. Never an error: a reader must get past every message.

Not here: reading another protocol's bytes (``wire/<protocol>``, by the engine's port); the opposite
direction (``wire/pulsar/facts.py``).
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, runtime_checkable

from penstock.engine.batch import UNOPENED
from penstock.model.record import Facts, Record, Wire
from penstock.wire.pulsar.facts import MESSAGE_ID
from penstock.wire.pulsar.frames import CHECKSUM_MAGIC, MAX_MESSAGE_SIZE, crc32c
from penstock.wire.pulsar.metadata import TAGS
from penstock.wire.pulsar.protocol_pb2 import MessageMetadata, SingleMessageMetadata
from penstock.wire.rocketmq.properties import neutral_facts

METADATA_ROOM: Final = 8 * 1024
"""Of the 10 KiB that a frame may have beside the largest message; the rest is for the command."""

_PULSAR: Final = int(Wire.PULSAR)
_NAMES: Final = {int(wire): wire.name.lower() for wire in Wire}


class Presented(NamedTuple):
    """What a MESSAGE carries."""

    tail: bytes
    attempts: int
    """Deliveries before the first one here, as far as the message itself says."""


@runtime_checkable
class ForeignReader(Protocol):
    """What a protocol's codec offers."""

    def facts(self, record: Record) -> Facts: ...

    def body(self, record: Record, bytes_max: int) -> bytes:
        """The body as its producer's user saw it; ``ValueError`` when that cannot be had."""
        ...


def present(
    record: Record,
    reader: object,
    *,
    max_message_size: int = MAX_MESSAGE_SIZE,
) -> Presented:
    """A stored record as a consumer of Pulsar gets it; ``reader`` is its wire's."""
    if record.wire == _PULSAR:
        return Presented(record.origin, 0)
    facts, body = _read(record, reader, max_message_size)
    properties = dict(facts.properties)
    if facts.tag:
        properties[TAGS] = facts.tag
    if facts.message_id:
        properties[MESSAGE_ID] = facts.message_id
    if len(body) > max_message_size:
        properties[UNOPENED] = (
            f"its {len(body)} bytes are more than pulsar.max_message_size ({max_message_size})"
        )
        body = b""
    metadata = _metadata(record, facts)
    if record.messages > 1:
        metadata.num_messages_in_batch = record.messages
        body = _as_batch(record.messages, properties, body)
    else:
        _put(metadata, properties)
    raw = metadata.SerializeToString()
    if len(raw) + len(body) > max_message_size + METADATA_ROOM:
        metadata.ClearField("properties")
        _put(metadata, {UNOPENED: f"its properties are more than {METADATA_ROOM} bytes"})
        raw = metadata.SerializeToString()
    checked = b"".join((len(raw).to_bytes(4, "big"), raw, body))
    return Presented(
        b"".join((CHECKSUM_MAGIC, crc32c(checked).to_bytes(4, "big"), checked)), facts.attempts
    )


def _read(record: Record, reader: object, bytes_max: int) -> tuple[Facts, bytes]:
    if record.wire != Wire.NEUTRAL and isinstance(reader, ForeignReader):
        try:
            # One that inflates to more than the limit is not told from one that cannot be inflated.
            return reader.facts(record), reader.body(record, bytes_max)
        except ValueError:
            return reader.facts(record), record.body
    if record.wire == Wire.NEUTRAL:
        return neutral_facts(record), record.body
    facts = Facts(
        key=record.key.decode("utf-8", "replace"),
        tag=record.tag.decode("utf-8", "replace"),
        born_ms=record.born_ms,
        deliver_ms=record.deliver_ms,
    )
    return facts, record.body


def _metadata(record: Record, facts: Facts) -> MessageMetadata:
    metadata = MessageMetadata(
        producer_name=_NAMES.get(record.wire, "penstock"),
        sequence_id=max(record.position, 0),
        publish_time=max(record.store_ms, 0),
    )
    if facts.born_ms > 0:
        metadata.event_time = facts.born_ms
    if facts.key:
        metadata.partition_key = _sayable(facts.key)
    if facts.deliver_ms:
        metadata.deliver_at_time = facts.deliver_ms
    return metadata


def _put(metadata: MessageMetadata | SingleMessageMetadata, properties: dict[str, str]) -> None:
    for name, value in properties.items():
        metadata.properties.add(key=_sayable(name), value=_sayable(value))


def _as_batch(count: int, properties: dict[str, str], body: bytes) -> bytes:
    """The first message has the bytes; the permits and acks of a client want all of them."""
    first = SingleMessageMetadata(payload_size=len(body))
    _put(first, properties)
    rest = SingleMessageMetadata(payload_size=0)
    _put(rest, {UNOPENED: properties.get(UNOPENED, "its bytes are in the first of its messages")})
    one, others = first.SerializeToString(), rest.SerializeToString()
    other = len(others).to_bytes(4, "big") + others
    return b"".join((len(one).to_bytes(4, "big"), one, body, other * (count - 1)))


def _sayable(text: str) -> str:
    """Protobuf takes no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
