"""Rows as Arrow columns: a function for each column, called only when the column is asked for.

A row is one message. Of a record with one message, laid out as most are, every column is made
without a loop. The others (batches, compressed bodies, origins that are not laid out) are read one
by one and put among them (``_read_uncommon``).

    timestamp       when the message got its offset, as the index has it: never decreasing
    born_timestamp  what the producer said; null when it said nothing
    key, tag        null when there is none
    message_id      what the publisher or its client gave it: UNIQ_KEY, message_id; null when none

Not here: which rows (``gather.py``), Arrow types (``layout.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.bulk.gather import Buffers, GatheredRecords, Spans
from penstock.bulk.layout import TYPES, Column, arrow_schema, kinds
from penstock.bulk.maps import amqp_maps, amqp_properties, maps_of, property_maps
from penstock.bulk.tickets import MESSAGE_ID
from penstock.engine.batch import UNOPENED, opened_batch
from penstock.model.record import Facts, Record, RecordFlag, Wire
from penstock.wire.amqp.origin import AmqpFacts
from penstock.wire.pulsar.facts import PulsarFacts
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.properties import (
    KEYS,
    SYSTEM_NAMES,
    TAGS,
    UNIQ_KEY,
    parse_properties,
    value_of,
)
from penstock.wire.rocketmq.stored import RocketmqFacts, SysFlag, split_batch, sys_flag_of

OWN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of inflated bodies in one batch of rows; what is behind them comes with the next."""
_COMPRESSED: Final = int(RecordFlag.COMPRESSED)
_SLOW_COLUMNS: Final = frozenset({"born_timestamp", "key", "tag", "properties", "body", MESSAGE_ID})


class Rows:
    """The rows of some good records, and their columns."""

    def __init__(
        self,
        gathered: GatheredRecords,
        span: tuple[int, int],
        names: tuple[str, int],
        origins: Mapping[int, Origin],
    ) -> None:
        """``span`` is the range of offsets that is wanted, ``names`` are topic and queue."""
        self._topic, self._queue = names
        self._origins = origins
        entries = gathered.entries
        first, messages = entries["first_offset"].astype(np.int64), entries["messages"]
        self._number: Column = np.zeros(len(entries), np.int64)
        """Which message of its record a row is."""
        if len(entries) and messages.max() > 1:
            record = np.repeat(np.arange(len(entries)), messages)
            starts = np.repeat(np.cumsum(messages, dtype=np.int64) - messages, messages)
            number = np.arange(len(record)) - starts
            offsets = first[record] + number
            wanted = (offsets >= span[0]) & (offsets < span[1])
            gathered = gathered.take(record[wanted])
            self._number, first = number[wanted], offsets[wanted]
        self.gathered = gathered
        self.offsets = first
        self._uncommon: dict[int, Message] = {}
        self._last = (-1, list[Message]())
        """The record that was read last, by position: rows of a batch lie side by side."""

    def __len__(self) -> int:
        return len(self.offsets)

    def take(self, rows: Column) -> None:
        """Go on with some of the rows only."""
        self.gathered, self.offsets = self.gathered.take(rows), self.offsets[rows]
        self._number = self._number[rows]

    def tags(self) -> pa.Array:
        self._read_uncommon(is_body_wanted=False)
        return self._tags()

    def batch(self, columns: list[str]) -> pa.RecordBatch:
        """The next rows as a batch, nearly always all of them; the caller goes on behind them."""
        self._uncommon = {}
        if _SLOW_COLUMNS.intersection(columns):
            taken = self._read_uncommon(is_body_wanted="body" in columns)
            if taken < len(self):
                self.take(np.arange(taken))
        arrays = [_MAKERS[name](self) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))

    def origin(self, wire: int) -> Origin:
        """How records of a wire are read."""
        return self._origins.get(wire, NEUTRAL)

    def selectable(self, row: int) -> Mapping[str, str]:
        """All properties that an SQL92 filter may name; of a batch those of the row's message."""
        record = self.gathered.record(row)
        if record.messages == 1:
            return self.origin(record.wire).reader.selectable(record)
        message = self._messages(row, record)[int(self._number[row])]
        tag = message.tag.decode("utf-8", "replace")
        return {**message.properties, TAGS: tag} if tag else message.properties

    def _messages(self, row: int, record: Record) -> list[Message]:
        position = int(self.gathered.headers["position"][row])
        if self._last[0] != position:
            self._last = (position, self.origin(record.wire).reader.messages(record))
        return self._last[1]

    def _read_uncommon(self, *, is_body_wanted: bool) -> int:
        """Read what is not to be read by columns; the number of rows that have room in memory."""
        headers = self.gathered.headers
        self._uncommon = {}
        is_slow = headers["messages"] > 1
        if is_body_wanted:
            is_slow |= headers["flags"] & _COMPRESSED > 0
        for wire in kinds(headers["proto"]):
            if not self.origin(wire).is_laid_out:
                is_slow |= headers["proto"] == wire
        size = 0
        for row in np.flatnonzero(is_slow).tolist():
            position = int(headers["position"][row])
            if self._last[0] != position:
                self._messages(row, self.gathered.record(row))
            message = self._last[1][int(self._number[row])]
            if not is_body_wanted:
                message = msgspec.structs.replace(message, body=b"")
            size += len(message.body)
            if size > OWN_BYTES_MAX and row:
                return int(row)
            self._uncommon[row] = message
        return len(self)

    # Columns

    def _topics(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._topic, pa.string()), len(self))

    def _queues(self) -> pa.Array:
        return pa.array(np.full(len(self), self._queue, np.int32))

    def _offsets(self) -> pa.Array:
        return pa.array(self.offsets)

    def _timestamps(self) -> pa.Array:
        return _times(self.gathered.entries["store_ms"])

    def _born_timestamps(self) -> pa.Array:
        born = self.gathered.headers["born_ms"]
        if self._uncommon:
            born = born.copy()
            for row, message in self._uncommon.items():
                born[row] = message.born_ms or born[row]
        return _times(born, missing=born == 0)

    def _keys(self) -> pa.Array:
        buffers, spans = self._values("key")
        return buffers.text(spans, is_empty_null=True)

    def _tags(self) -> pa.Array:
        buffers, spans = self._values("tag")
        return buffers.text(spans, is_empty_null=True)

    def _bodies(self) -> pa.Array:
        buffers, spans = self._values("body")
        return buffers.binary(spans)

    def _values(self, part: str) -> tuple[Buffers, Spans]:
        """Where a part of each message is, those that were read one by one included."""
        buffers, spans = self.gathered.buffers(), self.gathered.spans(part)
        for row, message in self._uncommon.items():
            buffers.put(spans, row, getattr(message, part))
        return buffers, spans

    def _protocols(self) -> pa.Array:
        wires = self.gathered.headers["proto"]
        found = kinds(wires)
        if len(found) == 1:
            return pa.repeat(pa.scalar(wire_name(found[0]), pa.string()), len(self))
        names = pa.array([wire_name(wire) for wire in found], pa.string())
        return names.take(pa.array(np.searchsorted(found, wires)))

    def _properties(self) -> pa.Array:
        rest = maps_of([message.properties for message in self._uncommon.values()])
        return self._of_properties(lambda origin, properties: origin.maps(properties), rest)

    def _message_ids(self) -> pa.Array:
        ids = [message.message_id or None for message in self._uncommon.values()]
        return self._of_properties(
            lambda origin, them: origin.ids(them), pa.array(ids, pa.string())
        )

    def _of_properties(
        self, make: Callable[[Origin, pa.Array], pa.Array], rest: pa.Array
    ) -> pa.Array:
        """Something of every row's properties; ``rest`` is that of rows read one by one."""
        wires = self.gathered.headers["proto"]
        buffers, spans = self.gathered.buffers(), self.gathered.spans("props")
        for row in self._uncommon:
            spans.length[row] = 0
        found = kinds(wires)
        groups = [(self.origin(wire), np.flatnonzero(wires == wire)) for wire in found]
        if len(groups) == 1 and not self._uncommon:
            return make(groups[0][0], buffers.binary(spans))
        parts = [make(origin, buffers.binary(spans.take(rows))) for origin, rows in groups]
        rows = np.concatenate([rows for _, rows in groups]) if groups else np.empty(0, np.int64)
        parts.append(rest)
        source = np.empty(len(self), np.int64)
        source[rows] = np.arange(len(rows))
        for number, row in enumerate(self._uncommon):
            source[row] = len(self) + number
        return pa.concat_arrays(parts).take(pa.array(source))


_MAKERS: Final[dict[str, Callable[[Rows], pa.Array]]] = {
    "topic": Rows._topics,
    "queue": Rows._queues,
    "offset": Rows._offsets,
    "timestamp": Rows._timestamps,
    "born_timestamp": Rows._born_timestamps,
    "key": Rows._keys,
    "tag": Rows._tags,
    "properties": Rows._properties,
    "protocol": Rows._protocols,
    "body": Rows._bodies,
    MESSAGE_ID: Rows._message_ids,
}


def _times(milliseconds: Column, missing: Column | None = None) -> pa.Array:
    return pa.array(milliseconds.astype(np.int64) * 1000, mask=missing).cast(TYPES["timestamp"])


# ---- origins ------------------------------------------------------------------------------------
# Whose bytes a record holds, and how its columns are read: the registry {wire: origin} (D15).
#
# Origins are *laid out*: key, tag and body are the spans of the header, and a function makes maps
# of all their properties at once. Those are read without a loop. Any other origin, any compressed
# body and any batch is read message by message through its ``reader``.
#
# A body that cannot be inflated is given as it was stored: one bad message must not stop a query.
#
# Not here: the bytes themselves (``wire/<protocol>``).


BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""What one compressed body may grow to; RocketMQ's largest message is 4 MiB by default."""
_INNER_BATCH: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
_CODECS: Final = {1: "lz4", 2: "zstd"}


class Message(msgspec.Struct, gc=False):
    """One message as a row wants it."""

    key: bytes
    tag: bytes
    properties: dict[str, str]
    """The user's own."""
    body: bytes
    born_ms: int = 0
    """0: when its record was."""
    message_id: str = ""


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
    id_maps: Callable[[pa.Array], pa.Array] | None = None
    """As ``maps`` where ids are not the user's; None = they are."""
    id_name: str = MESSAGE_ID
    """The property that is the message's id."""

    def ids(self, properties: pa.Array) -> pa.Array:
        maps = (self.id_maps or self.maps)(properties)
        return pc.map_lookup(maps, pa.scalar(self.id_name), "first")


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


class BatchReader(Protocol):
    """What a protocol that sends batches offers (``engine.ports.BatchCodec``)."""

    def facts(self, record: Record) -> Facts: ...

    def body(self, record: Record, bytes_max: int) -> bytes:
        """Inflated; ``ValueError`` when that cannot be had."""
        ...

    def properties(self, record: Record) -> dict[str, str]: ...

    def open_batch(self, record: Record, bytes_max: int) -> list[Record] | str: ...


class BatchMessages:
    """Records of a protocol that sends batches, opened as for any other reader.

    A batch that cannot be opened has its bytes in its first row; all its rows say why.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def messages(self, record: Record) -> list[Message]:
        """The message, or those of a batch."""
        if record.messages == 1:
            return [self._message(record)]
        found = opened_batch(record, self._reader, BODY_BYTES_MAX)
        if not isinstance(found, str):
            return [self._message(message) for message in found]
        why = {UNOPENED: found}
        empty = Message(b"", b"", why, b"")
        return [Message(record.key, record.tag, why, record.body), *[empty] * (record.messages - 1)]

    def selectable(self, record: Record) -> Mapping[str, str]:
        return self._reader.properties(record)

    def _message(self, record: Record) -> Message:
        facts = self._reader.facts(record)
        try:
            body = self._reader.body(record, BODY_BYTES_MAX)
        except ValueError:
            body = record.body
        if facts.message_id:
            facts.properties.setdefault(MESSAGE_ID, facts.message_id)
        return _of(facts, body)


class NeutralMessages:
    """Our own records: spans, and properties as RocketMQ writes them (D3)."""

    def messages(self, record: Record) -> list[Message]:
        """A neutral batch has one content for all its messages."""
        properties = parse_properties(record.properties)
        named = properties.get(MESSAGE_ID, "")
        message = Message(record.key, record.tag, properties, record.body, message_id=named)
        return [message] * record.messages

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
        properties = amqp_properties(record.properties)
        named = properties.get(MESSAGE_ID, "")
        message = Message(record.key, record.tag, properties, record.body, message_id=named)
        return [message] * record.messages

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
            id_maps=partial(property_maps, hidden=frozenset(SYSTEM_NAMES - {UNIQ_KEY})),
            id_name=UNIQ_KEY,
        ),
        int(Wire.AMQP): Origin(name="amqp", reader=AmqpMessages(), maps=amqp_maps),
        int(Wire.PULSAR): Origin(
            name="pulsar", reader=BatchMessages(PulsarFacts()), is_laid_out=False
        ),
    }


def wire_name(wire: int) -> str:
    """The word in column ``protocol``."""
    return Wire(wire).name.lower() if wire in Wire.__members__.values() else f"wire-{wire}"


def _of(facts: Facts, body: bytes) -> Message:
    key, tag = facts.key.encode(), facts.tag.encode()
    return Message(key, tag, facts.properties, body, facts.born_ms, facts.message_id)


def _message(properties: bytes, body: bytes) -> Message:
    named = {k: v for k, v in parse_properties(properties).items() if k not in SYSTEM_NAMES}
    keys = (value_of(properties, KEYS).split() or [b""])[0]
    return Message(
        value_of(properties, "__SHARDINGKEY") or keys,
        value_of(properties, TAGS),
        named,
        body,
        message_id=value_of(properties, UNIQ_KEY).decode("utf-8", "replace"),
    )


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
