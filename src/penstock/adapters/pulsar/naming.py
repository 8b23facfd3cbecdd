"""Pulsar's names for topics and messages, which of ours they mean (D4, D9, D10), and lists of them.

What is a name is in ``wire/pulsar/names.py``; here is which of them the broker keeps. A partition
is a topic to Pulsar (``local-partition-2``) and a queue of one topic to us; which of the two such a
name means depends on what is there, so that is decided in ``topics.py``, not here.

A message is (ledger, entry, batch index): the queue's incarnation, the first offset of its record,
and its place in that. Ids are unsigned on the wire and signed in meaning (-1 is ``2**64 - 1``),
come from anybody, and are compared, never looked up: one of no entry means its place.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

import google_crc32c

from penstock.model.names import TopicName, topic_name
from penstock.wire.pulsar.frames import signed
from penstock.wire.pulsar.names import (
    DEFAULT_NAMESPACE,
    NAMESPACE_PARTS,
    InvalidTopicName,
    PulsarName,
    parse_topic_name,
    space_of,
)

SUBSCRIPTION_PREFIX: Final = "pulsar/"
"""Of every subscription of ours that a Pulsar client made."""


def parse_name(text: str) -> PulsarName:
    """A name from the wire that the broker can keep; raises ``InvalidTopicName``."""
    name = parse_topic_name(text)
    try:
        topic_name(name.local, space_of(name.namespace), name.domain)
    except ValueError as problem:
        raise InvalidTopicName(f"Invalid topic name: {problem}") from None
    return name


def is_namespace(text: str) -> bool:
    """Whether it has the form of a namespace; it need not exist."""
    parts = text.split("/")
    return len(parts) in NAMESPACE_PARTS and all(parts)


def namespace_of(space: str) -> str | None:
    """The namespace whose topics are in a space; None for vhosts and RocketMQ's namespaces."""
    if not space:
        return DEFAULT_NAMESPACE
    return space if is_namespace(space) else None


def pulsar_name(name: TopicName) -> PulsarName | None:
    """How Pulsar's clients call a topic of ours; None when they cannot see it."""
    namespace = namespace_of(name.space)
    return None if namespace is None else PulsarName(name.domain, namespace, name.name)


def subscription_name(name: str) -> str:
    return SUBSCRIPTION_PREFIX + name


# ---- lists of names ------------------------------------------------------------------------------

PATTERN_LENGTH_MAX: Final = 50
"""Characters of a pattern that the broker matches for a client; beyond it the client does.

As in Pulsar the domain counts when a client asks for names, and not when it watches them.
"""


def topics_hash(names: list[str]) -> str:
    """By which clients see that nothing has changed: CRC32C, its bytes the other way round."""
    crc = google_crc32c.value(",".join(sorted(names)).encode())
    return int(crc).to_bytes(4, "little").hex()


class NamePattern:
    """A client's pattern of names, if it is simple: text, any character, any text (``.*``).

    Everything else is left to the client, which looks at names in any case: a regular expression
    from outside may take for ever, and every other client would wait. The domain of either side
    does not matter.
    """

    def __init__(self, text: str) -> None:
        text = without_domain(text)
        self.is_understood: Final = not _OPERATORS.search(text.replace(".*", ""))
        self._pieces: Final = [_piece(each) for each in text.split(".*")]

    def matches(self, name: str) -> bool:
        """Whether it is the whole name; each piece is looked for once, from left to right."""
        name = without_domain(name)
        first, *others = self._pieces
        found = first.match(name)
        if found is None or not others:
            return found is not None and found.end() == len(name)
        at = found.end()
        *middle, last = others
        for piece in middle:
            found = piece.search(name, at)
            if found is None:
                return False
            at = found.end()
        start = len(name) - len(last.pattern.replace("\\", ""))
        return start >= at and last.fullmatch(name, start) is not None


def without_domain(text: str) -> str:
    """A name, or a pattern of names, without ``persistent://``."""
    return text.rpartition("://")[2]


_OPERATORS: Final = re.compile(r"[][*+?(){}|^$\\]")


def _piece(text: str) -> re.Pattern[str]:
    """Text in which a dot is any character."""
    return re.compile(re.escape(text).replace(r"\.", "."), re.DOTALL)


# ---- ids of messages ----------------------------------------------------------------------------


def unsigned(number: int) -> int:
    """What is put on the wire for an id of ours."""
    return number + (1 << 64) if number < 0 else number


class NumberedQueue(Protocol):
    """A queue, as far as ids are concerned."""

    @property
    def incarnation(self) -> int: ...


def place(queue: NumberedQueue, ledger: int, entry: int, end: int) -> int:
    """The offset of the first entry that is not before this id, in a queue that ends at ``end``.

    Both numbers as they came; another incarnation's ids are before all of this one's or behind.
    """
    ledger, entry = signed(ledger), signed(entry)
    if ledger == queue.incarnation:
        return min(max(entry, 0), end)
    return 0 if ledger < queue.incarnation else end
