"""How far apart turns are when much comes in small pieces: fewer and larger ones.

A turn costs nearly the same for one message as for fifty, and so does the sync behind it. A stream
of single publishes, one per packet, would have a turn for every two or three messages and keep a
core busy with little; then whatever else happens is a queue. So while messages come fast enough for
company, turns keep a distance between their beginnings: ``TIMES`` what they took of late, at most
``PACE_MAX_US``. The loop rests as long as it works, on a quick machine as on a slow one.

* Messages decide, not packets or turns: they are as many however they are cut, so the rule does
  not swing when it works. The rate is that of the turns (``commit_policy.py``).
* A client that waits for each answer brings few messages per millisecond, and never waits.
* A turn that takes longer than the pace is followed by the next one at once; so is one that leaves
  much for the disk.

Measured (AMQP over loopback, 128 B, publisher and consumer, one publish a packet, 4,000/s, fsync on
ext4/virtio, 2 cores, rounds of 4 or 5 s in turns). How much the host stole decides the p99, so they
are fitted over it and given for 0.3 % and 3 % of both cores stolen:

====================  ======  =====  ========  ============  ============
pace                  rounds  CPU    delivery  delivery p99  confirm p99
====================  ======  =====  ========  ============  ============
none                  52      246    0.65 ms   2.0, 4.6 ms   8.8, 15.4 ms
0.4 ms                31      210    0.80 ms   2.1, 4.6 ms   6.4, 12.4 ms
0.8 ms                57      183    1.02 ms   2.1, 4.5 ms   5.4, 10.9 ms
1.5 times a turn      29      209    0.77 ms   1.8, 4.9 ms   6.1, 13.9 ms
2 times a turn        15      204    0.85 ms   1.8, 4.4 ms   5.1, 11.8 ms
RabbitMQ 3.10         57      230    1.10 ms   3.6, 7.7 ms   5.6, 12.1 ms
====================  ======  =====  ========  ============  ============

(CPU in us a message, the third column a median.) The timers of uvloop are whole milliseconds, so a
timer is only the last resort: what arrives looks at the clock, too. Tried without effect: to sleep
through the pace with the sockets unread, and to spin.
"""

import time
from collections.abc import Callable
from typing import Final

PACE_MAX_US: Final = 800
"""Longest time between the beginnings of two turns; every delivery may wait for so long."""

TIMES: Final = 2
"""Turns begin so many times as far apart as they take."""

MEMORY: Final = 0.9
"""Weight of the past against the latest turn."""

COMPANY_MIN: Final = 1.5
"""Messages that must be expected within the pace; fewer are not worth anybody's time."""


class Pace:
    """Knows when the next turn may begin."""

    __slots__ = ("_now_ns", "_pace_us", "_took_us", "_turned_us")

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._turned_us = 0
        self._took_us = PACE_MAX_US / TIMES
        self._pace_us = PACE_MAX_US

    def turned(self) -> None:
        """A turn begins."""
        self._turned_us = self._now_ns() // 1000

    def ended(self) -> None:
        """It ends."""
        took_us = min(self._now_ns() // 1000 - self._turned_us, PACE_MAX_US)
        self._took_us = MEMORY * self._took_us + (1 - MEMORY) * took_us
        self._pace_us = min(int(TIMES * self._took_us), PACE_MAX_US)

    @property
    def left_us(self) -> int:
        """How long until the next turn may begin; negative = it is late."""
        return self._turned_us + self._pace_us - self._now_ns() // 1000

    def wait_us(self, messages_per_ms: float) -> int:
        """How long a turn that is asked for now waits at this rate; 0 = it runs at once."""
        if messages_per_ms * self._pace_us < COMPANY_MIN * 1000:
            return 0
        return max(0, self.left_us)
