"""When a commit starts: at once when much waits or nobody else will come, else a short linger (D8).

A sync costs about the same for one message as for a thousand, so at middling rates the syncs are
the CPU cost; at high rates every wait is lost throughput; at low rates a linger is lost time and
saves nothing, because nobody joins. The rule:

* at once, when ``commit_linger_messages`` or ``commit_linger_bytes`` wait, or somebody waits for a
  definition (D6: a declare-ok);
* at once, when the recent rate lets fewer than ``COMPANY_MIN`` messages be expected meanwhile;
* else ``commit_linger_ms`` after the first waiter.

At middling rates syncs keep a distance besides (``sync_pace.py``).

While a sync runs, arrivals gather by themselves: group commit needs no timer then.

Measured (line protocol over loopback, 128 B, fsync on ext4/virtio, medians of 3 interleaved rounds
of 1.5-2 s on 2 cores at load 2-3 from other work), confirm p50/p99 in ms, CPU a message:

===================  ===================  ===================  ===================
load                 no linger            always 1 ms          this rule with 1 ms
===================  ===================  ===================  ===================
1 in flight          0.65/5.4, 896/s      1.94/7.8, 462/s      0.81/3.2, 1127/s
500/s, 1 peer        0.83/2.6, 434 us     1.95/4.9, 429 us     0.75/2.8, 406 us
2000/s, 4 peers      1.08/3.5, 145 us     2.57/8.0, 169 us     1.12/12.9, 184 us
5000/s, 4 peers      1.58/8.3, 109 us     2.91/7.0, 92 us      2.77/5.8, 92 us
saturated, 4 peers   29/59, 115 k/s       36/84, 89 k/s        23/53, 137 k/s
===================  ===================  ===================  ===================

What they show: the p50 of few publishers. What they do not: the last row is noise, because there
all three start at once (an earlier run had 109, 124 and no third); the p99s and the CPU at 2000/s
are within what the neighbours cause; 15 % of CPU at 5000/s is suggestive, no more. 2 ms gained
nothing over 1 ms at 5000/s. The table was taken with a ``COMPANY_MIN`` of 4. It is 8 since AMQP at
4000/s was measured (four pairs, load 3 to 8): no linger had a confirm p50 of 2.9 to 3.1 ms against
3.1 to 3.5, and 4 to 8 % more CPU; one pair was spoilt by the disk. Repeat on a quiet machine.

Pure arithmetic over numbers given in; the timer is in ``turns.py``, and what ``interval:MS`` and
``os`` ask of the disk is the store's business (``log/commit.py``).
"""

from math import exp
from typing import Final

from penstock.settings.broker import StorageSettings

COMPANY_MIN: Final = 8
"""Fewer expected arrivals are not worth a millisecond of everybody's time."""

MEMORY_MS: Final = 10
"""How far back the rate looks: longer than a sync, shorter than anybody notices."""


class CommitPolicy:
    """Decides how long what waits may wait for company."""

    __slots__ = ("_appended", "_bytes", "_last_ms", "_linger_ms", "_messages", "messages_per_ms")

    def __init__(self, settings: StorageSettings) -> None:
        self._messages = settings.commit_linger_messages
        self._bytes = settings.commit_linger_bytes
        self._linger_ms = settings.commit_linger_ms
        self._appended = 0
        self._last_ms = 0
        self.messages_per_ms = 0.0
        """What came of late."""

    def reached(self, appended: int, now_ms: int) -> bool:
        """So many messages were appended by now, in all; True when some are new."""
        messages = appended - self._appended
        if not messages:
            return False
        self._appended = appended
        gap_ms = now_ms - self._last_ms
        self._last_ms = now_ms
        # By time, not by turns: a pause of an hour is forgotten as fast as one of a moment.
        past = exp(-gap_ms / MEMORY_MS)
        share = (1 - past) / gap_ms if gap_ms else 1 / MEMORY_MS
        self.messages_per_ms = past * self.messages_per_ms + share * messages
        return True

    def is_little(self, messages: int, byte_count: int) -> bool:
        """True when so much is not worth a sync of its own."""
        return messages < self._messages and byte_count < self._bytes

    @property
    def linger_ms(self) -> int:
        """How long little waits for company, from the first waiter on; 0 = nobody would come."""
        expected = self.messages_per_ms * self._linger_ms
        return self._linger_ms if expected >= COMPANY_MIN else 0
