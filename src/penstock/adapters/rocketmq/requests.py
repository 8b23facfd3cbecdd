"""A request between decoding and its handler: run now, run later, or answered "busy" (F5, D24).

Requests of one class wait by topic (group where there is none), so that a topic whose requests
flood waits behind itself. A send-back is refused at arrival like a send when the store is busy.

Invariant: whatever a handler does or raises, a request that wants an answer gets at most one here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.busy import refusal_answer, waited_remark
from penstock.adapters.rocketmq.classes import SEND, class_of
from penstock.adapters.rocketmq.replies import Answer, unknown_code
from penstock.flow.fast_fail import Busy
from penstock.model.errors import PenstockError
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.session import Session

logger = logging.getLogger(__name__)

Handler = Callable[["Session", Command], None]
"""Serves one request: answers it now or later, or raises ``Answer``, ``Malformed`` (code 1) or
a ``PenstockError`` (code 1)."""

_KEY_FIELDS: Final = ("topic", "consumerGroup", "group", "originTopic")


class Request:
    """One command that wants something; satisfies ``engine.waiting.Request``."""

    __slots__ = ("command", "handler", "session")

    def __init__(self, session: Session, command: Command, handler: Handler | None) -> None:
        self.session = session
        self.command = command
        self.handler = handler

    def submit(self) -> None:
        """Let the waiting room decide when."""
        session, command = self.session, self.command
        if self.handler is None:
            self._end(unknown_code(command.code))
            return
        class_name = class_of(command.code)
        engine = session.house.engine
        if class_name == SEND and (refusal := engine.refuse_now()) is not None:
            code, remark = refusal_answer(refusal, is_arrival=True)
            engine.waiting.turned_away(class_name, refusal)
            session.answer(command, code, remark=remark)
            return
        ext = command.ext
        key = next((ext[name] for name in _KEY_FIELDS if name in ext), "")
        engine.waiting.submit(class_name, key, self)

    def run(self) -> None:
        """Serve it now."""
        session, handler = self.session, self.handler
        if session.is_closed or handler is None:
            return
        try:
            handler(session, self.command)
        except Answer as answer:
            self._end(answer)
        except (Malformed, PenstockError) as problem:
            session.answer(self.command, ResponseCode.SYSTEM_ERROR, remark=f"{problem}")

    def refuse(self, busy: Busy) -> None:
        """It waited too long, or found no place to wait."""
        self.session.answer(self.command, ResponseCode.SYSTEM_BUSY, remark=waited_remark(busy))

    def _end(self, answer: Answer) -> None:
        logger.debug("%s: %s ends with %d", self.session.name, self.command, answer.code)
        self.session.answer(self.command, answer.code, remark=answer.remark)
