"""One connection to the name server: questions in, answers out; nothing waits.

Invariant: what cannot be answered in RocketMQ's words closes the connection and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.house import House
from penstock.adapters.rocketmq.replies import Answer, unknown_code
from penstock.model.errors import PenstockError
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed, response_to
from penstock.wire.rocketmq.frame import RemotingFrames, encode

logger = logging.getLogger(__name__)

NameHandler = Callable[["NameSession", Command], None]


class NameSession:
    """One client, or one broker that registers; satisfies ``adapters.contract.Adapter``."""

    is_established = True
    is_reading = True

    def __init__(
        self,
        peer: Peer,
        house: House,
        handlers: Mapping[int, NameHandler],
        wake: Callable[[], None],
    ) -> None:
        self.peer: Final = peer
        self.house: Final = house
        self.wants_close = False
        self.on_close: Callable[[], None] = lambda: None
        self._is_closed = False
        self._handlers = handlers
        self._wake = wake
        self._frames = RemotingFrames()
        self._outbox: list[bytes] = []
        self._heard_ms = house.clock.monotonic_ms()

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
        if not request.is_oneway and not self._is_closed:
            command = response_to(request, code, ext=ext, body=body, remark=remark)
            self._outbox.append(encode(command))
            self._wake()

    def receive(self, data: bytes) -> None:
        """Any cut of frames."""
        self._heard_ms = self.house.clock.monotonic_ms()
        self._frames.feed(data)
        try:
            while commands := self._frames.commands():
                for command in commands:
                    if not command.is_response:
                        self._serve(command)
        except Malformed as problem:
            logger.warning("closing name server connection of %s: %s", self.peer, problem)
            if problem.opaque is not None:
                unread = Command(0, opaque=problem.opaque)
                self.answer(unread, ResponseCode.SYSTEM_ERROR, remark=str(problem))
            self.wants_close = True

    def _serve(self, command: Command) -> None:
        handler = self._handlers.get(command.code)
        try:
            if handler is None:
                raise unknown_code(command.code)
            handler(self, command)
        except Answer as answer:
            self.answer(command, answer.code, remark=answer.remark)
        except (Malformed, PenstockError) as problem:
            self.answer(command, ResponseCode.SYSTEM_ERROR, remark=str(problem))

    def outgoing(self) -> list[bytes]:
        """Everything to send."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def flushed(self, unsent_bytes: int) -> None:
        """The pump stops reading a peer that does not take its answers."""

    def next_deadline_ms(self) -> int | None:
        """When its silence becomes too long."""
        return self._heard_ms + self.house.settings.idle_ms_max

    def due(self, now_ms: int) -> None:
        """Close it when it is silent."""
        if now_ms >= self._heard_ms + self.house.settings.idle_ms_max:
            self.wants_close = True

    def eof(self) -> None:
        """The peer will ask no more."""
        self.wants_close = True

    def stopping(self, reason: str) -> None:
        """Clients ask another name server."""
        self.wants_close = True

    def closed(self, reason: str) -> None:
        """A broker that registered over it leaves the routes."""
        if not self._is_closed:
            self._is_closed = True
            self.on_close()
