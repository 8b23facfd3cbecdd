"""Feeds the memory and disk alarms: looks every ``alarm_check_ms``, and ten times as often near.

Both figures can change faster than a slow look would notice: at 500 MB/s half a second is a quarter
of a gigabyte. So the nearer a figure is to its limit the sooner the next look comes; far away one
look costs two system calls and 20 us.

A probe that fails is not a probe that is silent: the engine is told the worst figure, so that a
disk that cannot even be asked stops publishers (F3).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger(__name__)

NEAR_RATIO: Final = 0.8
"""Memory counts as near above this share of its limit, disk below the limit divided by it, or
within ``NEAR_DISK_BYTES`` of it, whichever is more."""

NEAR_DISK_BYTES: Final = 512 * 1024 * 1024
NEAR_DIVISOR: Final = 10


class Alarmed(Protocol):
    """The part of the engine that hears the figures."""

    def set_alarm(self, name: str, value: int) -> None:
        """A new figure of the alarm ``memory`` (bytes used) or ``disk`` (bytes free)."""
        ...


class Probes:
    """Looks at memory and disk for as long as it runs."""

    def __init__(
        self,
        engine: Alarmed,
        loop: asyncio.AbstractEventLoop,
        *,
        rss_bytes: Callable[[], int],
        free_bytes: Callable[[], int],
        memory_limit: int,
        disk_limit: int,
        check_ms: int,
        looked: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._rss_bytes = rss_bytes
        self._free_bytes = free_bytes
        self.memory_limit: Final = memory_limit
        self.disk_limit: Final = disk_limit
        self._check_ms = check_ms
        self._looked = looked
        self._timer: asyncio.TimerHandle | None = None
        self.memory_used = 0
        self.disk_free = 0
        self.failures = 0

    def start(self) -> None:
        """Look now and then for ever."""
        self.look()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Read both figures, tell the engine, arm the next look."""
        self.stop()
        self.memory_used = self._read("memory", self._rss_bytes, self.memory_limit + 1)
        self.disk_free = self._read("disk", self._free_bytes, 0)
        self._engine.set_alarm("memory", self.memory_used)
        self._engine.set_alarm("disk", self.disk_free)
        self._looked()
        delay_ms = self._check_ms / NEAR_DIVISOR if self.is_near else self._check_ms
        self._timer = self._loop.call_later(delay_ms / 1000, self.look)

    @property
    def is_near(self) -> bool:
        """True when one of the figures could cross its limit before an ordinary next look."""
        near_disk = max(self.disk_limit / NEAR_RATIO, self.disk_limit + NEAR_DISK_BYTES)
        is_memory_near = self.memory_used > self.memory_limit * NEAR_RATIO
        return is_memory_near or self.disk_free < near_disk

    def _read(self, name: str, probe: Callable[[], int], worst: int) -> int:
        try:
            return probe()
        except (OSError, ValueError, IndexError) as error:
            if not self.failures:
                logger.error("a probe failed; the worst is assumed", exc_info=error)
            self.failures += 1
            return worst
