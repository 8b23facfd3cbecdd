"""How requests wait and how they fail, in RocketMQ's codes and words (sheet 2.1, D24).

Every request code has a class of F5 in which it waits when it cannot be served at once. A handler
ends a request early by raising ``ErrorResponse``. Peers and people read the remark, so it says what
is wrong, in RocketMQ's words where it has some; of "busy" they look for the word in brackets.

Not here: waiting itself (``engine/request_queue.py``, ``flow/fast_fail.py``), running a request
(``connection.py``).
"""

from typing import Final

from penstock.flow.fast_fail import Busy, BusyCause
from penstock.model.refusal import Refusal, RefusalKind
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode


class ErrorResponse(Exception):
    """The request ends here, with this code and remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code: Final = int(code)
        self.remark: Final = remark


def unknown_code(code: int) -> ErrorResponse:
    return ErrorResponse(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported"
    )


def system_error(remark: str) -> ErrorResponse:
    """What RocketMQ has no better code for."""
    return ErrorResponse(ResponseCode.SYSTEM_ERROR, remark)


def no_topic(topic: str) -> ErrorResponse:
    return ErrorResponse(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic[{topic}] not exist, apply first please!",
    )


def no_route(topic: str) -> ErrorResponse:
    """The name server knows no broker with that topic."""
    return ErrorResponse(
        ResponseCode.TOPIC_NOT_EXIST,
        f"No topic route info in name server for the topic: {topic}",
    )


def forbidden(topic: str) -> ErrorResponse:
    """A send to a topic of the broker's own."""
    return no_permission(f"Sending message to topic[{topic}] is forbidden.")


def no_permission(remark: str) -> ErrorResponse:
    """A topic, group or broker does not allow it."""
    return ErrorResponse(ResponseCode.NO_PERMISSION, remark)


# ---- the class a request waits in ------------------------------------------------------------

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
    """The class of a request code; one that is not named above is ``admin``."""
    return CLASSES.get(code, ADMIN)


# ---- busy and refused: all of it is answered before anything is stored (law 6) ---------------

REJECT: Final = "[REJECTREQUEST]system busy, start flow control for a while"
"""The store is busy or out of buffers when the send comes in."""

OVERLOAD: Final = "[OVERLOAD]system busy, start flow control for a while"
"""The class of the request has no place left."""

SYNCHRONIZED: Final = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
"""The store became busy between arrival and the moment of publication."""

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


def busy_remark(busy: Busy) -> str:
    """The remark for a request that waited in vain, or found no place to wait."""
    mark = _MARKS.get(busy.cause)
    if mark is None:
        return OVERLOAD
    return _WAITED % (mark, busy.waited_ms, busy.queued)


def refusal_response(refusal: Refusal, *, is_arrival: bool = False) -> tuple[int, str]:
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
