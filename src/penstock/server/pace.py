"""How far apart turns are when much comes in small pieces: fewer and larger ones.

A turn costs nearly the same for one message as for fifty, and so does the sync behind it. A stream
of single publishes, one per packet, would have a turn for every two or three messages and keep a
core busy with little; then whatever else happens is a queue. So while messages come fast enough for
company, turns keep a distance between their beginnings: ``TIMES`` what they took of late, at most
``PACE_MAX_US``. So the loop rests a little after each; then the commit thread gets the interpreter,
and whoever shares the core gets the core.

* Messages decide, not packets or turns: they are as many however they are cut, so the rule does
  not swing when it works. The rate is that of the turns (``commit_policy.py``).
* A client that waits for each answer never waits here: its next message comes a sync later.
* A turn that takes longer than the pace is followed by the next one at once; so is one that leaves
  much for the disk.

Measured (AMQP over loopback, 128 B, publisher and consumer, one publish a packet, 4,000/s, fsync on
ext4/virtio, 2 cores): three batches, in each of them rounds of 4 s in turns, medians in ms; the
last column is which part of RabbitMQ's both p99s are in the same batch. The host decides most of
a p99: differences below a fifth are noise.

====================  ======  ======  ========  ============  ===========  ==========
pace                  rounds  CPU us  delivery  delivery p99  confirm p99  of theirs
====================  ======  ======  ========  ============  ===========  ==========
none                  12      253     0.59      2.7           10.0         0.67, 1.54
1.3, on and off       12      245     0.57      2.5           8.7          0.63, 1.33
2 times a turn        12      215     0.80      2.8           6.5          0.69, 0.99
1.3 times a turn      14      229     0.69      2.7           6.7          0.60, 0.98
2 times a turn        14      214     0.85      2.8           5.9          0.63, 0.86
1.3 times a turn      26      228     0.74      2.8           6.8          0.58, 0.92
2 times a turn        26      210     0.88      3.3           7.8          0.71, 1.07
RabbitMQ 3.10         26      236     0.99      4.7           7.3
====================  ======  ======  ========  ============  ===========  ==========

(CPU per message. "On and off": with a ``COMPANY_MIN`` of 1.5, so that a turn that happened to be
short had no pace behind it, the next one little company, and so on.) Tried without effect: longer
paces, to sleep through the pace with the sockets unread, to spin, and an exact timer (``timerfd``).
The timers of uvloop are whole milliseconds, so a timer is only the last resort: what arrives looks
at the clock, too.
"""

import time
from collections.abc import Callable
from typing import Final

PACE_MAX_US: Final = 800
"""Longest time between the beginnings of two turns; every delivery may wait for so long."""

TIMES: Final = 1.3
"""Turns begin so many times as far apart as they take."""

MEMORY: Final = 0.9
"""Weight of the past against the latest turn."""

COMPANY_MIN: Final = 0.5
"""Messages that must be expected within the pace; for fewer nobody waits."""


class Pace:
    """Knows when the next turn may begin."""

    __slots__ = ("_now_ns", "_pace_us", "_took_us", "_turned_us")

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._turned_us = 0
        self._took_us = 0.0
        self._pace_us = 0

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
