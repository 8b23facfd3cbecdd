"""What a message must be like to be sent; found out here, before it costs a journey.

The rules are those of RocketMQ's brokers, plus what this client alone can know: that a property
would shadow one of RocketMQ's own, that two delays contradict each other. Every refusal is an
``InvalidMessage`` that says what is wrong with which message; nothing was sent.

Not here: the rules of a batch (``batch.py``), bytes (``encoding.py``).
"""

import re
from functools import lru_cache
from typing import Final

from penstock.client.errors import InvalidMessage
from penstock.client.message import RETRY_PREFIX, Message
from penstock.wire.rocketmq.properties import SYSTEM_NAMES

TOPIC_CHARACTERS_MAX: Final = 127
RETRY_TOPIC_CHARACTERS_MAX: Final = 255
DELAY_LEVEL_MAX: Final = 18
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_GROUP: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
GROUP_CHARACTERS_MAX: Final = 255

SYSTEM_TOPICS: Final = frozenset(
    (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)
"""A broker writes these itself and refuses everybody else."""

USER_NAMES: Final = frozenset(
    (
        "CHECK_IMMUNITY_TIME_IN_SECONDS", "BUYER_ID", "INSTANCE_ID", "CORRELATION_ID",
        "REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "TRACE_CONTEXT", "TRANSFER_FLAG", "CORRECTION_FLAG",
        "MQ2_FLAG", "TRACE_ON", "MSG_REGION", "PUSH_REPLY_TIME", "ARRIVE_TIME",
        "EXTEND_UNIQ_INFO", "DUP_INFO", "BORN_TIMESTAMP", "__BORNHOST", "ORIGIN_MESSAGE_ID",
        "INNER_MULTI_DISPATCH",
    )
)  # fmt: skip
"""RocketMQ's names that a sender may well set; the others follow from fields of the message."""

_RESERVED: Final = SYSTEM_NAMES - USER_NAMES


def check_message(message: Message, body_bytes_max: int) -> None:
    """Raise ``InvalidMessage`` unless a broker can take it."""
    check_topic(message.topic)
    body = message.body
    if not body:
        raise InvalidMessage(
            f"message for topic {message.topic!r} has an empty body; brokers refuse that"
        )
    if len(body) > body_bytes_max:
        raise InvalidMessage(
            f"message for topic {message.topic!r} has a body of {len(body)} bytes, limit"
            f" {body_bytes_max} (message_bytes_max); send it in parts"
        )
    if message.properties:
        _check_properties(message)
    if message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None:
        _check_delay(message)


@lru_cache(maxsize=1024)
def check_topic(topic: str) -> None:
    """Raise ``InvalidMessage`` unless messages may be sent to it."""
    is_retry = topic.startswith(RETRY_PREFIX)
    length_max = RETRY_TOPIC_CHARACTERS_MAX if is_retry else TOPIC_CHARACTERS_MAX
    if not topic or _TOPIC.fullmatch(topic) is None:
        raise InvalidMessage(
            f"topic {topic[:60]!r} must consist of letters, digits and any of %|_- alone"
        )
    if len(topic) > length_max:
        raise InvalidMessage(f"topic {topic[:60]!r}... is longer than {length_max} characters")
    if topic in SYSTEM_TOPICS:
        raise InvalidMessage(f"topic {topic!r} is written by brokers only; use another one")


def check_group(group: str) -> None:
    """Raise ``ValueError`` unless it can name a producer group."""
    if _GROUP.fullmatch(group) is None or len(group) > GROUP_CHARACTERS_MAX:
        raise ValueError(
            f"group {group[:60]!r} must consist of 1 to {GROUP_CHARACTERS_MAX} letters, digits and"
            f" any of %|_-"
        )


def _check_properties(message: Message) -> None:
    # What goes to a retry topic is a consumer's message on its way back, with all it carries.
    reserved = frozenset() if message.topic.startswith(RETRY_PREFIX) else _RESERVED
    for name, value in message.properties.items():
        if name in reserved:
            raise InvalidMessage(
                f"property {name!r} belongs to RocketMQ; use the message's own field, or another"
                f" name"
            )
        if not isinstance(name, str) or not isinstance(value, str) or not name or not value:
            raise InvalidMessage(
                f"property {name!r}: names and values are text of at least one character,"
                f" not {value!r}"
            )


def _check_delay(message: Message) -> None:
    given = (message.delay_level, message.delay_ms, message.deliver_at_ms)
    if sum(1 for each in given if each) > 1:
        raise InvalidMessage(
            f"message for topic {message.topic!r}: give one of delay_level, delay_ms and"
            f" deliver_at_ms"
        )
    if not 0 <= message.delay_level <= DELAY_LEVEL_MAX:
        raise InvalidMessage(f"delay_level {message.delay_level} is not 0 to {DELAY_LEVEL_MAX}")
    for name, value in (("delay_ms", message.delay_ms), ("deliver_at_ms", message.deliver_at_ms)):
        if value is not None and value < 0:
            raise InvalidMessage(f"{name} {value} lies in the past")
