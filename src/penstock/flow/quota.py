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

_HARDNESS: Final = [
    QuotaDecision.ADMIT,
    QuotaDecision.EVICT,
    QuotaDecision.HOLD,
    QuotaDecision.REFUSE,
]


class BacklogQuota(msgspec.Struct, frozen=True):
    """A limit by bytes, by age of the oldest unsettled message, or both."""

    bytes_max: int = 0
    age_ms_max: int = 0
    policy: QuotaPolicy = QuotaPolicy.HOLD
    age_policy: QuotaPolicy | None = None
    """When the age is passed; None = the same."""

    @property
    def is_set(self) -> bool:
        """False when nothing is limited."""
        return self.bytes_max > 0 or self.age_ms_max > 0

    def judge(self, backlog_bytes: int, oldest_age_ms: int = 0) -> QuotaDecision:
        """The verdict on a publish, given the backlog before it; if both are passed, the harder."""
        by_size = by_age = QuotaDecision.ADMIT
        if backlog_bytes >= self.bytes_max > 0:
            by_size = _DECISIONS[self.policy]
        if oldest_age_ms >= self.age_ms_max > 0:
            by_age = _DECISIONS[self.age_policy or self.policy]
        return max(by_size, by_age, key=_HARDNESS.index)

    def explain(self, topic: str, backlog_bytes: int, oldest_age_ms: int = 0) -> str:
        """One sentence for whoever is held or refused."""
        if self.judge(backlog_bytes) is self.judge(backlog_bytes, oldest_age_ms):
            figure, policy = f"{backlog_bytes} bytes, quota {self.bytes_max}", self.policy
        else:
            figure = f"messages {oldest_age_ms} ms old, quota {self.age_ms_max} ms"
            policy = self.age_policy or self.policy
        return f"backlog of topic '{topic}' holds {figure} ({policy.value})"

    @property
    def evict_to_bytes(self) -> int:
        """Eviction by size stops here."""
        return self.bytes_max * EVICT_PERCENT // 100

    @property
    def evict_to_age_ms(self) -> int:
        """Eviction by age stops here."""
        return self.age_ms_max * EVICT_PERCENT // 100
