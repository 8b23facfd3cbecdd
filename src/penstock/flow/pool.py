"""The pool of in-flight bytes: one limit that pays for everything in flight (D22, law 2).

Who spends: read-ahead, held publishes, unsynced bytes, in-flight and unsent deliveries. Who grants:
whoever is done with the bytes. Who stops: the owner whose share is full, or everybody when the pool
is. What wakes it: bytes given back; those who were refused are woken in the order they asked.

Invariants: the sum of all shares' use is the pool's use and never above its maximum; a share's own
maximum is a part of the pool, never an addition (10,000 connections of 16 MiB do not make 160 GiB);
an empty share takes one piece larger than itself as long as the pool has room, so nothing that was
accepted by size can be stuck for ever.
"""

from collections.abc import Callable
from typing import Final

IN_FLIGHT_POOL: Final = "in-flight pool"
"""What the publishers' pool is called where somebody waits for it, and among the limits."""


class Share:
    """What one owner has taken from the pool, and the most it may."""

    __slots__ = ("bytes_max", "owner", "used", "wake", "wanted")

    def __init__(self, owner: str, bytes_max: int) -> None:
        self.owner = owner
        self.bytes_max = bytes_max
        self.used = 0
        self.wanted = 0
        """Bytes refused because this share was full; 0 = it does not wait for itself."""
        self.wake: Callable[[], None] | None = None
        """Called when a refused take may succeed now; must only mark its owner as having work."""

    def fits(self, size_bytes: int) -> bool:
        """True when this share allows it; the pool must have room as well."""
        return self.used == 0 or self.used + size_bytes <= self.bytes_max


class BytesPool:
    """A number of bytes that owners take and give back."""

    __slots__ = ("_waiting", "bytes_max", "peak", "refusals", "used")

    def __init__(self, bytes_max: int) -> None:
        if bytes_max < 1:
            raise ValueError(f"a pool of {bytes_max} bytes; it must have at least 1")
        self.bytes_max = bytes_max
        self.used = 0
        self.peak = 0
        self.refusals = 0
        # Shares refused for want of room in the pool -> bytes wanted, oldest first; bounded by
        # the number of shares.
        self._waiting: dict[Share, int] = {}

    def share(self, owner: str, bytes_max: int) -> Share:
        """A share for a new owner; never larger than the pool."""
        return Share(owner, min(bytes_max, self.bytes_max))

    def can_take(self, share: Share, size_bytes: int) -> bool:
        """True when ``take`` would succeed."""
        return self.used + size_bytes <= self.bytes_max and share.fits(size_bytes)

    def take(self, share: Share, size_bytes: int) -> bool:
        """Take bytes; False when the share or the pool is full (then ``wake`` comes later).

        More than the whole pool is refused without waiting: it would wait for ever.
        """
        if self.can_take(share, size_bytes):
            share.wanted = 0
            if self._waiting:
                self._waiting.pop(share, None)
            share.used += size_bytes
            self.used += size_bytes
            self.peak = max(self.peak, self.used)
            return True
        self.refusals += 1
        if size_bytes <= self.bytes_max:
            self._wait(share, size_bytes)
        return False

    def give(self, share: Share, size_bytes: int) -> None:
        """Give bytes back."""
        assert 0 <= size_bytes <= share.used, "more given back than taken"
        share.used -= size_bytes
        self.used -= size_bytes
        if share.wanted and share.fits(share.wanted):
            wanted, share.wanted = share.wanted, 0
            self._waiting[share] = wanted
        if self._waiting:
            self._wake_waiting()

    def close(self, share: Share) -> None:
        """The owner is gone: everything it had comes back, and it waits for nothing."""
        self._waiting.pop(share, None)
        share.wanted = 0
        share.wake = None
        self.give(share, share.used)

    def _wait(self, share: Share, size_bytes: int) -> None:
        """Wait for oneself first: a full share must not stand in the way of the others."""
        if share.fits(size_bytes):
            share.wanted = 0
            self._waiting[share] = size_bytes
        else:
            share.wanted = size_bytes
            self._waiting.pop(share, None)

    def _wake_waiting(self) -> None:
        """Wake who fits now. Waking takes nothing: whoever comes too late waits again."""
        for share, wanted in list(self._waiting.items()):
            # The first that does not fit ends the round, or large pieces would starve behind
            # small ones. It fits at the latest when the pool is empty, so the round goes on then.
            if self.used + wanted > self.bytes_max:
                break
            if self._waiting.pop(share, None) is not None and share.wake is not None:
                share.wake()
