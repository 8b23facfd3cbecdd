"""Rate limits: token buckets for publish, dispatch and subscribe, in messages and bytes (F8).

Who grants: time. Who spends: each message or byte. Who stops: the publisher, subscription or
subscriber concerned. What wakes it: the wait the bucket itself tells (``wait_ms``); no polling.

Two manners: ``take`` asks first; ``charge`` spends what has already happened and may go below zero,
as Pulsar accounts publishes, after which ``wait_ms(0)`` says how long to pause.

Invariants: over any stretch of time t at most rate * t + burst is taken (plus one piece larger than
the burst, which a full bucket lets pass so that it is not stuck for ever); integers only, so no
drift. Rate 0 = no limit.
"""

from penstock.flow.demand import UNLIMITED


class TokenBucket:
    """Tokens that grow with time up to a burst."""

    __slots__ = ("_at_ms", "_milli", "burst", "rate_per_s")

    def __init__(self, rate_per_s: int, burst: int = 0, now_ms: int = 0) -> None:
        if rate_per_s < 0 or burst < 0:
            raise ValueError(f"rate {rate_per_s}/s with burst {burst}: neither may be negative")
        self.rate_per_s = rate_per_s
        self.burst = burst or rate_per_s
        """Most that may be taken at once; by default one second's worth."""
        # Thousandths of a token: rate per second times milliseconds needs no division.
        self._milli = self.burst * 1000
        self._at_ms = now_ms

    def take(self, n: int, now_ms: int) -> bool:
        if self.rate_per_s == 0:
            return True
        if self._refill(now_ms) < min(n, self.burst) * 1000:
            return False
        self._milli -= n * 1000
        return True

    def charge(self, n: int, now_ms: int) -> None:
        """Spend n whether they are there or not."""
        if self.rate_per_s:
            self._refill(now_ms)
            self._milli -= n * 1000

    def available(self, now_ms: int) -> int:
        return max(0, self._refill(now_ms) // 1000) if self.rate_per_s else UNLIMITED

    def wait_ms(self, n: int, now_ms: int) -> int:
        """Milliseconds until ``take(n)`` succeeds; 0 = now."""
        if self.rate_per_s == 0:
            return 0
        missing = min(n, self.burst) * 1000 - self._refill(now_ms)
        return max(0, -(-missing // self.rate_per_s))

    def resize(self, rate_per_s: int, burst: int, now_ms: int) -> None:
        """New figures; tokens saved up beyond the new burst are lost, a debt stays."""
        self._refill(now_ms)
        was_unlimited = self.rate_per_s == 0
        self.rate_per_s = rate_per_s
        self.burst = burst or rate_per_s
        full = self.burst * 1000
        self._milli = full if was_unlimited else min(self._milli, full)

    def _refill(self, now_ms: int) -> int:
        if now_ms > self._at_ms:
            grown = self._milli + (now_ms - self._at_ms) * self.rate_per_s
            self._milli = min(grown, self.burst * 1000)
            self._at_ms = now_ms
        return self._milli


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

    def available_messages(self, now_ms: int) -> int:
        """Messages that may pass now; 0 when the bytes are used up."""
        return self.messages.available(now_ms) if self.bytes.available(now_ms) else 0

    def available_bytes(self, now_ms: int) -> int:
        return self.bytes.available(now_ms)
