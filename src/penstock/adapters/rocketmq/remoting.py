"""One remoting connection, whatever is asked over it: responses go out, silence ends it.

The part of ``adapters.contract.Adapter`` that broker and name server have in common. RocketMQ has
no handshake, so a peer is a stranger until its first request could be read. What a frame may cost
before it is complete:

* time: ``rocketmq.frame_ms_max`` since it was begun, not counting when we do not read it;
* a stranger's bytes: all strangers together have ``rocketmq.strangers_bytes_max``, and the one
  that keeps its bytes longest goes first;
* bytes of anybody else: room in the in-flight pool (``engine/content_budget.py``).

Not here: what is done with requests (``connection.py``, ``name_server/server.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from penstock.adapters.client_log import ClientLog
from penstock.adapters.contract import UNTAKEN_BYTES_MAX, Peer
from penstock.engine.content_budget import ContentBudget, ContentShare
from penstock.model.clock import Clock
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.frame_buffer import FRAME_BYTES_MAX
from penstock.wire.rocketmq.command import Command, Malformed, Serialization, response_to
from penstock.wire.rocketmq.frames import RemotingFrames, encode

PREFIX_BYTES: Final = 4
"""The length field, which does not count itself."""


class RemotingConnection:
    """Frames in, an outbox of frames out, and a limit for silence."""

    def __init__(
        self,
        peer: Peer,
        clock: Clock,
        wake: Callable[[], None],
        *,
        name: str,
        settings: RocketmqSettings,
        contents: ContentBudget,
        first_requests: FirstRequests,
        client_log: ClientLog,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.peer: Final = peer
        self.name: Final = name
        self.is_established = False
        """True from the first request that could be read."""
        self.handshake_bytes_max: Final = frame_bytes_max + PREFIX_BYTES
        """A first request may be a send; ``FirstRequests`` bounds what is kept of all of them."""
        self.wants_close = False
        self.is_closed = False
        self._clock: Final = clock
        self._settings: Final = settings
        self._heard_ms = clock.monotonic_ms()
        self._begun_ms: int | None = None
        """Since when a frame is not complete."""
        self._is_untaken = False
        """The pump does not read it, because it does not take its answers."""
        self._frames: Final = RemotingFrames(frame_bytes_max=frame_bytes_max)
        self._first_requests: Final = first_requests
        self._client_log: Final = client_log
        self.contents: Final = ContentShare(
            name,
            contents,
            bytes_max=frame_bytes_max,
            ms_max=settings.frame_ms_max,
            wake=wake,
        )
        """What it keeps of a frame that is not complete (D22)."""
        self._wake = wake
        self._outbox: list[bytes] = []

    @property
    def is_reading(self) -> bool:
        """False while there is no room for the frame that is arriving."""
        contents = self.contents
        return not contents.is_waiting or contents.may_read(self._clock.monotonic_ms())

    @property
    def is_taking(self) -> bool:
        """False while it leaves too much of what it was sent unread."""
        return not self._is_untaken

    def answer(
        self,
        request: Command,
        code: int = 0,
        *,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> None:
        """ErrorResponse a request; nothing happens when nobody waits for it."""
        if not request.is_oneway and not self.is_closed:
            self.write(encode(response_to(request, code, ext=ext, body=body, remark=remark)))

    def write(self, *frames: bytes) -> None:
        """Send frames that are encoded already (hot responses)."""
        self._outbox += frames
        self._wake()

    def outgoing(self) -> list[bytes]:
        outbox, self._outbox = self._outbox, []
        return outbox

    def flushed(self, unsent_bytes: int) -> None:
        """Every response was asked for: the pump stops reading a peer that does not take them."""
        self._is_untaken = unsent_bytes > UNTAKEN_BYTES_MAX

    def next_deadline_ms(self) -> int | None:
        """When its silence, or an unfinished frame, becomes too long."""
        deadline_ms = self._heard_ms + self._settings.idle_ms_max
        if self._begun_ms is not None:
            deadline_ms = min(deadline_ms, self._begun_ms + self._settings.frame_ms_max)
        room_ms = self.contents.deadline_ms
        return deadline_ms if room_ms is None else min(deadline_ms, room_ms)

    def due(self, now_ms: int) -> None:
        """Close it when it is silent (clients send heartbeats every 30 s) or its frame is late."""
        if now_ms >= self._heard_ms + self._settings.idle_ms_max:
            self.wants_close = True
        elif (overdue := self.contents.overdue(now_ms)) is not None:
            self.cut_off(overdue)
        elif self._begun_ms is not None and now_ms >= self._begun_ms + self._settings.frame_ms_max:
            if self._is_untaken or not self.is_reading:
                self._begun_ms = now_ms  # it is not the peer's fault that nothing comes
                return
            self.cut_off(
                f"a frame of which {len(self._frames)} bytes came is not complete after "
                f"{self._settings.frame_ms_max} ms (rocketmq.frame_ms_max)"
            )

    def cut_off(self, reason: str) -> None:
        """The peer takes too much, or too long."""
        self._say("connection cut off", reason)
        self.wants_close = True
        self._frames.clear()
        self._forget_unfinished()
        self._wake()

    def eof(self) -> None:
        """Nobody who sends no more reads what is left: RocketMQ's clients close both ways."""
        self.wants_close = True

    def stopping(self, reason: str) -> None:
        """Clients go elsewhere by themselves."""
        self.wants_close = True

    def _feed(self, data: bytes) -> None:
        self._heard_ms = self._clock.monotonic_ms()
        self._frames.feed(data)

    def _is_known(self) -> None:
        """A request of it could be read."""
        self.is_established = True
        self._first_requests.forget(self)

    def _keep_rest(self, *, is_new: bool) -> None:
        """Whole frames are served: what is left is a frame that was begun, now or before."""
        held_bytes = len(self._frames)
        if not held_bytes:
            if self._begun_ms is not None:
                self._forget_unfinished()
            return
        if self._begun_ms is None or is_new:
            self._begun_ms = self._heard_ms
        if self.is_established:
            refused = self.contents.keep(held_bytes, self._heard_ms)
            if refused is not None:
                self.cut_off(refused)
        else:
            self._first_requests.keep(self, held_bytes)

    def _forget_unfinished(self) -> None:
        self._begun_ms = None
        self._first_requests.forget(self)
        self.contents.keep(0, self._heard_ms)

    def _close_contents(self) -> None:
        """The connection is gone: what it kept of a frame is room for others."""
        self._first_requests.forget(self)
        self.contents.close()

    def _answer_unreadable(self, problem: Malformed) -> None:
        """Of the request only its opaque could be read."""
        kind = Serialization.BINARY if problem.is_binary else Serialization.JSON
        request = Command(0, opaque=problem.opaque or 0, serialization=kind)
        self.write(encode(response_to(request, problem.code, remark=str(problem))))

    def _say(self, what: str, reason: str) -> None:
        """One line about the peer's mistake; many of them are one line with their number."""
        self._client_log.say(logging.WARNING, what, self.peer, connection=self.name, reason=reason)

    def _give_up(self, problem: Malformed) -> None:
        """The stream cannot be cut into frames any more."""
        self._say("connection closed: a frame cannot be read", str(problem))
        if problem.opaque is not None:
            self._answer_unreadable(problem)
        self.wants_close = True


class FirstRequests:
    """What strangers keep of requests that are not complete, all of them together.

    Whoever is honest is done with its first request in no time. So when there is no room for more,
    the stranger that has kept bytes longest is cut off, and the newest goes on.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max: Final = bytes_max
        self.held_bytes = 0
        # Oldest first; bounded by the connections of the broker.
        self._holders: dict[RemotingConnection, int] = {}

    def keep(self, stranger: RemotingConnection, size_bytes: int) -> None:
        """It keeps this much now."""
        self.held_bytes += size_bytes - self._holders.get(stranger, 0)
        self._holders[stranger] = size_bytes
        while self.held_bytes > self._bytes_max:
            next(iter(self._holders)).cut_off(
                f"first requests that are not complete have {self.held_bytes} bytes, limit "
                f"{self._bytes_max} (rocketmq.strangers_bytes_max); this is the oldest"
            )

    def forget(self, stranger: RemotingConnection) -> None:
        """Its request is complete, or it is gone."""
        self.held_bytes -= self._holders.pop(stranger, 0)
