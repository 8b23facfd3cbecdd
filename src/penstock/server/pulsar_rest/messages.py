"""Single messages over REST, looked at without being consumed.

A message is answered as its body, and what Pulsar says of it in headers. An entry that is a batch
is answered whole, its messages one behind the other with their own metadata, and a header says how
many there are: Pulsar's tool takes it apart. Bodies come as their producer's user gave them:
inflated, if they can be. Messages of other protocols look as they do to Pulsar's consumers
(``adapters/pulsar/present.py``).
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from penstock.adapters.pulsar.present import present
from penstock.adapters.pulsar.subscriptions import ENTRIES_AT_A_TIME
from penstock.adapters.pulsar.topics import PulsarTopic
from penstock.engine.batch import UNOPENED
from penstock.model.errors import NotFound
from penstock.server.pulsar_rest.request import (
    ANY,
    Handler,
    RestContext,
    RestError,
    RestRequest,
    RouteTable,
    to_number,
)
from penstock.server.pulsar_rest.statistics import iso_time, last_entry, message_id
from penstock.server.pulsar_rest.subscriptions import one_topic
from penstock.server.pulsar_rest.topics import topic_of, topic_routes
from penstock.wire.pulsar.facts import inflate
from penstock.wire.pulsar.metadata import TIME_MS_MAX, read_metadata
from penstock.wire.pulsar.names import PulsarName
from penstock.wire.pulsar.protocol_pb2 import CompressionType, MessageMetadata

if TYPE_CHECKING:
    from penstock.engine.topic import Queue
    from penstock.log.index import IndexEntry

PREFIX: Final = "X-Pulsar-"
PROPERTIES_BYTES_MAX: Final = 4 * 1024
HEADER_LENGTH_MAX: Final = PROPERTIES_BYTES_MAX
"""Clients read heads of 8 KiB; what is longer is cut."""
LATIN_MAX: Final = 0xFF
LATEST: Final = "latest"
EARLIEST: Final = "earliest"


async def peek(
    api: RestContext, _request: RestRequest, name: PulsarName, subscription: str, number: str
) -> Response:
    """The n-th entry that a subscription has not acked, from 1 on."""
    topic = one_topic(api, name, "Peek messages")
    wanted = to_number("the position", number)
    if wanted < 1:
        raise RestError(412, f"the position is {wanted}; the first message is 1")
    subscriptions = api.broker.subscriptions
    at, end = -1, 0
    while end != at:
        at = end
        found, end = subscriptions.unacked_entries(topic, subscription, at)
        if len(found) >= wanted:
            return shown(api, topic, found[wanted - 1])
        wanted -= len(found)
        await asyncio.sleep(0)
    raise NotFound("Message not found")


async def by_id(
    api: RestContext, _request: RestRequest, name: PulsarName, ledger: str, entry: str
) -> Response:
    topic = one_topic(api, name, "Get message by id")
    queue = topic.queue
    ledger_id, first = to_number("the ledger", ledger), to_number("the entry", entry)
    found = queue.index.entries(first, 1) if ledger_id == queue.incarnation and first >= 0 else []
    if not found or found[0][1] != first or first >= queue.durable_end:
        raise NotFound("Message id not found")
    return shown(api, topic, found[0])


async def examine(api: RestContext, request: RestRequest, name: PulsarName) -> Response:
    """The n-th entry from the beginning or the end of a topic."""
    topic = one_topic(api, name, "Examine messages")
    where = request.query.get("initialPosition", LATEST)
    if where not in (LATEST, EARLIEST):
        raise RestError(412, f"initialPosition is {EARLIEST} or {LATEST}")
    number = request.number("messagePosition") if "messagePosition" in request.query else 1
    entry = await _examined(topic.queue, max(1, number), is_from_end=where == LATEST)
    if entry is None:
        raise NotFound("Could not examine messages due to the total message is zero")
    return shown(api, topic, entry)


async def _examined(queue: Queue, number: int, *, is_from_end: bool) -> IndexEntry | None:
    """The n-th entry, or the last one on the way to it."""
    index, end = queue.index, queue.durable_end
    at = end - 1 if is_from_end else index.min_offset
    entry: IndexEntry | None = None
    while number and index.min_offset <= at < end:
        start = max(index.min_offset, at - ENTRIES_AT_A_TIME + 1) if is_from_end else at
        found = [
            each
            for each in index.entries(start, ENTRIES_AT_A_TIME)
            if each[1] <= at or not is_from_end
        ]
        if not found:
            break
        if is_from_end:
            found.reverse()
        found = found[:number]
        number -= len(found)
        entry = found[-1]
        at = entry[1] - 1 if is_from_end else entry[1] + entry[5]
        await asyncio.sleep(0)
    return entry


async def id_at(
    api: RestContext, _request: RestRequest, name: PulsarName, time_ms: str
) -> dict[str, Any]:
    """The first message that was published then or later; the next id there will be without one."""
    topic = one_topic(api, name, "Get message ID by timestamp")
    to_ms = to_number("the time", time_ms)
    return message_id(topic, api.broker.subscriptions.offset_at(topic, to_ms))


async def last_id(api: RestContext, _request: RestRequest, name: PulsarName) -> dict[str, Any]:
    topic = topic_of(api, name)
    if not topic.is_persistent:
        raise RestError(405, "GetLastMessageId on a non-persistent topic is not allowed")
    entry = last_entry(topic.queue)
    if entry is None:
        return message_id(topic, -1)
    return message_id(topic, entry[1], entry[5] - 1 if entry[5] > 1 else -1)


# ---- a message as an answer ---------------------------------------------------------------------


def shown(api: RestContext, topic: PulsarTopic, entry: IndexEntry) -> Response:
    """An entry of a topic; 404 when it is gone, 500 when it cannot be read."""
    engine = api.broker.engine
    located = engine.locate(entry[0])
    if located is None:
        raise NotFound("Message not found")
    record = located.record
    tail = present(
        record,
        engine.facts.get(record.wire),
        max_message_size=api.broker.settings.max_message_size,
    ).tail
    try:
        metadata, body_at = read_metadata(tail)
        body = _inflated(metadata, tail[body_at:], api.broker.all_settings.topics.message_bytes_max)
    except ValueError as problem:
        raise RestError(500, f"the message cannot be read: {problem}") from None
    answer = Response(body, media_type="application/octet-stream")
    headers = {
        "Message-ID": f"{topic.queue.incarnation}:{entry[1]}",
        "PROPERTY": _properties(metadata),
        **_about(metadata),
    }
    for name, value in headers.items():
        answer.headers.append(PREFIX + name, _sayable(value))
    return answer


def _inflated(metadata: MessageMetadata, payload: bytes, bytes_max: int) -> bytes:
    """Raises ``ValueError``. What is encrypted, or a part of a larger message, stays as it is."""
    is_whole = metadata.num_chunks_from_msg <= 1 and not metadata.encryption_keys
    if not metadata.compression or not is_whole:
        return payload
    return inflate(payload, metadata.compression, metadata.uncompressed_size, bytes_max)


def _properties(metadata: MessageMetadata) -> str:
    found = {as_text(each.key): as_text(each.value) for each in metadata.properties}
    shown = json.dumps(found)
    if len(shown) > PROPERTIES_BYTES_MAX:
        shown = json.dumps({UNOPENED: f"its properties are more than {PROPERTIES_BYTES_MAX} bytes"})
    return shown


_TIMES: Final = {
    "publish-time": "publish_time",
    "event-time": "event_time",
    "deliver-at-time": "deliver_at_time",
}
_TEXTS: Final = {
    "producer-name": "producer_name",
    "sequence-id": "sequence_id",
    "replicated-from": "replicated_from",
    "partition-key": "partition_key",
    "uncompressed-size": "uncompressed_size",
    "encryption-algo": "encryption_algo",
    "highest-sequence-id": "highest_sequence_id",
    "uuid": "uuid",
    "num-chunks-from-msg": "num_chunks_from_msg",
    "total-chunk-msg-size": "total_chunk_msg_size",
    "chunk-id": "chunk_id",
}
_BYTES: Final = {
    "Base64-encryption-param": "encryption_param",
    "Base64-schema-version": "schema_version",
    "Base64-ordering-key": "ordering_key",
}
_FLAGS: Final = {
    "partition-key-b64-encoded": "partition_key_b64_encoded",
    "null-value": "null_value",
    "null-partition-key": "null_partition_key",
}


def _about(metadata: MessageMetadata) -> dict[str, str]:
    """What metadata say, as far as they say it."""
    said = {field.name for field, _ in metadata.ListFields()}
    found: dict[str, str] = {}
    for header, field in _TIMES.items():
        if field in said:
            found[header] = iso_time(min(getattr(metadata, field), TIME_MS_MAX))
    for header, field in _TEXTS.items():
        if field in said:
            found[header] = as_text(getattr(metadata, field))
    for header, field in _BYTES.items():
        if field in said:
            found[header] = b64encode(getattr(metadata, field)).decode()
    for header, field in _FLAGS.items():
        if field in said:
            found[header] = str(getattr(metadata, field)).lower()
    if metadata.compression:
        found["compression"] = CompressionType.Name(metadata.compression)
    if metadata.encryption_keys:
        keys = b"".join([each.SerializeToString() for each in metadata.encryption_keys])
        found["Base64-encryption-keys"] = b64encode(keys).decode()
    found["Is-Encrypted"] = str(bool(metadata.encryption_keys)).lower()
    if "num_messages_in_batch" in said:
        found["num-batch-message"] = str(metadata.num_messages_in_batch)
        found["batch-size"] = str(metadata.ByteSize())
    if metadata.num_chunks_from_msg > 1:
        found["PROPERTY-TOTAL-CHUNKS"] = str(metadata.num_chunks_from_msg)
        found["PROPERTY-CHUNK-ID"] = str(metadata.chunk_id)
    return found


def as_text(value: object) -> str:
    """Names from a wire need not be text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _sayable(text: str) -> str:
    """One line of Latin letters, as headers must be, whatever a client put there."""
    line = "".join(
        [each if each.isprintable() and ord(each) <= LATIN_MAX else "?" for each in text]
    )
    return line.strip()[:HEADER_LENGTH_MAX]


_HANDLERS: Final[dict[tuple[str, str], Handler]] = {
    ("GET", f"subscription/{ANY}/position/{ANY}"): peek,
    ("GET", f"ledger/{ANY}/entry/{ANY}"): by_id,
    ("GET", "examinemessage"): examine,
    ("GET", f"messageid/{ANY}"): id_at,
    ("GET", "lastMessageId"): last_id,
}

MESSAGE_ROUTES: Final[RouteTable] = topic_routes(_HANDLERS)
