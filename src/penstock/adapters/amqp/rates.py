"""Rates of figures: how much per second between the last two samples, whoever looks.

``sampler.py`` takes the samples, every five seconds as RabbitMQ does; a look changes nothing, so
everybody sees the same rate. Before its second sample an object has none (0.0).

Bound: ``OBJECTS_MAX`` objects have a history; more of them show 0.0. What a sweep of the sampler
did not meet any more is forgotten at its end.
Not here: when to sample (``sampler.py``), what the figures are (``figures.py``).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, NamedTuple

OBJECTS_MAX: Final = 100_000
GAUGE_PREFIX: Final = "messages"
"""Figures with such names go up and down; others only up, unless they are another object's."""

Figures = Any
"""A named tuple of whole numbers; every object has one kind of it for life."""


class _History(NamedTuple):
    sweep: int
    at_ms: int
    now: Figures
    before_ms: int
    before: Figures | None


class Rates:
    """The last two samples of everything."""

    __slots__ = ("_histories", "_met", "_sweep")

    def __init__(self) -> None:
        self._histories: dict[Hashable, _History] = {}
        self._sweep = 0
        self._met = 0

    def sample(self, key: Hashable, figures: Figures, now_ms: int) -> None:
        """The figures of an object at this moment."""
        known = self._histories.get(key)
        if known is None:
            if len(self._histories) < OBJECTS_MAX:
                self._histories[key] = _History(self._sweep, now_ms, figures, now_ms, None)
                self._met += 1
            return
        if known.sweep != self._sweep:
            self._met += 1
        if now_ms > known.at_ms:
            self._histories[key] = _History(self._sweep, now_ms, figures, known.at_ms, known.now)

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

    def details(self, key: Hashable, figures: Figures, names: tuple[str, ...]) -> dict[str, Any]:
        """Some figures and their rates, as RabbitMQ's ``message_stats`` have them."""
        rates = self.per_second(key) or {}
        found: dict[str, Any] = {}
        for name in names:
            found[name] = getattr(figures, name)
            found[f"{name}_details"] = {"rate": round(rates.get(name, 0.0), 1)}
        return found
