"""Messages of Pulsar: where one is, what is sent, what was received.

A ``Message`` may be changed until it is handed to a producer. A ``ReceivedMessage`` is a view of
what came: properties, key and value are unpacked when somebody looks, because most programs look at
the body only.

A ``MessageId`` is compared as Pulsar's clients do: ledger, entry, place in the batch, partition.
``EARLIEST`` is below and ``LATEST`` above every other one. Its bytes are Pulsar's
``MessageIdData``, which the clients of other languages read, too.

Not here: bytes of a SEND (``batching.py``), what is made of values (``schema.py``).
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from google.protobuf.message import DecodeError

from penstock.client.pulsar.errors import InvalidUse
from penstock.wire.pulsar.frames import LATEST as LATEST_NUMBER
from penstock.wire.pulsar.frames import signed
from penstock.wire.pulsar.protocol_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    from penstock.client.pulsar.schema import Schema

_ALL_BITS: Final = 2**64 - 1


EntryId = tuple[int, int]
"""Ledger and entry: what a broker keeps, sends and is told of; a batch is one."""


class MessageId(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Where a message is: an entry of a ledger, and its place in there if that is a batch."""

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    """-1: the message is the whole entry."""
    batch_size: int = 0
    """Messages in its batch; 0 where nobody said."""
    first_chunk: MessageId | None = None
    """Of a message in several chunks, the first one; the id itself is that of the last."""

    earliest: ClassVar[MessageId]
    """Before the first message of a topic."""
    latest: ClassVar[MessageId]
    """Behind the last one."""

    @property
    def position(self) -> tuple[int, int, int]:
        """What the order of messages in one partition goes by."""
        return self.ledger_id, self.entry_id, self.batch_index

    @property
    def place(self) -> tuple[int, int, int, int]:
        """What ids are compared by."""
        return self.ledger_id, self.entry_id, self.batch_index, self.partition

    @property
    def entry(self) -> EntryId:
        """What a broker acknowledges as one."""
        return self.ledger_id, self.entry_id

    def __eq__(self, other: object) -> bool:
        return self.place == other.place if isinstance(other, MessageId) else NotImplemented

    def __ne__(self, other: object) -> bool:
        # msgspec has one of its own, which knows nothing of the other.
        return not self == other

    def __hash__(self) -> int:
        return hash(self.place)

    def __lt__(self, other: MessageId) -> bool:
        return self.place < other.place

    def __le__(self, other: MessageId) -> bool:
        return self.place <= other.place

    def __gt__(self, other: MessageId) -> bool:
        return self.place > other.place

    def __ge__(self, other: MessageId) -> bool:
        return self.place >= other.place

    def __str__(self) -> str:
        """As Pulsar's tools print it: ledger:entry:partition, and the place in a batch."""
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"

    def to_bytes(self) -> bytes:
        """To be kept somewhere, and read by ``from_bytes`` or a client of another language."""
        data = self.to_wire()
        if self.first_chunk is not None:
            data.first_chunk_message_id.CopyFrom(self.first_chunk.to_wire())
        return data.SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes) -> MessageId:
        """Raises ``InvalidUse``."""
        try:
            found = MessageIdData.FromString(data)
        except DecodeError:
            found = MessageIdData()
        if not found.IsInitialized():
            raise InvalidUse(f"{len(data)} bytes that are no message id; use MessageId.to_bytes()")
        return cls.from_wire(found)

    def to_wire(self) -> MessageIdData:
        """As commands have it."""
        data = MessageIdData(ledgerId=self.ledger_id & _ALL_BITS, entryId=self.entry_id & _ALL_BITS)
        if self.partition >= 0:
            data.partition = self.partition
        if self.batch_index >= 0:
            data.batch_index = self.batch_index
            if self.batch_size > 0:
                data.batch_size = self.batch_size
        return data

    @classmethod
    def from_wire(cls, data: MessageIdData, *, partition: int = -1) -> MessageId:
        """``partition`` where the command does not say it."""
        first = None
        if data.HasField("first_chunk_message_id"):
            chunk = data.first_chunk_message_id
            first = cls(signed(chunk.ledgerId), signed(chunk.entryId), chunk.partition)
        return cls(
            signed(data.ledgerId),
            signed(data.entryId),
            data.partition if data.partition >= 0 else partition,
            data.batch_index,
            data.batch_size,
            first,
        )


MessageId.earliest = EARLIEST = MessageId(-1, -1)
MessageId.latest = LATEST = MessageId(LATEST_NUMBER, LATEST_NUMBER)


class Message:
    """One message to send.

    ``value`` is what the producer's schema takes: bytes, unless another schema was given; None
    sends a message without a value, which a compacted topic understands as "deleted". ``key``
    decides the partition and is what topics are compacted by; ``ordering_key`` is what key-shared
    consumers get in one hand, if that is not the key. At most one of ``deliver_at_ms`` (wall time)
    and ``deliver_after_ms`` may be given. ``sequence_id`` is the producer's own count unless given.
    """

    __slots__ = (
        "deliver_after_ms",
        "deliver_at_ms",
        "event_time_ms",
        "key",
        "ordering_key",
        "properties",
        "replicate_to",
        "sequence_id",
        "value",
    )

    def __init__(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_ms: int | None = None,
        sequence_id: int | None = None,
        replicate_to: Sequence[str] = (),
    ) -> None:
        self.value = value
        self.key = key
        self.ordering_key = ordering_key
        self.properties = properties
        self.event_time_ms = event_time_ms
        self.deliver_at_ms = deliver_at_ms
        self.deliver_after_ms = deliver_after_ms
        self.sequence_id = sequence_id
        self.replicate_to = replicate_to

    def __repr__(self) -> str:
        size = f"{len(self.value)} B" if isinstance(self.value, bytes) else repr(self.value)
        return f"Message({size}, key={self.key!r})"


class ReceivedMessage:
    """One message as a consumer or reader gets it."""

    __slots__ = (
        "_metadata",
        "_properties",
        "_schema",
        "_single",
        "data",
        "epoch",
        "message_id",
        "redelivery_count",
        "source",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        message_id: MessageId,
        data: bytes,
        metadata: MessageMetadata,
        *,
        single: SingleMessageMetadata | None = None,
        schema: Schema | None = None,
        redelivery_count: int = 0,
        source: Any = None,
        epoch: int = 0,
    ) -> None:
        """``single`` is what a batch says of this message of it."""
        self.topic = topic
        """Where it came from, with ``-partition-n`` if the topic has partitions."""
        self.message_id = message_id
        self.data = data
        """The body as it was sent."""
        self.redelivery_count = redelivery_count
        """How often it was given back before, as far as the broker remembers."""
        self.source = source
        """Which consumer of one partition received it; of no interest to an application."""
        self.epoch = epoch
        """Of that consumer's connections, the how-manieth it came by; likewise."""
        self._metadata = metadata
        self._single = single
        self._schema = schema
        self._properties: dict[str, str] | None = None

    @property
    def value(self) -> Any:
        """What the consumer's schema makes of the body; None when it was sent without a value.

        Raises ``SchemaMismatch`` when it cannot be read as that.
        """
        if self.is_null:
            return None
        return self.data if self._schema is None else self._schema.decode(self.data)

    @property
    def is_null(self) -> bool:
        """True when it was sent without a value."""
        return self._said.null_value

    @property
    def properties(self) -> dict[str, str]:
        """The sender's; a map of this message's own."""
        if self._properties is None:
            self._properties = {
                as_text(pair.key): as_text(pair.value) for pair in self._said.properties
            }
        return self._properties

    @property
    def key(self) -> str | None:
        """What decided its partition; None when it has none. Of a key in bytes its base64."""
        said = self._said
        return as_text(said.partition_key) if said.HasField("partition_key") else None

    @property
    def key_bytes(self) -> bytes | None:
        """The same as bytes."""
        key = self.key
        if key is None:
            return None
        return b64decode(key) if self._said.partition_key_b64_encoded else key.encode()

    @property
    def ordering_key(self) -> bytes | None:
        """What key-shared consumers go by, if that is not the key."""
        said = self._said
        return said.ordering_key if said.HasField("ordering_key") else None

    @property
    def event_time_ms(self) -> int | None:
        """The sender's own time for it; None when it gave none."""
        return self._said.event_time or None

    @property
    def publish_time_ms(self) -> int:
        """Wall time of the sender."""
        return self._metadata.publish_time

    @property
    def deliver_at_ms(self) -> int | None:
        """The wall time before which shared consumers do not get it."""
        return self._metadata.deliver_at_time or None

    @property
    def producer_name(self) -> str:
        """Whose message it is."""
        return as_text(self._metadata.producer_name)

    @property
    def sequence_id(self) -> int:
        """The number its producer gave it."""
        single = self._single
        if single is not None and single.HasField("sequence_id"):
            return signed(single.sequence_id)
        return signed(self._metadata.sequence_id)

    @property
    def schema_version(self) -> bytes:
        """The broker's number of the schema it was sent with; empty without one."""
        return self._metadata.schema_version

    @property
    def replicated_from(self) -> str | None:
        """The cluster it comes from."""
        return as_text(self._metadata.replicated_from) or None

    @property
    def _said(self) -> MessageMetadata | SingleMessageMetadata:
        return self._metadata if self._single is None else self._single

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"ReceivedMessage({self.topic!r}, {self.message_id}, {len(self.data)} B)"


def check_text(what: str, text: str) -> None:
    """Raises ``InvalidUse`` for what no frame can carry: half of a surrogate pair."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise InvalidUse(f"{what} {text[:200]!r} cannot be UTF-8: {problem.reason}") from None


def as_text(value: str | bytes) -> str:
    """A string of metadata; one that is no UTF-8 is bytes already."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
