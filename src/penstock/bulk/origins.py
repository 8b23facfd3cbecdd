"""Whose bytes a record holds, and how its columns are read: the registry {wire: origin} (D15).

Origins are *laid out*: key, tag and body are the spans of the header, and a function makes maps of
all their properties at once. Those are read without a loop. Any other origin, any compressed body
and any batch is read message by message through its ``reader``.

A body that cannot be inflated is given as it was stored: one bad message must not stop a query.

Not here: the bytes themselves (``wire/<protocol>/facts.py``).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

import msgspec
import pyarrow as pa

from penstock.bulk.amqp_maps import amqp_maps, amqp_properties
from penstock.bulk.property_maps import property_maps
from penstock.model.record import Facts, Record, RecordFlag, Wire
from penstock.wire.amqp.origin import AmqpFacts
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.properties import KEYS, SYSTEM_NAMES, TAGS, parse_properties, value_of
from penstock.wire.rocketmq.stored import RocketmqFacts, SysFlag, split_batch, sys_flag_of

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""What one compressed body may grow to; RocketMQ's largest message is 4 MiB by default."""
_COMPRESSED: Final = int(RecordFlag.COMPRESSED)
_INNER_BATCH: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
_CODECS: Final = {1: "lz4", 2: "zstd"}


class Message(msgspec.Struct, gc=False):
    """One message as a row wants it."""

    key: bytes
    tag: bytes
    properties: dict[str, str]
    """The user's own."""
    body: bytes


class MessageReader(Protocol):
    """Reads what cannot be read without a loop."""

    def messages(self, record: Record) -> list[Message]:
        """As many as ``record.messages``."""
        ...

    def selectable(self, record: Record) -> Mapping[str, str]:
        """All properties that an SQL92 filter may name."""
        ...


class Origin(msgspec.Struct, frozen=True):
    """How one wire's records are read."""

    name: str
    reader: MessageReader
    maps: Callable[[pa.Array], pa.Array] = partial(property_maps, hidden=frozenset())
    """The user's properties of a binary column of ``Record.properties``."""
    is_laid_out: bool = True


class RocketmqMessages:
    """RocketMQ's stored messages, inner batches included."""

    def __init__(self) -> None:
        self._facts = RocketmqFacts()

    def messages(self, record: Record) -> list[Message]:
        """The message, or those of an inner batch."""
        body = self._plain_body(record)
        if record.messages > 1 and sys_flag_of(record.origin) & _INNER_BATCH:
            try:
                items = split_batch(body)
            except Malformed:
                items = []
            if len(items) == record.messages:
                return [_message(item.properties, item.body) for item in items]
        facts = self._facts.facts(record)
        return [_of(facts, body)] * record.messages

    def selectable(self, record: Record) -> Mapping[str, str]:
        """RocketMQ's own names included."""
        return self._facts.properties(record)

    def _plain_body(self, record: Record) -> bytes:
        if not record.flags & _COMPRESSED:
            return record.body
        try:
            return self._facts.body(record, BODY_BYTES_MAX)
        except Malformed:
            return _inflated(record.body, sys_flag_of(record.origin))


class NeutralMessages:
    """Our own records: spans, and properties as RocketMQ writes them (D3)."""

    def messages(self, record: Record) -> list[Message]:
        """A neutral batch has one content for all its messages."""
        properties = parse_properties(record.properties)
        return [Message(record.key, record.tag, properties, record.body)] * record.messages

    def selectable(self, record: Record) -> Mapping[str, str]:
        """The properties, and the tag under its usual name."""
        properties = parse_properties(record.properties)
        if record.shape.tag_len:
            properties.setdefault(TAGS, record.tag.decode("utf-8", "replace"))
        return properties


class AmqpMessages:
    """AMQP's publishes; they come one by one and are never compressed."""

    def __init__(self) -> None:
        self._facts = AmqpFacts()

    def messages(self, record: Record) -> list[Message]:
        """The message."""
        properties = amqp_properties(record.properties)
        return [Message(record.key, record.tag, properties, record.body)] * record.messages

    def selectable(self, record: Record) -> Mapping[str, str]:
        """Headers, and AMQP's own properties under their long names."""
        return self._facts.properties(record)


NEUTRAL: Final = Origin(name="neutral", reader=NeutralMessages())


def known_origins() -> dict[int, Origin]:
    """Every wire whose records this Penstock can read; others are read as neutral ones."""
    return {
        int(Wire.NEUTRAL): NEUTRAL,
        int(Wire.ROCKETMQ): Origin(
            name="rocketmq",
            reader=RocketmqMessages(),
            maps=partial(property_maps, hidden=frozenset(SYSTEM_NAMES)),
        ),
        int(Wire.AMQP): Origin(name="amqp", reader=AmqpMessages(), maps=amqp_maps),
    }


def wire_name(wire: int) -> str:
    """The word in column ``protocol``."""
    return Wire(wire).name.lower() if wire in Wire.__members__.values() else f"wire-{wire}"


def _of(facts: Facts, body: bytes) -> Message:
    return Message(facts.key.encode(), facts.tag.encode(), facts.properties, body)


def _message(properties: bytes, body: bytes) -> Message:
    named = {k: v for k, v in parse_properties(properties).items() if k not in SYSTEM_NAMES}
    keys = (value_of(properties, KEYS).split() or [b""])[0]
    return Message(value_of(properties, "__SHARDINGKEY") or keys, value_of(properties, TAGS), named,
                   body)  # fmt: skip


def _inflated(body: bytes, sys_flag: int) -> bytes:
    """A body compressed with what the broker itself does not know; as stored if that fails."""
    codec = _CODECS.get((sys_flag & int(SysFlag.COMPRESSION_TYPE)) >> 8)
    if codec is None:
        return body
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            plain = bytes(stream.read(BODY_BYTES_MAX + 1))
    except (pa.ArrowException, OSError):
        return body
    return plain if len(plain) <= BODY_BYTES_MAX else body
