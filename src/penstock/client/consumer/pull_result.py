"""What one pull brought: messages, or why there are none, and where to go on.

Not here: asking (``pull_consumer.py``, ``lite_pulling.py``).
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

import msgspec

from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.codes import ResponseCode


class PullStatus(Enum):
    """How a pull ended."""

    FOUND = "found"
    NO_NEW_MESSAGE = "no new message"
    """Nothing behind the offset yet."""
    NO_MATCHED_MESSAGE = "no matched message"
    """There are messages, and none of those looked at is wanted: go on at ``next_offset``."""
    OFFSET_MOVED = "offset moved"
    """The offset is outside the queue (removed, or never there): go on at ``next_offset``."""


PULL_CODES: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MESSAGE,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}
"""Answers that are no errors."""


class PullResult(msgspec.Struct, frozen=True, gc=False):
    """The answer to one pull; iterate over it for its messages."""

    queue: QueueRef
    status: PullStatus
    messages: Sequence[ReceivedMessage]
    next_offset: int
    """Where the next pull begins."""
    min_offset: int
    max_offset: int
    """The queue holds offsets from ``min_offset`` up to, not including, ``max_offset``."""

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return bool(self.messages)
