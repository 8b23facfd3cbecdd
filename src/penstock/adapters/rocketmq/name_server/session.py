"""One connection to the name server: questions in, answers out; nothing waits.

Invariant: what cannot be answered in RocketMQ's words closes the connection and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.house import House
from penstock.adapters.rocketmq.line import Line
from penstock.adapters.rocketmq.replies import Answer, unknown_code
from penstock.model.errors import PenstockError
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed

logger = logging.getLogger(__name__)

NameHandler = Callable[["NameSession", Command], None]


class NameSession(Line):
    """One client, or one broker that registers; satisfies ``adapters.contract.Adapter``."""

    is_reading = True

    def __init__(
        self,
        peer: Peer,
        house: House,
        handlers: Mapping[int, NameHandler],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(peer, house, wake)
        self.on_close: Callable[[], None] = lambda: None
        self._handlers = handlers

    def receive(self, data: bytes) -> None:
        """Any cut of frames."""
        self.heard_ms = self.house.clock.monotonic_ms()
        self._frames.feed(data)
        try:
            while commands := self._frames.commands():
                for command in commands:
                    if not command.is_response:
                        self._serve(command)
        except Malformed as problem:
            logger.warning("closing name server connection of %s: %s", self.peer, problem)
            self._give_up(problem)

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

    def closed(self, reason: str) -> None:
        """A broker that registered over it leaves the routes."""
        if not self.is_closed:
            self.is_closed = True
            self.on_close()
