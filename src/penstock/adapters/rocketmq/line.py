"""One remoting connection, whatever is asked over it: answers go out, silence ends it.

The part of ``adapters.contract.Adapter`` that broker and name server have in common.
Not here: what is done with requests (``session.py``, ``name_server/session.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.wire.rocketmq.command import Command, Malformed, response_to
from penstock.wire.rocketmq.frames import RemotingFrames, encode

if TYPE_CHECKING:
    from penstock.adapters.contract import Peer
    from penstock.adapters.rocketmq.broker import RocketmqBroker


class Line:
    """What every session is."""

    is_established = True

    def __init__(self, peer: Peer, broker: RocketmqBroker, wake: Callable[[], None]) -> None:
        self.broker: Final = broker
        self.peer: Final = peer
        self.wants_close = False
        self.is_closed = False
        self.heard_ms = broker.clock.monotonic_ms()
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
        """Answer a request; nothing happens when nobody waits for it."""
        if not request.is_oneway and not self.is_closed:
            self.write(encode(response_to(request, code, ext=ext, body=body, remark=remark)))

    def write(self, *frames: bytes) -> None:
        """Send frames that are made already (hot answers)."""
        self._outbox += frames
        self._wake()

    def outgoing(self) -> list[bytes]:
        outbox, self._outbox = self._outbox, []
        return outbox

    def flushed(self, unsent_bytes: int) -> None:
        """Answers are asked for; the pump stops reading a peer that does not take them."""

    def next_deadline_ms(self) -> int | None:
        """When its silence becomes too long."""
        return self.heard_ms + self.broker.settings.idle_ms_max

    def due(self, now_ms: int) -> None:
        """Close it when it is silent: clients send heartbeats every 30 s."""
        if now_ms >= self.heard_ms + self.broker.settings.idle_ms_max:
            self.wants_close = True

    def eof(self) -> None:
        """The peer will say no more, so nobody listens either."""
        self.wants_close = True

    def stopping(self, reason: str) -> None:
        """Clients go elsewhere by themselves."""
        self.wants_close = True

    def _give_up(self, problem: Malformed) -> None:
        """The stream cannot be cut into frames any more."""
        if problem.opaque is not None:
            self.write(encode(unreadable(problem)))
        self.wants_close = True


def unreadable(problem: Malformed) -> Command:
    """The answer to a request of which only the opaque could be read."""
    return response_to(Command(0, opaque=problem.opaque or 0), 1, remark=str(problem))
