"""CC and BCC: further routing keys, as headers of the message.

Both are arrays of text; what else is in the array is passed over, a header that is no array is an
error of the publish (406). The message goes to the union of what all its keys match. CC stays in
the message for everybody to see. BCC is taken out of the headers, so no reader learns of it; its
keys are stored beside the message, for its dead letters go to all of its keys, as RabbitMQ's do.

Not here: what the keys match (``router.py``), what becomes of CC in dead letters (``burial.py``).
"""

from __future__ import annotations

from typing import Any, Final

from penstock.model.record import Record
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.origin import PublishHead, publish_record, with_secret_keys
from penstock.wire.amqp.properties import edit_properties, walk
from penstock.wire.amqp.table import decode_table, join_table, split_table

CC: Final = b"CC"
BCC: Final = b"BCC"
COPIES_MAX: Final = 1000
"""Further keys of one message: each costs a walk through the exchanges, the bytes only a few."""


def copy_keys(properties: bytes, header: bytes) -> tuple[str, ...]:
    """The routing keys in one of the two headers; raises 406 when it is no array."""
    found = walk(properties, 0, len(properties))
    if header not in found.header_names:
        return ()
    at, end = found.header_names[header]
    table = join_table([(header, properties[at:end])])
    value: Any = decode_table(table)[0][header.decode()]
    if not isinstance(value, list):
        text = f"invalid message: header {header.decode()} must be an array of routing keys"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
    return tuple([key for key in value if isinstance(key, str)])


def with_copies(head: PublishHead, record: Record, now_ms: int) -> tuple[Record, tuple[str, ...]]:
    """The record as it is to be stored, and all its routing keys, each once."""
    properties = record.properties
    public, secret = copy_keys(properties, CC), copy_keys(properties, BCC)
    if len(public) + len(secret) > COPIES_MAX:
        text = f"{len(public) + len(secret)} routing keys in CC and BCC, at most {COPIES_MAX}"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"invalid message: {text}")
    keys = tuple(dict.fromkeys((head.routing_key, *public, *secret)))
    found = walk(properties, 0, len(properties))
    if BCC not in found.header_names:
        return record, keys
    at, end = found.spans["headers"]
    kept = [entry for entry in split_table(properties[at:end]) if entry[0] != BCC]
    properties = edit_properties(properties, {"headers": join_table(kept)})
    stored = publish_record(head, properties, record.body, now_ms)
    return with_secret_keys(stored, secret), keys
