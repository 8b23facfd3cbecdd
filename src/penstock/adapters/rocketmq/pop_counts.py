"""What became of pops and of popped messages, as counters in ``/metrics``.

What is out now is no counter: it is ``unacked`` of the group's subscription, in ``/metrics``,
``/api/flow`` and ``/api/groups`` alike.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House


class PopOutcome(StrEnum):
    """How a pop was answered."""

    FOUND = "FOUND"
    NOT_FOUND = "NOT_FOUND"
    """It did not want to wait: 19."""
    POLLING_FULL = "POLLING_FULL"
    POLLING_TIMEOUT = "POLLING_TIMEOUT"


class PopEvent(StrEnum):
    """What happened to a popped message."""

    POPPED = "popped"
    ACKNOWLEDGED = "acknowledged"
    VOID = "void"
    """A receipt came too late and nothing was done."""
    EXTENDED = "extended"
    """Its invisible time was changed."""
    REVIVED = "revived"
    """Its time was up: it went to the retry topic."""
    RETURNED = "returned"
    """Its time was up: it went back to its place."""


class PopCounts:
    """Both kinds of counters; counting is adding to them."""

    def __init__(self, house: House) -> None:
        self.answers: dict[str, int] = dict.fromkeys(PopOutcome, 0)
        self.messages: dict[str, int] = dict.fromkeys(PopEvent, 0)
        tallies = house.engine.tallies
        tallies.show("rocketmq_pops", "Answers to pops", "outcome", self.answers)
        tallies.show(
            "rocketmq_popped_messages", "What became of popped messages", "event", self.messages
        )
