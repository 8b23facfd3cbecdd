"""How a pull ended in RocketMQ's words: status (the remark), code, where to go on (sheet 1.7).

    FOUND                                        0   behind the last one looked at
    NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING     20  behind the last one looked at
    NO_MESSAGE_IN_QUEUE, NO_MATCHED_LOGIC_QUEUE  19  (offset 0) or 21: go on at 0
    OFFSET_OVERFLOW_ONE                          19  the same offset: the end
    OFFSET_FOUND_NULL                            19  behind the hole
    OFFSET_OVERFLOW_BADLY                        21  the end
    OFFSET_TOO_SMALL                             21  the oldest that is there
    OFFSET_RESET                                 21  where an operator moved the group

Only 19 may be held. Pure: no state, no engine but its result.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from penstock.engine.pull import Pull, PullResult, PullStatus
from penstock.wire.rocketmq.codes import ResponseCode


class Status(StrEnum):
    """RocketMQ's names."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_RESET = "OFFSET_RESET"


class Outcome(NamedTuple):
    """What an answer says."""

    status: Status
    code: int
    next_offset: int


_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)

CODES: Final = {
    Status.FOUND: int(ResponseCode.SUCCESS),
    Status.NO_MATCHED_MESSAGE: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    Status.MESSAGE_WAS_REMOVING: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    Status.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    Status.OFFSET_FOUND_NULL: _NOT_FOUND,
    Status.OFFSET_OVERFLOW_BADLY: _MOVED,
    Status.OFFSET_TOO_SMALL: _MOVED,
    Status.OFFSET_RESET: _MOVED,
}
"""Of those whose code does not depend on the offset."""

_STATUSES: Final = {
    PullStatus.FOUND: Status.FOUND,
    PullStatus.FILTERED: Status.NO_MATCHED_MESSAGE,
    PullStatus.REMOVED: Status.MESSAGE_WAS_REMOVING,
    PullStatus.CANCELLED: Status.NO_MATCHED_LOGIC_QUEUE,
    PullStatus.NO_NEW: Status.OFFSET_OVERFLOW_ONE,
    PullStatus.OFFSET_TOO_SMALL: Status.OFFSET_TOO_SMALL,
    PullStatus.OFFSET_TOO_LARGE: Status.OFFSET_OVERFLOW_BADLY,
}
_AT_AN_EDGE: Final = (
    PullStatus.NO_NEW,
    PullStatus.OFFSET_TOO_SMALL,
    PullStatus.OFFSET_TOO_LARGE,
)


def outcome(pull: Pull, result: PullResult) -> Outcome:
    """RocketMQ's words for the engine's result."""
    status = _STATUSES[result.status]
    if result.status in _AT_AN_EDGE and result.max_offset == 0:
        status = Status.NO_MESSAGE_IN_QUEUE
    elif result.status is PullStatus.FILTERED and _is_hole(pull, result.max_offset):
        status = Status.OFFSET_FOUND_NULL
    code = CODES.get(status)
    if code is None:
        return Outcome(status, _NOT_FOUND if pull.offset == 0 else _MOVED, 0)
    return Outcome(status, code, result.next_offset)


def reset_outcome(offset: int) -> Outcome:
    """An operator moved the group."""
    return Outcome(Status.OFFSET_RESET, _MOVED, offset)


def _is_hole(pull: Pull, end: int) -> bool:
    """True when nothing is there at all from the offset on: records lost to corruption."""
    found = pull.queue.index.entries(pull.offset, 1)
    return not found or found[0][1] >= end
