"""Requests of one connection that wait for their answers, by opaque.

There is no timer per request. The table remembers a time before which no deadline lies; when it
comes, the table is looked through once and the next such time found. Answers usually come long
before their deadline, so a look is rare (once per shortest time-out) however many requests pass.

Invariants: what was added is handed out exactly once, by ``take``, ``expire`` or ``drain``; at
most ``requests_max`` wait.
Not here: the clock and the timer (``connection.py``).
"""

from collections.abc import Callable
from typing import Final

from penstock.client.errors import ClientError
from penstock.wire.rocketmq.command import Command

REQUESTS_MAX: Final = 65_535
"""Requests under way on one connection; RocketMQ's own clients have the same limit."""

Done = Callable[[Command | ClientError], object]
"""Called once, on the client's thread: with the answer, whatever its code, or with an error."""

NEVER_MS: Final = 1 << 62


class PendingRequests:
    """The table of one connection."""

    __slots__ = ("_table", "next_look_ms", "requests_max")

    def __init__(self, requests_max: int = REQUESTS_MAX) -> None:
        self.requests_max = requests_max
        self._table: dict[int, tuple[int, int, Done]] = {}
        self.next_look_ms = NEVER_MS
        """No deadline is before this."""

    def __len__(self) -> int:
        return len(self._table)

    @property
    def is_full(self) -> bool:
        """True when no request may be added."""
        return len(self._table) >= self.requests_max

    def add(self, opaque: int, now_ms: int, timeout_ms: int, done: Done) -> bool:
        """A request goes out; True when the timer must be set anew."""
        deadline_ms = now_ms + timeout_ms
        self._table[opaque] = (deadline_ms, timeout_ms, done)
        if deadline_ms < self.next_look_ms:
            self.next_look_ms = deadline_ms
            return True
        return False

    def take(self, opaque: int) -> Done | None:
        """The answer is here; None when nobody waits for it (any more)."""
        found = self._table.pop(opaque, None)
        return None if found is None else found[2]

    def expire(self, now_ms: int) -> list[tuple[int, Done]]:
        """(time-out, done) of those whose time is up; sets ``next_look_ms``."""
        if now_ms < self.next_look_ms:
            return []
        table = self._table
        over = [opaque for opaque, entry in table.items() if entry[0] <= now_ms]
        found = [table.pop(opaque)[1:] for opaque in over]
        self.next_look_ms = min((entry[0] for entry in table.values()), default=NEVER_MS)
        return found

    def drain(self) -> list[Done]:
        """All that wait: there will be no answers."""
        found = [entry[2] for entry in self._table.values()]
        self._table.clear()
        self.next_look_ms = NEVER_MS
        return found
