"""RocketMQ's spelling of topic names (D9).

    RocketMQ               neutral
    orders                 ("", "orders")
    ns%orders              ("ns", "orders")
    orders%2Eeu            ("", "orders.eu")          bytes RocketMQ does not allow, as %XX
    %RETRY%ns%group        ("ns", "%RETRY%group")     the prefix stays in front
    ns%%32Efoo             ("ns", "2Efoo")            else it would be read as ("", "ns.foo")

A percent sign is an escape only when two upper-case hex digits follow that stand for a byte which
RocketMQ does not allow by itself (or for the percent sign); else it ends the namespace.

Invariant: ``neutral_name(wire_name(n)) == n`` for every topic name.
"""

import re
from functools import lru_cache
from typing import Final

from penstock.model.names import TopicName

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)

TOPIC_CHARS_MAX: Final = 127
GROUP_TOPIC_CHARS_MAX: Final = 255
"""Topics of a group: retry and dead letters."""

DEFAULT_TOPIC: Final = "TBW102"
"""Topics that do not exist yet inherit from it when it allows that."""

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_" + 4 * "X"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"

FORBIDDEN_TOPICS: Final = frozenset(
    (
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        OFFSET_MOVED_TOPIC,
    )
)
"""Nobody sends to these."""

SYSTEM_TOPICS: Final = FORBIDDEN_TOPICS | {DEFAULT_TOPIC}

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_PLAIN: Final = re.compile(r"[|a-zA-Z0-9_-]*")
_TOKEN: Final = re.compile(r"%([0-9A-F]{2})|%|[^%]+")
_HEX_PAIR: Final = re.compile("[0-9A-F]{2}")
_PLAIN_BYTES: Final = frozenset(
    b"|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


def retry_topic(group: str) -> str:
    """Where a group's failed messages come back from."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Where a group's dead letters go."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Where the replies to requests go, in RocketMQ's words for it."""
    return cluster + REPLY_SUFFIX


def group_of(topic: str) -> str | None:
    """The group whose retry or dead-letter topic this is; None for any other."""
    for prefix in PREFIXES:
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return None


def problem_with(topic: str) -> str | None:
    """What is wrong with the name in a request; None when it will do."""
    if not topic.strip():
        return "The specified topic is blank."
    if _ALLOWED.fullmatch(topic) is None:
        return (
            f"The specified topic[{topic[:80]}] contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$"
        )
    chars_max = GROUP_TOPIC_CHARS_MAX if topic.startswith(PREFIXES) else TOPIC_CHARS_MAX
    if len(topic) > chars_max:
        return f"The specified topic is longer than topic max length {chars_max}."
    return None


@lru_cache(maxsize=4096)
def neutral_name(topic: str) -> TopicName:
    """The topic that RocketMQ calls so; never fails, whatever the text."""
    if "%" not in topic:
        return TopicName("", topic)
    prefix = next((each for each in PREFIXES if topic.startswith(each)), "")
    parts = [b""]
    for token in _TOKEN.finditer(topic, len(prefix)):
        text, digits = token.group(), token.group(1)
        value = int(digits, 16) if digits is not None else -1
        is_escape = value >= 0 and (value not in _PLAIN_BYTES or parts[1:] == [b""])
        if is_escape:
            parts[-1] += bytes((value,))
        elif text.startswith("%") and len(parts) == 1 and parts[0]:
            parts.append((digits or "").encode())
        else:
            parts[-1] += text.encode("utf-8", "replace")
    *space, name = [part.decode("utf-8", "replace") for part in parts]
    if not name:
        return TopicName("", topic)
    return TopicName(space[0] if space else "", prefix + name)


@lru_cache(maxsize=4096)
def wire_name(name: TopicName) -> str:
    """How RocketMQ's clients see a topic."""
    prefix = next((each for each in PREFIXES if name.name.startswith(each)), "")
    rest = _escaped(name.name.removeprefix(prefix))
    if not name.space:
        return prefix + rest
    if _HEX_PAIR.match(rest) and int(rest[:2], 16) not in _PLAIN_BYTES:
        # "ns%2Efoo" would be read as "ns.foo"; an escape right behind the separator is never plain.
        rest = f"%{ord(rest[0]):02X}{rest[1:]}"
    return f"{prefix}{_escaped(name.space)}%{rest}"


def _escaped(text: str) -> str:
    if _PLAIN.fullmatch(text) is not None:
        return text
    return "".join(
        [chr(byte) if byte in _PLAIN_BYTES else f"%{byte:02X}" for byte in text.encode()]
    )
