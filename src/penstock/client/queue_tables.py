"""JSON maps whose keys are queues, which fastjson writes as objects: ``{{"queueId":0,...}:5}``.

``lenient_json`` reads such keys as the text of the object; here they become ``QueueRef``s, and
back into what Java reads. Newer brokers send lists or plain text instead; both are understood.
"""

from collections.abc import Mapping
from typing import Any

from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import MessageQueue, decode_body, encode_body


def queue_ref(queue: MessageQueue) -> QueueRef:
    """The queue under its name on this side."""
    return QueueRef(queue.topic, queue.broker_name, queue.queue_id)


def message_queue(queue: QueueRef) -> MessageQueue:
    """The queue under its name on the wire."""
    return MessageQueue(topic=queue.topic, broker_name=queue.broker, queue_id=queue.queue)


def read_table(table: Mapping[str, Any]) -> dict[QueueRef, Any]:
    """A map by queue, after ``lenient_json`` made its keys text."""
    return {
        queue_ref(decode_body(key.encode(), MessageQueue)): value for key, value in table.items()
    }


def read_offsets(table: Mapping[str, Any] | list[dict[str, Any]]) -> dict[QueueRef, int]:
    """Offsets by queue: a map, or the list of queues that C++ clients are sent."""
    if isinstance(table, list):
        return {
            QueueRef(str(row["topic"]), str(row["brokerName"]), int(row["queueId"])): int(
                row["offset"]
            )
            for row in table
        }
    return {queue: int(value) for queue, value in read_table(table).items()}


def encode_tables(body: Mapping[str, Any]) -> bytes:
    """A JSON body in which maps with ``QueueRef`` keys get objects as keys, as Java expects."""
    parts = []
    for name, value in body.items():
        text = encode_body(value) if not _is_by_queue(value) else _table(value)
        parts.append(encode_body(name) + b":" + text)
    return b"{" + b",".join(parts) + b"}"


def _is_by_queue(value: object) -> bool:
    return isinstance(value, dict) and any(isinstance(key, QueueRef) for key in value)


def _table(rows: Mapping[QueueRef, object]) -> bytes:
    pairs = [
        encode_body(message_queue(queue)) + b":" + encode_body(row) for queue, row in rows.items()
    ]
    return b"{" + b",".join(pairs) + b"}"
