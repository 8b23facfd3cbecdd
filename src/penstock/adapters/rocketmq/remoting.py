"""One remoting connection, whatever is asked over it: responses go out, silence ends it.

The part of ``adapters.contract.Adapter`` that broker and name server have in common.
Not here: what is done with requests (``connection.py``, ``name_server/server.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.adapters.contract import Peer
from penstock.model.clock import Clock
from penstock.wire.rocketmq.command import Command, Malformed, Serialization, response_to
from penstock.wire.rocketmq.frames import RemotingFrames, encode


class RemotingConnection:
    """Frames in, an outbox of frames out, and a limit for silence."""

    is_established = True

    def __init__(
        self, peer: Peer, clock: Clock, wake: Callable[[], None], *, idle_ms_max: int
    ) -> None:
        self.peer: Final = peer
        self.wants_close = False
        self.is_closed = False
        self._clock: Final = clock
        self._idle_ms_max: Final = idle_ms_max
        self._heard_ms = clock.monotonic_ms()
        self._frames: Final = RemotingFrames()
        self._wake = wake
        self._outbox: list[bytes] = []

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

    def next_deadline_ms(self) -> int | None:
        """When its silence becomes too long."""
        return self._heard_ms + self._idle_ms_max

    def due(self, now_ms: int) -> None:
        """Close it when it is silent: clients send heartbeats every 30 s."""
        if now_ms >= self._heard_ms + self._idle_ms_max:
            self.wants_close = True

    def eof(self) -> None:
        """Nobody who sends no more reads what is left: RocketMQ's clients close both ways."""
        self.wants_close = True

    def stopping(self, reason: str) -> None:
        """Clients go elsewhere by themselves."""
        self.wants_close = True

    def _feed(self, data: bytes) -> None:
        self._heard_ms = self._clock.monotonic_ms()
        self._frames.feed(data)

    def _answer_unreadable(self, problem: Malformed) -> None:
        """Of the request only its opaque could be read."""
        kind = Serialization.BINARY if problem.is_binary else Serialization.JSON
        request = Command(0, opaque=problem.opaque or 0, serialization=kind)
        self.write(encode(response_to(request, problem.code, remark=str(problem))))

    def _give_up(self, problem: Malformed) -> None:
        """The stream cannot be cut into frames any more."""
        if problem.opaque is not None:
            self._answer_unreadable(problem)
        self.wants_close = True
