"""The properties of a message as text: what its fields mean in RocketMQ's names, then the user's.

Not here: the layout in general (``wire/rocketmq/properties.py``).
"""

from typing import Final

from penstock.client.errors import InvalidMessage
from penstock.client.message import RETRY_PREFIX, Message
from penstock.wire.rocketmq.properties import PROPERTIES_BYTES_MAX

_LIFTED: Final = frozenset(("RECONSUME_TIME", "MAX_RECONSUME_TIMES"))
"""In a message to a retry topic these are header fields."""


def properties_of(message: Message, unique_key: str) -> str:
    """``name 01 value 02 ...`` of everything a message says; ``InvalidMessage`` if it cannot."""
    if _is_bare(message):
        return f"UNIQ_KEY\x01{unique_key}\x02"
    pairs = [("UNIQ_KEY", unique_key)]
    if message.tag:
        pairs.append(("TAGS", message.tag))
    if message.keys:
        pairs.append(("KEYS", " ".join(message.keys)))
    if message.ordering_key:
        pairs.append(("__SHARDINGKEY", message.ordering_key))
    if not message.wait_store_ok:
        pairs.append(("WAIT", "false"))
    if message.delay_level:
        pairs.append(("DELAY", str(message.delay_level)))
    elif message.delay_ms:
        pairs.append(("TIMER_DELAY_MS", str(message.delay_ms)))
    elif message.deliver_at_ms:
        pairs.append(("TIMER_DELIVER_MS", str(message.deliver_at_ms)))
    if message.properties:
        pairs += _own_pairs(message)
    text = "".join([f"{name}\x01{value}\x02" for name, value in pairs])
    # Separators inside a name or value would make other properties of it when it is read.
    if text.count("\x01") != len(pairs) or text.count("\x02") != len(pairs):
        raise InvalidMessage(
            f"message for topic {message.topic!r}: tag, keys or properties contain a character"
            f" 1 or 2, which RocketMQ uses as separators; remove it"
        )
    if not text.isascii() or len(text) > PROPERTIES_BYTES_MAX:
        _check_bytes(message, text)
    return text


def _is_bare(message: Message) -> bool:
    """True when a body is all it has, which is the most frequent message there is."""
    return not (
        message.tag
        or message.keys
        or message.properties
        or message.ordering_key
        or message.delay_level
        or message.delay_ms
        or message.deliver_at_ms
        or not message.wait_store_ok
    )


def _own_pairs(message: Message) -> list[tuple[str, str]]:
    if message.topic.startswith(RETRY_PREFIX):
        return [each for each in message.properties.items() if each[0] not in _LIFTED]
    return list(message.properties.items())


def _check_bytes(message: Message, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(
            f"message for topic {message.topic!r}: tag, keys or properties are not Unicode text"
        ) from None
    if size > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(
            f"message for topic {message.topic!r} has properties of {size} bytes, limit"
            f" {PROPERTIES_BYTES_MAX}; put it into the body"
        )
