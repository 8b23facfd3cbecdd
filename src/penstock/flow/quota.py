"""Backlog quota: how much a topic may keep for consumers that do not come (F8).

Who spends: every publish that the slowest durable subscription has not settled. Who grants: that
subscription, by settling. Who stops: the topic's publishers (hold, exception), or its oldest
messages go (evict). What wakes it: the backlog falling below the quota.

Judged at each publish, not once a minute: Pulsar's users meet quotas that are passed for 59
seconds. 0 = no limit. Not here: what a protocol says (error 7 or 8, nack), who evicts (``engine``).
"""

from enum import Enum
from typing import Final

import msgspec

EVICT_PERCENT: Final = 90
"""Eviction goes on until the backlog is at this share of its limit, as Pulsar does."""


class QuotaPolicy(Enum):
    """What to do when the quota is passed."""

    HOLD = "hold"
    EXCEPTION = "exception"
    EVICT = "evict"


class QuotaDecision(Enum):
    """What to do with one publish."""

    ADMIT = "admit"
    HOLD = "hold"
    REFUSE = "refuse"
    EVICT = "evict"
    """Admit it, and let the slowest subscription skip its oldest messages."""


_DECISIONS: Final = {
    QuotaPolicy.HOLD: QuotaDecision.HOLD,
    QuotaPolicy.EXCEPTION: QuotaDecision.REFUSE,
    QuotaPolicy.EVICT: QuotaDecision.EVICT,
}


class BacklogQuota(msgspec.Struct, frozen=True):
    """A limit by bytes, by age of the oldest unsettled message, or both."""

    bytes_max: int = 0
    age_ms_max: int = 0
    policy: QuotaPolicy = QuotaPolicy.HOLD

    @property
    def is_set(self) -> bool:
        """False when nothing is limited."""
        return self.bytes_max > 0 or self.age_ms_max > 0

    def judge(self, backlog_bytes: int, oldest_age_ms: int = 0) -> QuotaDecision:
        """The verdict on a publish, given the backlog before it."""
        if self._is_passed(backlog_bytes, oldest_age_ms):
            return _DECISIONS[self.policy]
        return QuotaDecision.ADMIT

    def explain(self, topic: str, backlog_bytes: int, oldest_age_ms: int = 0) -> str:
        """One sentence for whoever is held or refused."""
        if self.bytes_max and backlog_bytes >= self.bytes_max:
            figure = f"{backlog_bytes} bytes, quota {self.bytes_max}"
        else:
            figure = f"messages {oldest_age_ms} ms old, quota {self.age_ms_max} ms"
        return f"backlog of topic '{topic}' holds {figure} ({self.policy.value})"

    @property
    def evict_to_bytes(self) -> int:
        """Eviction by size stops here."""
        return self.bytes_max * EVICT_PERCENT // 100

    @property
    def evict_to_age_ms(self) -> int:
        """Eviction by age stops here."""
        return self.age_ms_max * EVICT_PERCENT // 100

    def _is_passed(self, backlog_bytes: int, oldest_age_ms: int) -> bool:
        return (backlog_bytes >= self.bytes_max > 0) or (oldest_age_ms >= self.age_ms_max > 0)
