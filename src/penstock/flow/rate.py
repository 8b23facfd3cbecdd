"""Rate limits: token buckets for publish, dispatch and subscribe, in messages and bytes (F8).

Who grants: time. Who spends: each message or byte. Who stops: the publisher, subscription or
subscriber concerned. What wakes it: the wait the bucket itself tells (``wait_ms``); no polling.

Two manners: ``take`` asks first; ``charge`` spends what has already happened and may go below zero,
as Pulsar accounts publishes, after which ``wait_ms(0)`` says how long to pause.

Invariants: over any stretch of time t at most rate * t + burst is taken (plus one piece larger than
the burst, which a full bucket lets pass so that it is not stuck for ever); integers only, so no
drift. Rate 0 = no limit.
"""

from collections.abc import Hashable
from typing import Final

import msgspec

from penstock.flow.demand import UNLIMITED

SECOND_MS: Final = 1000

PERIOD_MS_MAX: Final = 86_400_000
"""Longest period of a dispatch rate: a day."""

PACE_MS: Final = 20
"""Who waits for a dispatch rate waits for so much time's worth, not for one message at a time."""


class TokenBucket:
    """Tokens that grow with time up to a burst."""

    __slots__ = ("_at_ms", "_parts", "_scale", "burst", "rate_per_s")

    def __init__(
        self, rate_per_s: int, burst: int = 0, now_ms: int = 0, *, period_ms: int = SECOND_MS
    ) -> None:
        if rate_per_s < 0 or burst < 0:
            raise ValueError(f"rate {rate_per_s}/s with burst {burst}: neither may be negative")
        self.rate_per_s = rate_per_s
        """Tokens of a second, or of the period where another is given."""
        self.burst = burst or rate_per_s
        """Most that may be taken at once; by default one period's worth."""
        # Parts of a token, as many as a period has milliseconds: growing needs no division.
        self._scale = period_ms
        self._parts = self.burst * period_ms
        self._at_ms = now_ms

    def take(self, n: int, now_ms: int) -> bool:
        if self.rate_per_s == 0:
            return True
        if self._refill(now_ms) < min(n, self.burst) * self._scale:
            return False
        self._parts -= n * self._scale
        return True

    def charge(self, n: int, now_ms: int) -> None:
        """Spend n whether they are there or not."""
        if self.rate_per_s:
            self._refill(now_ms)
            self._parts -= n * self._scale

    def available(self, now_ms: int) -> int:
        return max(0, self._refill(now_ms) // self._scale) if self.rate_per_s else UNLIMITED

    def wait_ms(self, n: int, now_ms: int) -> int:
        """Milliseconds until ``take(n)`` succeeds; 0 = now."""
        if self.rate_per_s == 0:
            return 0
        missing = min(n, self.burst) * self._scale - self._refill(now_ms)
        return max(0, -(-missing // self.rate_per_s))

    def resize(
        self, rate_per_s: int, burst: int, now_ms: int, *, period_ms: int = SECOND_MS
    ) -> None:
        """New figures; tokens saved up beyond the new burst are lost, a debt stays."""
        self._refill(now_ms)
        was_unlimited = self.rate_per_s == 0
        self.rate_per_s = rate_per_s
        self.burst = burst or rate_per_s
        full = self.burst * period_ms
        kept = self._parts * period_ms // self._scale
        self._scale = period_ms
        self._parts = full if was_unlimited else min(kept, full)

    def _refill(self, now_ms: int) -> int:
        if now_ms > self._at_ms:
            grown = self._parts + (now_ms - self._at_ms) * self.rate_per_s
            self._parts = min(grown, self.burst * self._scale)
            self._at_ms = now_ms
        return self._parts


class RateLimit:
    """Messages and bytes together: both buckets must allow it."""

    __slots__ = ("bytes", "messages")

    def __init__(self, messages_per_s: int = 0, bytes_per_s: int = 0, now_ms: int = 0) -> None:
        self.messages = TokenBucket(messages_per_s, now_ms=now_ms)
        self.bytes = TokenBucket(bytes_per_s, now_ms=now_ms)

    @property
    def is_set(self) -> bool:
        """False when neither is limited, so that callers can skip it."""
        return bool(self.messages.rate_per_s or self.bytes.rate_per_s)

    def charge(self, messages: int, size_bytes: int, now_ms: int) -> None:
        """Account what was published or dispatched."""
        self.messages.charge(messages, now_ms)
        self.bytes.charge(size_bytes, now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """Milliseconds until one more message may pass; 0 = now."""
        return max(self.messages.wait_ms(1, now_ms), self.bytes.wait_ms(1, now_ms))

    def is_short_of_bytes(self, now_ms: int) -> bool:
        """True when it is the bytes that who waits waits for, not the messages."""
        return self.bytes.wait_ms(1, now_ms) > self.messages.wait_ms(1, now_ms)

    def available_messages(self, now_ms: int) -> int:
        """Messages that may pass now; 0 when the bytes are used up."""
        return self.messages.available(now_ms) if self.bytes.available(now_ms) else 0

    def available_bytes(self, now_ms: int) -> int:
        return self.bytes.available(now_ms)


class DispatchRate(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much may be handed out in a period, to all consumers together; 0 = no limit."""

    messages: int = 0
    size_bytes: int = 0
    """Of records as they are stored."""
    period_ms: int = SECOND_MS
    counts_entries: bool = False
    """A batch counts as one, not as its messages."""

    def __post_init__(self) -> None:
        if self.messages < 0 or self.size_bytes < 0:
            raise ValueError(
                f"dispatch rate of {self.messages} messages and {self.size_bytes} bytes: neither"
                " may be negative; 0 = no limit"
            )
        if not 1 <= self.period_ms <= PERIOD_MS_MAX:
            raise ValueError(
                f"dispatch rate with a period of {self.period_ms} ms: from 1 to {PERIOD_MS_MAX}"
            )

    @property
    def is_set(self) -> bool:
        return bool(self.messages or self.size_bytes)


class DispatchLimit:
    """A dispatch rate at work, for one subscription or for all of a topic.

    Who spends: a subscription's round, for what it handed over. Who stops: the round that finds it
    empty, and then all who share it. What wakes them: each its own deadline (``wait_ms``).

    Those who wait stand in line: each gets its part, and when there is not one for everybody the
    first in line do, who then stand behind. So none of a topic's subscriptions starves (law 8).
    """

    __slots__ = ("_bytes", "_line", "_messages", "rate")

    def __init__(self, rate: DispatchRate, now_ms: int) -> None:
        period_ms = rate.period_ms
        self.rate = rate
        self._messages = TokenBucket(rate.messages, now_ms=now_ms, period_ms=period_ms)
        self._bytes = TokenBucket(rate.size_bytes, now_ms=now_ms, period_ms=period_ms)
        self._line: dict[Hashable, None] = {}

    def resize(self, rate: DispatchRate, now_ms: int) -> None:
        self.rate = rate
        self._messages.resize(rate.messages, 0, now_ms, period_ms=rate.period_ms)
        self._bytes.resize(rate.size_bytes, 0, now_ms, period_ms=rate.period_ms)

    def share(self, who: Hashable, now_ms: int) -> tuple[int, int]:
        """Messages (or entries) and bytes this one may have now, or none of both."""
        messages, size = self._messages.available(now_ms), self._bytes.available(now_ms)
        if not messages or not size:
            return 0, 0
        others = len(self._line) - (who in self._line)
        if not others:
            return messages, size
        if min(messages, size) > others:
            return messages // (others + 1), size // (others + 1)
        line = [*self._line]
        place = line.index(who) if who in self._line else others
        return (1, size) if place < messages else (0, 0)

    def spend(self, entries: int, messages: int, size_bytes: int, now_ms: int) -> None:
        self._messages.charge(entries if self.rate.counts_entries else messages, now_ms)
        self._bytes.charge(size_bytes, now_ms)

    def stand_in_line(self, who: Hashable, *, was_served: bool) -> None:
        """Its round ended because it was empty, or its part was used up."""
        if was_served:
            self._line.pop(who, None)
        self._line[who] = None

    def leave_line(self, who: Hashable) -> None:
        self._line.pop(who, None)

    def wait_ms(self, now_ms: int) -> int:
        """Until it is worth another round."""
        return max(
            bucket.wait_ms(max(1, bucket.rate_per_s * PACE_MS // self.rate.period_ms), now_ms)
            for bucket in (self._messages, self._bytes)
        )
