"""How far apart turns are when much comes in small pieces: fewer and larger ones.

A turn costs nearly the same for one message as for fifty, and so does the sync behind it. A stream
of single publishes, one per packet, would have a turn for every two or three messages and keep a
core busy with little; then whatever else happens is a queue. So while messages come fast enough for
company, turns keep ``PACE_US`` between their beginnings.

* Messages decide, not packets or turns: they are as many however they are cut, so the rule does
  not swing when it works. The rate is that of the turns (``commit_policy.py``).
* A client that waits for each answer brings less than a message per millisecond, and never waits.
* A turn that takes longer than the pace is followed by the next one at once; so is one that leaves
  much for the disk.

Measured (AMQP over loopback, 128 B, publisher and consumer, one publish a packet, 4,000/s, fsync on
ext4/virtio, 2 cores, medians of 7 interleaved rounds of 4 s, syncs as they come):

============  =========  ==================  ===================
pace          CPU        confirm p50/p99     delivery p50/p99
============  =========  ==================  ===================
none          265 us     3.9/14.2 ms         0.6/2.9 ms
0.6 ms        218 us     2.1/10.1 ms         0.9/3.9 ms
1.0 ms        174 us     1.9/13.2 ms         1.1/5.4 ms
1.5 ms        136 us     2.1/8.9 ms          1.4/4.2 ms
============  =========  ==================  ===================

The p99s are mostly the host's and do not rank the rows; CPU and medians do. Eight clients with one
message in flight each: 3,356/s at 1.5 ms, 4,756/s at 0.8 ms with ``sync_pace.py``. The timers of
uvloop are whole milliseconds, so a timer is only the last resort: what arrives looks at the clock,
too.
"""

import time
from collections.abc import Callable
from typing import Final

PACE_US: Final = 800
"""Time between the beginnings of two turns; every delivery may wait for so long."""

COMPANY_MIN: Final = 2
"""Messages that must be expected within the pace; fewer are not worth anybody's time."""


class Pace:
    """Knows when the next turn may begin."""

    __slots__ = ("_now_ns", "_turned_us")

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._turned_us = 0

    def turned(self) -> None:
        """A turn begins."""
        self._turned_us = self._now_ns() // 1000

    @property
    def left_us(self) -> int:
        """How long until the next turn may begin; negative = it is late."""
        return self._turned_us + PACE_US - self._now_ns() // 1000

    def wait_us(self, messages_per_ms: float) -> int:
        """How long a turn that is asked for now waits at this rate; 0 = it runs at once."""
        if messages_per_ms * PACE_US < COMPANY_MIN * 1000:
            return 0
        return max(0, self.left_us)
