"""Messages of other protocols as AMQP shows them: facts in, a record of this wire out (D16).

    exchange     "", routing key the queue's name          born        timestamp, in seconds
    key          header ``key``                            tag         type
    message id   message-id                                attempts    header x-delivery-count
    properties   headers, as text; ``amqp.content_type`` and its like become that basic property

One message of a batch is shown as any other; a batch that cannot be opened is one message with the
header ``penstock.unopened``, which says why (``engine/batch.py``).

The body is the one its producer's user saw: inflated if that producer compressed it. What AMQP
cannot say (a short string above 255 bytes) is a header with its full name, or left out; never an
error: a reader must get past every message. ``user-id`` is vouched for by a broker that saw the
login, so it is never made out of a property.

Not here: reading another protocol's bytes (``wire/<protocol>/facts.py``, by the engine's port); the
opposite direction (``wire/amqp/origin.py``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Protocol, runtime_checkable

from msgspec.structs import replace

from penstock.engine.batch import UNOPENED
from penstock.model.record import Facts, Record, Wire
from penstock.wire.amqp.codes import SHORT_BYTES_MAX, AmqpError
from penstock.wire.amqp.origin import ATTEMPTS, PREFIX, PublishHead, publish_record
from penstock.wire.amqp.properties import (
    DELIVERY_PERSISTENT,
    DELIVERY_TRANSIENT,
    Properties,
    edit_properties,
    encode_properties,
    locate_properties,
)
from penstock.wire.amqp.table import encode_value, join_table, split_table
from penstock.wire.rocketmq.properties import neutral_facts

KEY: Final = "key"
HEADS_KEPT: Final = 1024
"""Queues whose names are remembered in their wire form."""
PRIORITY_MAX: Final = 255
_BASICS: Final = {
    PREFIX + name: name
    for name in (
        "content_type", "content_encoding", "correlation_id", "reply_to", "app_id", "cluster_id",
    )
}  # fmt: skip
_PRIORITY: Final = PREFIX + "priority"
_DROPPED: Final = frozenset((PREFIX + "delivery_mode", _PRIORITY, ATTEMPTS))
"""Told by the record itself."""


@runtime_checkable
class FactsReader(Protocol):
    """What a protocol's codec offers."""

    def facts(self, record: Record) -> Facts: ...

    def body(self, record: Record, bytes_max: int) -> bytes:
        """The body as its producer's user saw it; ``ValueError`` when that cannot be had."""
        ...


def as_amqp(
    record: Record, queue: str, *, reader: object, bytes_max: int, unopened: str = ""
) -> Record:
    """The record as a consumer of ``queue`` shall see it; ``reader`` is its wire's.

    ``unopened``: why it is a whole batch, if it is one.
    """
    body = record.body
    if isinstance(reader, FactsReader) and record.wire != Wire.NEUTRAL:
        facts = reader.facts(record)
        try:
            body = reader.body(record, bytes_max)
        except ValueError:
            body = record.body  # cannot be inflated: better as it is than not at all
    else:
        facts = plain_facts(record)
    if unopened:
        facts.properties = {**facts.properties, UNOPENED: unopened}
    properties = encode_properties(properties_of(facts, record))
    return publish_record(_head(queue), properties, body, facts.born_ms or record.store_ms)


def plain_facts(record: Record) -> Facts:
    """What a record says by itself; neutral ones have properties of RocketMQ's form (D3)."""
    if record.wire == Wire.NEUTRAL:
        return neutral_facts(record)
    return Facts(
        key=record.key.decode("utf-8", "replace"),
        tag=record.tag.decode("utf-8", "replace"),
        born_ms=record.born_ms,
    )


def properties_of(facts: Facts, record: Record) -> Properties:
    """The fourteen properties of a message with these facts."""
    users = dict(facts.properties)
    values: dict[str, Any] = {}
    for full_name, name in _BASICS.items():
        if full_name in users and _is_short(users[full_name]):
            values[name] = users.pop(full_name)
    priority = users.get(_PRIORITY, "")
    if priority.isascii() and priority.isdecimal() and int(priority[:4]) <= PRIORITY_MAX:
        values["priority"] = int(priority[:4])
    for name, value, fallback in (
        ("message_id", facts.message_id, "message_id"),
        ("type", facts.tag, "TAGS"),
    ):
        if value and _is_short(value):
            values[name] = value
        elif value:
            users.setdefault(fallback, value)
    headers: dict[str, Any] = {
        name: value for name, value in users.items() if name not in _DROPPED and _is_short(name)
    }
    if facts.key:
        headers[KEY] = facts.key
    if facts.attempts:
        headers[ATTEMPTS] = facts.attempts
    if facts.born_ms > 0:
        values["timestamp"] = facts.born_ms // 1000
    mode = DELIVERY_TRANSIENT if record.is_transient else DELIVERY_PERSISTENT
    return Properties(headers=headers or None, delivery_mode=mode, **values)


def with_attempts(record: Record, attempts: int) -> Record:
    """The same message, saying how often it came back before; all else stays byte for byte."""
    raw = record.properties
    name = ATTEMPTS.encode()
    try:
        at, end = locate_properties(raw, 0, len(raw)).spans.get("headers", (0, 0))
        others = [each for each in split_table(raw[at:end]) if each[0] != name] if end else []
        table = join_table([*others, (name, encode_value(attempts))])
        properties = edit_properties(raw, {"headers": table})
    except AmqpError:
        return record
    shape = record.shape
    origin = record.origin
    pieces = (origin[: shape.props_at], properties, origin[shape.body_at :])
    size = len(properties)
    return Record(
        b"".join(pieces),
        replace(shape, props_len=size, body_at=shape.props_at + size),
        record.born_ms,
        record.position,
        record.store_ms,
    )


def _is_short(text: str) -> bool:
    """Whether it fits a short string."""
    if len(text) * 3 <= SHORT_BYTES_MAX:
        return True
    return len(text.encode("utf-8", "replace")) <= SHORT_BYTES_MAX


@lru_cache(maxsize=HEADS_KEPT)
def _head(queue: str) -> PublishHead:
    name = queue.encode("utf-8", "replace")[:SHORT_BYTES_MAX]
    names = b"\0" + bytes((len(name),)) + name
    return PublishHead("", queue, False, False, names)
