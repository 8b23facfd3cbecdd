"""What clients were given of a queue, or on a channel, and what they acknowledged, since the start.

Names are RabbitMQ's: ``deliver`` and ``get`` are for those who acknowledge, ``..._no_ack`` for
those who do not; ``redeliver`` are those of them that came again. Counted per list, never per
message, by whoever sends or settles the list.

What a queue had when it was deleted goes on counting in its vhost (``gone``), so that totals never
go back.
Not here: publishes, which the engine counts; rates (``rates.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NAMES: Final = (
    "ack", "deliver", "deliver_no_ack", "get", "get_empty", "get_no_ack", "redeliver",
)  # fmt: skip


class Tally:
    """Counters of one channel, queue or vhost."""

    __slots__ = NAMES

    def __init__(self) -> None:
        self.ack = 0
        self.deliver = 0
        self.deliver_no_ack = 0
        self.get = 0
        self.get_empty = 0
        self.get_no_ack = 0
        self.redeliver = 0

    def delivered(self, messages: int, again: int, *, is_no_ack: bool) -> None:
        """A consumer was sent these, ``again`` of them not for the first time."""
        if is_no_ack:
            self.deliver_no_ack += messages
        else:
            self.deliver += messages
        self.redeliver += again

    def got(self, messages: int, again: int, *, is_no_ack: bool) -> None:
        """Somebody who asked was given these; nothing, when there were none."""
        if not messages:
            self.get_empty += 1
        elif is_no_ack:
            self.get_no_ack += messages
        else:
            self.get += messages
        self.redeliver += again

    def add(self, other: Tally) -> None:
        """What another one had counts here from now on."""
        for name in NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def deliver_get(self) -> int:
        """Whatever way they went."""
        return self.deliver + self.deliver_no_ack + self.get + self.get_no_ack


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    whole = Tally()
    for each in tallies:
        whole.add(each)
    return whole
