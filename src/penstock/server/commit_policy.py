"""When a commit starts: at once when much waits, else after a short linger for company (D8).

A sync costs about the same for one message as for a thousand, so at low rates the syncs are the CPU
cost; at high rates every wait is lost throughput. The rule:

* ``fsync``: start at once when ``commit_linger_messages`` or ``commit_linger_bytes`` wait, else
  ``commit_linger_ms`` after the first waiter. While a sync runs, arrivals gather by themselves:
  group commit needs no timer then.
* ``interval:MS``: confirms do not wait, so the disk is asked every MS milliseconds.
* ``os``: the kernel decides. Definitions still commit at once (D6: a declare-ok waits for them).

Pure arithmetic over numbers given in; the timer is in ``turns.py``.
"""

from enum import Enum
from typing import Final

from penstock.settings.storage import StorageSettings

OS_SYNC_MS: Final = 5_000
"""With ``os`` the log is synced this often all the same, so that snapshots and retention move."""


class Durability(Enum):
    """What a confirm waits for (P3)."""

    FSYNC = "fsync"
    INTERVAL = "interval"
    OS = "os"


class CommitPolicy:
    """Decides how long the bytes that wait may wait for company."""

    __slots__ = ("_bytes", "_messages", "_wait_ms", "durability")

    def __init__(self, settings: StorageSettings) -> None:
        kind, _, amount = settings.durability.partition(":")
        self.durability: Final = Durability(kind)
        self._messages = settings.commit_linger_messages
        self._bytes = settings.commit_linger_bytes
        self._wait_ms = {
            Durability.FSYNC: settings.commit_linger_ms,
            Durability.INTERVAL: int(amount or 0),
            Durability.OS: OS_SYNC_MS,
        }[self.durability]

    def wait_ms(self, messages: int, byte_count: int, *, is_awaited: bool) -> int:
        """How long to wait, from the first waiter on; 0 = start now.

        ``is_awaited``: somebody waits for a definition to be durable.
        """
        if is_awaited:
            return 0
        is_much = messages >= self._messages or byte_count >= self._bytes
        if is_much and self.durability is Durability.FSYNC:
            return 0
        return self._wait_ms
