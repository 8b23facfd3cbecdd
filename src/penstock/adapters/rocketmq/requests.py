"""A request between decoding and its handler: run now, run later, or answered "busy" (F5, D24).

Requests of one class wait by topic (group where there is none), so that a topic whose requests
flood waits behind itself. A send-back is refused at arrival like a send when the store is busy.

Invariant: whatever a handler does or raises, a request that wants an answer gets at most one here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.flow.fast_fail import Busy, BusyCause
from penstock.model.errors import PenstockError
from penstock.model.refusal import Refusal, RefusalKind
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.connection import RocketmqConnection

logger = logging.getLogger(__name__)

Handler = Callable[["RocketmqConnection", Command], None]
"""Serves one request: answers it now or later, or raises ``Answer``, ``Malformed`` (code 1) or
a ``PenstockError`` (code 1)."""

_KEY_FIELDS: Final = ("topic", "consumerGroup", "group", "originTopic")


class Request:
    """One command that wants something; satisfies ``engine.waiting.Request``."""

    __slots__ = ("command", "handler", "session")

    def __init__(
        self, session: RocketmqConnection, command: Command, handler: Handler | None
    ) -> None:
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
        engine = session.broker.engine
        if class_name == SEND and (refusal := engine.refuse_now()) is not None:
            code, remark = refusal_answer(refusal, is_arrival=True)
            engine.waiting.turned_away(class_name, refusal)
            session.answer(command, code, remark=remark)
            return
        ext = command.ext
        key = next((ext[name] for name in _KEY_FIELDS if name in ext), "")
        engine.waiting.submit(class_name, key, self)

    def run(self) -> None:
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


# ---- replies ------------------------------------------------------------------------------------
# Answers that many families give: errors of the peer in RocketMQ's codes and words.
#
# A handler raises ``Answer`` to end a request with a code and a remark; the session sends it. The
# peer reads the remark, so it says what is wrong and, where RocketMQ has words for it, in its
# words.
#
# Not here: busy answers (``busy.py``).


class Answer(Exception):
    """The request ends here, with this code and remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code: Final = int(code)
        self.remark: Final = remark


def unknown_code(code: int) -> Answer:
    """Nobody serves this request code."""
    return Answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")


def system_error(remark: str) -> Answer:
    """What RocketMQ has no better code for."""
    return Answer(ResponseCode.SYSTEM_ERROR, remark)


def no_topic(topic: str) -> Answer:
    """A request names a topic that does not exist."""
    return Answer(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic[{topic}] not exist, apply first please!",
    )


def no_route(topic: str) -> Answer:
    """The name server knows no broker with that topic."""
    return Answer(
        ResponseCode.TOPIC_NOT_EXIST,
        f"No topic route info in name server for the topic: {topic}",
    )


def forbidden(topic: str) -> Answer:
    """A send to a topic of the broker's own."""
    return no_permission(f"Sending message to topic[{topic}] is forbidden.")


def no_permission(remark: str) -> Answer:
    """A topic, group or broker does not allow it."""
    return Answer(ResponseCode.NO_PERMISSION, remark)


# ---- classes ------------------------------------------------------------------------------------
# Which class of F5 a request waits in when it cannot be served at once (sheet 2.1).
#
# Invariant: every code has a class; one that is not named here is ``admin``.
# Not here: ages and capacities (``flow/fast_fail.py``), the words of a busy answer (``busy.py``).


SEND: Final = "send"
PULL: Final = "pull"
HEARTBEAT: Final = "heartbeat"
END_TRANSACTION: Final = "end-transaction"
ACK: Final = "ack"
ADMIN: Final = "admin"

CLASSES: Final[dict[int, str]] = {
    RequestCode.SEND_MESSAGE: SEND,
    RequestCode.SEND_MESSAGE_V2: SEND,
    RequestCode.SEND_BATCH_MESSAGE: SEND,
    RequestCode.SEND_REPLY_MESSAGE: SEND,
    RequestCode.SEND_REPLY_MESSAGE_V2: SEND,
    RequestCode.CONSUMER_SEND_MSG_BACK: SEND,
    RequestCode.RECALL_MESSAGE: SEND,
    RequestCode.PULL_MESSAGE: PULL,
    RequestCode.LITE_PULL_MESSAGE: PULL,
    RequestCode.POP_MESSAGE: PULL,
    RequestCode.PEEK_MESSAGE: PULL,
    RequestCode.NOTIFICATION: PULL,
    RequestCode.HEART_BEAT: HEARTBEAT,
    RequestCode.UNREGISTER_CLIENT: HEARTBEAT,
    RequestCode.CHECK_CLIENT_CONFIG: HEARTBEAT,
    RequestCode.END_TRANSACTION: END_TRANSACTION,
    RequestCode.ACK_MESSAGE: ACK,
    RequestCode.BATCH_ACK_MESSAGE: ACK,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ACK,
    RequestCode.UPDATE_CONSUMER_OFFSET: ACK,
}


def class_of(code: int) -> str:
    """The class of a request code."""
    return CLASSES.get(code, ADMIN)


# ---- busy ---------------------------------------------------------------------------------------
# RocketMQ's words for "busy": which code and remark a request gets that is not served (sheet 2.1).
#
# Clients and people look for the word in brackets; the numbers behind it say how long the request
# waited and how many waited with it. All of it is answered before anything is stored (law 6).
#
# Not here: who waits how long (``flow/fast_fail.py``, ``engine/waiting.py``).


REJECT: Final = "[REJECTREQUEST]system busy, start flow control for a while"
"""The store is busy or out of buffers when the send comes in."""

OVERLOAD: Final = "[OVERLOAD]system busy, start flow control for a while"
"""The class of the request has no place left."""

SYNCHRONIZED: Final = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
"""The store became busy between arrival and the moment of storing."""

_CONTROLLED: Final = "[FLOW_CONTROL]broker busy, start flow control for a while"
"""Our own: a limit of the broker or the topic, which RocketMQ does not have."""

_WAITED: Final = (
    "[%s]broker busy, start flow control for a while, period in queue: %dms, size of queue: %d"
)
_MARKS: Final = {BusyCause.AGE: "TIMEOUT_CLEAN_QUEUE", BusyCause.STORE: "PCBUSY_CLEAN_QUEUE"}

_BUSY: Final = int(ResponseCode.SYSTEM_BUSY)
_GONE: Final = int(ResponseCode.SERVICE_NOT_AVAILABLE)
_ILLEGAL: Final = int(ResponseCode.MESSAGE_ILLEGAL)
_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)

_CODES: Final = {
    RefusalKind.MEMORY_ALARM: _BUSY,
    RefusalKind.LENGTH_LIMIT: _BUSY,
    RefusalKind.QUOTA: _BUSY,
    RefusalKind.RATE: _BUSY,
    RefusalKind.HELD_TOO_LONG: _BUSY,
    RefusalKind.TOO_LARGE: _ILLEGAL,
    RefusalKind.NO_ROUTE: _ERROR,
    RefusalKind.DISK_ALARM: _GONE,
    RefusalKind.WRITE_FAILED: _GONE,
    RefusalKind.SYNC_FAILED: _GONE,
    RefusalKind.CLOSING: _GONE,
}
"""Codes of refusals that are not about being busy."""


def waited_remark(busy: Busy) -> str:
    """The remark for a request that waited in vain, or found no place to wait."""
    mark = _MARKS.get(busy.cause)
    if mark is None:
        return OVERLOAD
    return _WAITED % (mark, busy.waited_ms, busy.queued)


def refusal_answer(refusal: Refusal, *, is_arrival: bool = False) -> tuple[int, str]:
    """(code, remark) for a send that the engine does not take.

    ``is_arrival``: the store was asked before the request was let in, not when it was to store.
    """
    kind = refusal.kind
    if kind is RefusalKind.BUSY or kind is RefusalKind.NO_BUFFER:
        words = REJECT if is_arrival else SYNCHRONIZED
        return _BUSY, f"{words}: {refusal.text}"
    code = _CODES.get(kind, _ERROR)
    if code == _GONE:
        return code, f"service not available now. {kind.value}: {refusal.text}"
    if code == _BUSY:
        return code, f"{_CONTROLLED}: {kind.value}: {refusal.text}"
    return code, refusal.text
