"""What a message filter must answer; the filters themselves come with the protocols.

The tag hash stands in every index entry, so most messages are judged before they are read.
"""

from typing import Protocol

from penstock.model.record import Record


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
        """Whether the message matches; asked only after ``matches_entry`` said yes."""
        ...
