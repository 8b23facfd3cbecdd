"""What clients were given and acknowledged since the start, and how fast any statistics grow.

``DeliveryCounters`` belong to a channel, a queue or a vhost. Names are RabbitMQ's: ``deliver`` and
``get`` are for those who acknowledge, ``..._no_ack`` for those who do not; ``redeliver`` are those
of them that came again. Counted per list, never per message, by whoever sends or settles the list.

What a queue had when it was deleted goes on counting in its vhost (``gone``), so that totals never
go back.

``Rates`` are per second between the last two samples, whoever looks. ``management/statistics.py``
takes the samples, every five seconds as RabbitMQ does; a look changes nothing, so everybody sees
the same rate. Before its second sample an object has none (0.0).
Not here: publishes, which the engine counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final, NamedTuple

NAMES: Final = (
    "ack", "deliver", "deliver_no_ack", "get", "get_empty", "get_no_ack", "redeliver",
)  # fmt: skip
OBJECTS_MAX: Final = 100_000
"""Objects with a history; more of them show 0.0."""
GAUGE_PREFIX: Final = "messages"
"""Fields with such names go up and down; others only up, unless they are another object's."""

Statistics = Any
"""A named tuple of whole numbers; every object has one kind of it for life."""


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


class _History(NamedTuple):
    sweep: int
    at_ms: int
    now: Statistics
    before_ms: int
    before: Statistics | None


class Rates:
    """The last two samples of everything; what a sweep did not meet is forgotten at its end."""

    __slots__ = ("_histories", "_met", "_sweep")

    def __init__(self) -> None:
        self._histories: dict[Hashable, _History] = {}
        self._sweep = 0
        self._met = 0

    def sample(self, key: Hashable, statistics: Statistics, now_ms: int) -> None:
        """The statistics of an object at this moment."""
        known = self._histories.get(key)
        if known is None:
            if len(self._histories) < OBJECTS_MAX:
                self._histories[key] = _History(self._sweep, now_ms, statistics, now_ms, None)
                self._met += 1
            return
        if known.sweep != self._sweep:
            self._met += 1
        if now_ms > known.at_ms:
            self._histories[key] = _History(self._sweep, now_ms, statistics, known.at_ms, known.now)

    def swept(self) -> None:
        """Everything there is was sampled once: what was not is gone."""
        if self._met < len(self._histories):
            self._histories = {
                key: each for key, each in self._histories.items() if each.sweep == self._sweep
            }
        self._sweep += 1
        self._met = 0

    def per_second(self, key: Hashable) -> dict[str, float] | None:
        """How fast each figure of an object grew; None before its second sample."""
        known = self._histories.get(key)
        if known is None or known.before is None:
            return None
        seconds = (known.at_ms - known.before_ms) / 1000
        found: dict[str, float] = {}
        for name, now, before in zip(known.now._fields, known.now, known.before, strict=True):
            grown = now - before
            # A counter that went back is another object's of the same name.
            is_other = grown < 0 and not name.startswith(GAUGE_PREFIX)
            found[name] = 0.0 if is_other else grown / seconds
        return found

    def details(
        self, key: Hashable, statistics: Statistics, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """Some statistics and their rates, as RabbitMQ's ``message_stats`` have them."""
        rates = self.per_second(key) or {}
        found: dict[str, Any] = {}
        for name in names:
            found[name] = getattr(statistics, name)
            found[f"{name}_details"] = {"rate": round(rates.get(name, 0.0), 1)}
        return found
