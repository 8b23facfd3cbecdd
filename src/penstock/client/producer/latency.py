"""Slow and failing brokers are left alone for a while (part of F16, RocketMQ's fault table).

Each answered try tells how long a broker took; the table says for how long it is then avoided. A
failed try counts as ten seconds. Avoiding is a preference: when every broker is isolated, the one
that is free first is taken, so a send is never refused because of this table.

Time comes in as monotonic milliseconds. Not here: which queue of a broker (``selection.py``).
"""

from collections.abc import Iterable
from typing import Final

LATENCY_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15_000)
ISOLATION_MS: Final = (0, 0, 2000, 5000, 6000, 10_000, 30_000)
"""A try that took at least the one above isolates its broker for the one below."""

FAILED_LATENCY_MS: Final = 10_000
"""What a try that failed counts as."""

BROKERS_MAX: Final = 1024
"""Names a name server can make us remember; the one that was heard of longest ago goes first."""


def isolation_ms(latency_ms: int) -> int:
    """For how long a broker is avoided that took so long."""
    for least_ms, isolated_ms in zip(reversed(LATENCY_MS), reversed(ISOLATION_MS), strict=True):
        if latency_ms >= least_ms:
            return isolated_ms
    return 0


class FaultTable:
    """Until when each broker is avoided."""

    __slots__ = ("_until_ms",)

    def __init__(self) -> None:
        # Fast brokers are not in it: most of the time it is empty.
        self._until_ms: dict[str, int] = {}

    def answered(self, broker: str, latency_ms: int, now_ms: int) -> None:
        """A try came back after so long."""
        isolated_ms = isolation_ms(latency_ms)
        if isolated_ms:
            self._isolate(broker, now_ms + isolated_ms)
        elif self._until_ms:
            self._until_ms.pop(broker, None)

    def failed(self, broker: str, now_ms: int) -> None:
        """A try did not come back, or came back with an error that another broker may not have."""
        self._isolate(broker, now_ms + isolation_ms(FAILED_LATENCY_MS))

    def is_available(self, broker: str, now_ms: int) -> bool:
        """False while it is avoided."""
        return self._until_ms.get(broker, now_ms) <= now_ms

    def least_bad(self, brokers: Iterable[str]) -> str | None:
        """The broker that is free first; None without any."""
        return min(brokers, key=lambda broker: self._until_ms.get(broker, 0), default=None)

    def isolated(self, now_ms: int) -> dict[str, int]:
        """For the statistics: broker -> milliseconds for which it is still avoided."""
        return {
            broker: until_ms - now_ms
            for broker, until_ms in self._until_ms.items()
            if until_ms > now_ms
        }

    def _isolate(self, broker: str, until_ms: int) -> None:
        self._until_ms.pop(broker, None)
        if len(self._until_ms) >= BROKERS_MAX:
            del self._until_ms[next(iter(self._until_ms))]
        self._until_ms[broker] = until_ms
