"""RocketMQ's words for "busy": which code and remark a request gets that is not served (sheet 2.1).

Clients and people look for the word in brackets; the numbers behind it say how long the request
waited and how many waited with it. All of it is answered before anything is stored (law 6).

Not here: who waits how long (``flow/fast_fail.py``, ``engine/waiting.py``).
"""

from typing import Final

from penstock.flow.fast_fail import Busy, BusyCause
from penstock.model.refusal import Refusal, RefusalKind
from penstock.wire.rocketmq.codes import ResponseCode

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
