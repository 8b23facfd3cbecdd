"""What clients were given and acknowledged since the start, and how fast any statistics grow.

``DeliveryCounters`` belong to a channel, a queue or a vhost. Names are RabbitMQ's: ``deliver`` and
``get`` are for those who acknowledge, ``..._no_ack`` for those who do not; ``redeliver`` are those
of them that came again. Counted per list, never per message, by whoever sends or settles the list.

What a queue had when it was deleted goes on counting in its vhost (``gone``), so that totals never
go back.

``Rates`` are per second between the last two samples, five seconds apart as RabbitMQ has it: those
that the broker's one sampler takes (``engine/sampler.py``), on a walk of ours
(``management/statistics.py``). Before its second sample an object has none (0.0).
Not here: publishes, which the engine counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.engine.sampler import Sampler

NAMES: Final = (
    "ack", "deliver", "deliver_no_ack", "get", "get_empty", "get_no_ack", "redeliver",
)  # fmt: skip

Statistics = Any
"""A named tuple of whole numbers; every object has one kind of it for life."""
RateKey = tuple[str, Hashable]
"""Kind of object, and which of them."""


class DeliveryCounters:
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

    def add(self, other: DeliveryCounters) -> None:
        """What another one had counts here from now on."""
        for name in NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def deliver_get(self) -> int:
        return self.deliver + self.deliver_no_ack + self.get + self.get_no_ack


def total(counters: Iterable[DeliveryCounters]) -> DeliveryCounters:
    whole = DeliveryCounters()
    for each in counters:
        whole.add(each)
    return whole


class Rates:
    """How fast the figures of AMQP's objects grow: what the one sampler keeps of them."""

    __slots__ = ("_sampler",)

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def per_second(self, key: RateKey) -> dict[str, float] | None:
        """How fast each figure of an object grew; None before its second sample."""
        return self._sampler.per_second(*key)

    def details(
        self, key: RateKey, statistics: Statistics, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """Some statistics and their rates, as RabbitMQ's ``message_stats`` have them."""
        rates = self.per_second(key) or {}
        found: dict[str, Any] = {}
        for name in names:
            found[name] = getattr(statistics, name)
            found[f"{name}_details"] = {"rate": round(rates.get(name, 0.0), 1)}
        return found
