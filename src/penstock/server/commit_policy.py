"""When a commit starts: at once when much waits, else after a short linger for company (D8).

A sync costs about the same for one message as for a thousand, so at low rates the syncs are the CPU
cost; at high rates every wait is lost throughput. The rule: start at once when
``commit_linger_messages`` or ``commit_linger_bytes`` wait, or when somebody waits for a definition
(D6: a declare-ok); else ``commit_linger_ms`` after the first waiter. While a sync runs, arrivals
gather by themselves: group commit needs no timer then.

Pure arithmetic over numbers given in; the timer is in ``turns.py``, and what ``interval:MS`` and
``os`` ask of the disk is the store's business (``log/commit.py``).
"""

from penstock.settings.storage import StorageSettings


class CommitPolicy:
    """Decides how long what waits may wait for company."""

    __slots__ = ("_bytes", "_linger_ms", "_messages")

    def __init__(self, settings: StorageSettings) -> None:
        self._messages = settings.commit_linger_messages
        self._bytes = settings.commit_linger_bytes
        self._linger_ms = settings.commit_linger_ms

    def wait_ms(self, messages: int, byte_count: int, *, is_awaited: bool) -> int:
        """How long to wait, from the first waiter on; 0 = start now."""
        if is_awaited or messages >= self._messages or byte_count >= self._bytes:
            return 0
        return self._linger_ms
