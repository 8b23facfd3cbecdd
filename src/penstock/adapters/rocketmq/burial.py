"""Dead letters made of RocketMQ messages by other protocols' consumers (D13).

The letter is a new stored message with the name of the grave in it, so that a pull needs no copy,
and with DLQ_ORIGIN_TOPIC and DLQ_ORIGIN_MESSAGE_ID, as RocketMQ's own dead letters carry them.

Not here: RocketMQ's own way to the dead letters (``send_back.py``).
"""

from penstock.adapters.rocketmq.naming import wire_name
from penstock.engine.ports import Death
from penstock.model.names import TopicName
from penstock.model.record import Record
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.properties import (
    PROPERTIES_BYTES_MAX,
    format_properties,
    without_properties,
)
from penstock.wire.rocketmq.stored import decode_stored, record_of

ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"


class RocketmqBurial:
    """Satisfies ``engine.ports.Burial``."""

    def bury(self, record: Record, death: Death) -> Record | None:
        """The letter; None when the stored bytes make no sense."""
        try:
            message, _ = decode_stored(record.origin)
        except Malformed:
            return None
        message.commit_log_offset = record.position
        kept = without_properties(message.properties, (ORIGIN_TOPIC, ORIGIN_MESSAGE_ID))
        origin = format_properties(
            {
                ORIGIN_TOPIC: wire_name(TopicName(death.space, death.topic)),
                ORIGIN_MESSAGE_ID: message.offset_message_id,
            }
        )
        if len(kept) + len(origin) <= PROPERTIES_BYTES_MAX:
            message.properties = kept + origin
        message.reconsume_times = max(message.reconsume_times, death.attempts)
        if death.grave:
            message.topic = wire_name(TopicName(death.grave_space, death.grave))
        message.queue_id = 0
        return record_of(message)
