"""How far apart syncs are at middling rates: fewer of them, for whoever does not wait for each.

A sync costs both cores, ours and the disk's, and about the same for three messages as for thirty.
Between some 1,700 and 10,000 messages a second, syncs as fast as the disk gives them are most of
the CPU and of the noise that everybody else's deliveries feel. So there they keep a distance
between their beginnings: ``TIMES`` what they took of late, at most
``storage.commit_distance_us``. A quick disk is hardly waited for, a slow or disturbed one gets
fewer and larger syncs. At lower rates nobody would join; at higher ones they are large anyway.

* **Only for streams.** Clients that wait for a confirm before they send on, a hundred of them or
  one with a small window, would only wait longer. They show themselves: while a sync waits for
  company, nothing comes. Then syncs begin at once again, and the distance is tried anew after some
  of them, in the end after ``AT_ONCE_MAX``: such clients wait once in a hundred times.
* Much that waits, or a definition that somebody waits for, is never kept (``commit_policy.py``).

Measured in ``benchmarks/README.md``. The timers of uvloop are whole milliseconds: the turn that
finds the time come begins the sync, a timer only when no turn does.
"""

import time
from collections.abc import Callable
from typing import Final

from penstock.settings.broker import StorageSettings

TIMES: Final = 3
"""Syncs begin so many times as far apart as they take: the disk rests twice as long as it works."""

MEMORY: Final = 0.8
"""Weight of the past against the latest sync."""

EXPECTED_MIN: Final = 5
"""Messages that must be expected within the longest distance; fewer are not worth a wait."""

EXPECTED_MAX: Final = 30
"""So many share a sync without our help."""

SLACK_US: Final = 150
"""A turn so little before its time begins the sync: the next turn would be much later."""

AT_ONCE_MIN: Final = 8
AT_ONCE_MAX: Final = 128
"""Syncs that begin at once after one waited in vain: twice as many each time in a row, because a
stall of the machine looks like silence once, and clients that wait for us every time."""


class SyncPace:
    """Knows when the next sync may begin."""

    __slots__ = (
        "_at_once",
        "_began_us",
        "_distance_us",
        "_has_company",
        "_has_waited",
        "_next_at_once",
        "_now_ns",
        "_took_us",
        "kept",
    )  # fmt: skip

    def __init__(
        self, settings: StorageSettings, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._distance_us = settings.commit_distance_us
        self._now_ns = now_ns
        self._began_us = 0
        self._has_waited = False
        self._has_company = False
        self._at_once = 0
        self._next_at_once = AT_ONCE_MIN
        self._took_us = 0.0
        self.kept = 0
        """Syncs that waited."""

    def brought(self) -> None:
        """A turn brought messages."""
        self._has_company = self._has_waited

    def began(self) -> None:
        """A sync begins."""
        if self._at_once:
            self._at_once -= 1
        elif self._has_company:
            self._next_at_once = AT_ONCE_MIN
        elif self._has_waited:
            self._at_once = self._next_at_once
            self._next_at_once = min(2 * self._next_at_once, AT_ONCE_MAX)
        self.kept += self._has_waited
        self._has_waited = self._has_company = False
        self._began_us = self._now_ns() // 1000

    def ended(self, seconds: float) -> None:
        """It took so long."""
        took_us = min(seconds * 1e6, self._distance_us)  # one that hung says little of the next
        self._took_us = MEMORY * self._took_us + (1 - MEMORY) * took_us

    def is_middling(self, messages_per_ms: float) -> bool:
        """True when some messages, but not many, come within the longest distance."""
        return EXPECTED_MIN <= messages_per_ms * self._distance_us / 1000 <= EXPECTED_MAX

    def left_us(self, messages_per_ms: float) -> int:
        """How long a sync of little waits at this rate; 0 = it begins at once."""
        if self._at_once or not self.is_middling(messages_per_ms):
            return 0
        distance_us = min(int(TIMES * self._took_us), self._distance_us)
        left_us = self._began_us + distance_us - self._now_ns() // 1000
        if left_us <= SLACK_US:
            return 0
        self._has_waited = True
        return left_us
