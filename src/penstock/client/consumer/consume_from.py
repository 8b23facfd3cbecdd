"""Where a group begins to read a queue: the stored offset, or what "consume from" says.

    stored      >= 0: there, always         below -1: not now, ask again at the next rebalance
    nothing     LAST       retry topic: 0 (its messages are the group's own), else the end
    (None, -1)  FIRST      0; a broker that has removed it answers with its oldest
                TIMESTAMP  retry topic: the end, else the first message stored at or after it

A stored -1 is nothing: some clients commit -1 for queues they never read.

Not here: where the stored offset comes from (``offsets/``), pop, whose broker decides by
``initMode``.
"""

from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import ConsumeFromWhere

RETRY_PREFIX: Final = "%RETRY%"
NOTHING_STORED: Final = -1
TIMESTAMP_AGE_MS: Final = 30 * 60 * 1000
"""TIMESTAMP without a time begins half an hour ago."""
TIMESTAMP_FORMAT: Final = "%Y%m%d%H%M%S"
"""RocketMQ's ``consumeTimestamp``, in local time."""


class ConsumeFrom(StrEnum):
    """Where a group without stored offsets begins."""

    FIRST = "first"
    LAST = "last"
    TIMESTAMP = "timestamp"

    @property
    def wire(self) -> ConsumeFromWhere:
        """Its name in a heartbeat."""
        return _WIRE[self]


_WIRE: Final = {
    ConsumeFrom.FIRST: ConsumeFromWhere.FIRST_OFFSET,
    ConsumeFrom.LAST: ConsumeFromWhere.LAST_OFFSET,
    ConsumeFrom.TIMESTAMP: ConsumeFromWhere.TIMESTAMP,
}


class OffsetQuestions(Protocol):
    """What a broker is asked; ``Calls`` answers it."""

    async def max_offset(self, queue: QueueRef) -> int:
        """The offset behind the last message."""
        ...

    async def search_offset(self, queue: QueueRef, at_ms: int) -> int:
        """The first offset stored at or after this wall time."""
        ...


async def first_offset(
    queue: QueueRef,
    stored: int | None,
    where: ConsumeFrom,
    at_ms: int,
    ask: OffsetQuestions,
) -> int | None:
    """The offset to begin at; None = leave this queue until the next rebalance."""
    if stored is not None and stored != NOTHING_STORED:
        return stored if stored >= 0 else None
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if where is ConsumeFrom.FIRST or (where is ConsumeFrom.LAST and is_retry):
        return 0
    if where is ConsumeFrom.LAST or is_retry:
        return await ask.max_offset(queue)
    return await ask.search_offset(queue, at_ms)


def timestamp_ms(at: datetime | str | int | None, now_ms: int) -> int:
    """Wall milliseconds of a point in time: a datetime, ``yyyyMMddHHmmss``, milliseconds, None."""
    if at is None:
        return now_ms - TIMESTAMP_AGE_MS
    if isinstance(at, int):
        return at
    if isinstance(at, str):
        try:
            at = datetime.strptime(at, TIMESTAMP_FORMAT)
        except ValueError:
            raise ValueError(
                f"consume_timestamp {at!r} is not like 20240131235959 (local time); "
                "give a datetime or milliseconds since 1970 instead"
            ) from None
    return int(at.timestamp() * 1000)
