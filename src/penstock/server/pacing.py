"""When a turn of the engine begins, and when a sync begins: group commit by one rate (D8).

One estimator, ``messages_per_ms``, and three rules over it: how far apart turns are, how long
little waits for company before it is synced (linger), and how far apart syncs are. Each rule stands
below with its reasons and what was measured.

Pure arithmetic over numbers and a clock given in. Not here: the timers (``turns.py``), and what
``interval:MS`` and ``os`` ask of the disk (``log/commit.py``).
"""

import time
from collections.abc import Callable
from math import exp
from typing import Final

from penstock.settings.broker import StorageSettings

MEMORY_MS: Final = 10
"""How far back the rate looks: longer than a sync, shorter than anybody notices."""

# ---- turns keep their distance ------------------------------------------------------------------
# How far apart turns are when much comes in small pieces: fewer and larger ones.
#
# A turn costs nearly the same for one message as for fifty, and so does the sync behind it. A
# stream of single publishes, one per packet, would have a turn for every two or three messages and
# keep a core busy with little; then whatever else happens is a queue. So while messages come fast
# enough for company, turns keep a distance between their beginnings: ``TURN_TIMES`` what they took
# of late, at most ``PACE_MAX_US``. So the loop rests a little after each; then the commit thread
# gets the interpreter, and whoever shares the core gets the core.
#
# * Messages decide, not packets or turns: they are as many however they are cut, so the rule does
#   not swing when it works.
# * A client that waits for each answer never waits here: its next message comes a sync later, and
#   what it does without messages (gets, declares) lets the rate fall. While the rate of a stream
#   that was over stayed, gets in a row took 0.79 to 1.95 ms each, and 0.51 to 0.98 since (4,000 of
#   them by pika, 2 cores at a load of 15, two rounds in turns).
# * A turn that takes longer than the pace is followed by the next one at once; so is one that
#   leaves much for the disk.
#
# Measured (AMQP over loopback, 128 B, publisher and consumer, one publish a packet, 4,000/s, fsync
# on ext4/virtio, 2 cores): three batches, in each of them rounds of 4 s in turns, medians in ms;
# the last column is which part of RabbitMQ's both p99s are in the same batch. The host decides most
# of a p99: differences below a fifth are noise.
#
# ====================  ======  ======  ========  ============  ===========  ==========
# pace                  rounds  CPU us  delivery  delivery p99  confirm p99  of theirs
# ====================  ======  ======  ========  ============  ===========  ==========
# none                  12      253     0.59      2.7           10.0         0.67, 1.54
# 1.3, on and off       12      245     0.57      2.5           8.7          0.63, 1.33
# 2 times a turn        12      215     0.80      2.8           6.5          0.69, 0.99
# 1.3 times a turn      14      229     0.69      2.7           6.7          0.60, 0.98
# 2 times a turn        14      214     0.85      2.8           5.9          0.63, 0.86
# 1.3 times a turn      26      228     0.74      2.8           6.8          0.58, 0.92
# 2 times a turn        26      210     0.88      3.3           7.8          0.71, 1.07
# RabbitMQ 3.10         26      236     0.99      4.7           7.3
# ====================  ======  ======  ========  ============  ===========  ==========
#
# (CPU per message. "On and off": with a ``TURN_COMPANY_MIN`` of 1.5, so that a turn that happened
# to be short had no pace behind it, the next one little company, and so on.) Tried without effect:
# longer paces, to sleep through the pace with the sockets unread, to spin, and an exact timer
# (``timerfd``). The timers of uvloop are whole milliseconds, so a timer is only the last resort:
# what arrives looks at the clock, too.

PACE_MAX_US: Final = 800
"""Longest time between the beginnings of two turns; every delivery may wait for so long."""

TURN_TIMES: Final = 1.3
"""Turns begin so many times as far apart as they take."""

TURN_MEMORY: Final = 0.9
"""Weight of the past against the latest turn."""

TURN_COMPANY_MIN: Final = 0.5
"""Messages that must be expected within the pace; for fewer nobody waits."""

# ---- little waits for company -------------------------------------------------------------------
# When a commit starts: at once when much waits or nobody else will come, else a short linger (D8).
#
# A sync costs about the same for one message as for a thousand, so at middling rates the syncs are
# the CPU cost; at high rates every wait is lost throughput; at low rates a linger is lost time and
# saves nothing, because nobody joins. The rule:
#
# * at once, when ``commit_linger_messages`` or ``commit_linger_bytes`` wait, or somebody waits for
#   a definition (D6: a declare-ok);
# * at once, when the recent rate lets fewer than ``COMPANY_MIN`` messages be expected meanwhile;
# * else ``commit_linger_ms`` after the first waiter.
#
# At middling rates syncs keep a distance besides (below).
#
# While a sync runs, arrivals gather by themselves: group commit needs no timer then.
#
# Measured (line protocol over loopback, 128 B, fsync on ext4/virtio, medians of 3 interleaved
# rounds of 1.5-2 s on 2 cores at load 2-3 from other work), confirm p50/p99 in ms, CPU a message:
#
# ===================  ===================  ===================  ===================
# load                 no linger            always 1 ms          this rule with 1 ms
# ===================  ===================  ===================  ===================
# 1 in flight          0.65/5.4, 896/s      1.94/7.8, 462/s      0.81/3.2, 1127/s
# 500/s, 1 peer        0.83/2.6, 434 us     1.95/4.9, 429 us     0.75/2.8, 406 us
# 2000/s, 4 peers      1.08/3.5, 145 us     2.57/8.0, 169 us     1.12/12.9, 184 us
# 5000/s, 4 peers      1.58/8.3, 109 us     2.91/7.0, 92 us      2.77/5.8, 92 us
# saturated, 4 peers   29/59, 115 k/s       36/84, 89 k/s        23/53, 137 k/s
# ===================  ===================  ===================  ===================
#
# What they show: the p50 of few publishers. What they do not: the last row is noise, because there
# all three start at once (an earlier run had 109, 124 and no third); the p99s and the CPU at 2000/s
# are within what the neighbours cause; 15 % of CPU at 5000/s is suggestive, no more. 2 ms gained
# nothing over 1 ms at 5000/s. The table was taken with a ``COMPANY_MIN`` of 4. It is 8 since AMQP
# at 4000/s was measured (four pairs, load 3 to 8): no linger had a confirm p50 of 2.9 to 3.1 ms
# against 3.1 to 3.5, and 4 to 8 % more CPU; one pair was spoilt by the disk. Repeat on a quiet
# machine.


COMPANY_MIN: Final = 8
"""Fewer expected arrivals are not worth a millisecond of everybody's time."""

# ---- syncs keep their distance ------------------------------------------------------------------
# How far apart syncs are at middling rates: fewer of them, for whoever does not wait for each.
#
# A sync costs both cores, ours and the disk's, and about the same for three messages as for thirty.
# Between some 1,700 and 10,000 messages a second, syncs as fast as the disk gives them are most of
# the CPU and of the noise that everybody else's deliveries feel. So there they keep a distance
# between their beginnings: ``SYNC_TIMES`` what they took of late, at most
# ``storage.commit_distance_us``. A quick disk is hardly waited for, a slow or disturbed one gets
# fewer and larger syncs. At lower rates nobody would join; at higher ones they are large anyway.
#
# * **Only for streams.** Clients that wait for a confirm before they send on, a hundred of them or
#   one with a small window, would only wait longer. They show themselves: while a sync waits for
#   company, nothing comes. Then syncs begin at once again, and the distance is tried anew after
#   some of them, in the end after ``AT_ONCE_MAX``: such clients wait once in a hundred times.
# * Much that waits, or a definition that somebody waits for, is never kept waiting.
#
# Measured in ``benchmarks/README.md``. The timers of uvloop are whole milliseconds: the turn that
# finds the time come begins the sync, a timer only when no turn does.

SYNC_TIMES: Final = 3
"""Syncs begin so many times as far apart as they take: the disk rests twice as long as it works."""

SYNC_MEMORY: Final = 0.8
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


class Pacing:
    """Says how long a turn and a sync that are wanted now should wait.

    It is told what happened (``appended``, ``turn_began``, ``sync_ended``, ...) and answers with
    waiting times; it starts nothing itself.
    """

    __slots__ = (
        "_appended",
        "_appended_ms",
        "_at_once",
        "_distance_us",
        "_has_company",
        "_has_waited",
        "_linger_ms",
        "_next_at_once",
        "_now_ns",
        "_pace_us",
        "_small_bytes",
        "_small_messages",
        "_sync_began_us",
        "_sync_us",
        "_turn_began_us",
        "_turn_us",
        "messages_per_ms",
        "syncs_delayed",
    )

    def __init__(
        self, settings: StorageSettings, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._small_messages = settings.commit_linger_messages
        self._small_bytes = settings.commit_linger_bytes
        self._linger_ms = settings.commit_linger_ms
        self._distance_us = settings.commit_distance_us
        self._now_ns = now_ns
        self._appended = self._appended_ms = 0
        self.messages_per_ms = 0.0
        """What came of late."""
        self._turn_began_us = self._pace_us = 0
        self._turn_us = 0.0
        """What a turn takes, on average."""
        self._sync_began_us = 0
        self._sync_us = 0.0
        self._has_waited = False
        """The next sync was kept waiting."""
        self._has_company = False
        """Messages came while it waited."""
        self._at_once = 0
        """Syncs that begin at once before the distance is tried again."""
        self._next_at_once = AT_ONCE_MIN
        self.syncs_delayed = 0

    def appended(self, total: int, now_ms: int) -> None:
        """So many messages were appended by now, since the start; told by every turn.

        Also by one that appended nothing: a stream that is over would else be expected for ever,
        and whoever waits for each answer would wait for it.
        """
        messages = total - self._appended
        self._appended = total
        gap_ms = now_ms - self._appended_ms
        self._appended_ms = now_ms
        # By time, not by turns: a pause of an hour is forgotten as fast as one of a moment.
        past = exp(-gap_ms / MEMORY_MS)
        share = (1 - past) / gap_ms if gap_ms else 1 / MEMORY_MS
        self.messages_per_ms = past * self.messages_per_ms + share * messages
        if messages:
            self._has_company = self._has_waited

    def is_small(self, messages: int, byte_count: int) -> bool:
        """True when so much is not worth a sync of its own."""
        return messages < self._small_messages and byte_count < self._small_bytes

    # Turns.

    def turn_began(self) -> None:
        self._turn_began_us = self._now_ns() // 1000

    def turn_ended(self) -> None:
        took_us = min(self._now_ns() // 1000 - self._turn_began_us, PACE_MAX_US)
        self._turn_us = TURN_MEMORY * self._turn_us + (1 - TURN_MEMORY) * took_us
        self._pace_us = min(int(TURN_TIMES * self._turn_us), PACE_MAX_US)

    @property
    def turn_left_us(self) -> int:
        """How long until the next turn may begin; negative = it is late."""
        return self._turn_began_us + self._pace_us - self._now_ns() // 1000

    def turn_wait_us(self) -> int:
        """How long a turn that is asked for now waits for company; 0 = it runs at once."""
        if self.messages_per_ms * self._pace_us < TURN_COMPANY_MIN * 1000:
            return 0
        return max(0, self.turn_left_us)

    # Syncs.

    @property
    def linger_ms(self) -> int:
        """How long little waits for company, from the first waiter on; 0 = nobody would come."""
        expected = self.messages_per_ms * self._linger_ms
        return self._linger_ms if expected >= COMPANY_MIN else 0

    @property
    def is_rate_middling(self) -> bool:
        """True when some messages, but not many, come within the longest distance of syncs."""
        return EXPECTED_MIN <= self.messages_per_ms * self._distance_us / 1000 <= EXPECTED_MAX

    def sync_wait_us(self) -> int:
        """How long a sync of little waits for its distance; 0 = it begins at once."""
        if self._at_once or not self.is_rate_middling:
            return 0
        distance_us = min(int(SYNC_TIMES * self._sync_us), self._distance_us)
        left_us = self._sync_began_us + distance_us - self._now_ns() // 1000
        if left_us <= SLACK_US:
            return 0
        self._has_waited = True
        return left_us

    def sync_began(self) -> None:
        if self._at_once:
            self._at_once -= 1
        elif self._has_company:
            self._next_at_once = AT_ONCE_MIN
        elif self._has_waited:  # in vain: whoever publishes here waits for this sync
            self._at_once = self._next_at_once
            self._next_at_once = min(2 * self._next_at_once, AT_ONCE_MAX)
        self.syncs_delayed += self._has_waited
        self._has_waited = self._has_company = False
        self._sync_began_us = self._now_ns() // 1000

    def sync_ended(self, seconds: float) -> None:
        took_us = min(seconds * 1e6, self._distance_us)  # one that hung says little of the next
        self._sync_us = SYNC_MEMORY * self._sync_us + (1 - SYNC_MEMORY) * took_us
