"""Publishes that are still arriving: whose bytes are kept, and who reads on when room is short.

A content may be 128 MiB long (a RocketMQ frame 16 MiB) and is kept until it is complete. What a
connection keeps beyond a little is drawn from the in-flight pool (D22). When the pool is full,
connections in the midst of a content stop reading and stand in line. If it is contents that fill
it, the first in line reads on all the same, because nothing else would ever set those bytes free;
it has ``ms_max`` to be done. If it is publishes that fill it, everybody waits until they are
digested.

Whoever stops so is held by ``Reason.ROOM``, and the flow map names the connection that has the
room: the one whose content takes most of it, or the first in line if all that have some wait.

Invariants: what is drawn is given back when the content is complete or its connection gone; beyond
the pool one connection at a time grows, and by no more than one message.
Not here: publishes that are complete (``engine/connection.py`` charges those).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.engine.connection import Connection
from penstock.flow.budgets import IN_FLIGHT_POOL, BytesPool

FREE_BYTES: Final = 64 * 1024
"""What a connection may keep of a content without being charged: a frame or so."""


class ContentBudget:
    """What the contents of all connections have of the pool, and who waits for room, in order."""

    __slots__ = ("drawn_bytes", "keepers", "pool", "waiting", "waits")

    def __init__(self, pool: BytesPool) -> None:
        self.pool: Final = pool
        self.drawn_bytes = 0
        """What all contents have of the pool."""
        # Both bounded by the connections of the broker.
        self.keepers: dict[ContentShare, None] = {}
        """Who has something of it."""
        self.waiting: dict[ContentShare, None] = {}
        self.waits: Final = {IN_FLIGHT_POOL: 0}
        """How often a connection had to stop in the midst of a content."""

    @property
    def first(self) -> ContentShare | None:
        """Who may read on although there is no room, if anybody may."""
        if 2 * self.drawn_bytes < self.pool.bytes_max:
            return None
        return next(iter(self.waiting), None)

    @property
    def culprit(self) -> str:
        """Whose content it is that fills the pool; empty when it is publishes."""
        first = self.first
        if first is None:
            return ""
        moving = [share for share in self.keepers if not share.is_waiting]
        return max((first, *moving), key=lambda share: share.charged_bytes).label

    def wake_first(self) -> None:
        """Something was given back: let the first that waits look again."""
        for share in self.waiting:
            share.wake()
            return


class ContentShare:
    """What one connection keeps of contents that are not complete, and whether it may read on."""

    __slots__ = (
        "_budget",
        "_bytes_max",
        "_ms_max",
        "_share",
        "_since_ms",
        "charged_bytes",
        "connection",
        "is_stopped",
        "is_waiting",
        "wake",
    )

    def __init__(
        self,
        name: str,
        budget: ContentBudget,
        *,
        bytes_max: int,
        ms_max: int,
        wake: Callable[[], None],
    ) -> None:
        self._budget: Final = budget
        self._share = budget.pool.share(f"contents of {name}", bytes_max)
        self._share.wake = wake
        self._bytes_max = bytes_max
        self._ms_max = ms_max
        self._since_ms = 0
        self.charged_bytes = 0
        """What it keeps beyond a little."""
        self.is_waiting = False
        """True while there is no room for that, and it stands in budget."""
        self.is_stopped = False
        """True while it is not read for that reason."""
        self.connection: Connection | None = None
        """Whose it is, as soon as it has opened a virtual host."""
        self.wake: Final = wake

    def may_read(self, now_ms: int) -> bool:
        """False while it has to wait; looks for room again."""
        if not self.is_waiting:
            return True
        self._draw(now_ms)
        is_stopped = self.is_waiting and self._budget.first is not self
        self._stop(is_stopped)
        return not is_stopped

    @property
    def label(self) -> str:
        """What the connection is called by those who wait for it."""
        return "" if self.connection is None else self.connection.stage.label

    def keep(self, held_bytes: int, now_ms: int) -> str | None:
        """The connection keeps this much now; why it must be closed when that is too much."""
        if held_bytes <= FREE_BYTES and not self.charged_bytes:
            return None
        self.charged_bytes = held_bytes if held_bytes > FREE_BYTES else 0
        if self.charged_bytes > self._bytes_max + FREE_BYTES:
            return f"contents that are not complete have {held_bytes} bytes"
        self._draw(now_ms)
        return None

    @property
    def deadline_ms(self) -> int | None:
        """When ``overdue`` wants to be asked."""
        return self._since_ms + self._ms_max if self.is_waiting else None

    def overdue(self, now_ms: int) -> str | None:
        """Why it must be closed: it may read on in front of others and is not done in time."""
        due_ms = self.deadline_ms
        if due_ms is None or now_ms < due_ms:
            return None
        if self._budget.first is self:
            return f"a content is not complete after {self._ms_max} ms, others wait for its room"
        self._since_ms = now_ms
        return None

    def close(self) -> None:
        budget = self._budget
        budget.drawn_bytes -= self._share.used
        budget.pool.close(self._share)
        budget.waiting.pop(self, None)
        budget.keepers.pop(self, None)
        self.charged_bytes = 0
        self.is_waiting = self.is_stopped = False
        budget.wake_first()

    def _stop(self, is_stopped: bool) -> None:
        """Say it where operators look."""
        if self.connection is None or is_stopped is self.is_stopped:
            return
        self.is_stopped = is_stopped
        if is_stopped:
            self.connection.wait_for_room(self._budget)
        else:
            self.connection.found_room()

    def _draw(self, now_ms: int) -> None:
        """Bring what is drawn in line with what is kept, and stand in line for the rest."""
        budget = self._budget
        grown = self.charged_bytes - self._share.used
        if grown > 0 and not budget.pool.take(self._share, grown):
            if not self.is_waiting:
                self.is_waiting = True
                budget.waiting[self] = None
                budget.waits[IN_FLIGHT_POOL] += 1
                self._since_ms = now_ms
                if (first := budget.first) is not None and first is not self:
                    # By now it is contents that fill the pool, and that one does not know.
                    first.wake()
            return
        if grown < 0:
            budget.pool.give(self._share, -grown)
        budget.drawn_bytes += grown
        if self.charged_bytes:
            budget.keepers[self] = None
        else:
            budget.keepers.pop(self, None)
        was_waiting, self.is_waiting = self.is_waiting, False
        budget.waiting.pop(self, None)
        self._stop(False)
        if grown < 0 or was_waiting:
            budget.wake_first()
