"""What a message filter must answer, and the two that need no selector: by tag, and by origin.

The tag hash stands in every index entry, so most messages are judged before they are read.
Not here: filters over properties (``sql92.py``).
"""

from collections.abc import Callable
from typing import Final, Protocol

from penstock.model.errors import SelectorInvalid
from penstock.model.record import Record, tag_hash


class Prefilter(Protocol):
    """Judges a message by its offset alone, before it is read; knows less, asks earlier."""

    def may_match(self, first_offset: int) -> bool:
        """False only when the reader's filter was not true for this message."""
        ...


class Filter(Protocol):
    """Decides whether a reader wants a message; wrong "yes" is allowed, wrong "no" never."""

    def matches_entry(self, tag_hash: int) -> bool:
        """Whether a message with this tag hash can match at all."""
        ...

    def matches_record(self, record: Record) -> bool:
        """Whether the message matches; of one in a batch ``matches_entry`` was not asked before."""
        ...


EVERYTHING: Final = "*"

SEPARATOR: Final = "||"

TAGS_MAX: Final = 1_000
"""Tags in one expression; a filter is a set, so this bounds memory, not time."""

EXPRESSION_CHARS_MAX: Final = 32_768
"""Longer tag expressions are refused: more than a header of any client carries."""


class TagFilter:
    """Wants messages whose one tag is among those named; one without a tag matches only ``*``.

    The hash in the index entry is asked first, so an unwanted message is not read; the tag itself
    is compared after, because two tags may share a hash.
    """

    __slots__ = ("_hashes", "_tags")

    def __init__(self, tags: frozenset[str]) -> None:
        self._tags = frozenset(tag.encode() for tag in tags)
        self._hashes = frozenset(tag_hash(tag) for tag in self._tags)

    def matches_entry(self, tag_hash: int) -> bool:
        """Whether a message with this tag hash can match at all."""
        return tag_hash in self._hashes

    def matches_record(self, record: Record) -> bool:
        """Whether its tag is one of those wanted."""
        return record.shape.tag_len > 0 and record.tag in self._tags


def tag_filter(expression: str) -> TagFilter | None:
    """The filter of an expression; None when it wants everything."""
    tags = parse_tags(expression)
    return TagFilter(tags) if tags is not None else None


def parse_tags(expression: str) -> frozenset[str] | None:
    """The tags of an expression; None = every message, with or without a tag.

    ``*`` (or nothing) is all messages, else tags are separated by ``||`` and trimmed.
    """
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise SelectorInvalid(
            f"the tag expression has {len(expression)} characters, limit {EXPRESSION_CHARS_MAX}; "
            "name fewer tags"
        )
    if expression.strip() in ("", EVERYTHING):
        return None
    tags = frozenset(tag for tag in map(str.strip, expression.split(SEPARATOR)) if tag)
    if not tags:
        raise SelectorInvalid(
            f"the tag expression {expression[:40]!r} names no tag; use '*' or 'A'"
        )
    if len(tags) > TAGS_MAX:
        raise SelectorInvalid(f"the tag expression names {len(tags)} tags, limit {TAGS_MAX}")
    return tags


Choice = Callable[[Record], Filter | None]


class ChosenFilter:
    """Asks the filter that belongs to the message: for queues that mix several origins.

    A retry queue holds what several topics sent first; each message must be judged by the filter of
    the topic it came from. Which one that is, the owner of the bytes knows. Without a choice the
    message passes, for nobody said no.
    """

    __slots__ = ("_choose",)

    def __init__(self, choose: Choice) -> None:
        self._choose = choose

    def matches_entry(self, tag_hash: int) -> bool:
        """Nothing is known before the record is read."""
        return True

    def matches_record(self, record: Record) -> bool:
        """Whether the filter of its origin wants it."""
        chosen = self._choose(record)
        if chosen is None:
            return True
        return chosen.matches_entry(tag_hash(record.tag)) and chosen.matches_record(record)
