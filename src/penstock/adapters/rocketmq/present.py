"""Messages of other protocols as RocketMQ shows them: facts in, a stored message out (D16).

    key         __SHARDINGKEY, and KEYS when it is one word      born       bornTimestamp
    message id  UNIQ_KEY (else made from the position)           attempts   reconsumeTimes
    tag         TAGS                                             the rest   user properties

The body is the one its producer sent, inflated if that producer compressed it. What RocketMQ cannot
say (separators in a property, more than 32767 bytes of them) is left out, never an error: a reader
must get past every message.

Not here: reading another protocol's bytes (``wire/<protocol>/facts.py``, by the engine's port).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from penstock.model.record import Facts, Record, Wire
from penstock.wire.rocketmq.message_id import NO_HOST
from penstock.wire.rocketmq.properties import (
    KEYS,
    PROPERTIES_BYTES_MAX,
    SHARDING_KEY,
    SYSTEM_NAMES,
    TAGS,
    UNIQ_KEY,
    parse_properties,
)
from penstock.wire.rocketmq.stored import StoredMessage, encode_stored

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House


@runtime_checkable
class Reader(Protocol):
    """What a protocol's ``facts.py`` offers."""

    def facts(self, record: Record) -> Facts:
        """Everything but the body."""
        ...

    def body(self, record: Record, bytes_max: int) -> bytes:
        """The body as its producer's user saw it; ``ValueError`` when that cannot be had."""
        ...


class NeutralReader:
    """Records of our own protocol: their properties have RocketMQ's form already (D3)."""

    def facts(self, record: Record) -> Facts:
        """Key, tag and properties."""
        return Facts(
            key=record.key.decode("utf-8", "replace"),
            tag=record.tag.decode("utf-8", "replace"),
            born_ms=record.born_ms,
            properties=parse_properties(record.properties),
        )

    def body(self, record: Record, bytes_max: int) -> bytes:
        """As it is."""
        del bytes_max
        return record.body


_NEUTRAL: Final = NeutralReader()


def present(
    house: House, record: Record, topic: str, *, queue_number: int, offset: int, position: int
) -> bytes:
    """The message as a queue of ``topic`` (RocketMQ's spelling) shows it."""
    reader = reader_of(house, record)
    facts = reader.facts(record)
    try:
        body = reader.body(record, house.all_settings.topics.message_bytes_max)
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
            store_host=house.store_host,
            reconsume_times=facts.attempts,
        )
    )


def reader_of(house: House, record: Record) -> Reader:
    """Who can read this record."""
    reader: object = house.engine.facts.get(record.wire)
    if record.wire != Wire.NEUTRAL and isinstance(reader, Reader):
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


class _UnknownReader(NeutralReader):
    """A protocol this build does not speak: what the record itself says."""

    def facts(self, record: Record) -> Facts:
        return Facts(
            key=record.key.decode("utf-8", "replace"),
            tag=record.tag.decode("utf-8", "replace"),
            born_ms=record.born_ms,
        )


_UNKNOWN: Final = _UnknownReader()
