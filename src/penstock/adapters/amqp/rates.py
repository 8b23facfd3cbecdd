"""Rates of counters, made when somebody looks: how much per second since the look before.

A counter that is looked at again within ``STEP_MS`` shows the rate of the step before, so many
viewers see the same figure. Nobody looking costs nothing.

Bound: ``COUNTERS_MAX`` counters are remembered; those looked at longest ago go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any, Final, NamedTuple

STEP_MS: Final = 1_000
COUNTERS_MAX: Final = 50_000


class _Look(NamedTuple):
    at_ms: int
    value: int
    rate: float


class Rates:
    """Remembers what counters were when they were looked at."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: OrderedDict[Hashable, _Look] = OrderedDict()

    def rate(self, key: Hashable, value: int, now_ms: int) -> float:
        """Per second; 0 at the first look."""
        look = self._looks.get(key)
        if look is None:
            look = _Look(now_ms, value, 0.0)
        elif now_ms - look.at_ms >= STEP_MS:
            # A counter that went back is another one of the same name.
            grown = max(0, value - look.value)
            look = _Look(now_ms, value, round(grown * 1000 / (now_ms - look.at_ms), 1))
        self._looks[key] = look
        self._looks.move_to_end(key)
        if len(self._looks) > COUNTERS_MAX:
            self._looks.popitem(last=False)
        return look.rate

    def details(self, key: Hashable, counters: Mapping[str, int], now_ms: int) -> dict[str, Any]:
        """Each counter and its rate, as RabbitMQ's ``message_stats`` have them."""
        found: dict[str, Any] = {}
        for name, value in counters.items():
            found[name] = value
            found[f"{name}_details"] = {"rate": self.rate((key, name), value, now_ms)}
        return found
