"""A filter chosen by the message: for queues that mix messages of several origins.

A queue of messages that came back for another attempt holds what several topics sent first; each
must be judged by the filter of the topic it came from. Which one that is, the owner of the bytes
knows, so the choice is a function.

Invariant: without a choice the message passes, for nobody said no.
"""

from collections.abc import Callable

from penstock.engine.filter_port import Filter
from penstock.model.record import Record, tag_hash

Choice = Callable[[Record], Filter | None]


class ChosenFilter:
    """Asks the filter that belongs to the message."""

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
