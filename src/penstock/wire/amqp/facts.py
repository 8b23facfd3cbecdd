"""What other protocols, filters and Spark may know of an AMQP message (D15, D16).

    key         routing key; with the default exchange the header ``key``, if it is text
    tag         type                               message id  message-id
    born        timestamp (seconds), else arrival  expire      the record's own (expiration)
    attempts    header x-delivery-count
    properties  headers: numbers and booleans as text, tables and arrays as JSON;
                other basics as ``amqp.<name>`` with underscores, so that an SQL filter can say them

Invariant: only ``wire/amqp`` looks into AMQP's origin bytes; everybody else asks here. A stored
message is never refused: what cannot be read of it is left out.
Not here: making AMQP bytes out of other messages (``adapters/amqp/present.py``).
"""

from decimal import Decimal
from typing import Any, Final

import msgspec

from penstock.model.record import Facts, Record
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.properties import NAMES, Properties, decode_properties, walk
from penstock.wire.amqp.table import Table

ATTEMPTS: Final = "x-delivery-count"
PREFIX: Final = "amqp."
_NEUTRAL: Final = frozenset(("headers", "message_id", "timestamp", "type", "expiration"))
"""Basics that have a place of their own among the facts."""
_OTHERS: Final = tuple((name, PREFIX + name) for name in NAMES if name not in _NEUTRAL)


class AmqpFacts:
    """The reader of AMQP records; satisfies the engine's ``FactsReader``."""

    def keys(self, record: Record) -> list[bytes]:
        """The key under which the record can be looked up: its message-id."""
        properties = record.properties
        try:
            at, end = walk(properties, 0, len(properties)).spans.get("message_id", (0, 0))
        except AmqpError:
            return []
        return [properties[at:end]] if end > at else []

    def properties(self, record: Record) -> dict[str, str]:
        """Everything that has a name: what an SQL92 filter may say."""
        basics = _read(record)
        found = _texts(basics.headers or {})
        for name, full_name in _OTHERS:
            value = getattr(basics, name)
            if value is not None:
                found[full_name] = text_of(value)
        return found

    def facts(self, record: Record) -> Facts:
        """Everything but the body."""
        basics = _read(record)
        properties = self.properties(record)
        attempts = (basics.headers or {}).get(ATTEMPTS)
        properties.pop(ATTEMPTS, None)
        return Facts(
            key=record.key.decode("utf-8", "replace"),
            tag=record.tag.decode("utf-8", "replace"),
            message_id=text_of(basics.message_id or ""),
            born_ms=record.born_ms,
            expire_ms=record.expire_ms,
            deliver_ms=record.deliver_ms,
            attempts=attempts if type(attempts) is int and attempts > 0 else 0,
            properties=properties,
        )

    def body(self, record: Record, bytes_max: int) -> bytes:
        """The body; AMQP never compresses, a content-encoding is between its users."""
        return record.body


def text_of(value: Any) -> str:
    """A field value as text."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (dict, list)):
        return msgspec.json.encode(_plain(value)).decode()
    return "" if value is None else str(value)


def _read(record: Record) -> Properties:
    try:
        return decode_properties(record.properties)
    except AmqpError:
        return Properties()


def _texts(table: Table) -> dict[str, str]:
    return {_clean(name): text_of(value) for name, value in table.items()}


def _plain(value: Any) -> Any:
    """The same value in the few types JSON has."""
    if isinstance(value, dict):
        return {_clean(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return int(value)
    return str(value) if isinstance(value, Decimal) else text_of(value)


def _clean(text: str) -> str:
    """Text without the surrogates that stand for bytes which are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text
