"""JSON maps whose keys are queues, as RocketMQ's tools read and write them.

Java's fastjson writes an object as a key, ``{{"queueId":0,...}:5}``: no standard JSON, but what
its readers expect (``lenient_json`` reads it, too). C++ clients take a list instead (sheet 1.9).
"""

from collections.abc import Mapping

from penstock.wire.rocketmq.bodies import MessageQueue, encode_body


def queue_table(rows: Mapping[MessageQueue, object]) -> bytes:
    """A map by queue, with objects as keys."""
    pairs = [encode_body(queue) + b":" + encode_body(row) for queue, row in rows.items()]
    return b"{" + b",".join(pairs) + b"}"


def table_body(name: str, rows: Mapping[MessageQueue, object], **others: object) -> bytes:
    """A body with such a map under a name, and plain values beside it."""
    fields = [encode_body(name) + b":" + queue_table(rows)]
    fields += [encode_body(each) + b":" + encode_body(value) for each, value in others.items()]
    return b"{" + b",".join(fields) + b"}"


def queue_list(rows: Mapping[MessageQueue, int]) -> bytes:
    """The same as a list of queues with their offset among their fields."""
    listed = [
        {
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "topic": queue.topic,
            "offset": offset,
        }
        for queue, offset in rows.items()
    ]
    return encode_body({"offsetTable": listed})
