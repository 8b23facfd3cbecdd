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
from penstock.wire.rocketmq.command import Command


class ErrorResponse(Exception):
    """The request ends here, with this code and remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code: Final = int(code)
        self.remark: Final = remark


NO_CHANGE: Final = (
    "settings are not changed over this port, because it knows no users yet; set %s on the command "
    "line (--set), in the environment or in the settings file, and start the broker again"
)

_ONE_BY_ONE: Final = "send one request for each"
_NO_REPLICAS: Final = "a broker has no replicas, so nobody asks for its state to copy it"
_NO_CONTROLLER: Final = "there is no controller, because a broker has no replicas to elect from"
_NO_USERS: Final = "there are no users and no access control yet"
_NO_COLD_DATA: Final = "old and new messages are read in the same way, so there is nothing to set"
_NO_ROCKSDB: Final = "nothing is stored in RocksDB; `penstock log` looks into the log and its files"
_NO_CONTAINER: Final = "brokers are processes; start another one with `penstock up --join`"

_REASONS: Final[dict[int, str]] = {
    18: _ONE_BY_ONE,
    225: _ONE_BY_ONE,
    **dict.fromkeys((43, 45, 60, 61, 402, 905, 906, 907, 908, 1007, 1008), _NO_REPLICAS),
    47: "clients are asked for what they are by their running info (307)",
    223: "clients are asked for what they are by their running info (307)",
    303: "ask for the consume statistics of the group (208); they have the same times",
    308: "offsets are not corrected; reset them (222)",
    314: "offsets are not copied between groups; reset the other group by time (222)",
    323: "half messages are asked about without being told to; those given up are messages of "
    "TRANS_CHECK_MAX_TIME_TOPIC",
    353: "set consumeEnable of the group (200)",
    **dict.fromkeys((354, 355), _NO_ROCKSDB),
    513: "topics have their own queues on each broker; there are no static topics",
    **dict.fromkeys((902, 903), _NO_CONTAINER),
    **dict.fromkeys((*range(1001, 1007), *range(1009, 1014)), _NO_CONTROLLER),
    **dict.fromkeys(range(2001, 2005), _NO_COLD_DATA),
    **dict.fromkeys(range(3001, 3011), _NO_USERS),
    200055: "ask for the members of the group (203) and its statistics (208)",
    200056: "a pop leaves no records to roll back; what is not acknowledged comes again in time",
}
"""Why requests of RocketMQ's own tools are not served, and what to do instead."""


def unknown_code(code: int) -> ErrorResponse:
    """It is not served; where RocketMQ has such a request, the remark says why."""
    reason = _REASONS.get(code)
    remark = f" request type {code} not supported"
    return ErrorResponse(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark if reason is None else f"{remark}: {reason}",
    )


def no_change(command: Command) -> ErrorResponse:
    """Nobody changes settings over the wire until there are users."""
    lines = command.body[:1_024].decode("utf-8", "replace").splitlines()
    names = [line.partition("=")[0].strip() for line in lines if "=" in line and line[0] != "#"]
    return no_permission(NO_CHANGE % (", ".join(names[:5]) or "them"))


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
_FORBIDDEN: Final = int(ResponseCode.NO_PERMISSION)

_CODES: Final = {
    RefusalKind.MEMORY_ALARM: _BUSY,
    RefusalKind.LENGTH_LIMIT: _BUSY,
    RefusalKind.QUOTA: _BUSY,
    RefusalKind.RATE: _BUSY,
    RefusalKind.HELD_TOO_LONG: _BUSY,
    RefusalKind.TOO_LARGE: _ILLEGAL,
    RefusalKind.NO_ROUTE: _ERROR,
    RefusalKind.TERMINATED: _FORBIDDEN,
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
