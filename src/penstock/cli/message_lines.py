"""Messages as lines of text: what ``penstock consume`` prints and ``penstock publish`` reads.

    {"topic": "orders", "body": "hello", "tag": "new", "keys": ["k1"], "properties": {}, ...}

One JSON object per line, the same in both directions, so that one can be piped into the other.
Bodies that are no UTF-8 text are in ``body_base64`` instead.
"""

import base64
import binascii
import json
import re
from datetime import datetime
from typing import Any, Final

import click

from penstock.client.message import Message, ReceivedMessage
from penstock.wire.rocketmq.properties import SYSTEM_NAMES

BODY_CHARS_SHOWN: Final = 200
"""Of a body, in a line for people."""
UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def as_record(message: ReceivedMessage) -> dict[str, Any]:
    """A message, ready for JSON."""
    own = {name: value for name, value in message.properties.items() if name not in SYSTEM_NAMES}
    return {
        "topic": message.topic,
        **body_fields(message.body),
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": own,
        "ordering_key": message.ordering_key,
        "id": message.message_id,
        "broker": message.queue.broker,
        "queue": message.queue.queue,
        "offset": message.offset,
        "born_at_ms": message.born_at_ms,
        "stored_at_ms": message.stored_at_ms,
        "reconsume_times": message.reconsume_times,
    }


def from_record(topic: str, line: str) -> Message:
    """The message that a line of JSON describes; what only a broker can give is ignored."""
    given, body, properties = read_record(line)
    return Message(
        topic,
        body,
        tag=given.get("tag") or None,
        keys=given.get("keys") or (),
        properties=properties,
        ordering_key=given.get("ordering_key") or None,
    )


def read_record(line: str) -> tuple[dict[str, Any], bytes, dict[str, str]]:
    """(all that a line of JSON says, its body, its properties), for any protocol."""
    try:
        given = json.loads(line)
    except ValueError as error:
        raise click.UsageError(f"not a line of JSON ({error}): {line[:80]}") from None
    if not isinstance(given, dict):
        raise click.UsageError(f"a record is a JSON object, not {line[:80]}")
    try:
        if "body_base64" in given:
            body = base64.b64decode(given["body_base64"], validate=True)
        else:
            body = str(given.get("body", "")).encode()
    except (binascii.Error, TypeError) as error:
        raise click.UsageError(f"body_base64 is no base64 ({error}): {line[:80]}") from None
    properties = given.get("properties") or {}
    if not isinstance(properties, dict):
        raise click.UsageError(f"properties is a JSON object, not {str(properties)[:80]}")
    return given, body, {str(name): str(value) for name, value in properties.items()}


def as_line(message: ReceivedMessage) -> str:
    """A message for people: when, where, tag, body."""
    when = datetime.fromtimestamp(message.stored_at_ms / 1000).strftime("%H:%M:%S.%f")[:-3]
    where = f"{message.queue.broker}/{message.queue.queue}@{message.offset}"
    tag = f"  [{message.tag}]" if message.tag else ""
    again = f"  (try {message.reconsume_times + 1})" if message.reconsume_times else ""
    return f"{when}  {where}{tag}{again}  {shown_body(message.body)}"


def duration_ms(text: str) -> int:
    """``500ms``, ``5s``, ``2m``, ``1h`` or ``1d`` in milliseconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text.strip())
    if found is None:
        raise click.UsageError(f"{text!r} is no duration; write it as 500ms, 5s, 2m, 1h or 1d")
    return int(float(found[1]) * UNITS_MS[found[2]])


def body_fields(body: bytes) -> dict[str, str]:
    """A body as a record has it."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def shown_body(body: bytes) -> str:
    """A body in a line for people."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"{len(body)} bytes: {body[:32].hex(' ')}" + (" ..." if len(body) > 32 else "")
    # A terminal obeys control characters; a message must not move its cursor.
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    more = len(text) - BODY_CHARS_SHOWN
    return text if more <= 0 else f"{text[:BODY_CHARS_SHOWN]}... (+{more})"
