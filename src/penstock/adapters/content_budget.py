"""Publishes that are still arriving: whose bytes are kept, and who reads on when room is short.

A content may be 128 MiB long and is kept until it is complete. What a connection keeps beyond a
little is drawn from the in-flight pool (D22). When the pool is full, connections in the midst of a
content stop reading and stand in line. If it is contents that fill it, the first in line reads on
all the same, because nothing else would ever set those bytes free; it has ``amqp.content_ms_max``
to be done. If it is publishes that fill it, everybody waits until they are digested.

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
from penstock.wire.amqp.codes import AmqpError, ReplyCode

FREE_BYTES: Final = 64 * 1024
"""What a connection may keep of a content without being charged: a frame or so."""


class ContentBudget:
    """Connections that wait for room, in the order they came; one per house."""

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

    def stir(self) -> None:
        """Something was given back: let the first of the line look again."""
        for share in self.waiting:
            share.wake()
            return


class ContentShare:
    """One connection's contents."""

    __slots__ = (
        "_bytes_max",
        "_line",
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
        line: ContentBudget,
        *,
        bytes_max: int,
        ms_max: int,
        wake: Callable[[], None],
    ) -> None:
        self._line = line
        self._share = line.pool.share(f"contents of {name}", bytes_max)
        self._share.wake = wake
        self._bytes_max = bytes_max
        self._ms_max = ms_max
        self._since_ms = 0
        self.charged_bytes = 0
        """What it keeps beyond a little."""
        self.is_waiting = False
        """True while there is no room for that, and it stands in line."""
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
        is_stopped = self.is_waiting and self._line.first is not self
        self._stop(is_stopped)
        return not is_stopped

    @property
    def label(self) -> str:
        """What the connection is called by those who wait for it."""
        return "" if self.connection is None else self.connection.stage.label

    def keeps(self, held_bytes: int, now_ms: int) -> None:
        """The connection keeps this much now; raises 506 when it hoards."""
        if held_bytes <= FREE_BYTES and not self.charged_bytes:
            return
        self.charged_bytes = held_bytes if held_bytes > FREE_BYTES else 0
        if self.charged_bytes > self._bytes_max + FREE_BYTES:
            text = f"contents that are not complete have {held_bytes} bytes"
            raise AmqpError(ReplyCode.RESOURCE_ERROR, text)
        self._draw(now_ms)

    @property
    def deadline_ms(self) -> int | None:
        """When ``check`` wants to be called."""
        return self._since_ms + self._ms_max if self.is_waiting else None

    def check(self, now_ms: int) -> None:
        """Raise 506 when it was let through in front of others and is not done in time."""
        due_ms = self.deadline_ms
        if due_ms is None or now_ms < due_ms:
            return
        if self._line.first is self:
            text = f"a content is not complete after {self._ms_max} ms, others wait for its room"
            raise AmqpError(ReplyCode.RESOURCE_ERROR, text)
        self._since_ms = now_ms

    def close(self) -> None:
        line = self._line
        line.drawn_bytes -= self._share.used
        line.pool.close(self._share)
        line.waiting.pop(self, None)
        line.keepers.pop(self, None)
        self.charged_bytes = 0
        self.is_waiting = self.is_stopped = False
        line.stir()

    def _stop(self, is_stopped: bool) -> None:
        """Say it where operators look."""
        if self.connection is None or is_stopped is self.is_stopped:
            return
        self.is_stopped = is_stopped
        if is_stopped:
            self.connection.wait_for_room(self._line)
        else:
            self.connection.found_room()

    def _draw(self, now_ms: int) -> None:
        """Bring what is drawn in line with what is kept, and stand in line for the rest."""
        line = self._line
        grown = self.charged_bytes - self._share.used
        if grown > 0 and not line.pool.take(self._share, grown):
            if not self.is_waiting:
                self.is_waiting = True
                line.waiting[self] = None
                line.waits[IN_FLIGHT_POOL] += 1
                self._since_ms = now_ms
                if (first := line.first) is not None and first is not self:
                    # By now it is contents that fill the pool, and that one does not know.
                    first.wake()
            return
        if grown < 0:
            line.pool.give(self._share, -grown)
        line.drawn_bytes += grown
        if self.charged_bytes:
            line.keepers[self] = None
        else:
            line.keepers.pop(self, None)
        was_waiting, self.is_waiting = self.is_waiting, False
        line.waiting.pop(self, None)
        self._stop(False)
        if grown < 0 or was_waiting:
            line.stir()
