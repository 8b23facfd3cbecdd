"""Records of the log as the stored messages a RocketMQ client reads: pulls, pops, look-ups.

A record that came over this wire is its own answer, byte for byte. One that was released later
(delay, transaction, retry) has its offset only since then, so its place is written into a copy; one
that was released into another topic gets that topic's name, too (D14).

Records of other protocols are made into messages of this one (D16):

    key         __SHARDINGKEY, and KEYS when it is one word      born       bornTimestamp
    message id  UNIQ_KEY (else made from the position)           attempts   reconsumeTimes
    tag         TAGS                                             the rest   user properties

One message of a batch is shown as any other, at its own offset and commitLogOffset; a batch that
cannot be opened is one message with the property ``penstock.unopened``, which says why.

Their body is the one the producer sent, inflated if that producer compressed it. What RocketMQ
cannot say (separators in a property, more than 32767 bytes of them) is left out, never an error: a
reader must get past every message.

The other way round, ``RocketmqDeadLetterFormat`` makes dead letters of RocketMQ messages that a
consumer of another protocol gave up (D13).

Not here: reading another protocol's bytes (``engine.facts``, a port), changing stored bytes
(``wire/rocketmq/stored.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from penstock.adapters.rocketmq.naming import wire_name
from penstock.engine.batch import UNOPENED
from penstock.engine.host import IndexEntry
from penstock.engine.ports import Death
from penstock.engine.topic import Queue
from penstock.log.index import IndexFlag
from penstock.model.ids import UNASSIGNED_OFFSET, QueueOffset
from penstock.model.names import TopicName
from penstock.model.record import Facts, Record, RecordKind, Wire
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.message_id import NO_HOST
from penstock.wire.rocketmq.properties import (
    KEYS,
    PROPERTIES_BYTES_MAX,
    SHARDING_KEY,
    SYSTEM_NAMES,
    TAGS,
    UNIQ_KEY,
    format_properties,
    neutral_facts,
    without_properties,
)
from penstock.wire.rocketmq.stored import (
    StoredMessage,
    SysFlag,
    decode_stored,
    encode_stored,
    placed,
    prepared_offset_of,
    record_of,
    retopic,
    sys_flag_of,
    topic_field,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker

DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
LOOKED_AT_MAX: Final = 4096
"""Entries among which that of a staged record is looked for: a millisecond."""

_ROCKETMQ: Final = int(Wire.ROCKETMQ)
_RELEASED: Final = int(IndexFlag.RELEASED)
_TRANSACTION: Final = int(SysFlag.TRANSACTION_ROLLBACK)
_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)


def present(broker: RocketmqBroker, queue: Queue, record: Record, entry: IndexEntry) -> list[bytes]:
    """The stored messages of one index entry, as its queue shows them."""
    if record.wire != _ROCKETMQ:
        return _present_entry(broker, queue, record, entry)
    if entry[7] & _RELEASED:
        return [_present_released(queue, record, entry[1])]
    return [record.origin]


def _present_released(queue: Queue, record: Record, offset: int) -> bytes:
    """A record of this wire at a place that is not the one it was stored for."""
    origin = record.origin
    topic = wire_name(queue.topic.name)
    _, field = topic_field(topic)
    if sys_flag_of(origin) & _TRANSACTION == _COMMIT and not prepared_offset_of(origin):
        # A half message that was committed: it says where it lay before, which is where it lies.
        origin = retopic(origin, topic, prepared_offset=record.position)
    elif not origin.startswith(field, record.shape.body_at + record.shape.body_len):
        origin = retopic(origin, topic)
    return placed(origin, queue.number, offset, record.position)


def place_of(queue: Queue, record: Record, offset: int) -> IndexEntry:
    """The index entry of what was delivered from an offset: of a batch, that of its message."""
    entry = queue.index.entries(offset, 1)[0]
    if entry[5] == 1 or record.messages > 1:
        return entry
    return (record.position, offset, *entry[2:5], 1, *entry[6:])


def present_at(broker: RocketmqBroker, position: int) -> bytes | None:
    """The message that a commitLogOffset names, as its queue shows it; None = not there.

    Of a record with several targets each has a commitLogOffset of its own, and so has each message
    of a batch (D4).
    """
    located = broker.engine.locate(position)
    if located is None or not located.targets or located.record.kind != RecordKind.MESSAGE:
        return None
    record, targets, number = located
    if number >= max(record.messages, len(targets)):
        return None  # inside the record, but the number of nothing in it
    if record.wire == _ROCKETMQ:
        return record.origin
    opened = broker.engine.batches.open(record) if record.messages > 1 else None
    if opened is not None:
        queue_id, offset = targets[0]
        queue = broker.engine.queue(queue_id)
        entry = (position, int(offset) + number, 0, record.store_ms, 0, 1, 0, 0)
        return _present_entry(broker, queue, opened[number], entry)[0] if queue else None
    target = number if len(targets) > 1 else 0
    queue_id, offset = targets[target]
    queue = broker.engine.queue(queue_id)
    if queue is not None and offset == UNASSIGNED_OFFSET:
        offset = _offset_of(queue, record)
    if queue is None or offset == UNASSIGNED_OFFSET:
        return None
    entry = (position - number + target, int(offset), 0, record.store_ms, 0, record.messages, 0, 0)
    found = _present_entry(broker, queue, record, entry)
    return found[number - target] if number - target < len(found) else None


def _offset_of(queue: Queue, record: Record) -> QueueOffset:
    """Where a record is in its queue that was stored before it had an offset (D19), if it is.

    Its entry is younger than itself. What nobody committed has none, and one that got very many
    behind it at once may not be found.
    """
    index = queue.index
    for entry in index.entries(index.search_time(record.store_ms), LOOKED_AT_MAX):
        if entry[0] == record.position and entry[1] < queue.durable_end:
            return QueueOffset(entry[1])
    return UNASSIGNED_OFFSET


def _present_entry(
    broker: RocketmqBroker, queue: Queue, record: Record, entry: IndexEntry
) -> list[bytes]:
    return [
        present_foreign(
            broker,
            record,
            wire_name(queue.topic.name),
            queue_number=queue.number,
            offset=entry[1],
            position=entry[0],
        )
    ]


@runtime_checkable
class ForeignReader(Protocol):
    """How another protocol's records are read: a ``FactsReader`` that can do more."""

    def facts(self, record: Record) -> Facts: ...

    def body(self, record: Record, bytes_max: int) -> bytes:
        """The body as its producer's user saw it; ``ValueError`` when that cannot be had."""
        ...


class _NeutralReader:
    """Records of our own protocol: their properties have RocketMQ's form already (D3)."""

    def facts(self, record: Record) -> Facts:
        return neutral_facts(record)

    def body(self, record: Record, bytes_max: int) -> bytes:
        del bytes_max
        return record.body


class _UnknownReader(_NeutralReader):
    """A protocol this build does not speak: what the record itself says."""

    def facts(self, record: Record) -> Facts:
        return Facts(
            key=record.key.decode("utf-8", "replace"),
            tag=record.tag.decode("utf-8", "replace"),
            born_ms=record.born_ms,
        )


_NEUTRAL: Final = _NeutralReader()
_UNKNOWN: Final = _UnknownReader()


def present_foreign(
    broker: RocketmqBroker,
    record: Record,
    topic: str,
    *,
    queue_number: int,
    offset: int,
    position: int,
) -> bytes:
    """The message as a queue of ``topic`` (RocketMQ's spelling) shows it."""
    reader = _reader_of(broker, record)
    facts = reader.facts(record)
    if unopened := broker.engine.batches.why_unopened(record):
        facts.properties = {**facts.properties, UNOPENED: unopened}
    try:
        body = reader.body(record, broker.all_settings.topics.message_bytes_max)
    except ValueError:
        body = record.body  # cannot be inflated: better as it is than not at all
    return encode_stored(
        StoredMessage(
            topic=topic,
            body=body,
            properties=properties_of(facts),
            queue_id=queue_number,
            queue_offset=offset,
            commit_log_offset=position,
            born_ms=facts.born_ms or record.store_ms,
            born_host=NO_HOST,
            store_ms=record.store_ms,
            store_host=broker.store_host,
            reconsume_times=facts.attempts,
        )
    )


def _reader_of(broker: RocketmqBroker, record: Record) -> ForeignReader:
    reader: object = broker.engine.facts.get(record.wire)
    if record.wire != Wire.NEUTRAL and isinstance(reader, ForeignReader):
        return reader
    return _NEUTRAL if record.wire == Wire.NEUTRAL else _UNKNOWN


def properties_of(facts: Facts) -> bytes:
    """The properties string: what RocketMQ knows first, then the user's as long as they fit."""
    known = {TAGS: facts.tag, SHARDING_KEY: facts.key, UNIQ_KEY: facts.message_id}
    if facts.key and not any(character.isspace() for character in facts.key):
        known[KEYS] = facts.key
    pairs: list[bytes] = []
    room = PROPERTIES_BYTES_MAX
    users = {name: value for name, value in facts.properties.items() if name not in SYSTEM_NAMES}
    for name, value in (known | users).items():
        key, text = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        is_sayable = key and text and not (b"\x01" in key or b"\x02" in key or b"\x02" in text)
        size = len(key) + len(text) + 2
        if is_sayable and size <= room:
            pairs.append(b"%b\x01%b\x02" % (key, text))
            room -= size
    return b"".join(pairs)


class RocketmqDeadLetterFormat:
    """Satisfies ``engine.ports.DeadLetterFormat``.

    The letter is a new stored message with the name of the dead-letter topic in it, so that a pull
    needs no copy, and with the properties that RocketMQ's own dead letters carry.
    """

    def rewrite(self, record: Record, death: Death) -> Record | None:
        """The letter; None when the stored bytes make no sense."""
        try:
            message, _ = decode_stored(record.origin)
        except Malformed:
            return None
        message.commit_log_offset = record.position
        kept = without_properties(message.properties, (DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID))
        origin = format_properties(
            {
                DLQ_ORIGIN_TOPIC: wire_name(TopicName(death.space, death.topic)),
                DLQ_ORIGIN_MESSAGE_ID: message.offset_message_id,
            }
        )
        if len(kept) + len(origin) <= PROPERTIES_BYTES_MAX:
            message.properties = kept + origin
        message.reconsume_times = max(message.reconsume_times, death.attempts)
        if death.target_topic:
            message.topic = wire_name(TopicName(death.target_space, death.target_topic))
        message.queue_id = 0
        return record_of(message)
