"""The strings of pop: a message's handle, and the lists from which a client builds handles.

    handle (``extraInfo``, property POP_CK), separated by spaces:
        startOffset popTime invisibleTime reviveQid retryFlag brokerName queueId offset [position]
    startOffsetInfo  flag queueId startOffset;...
    msgOffsetInfo    flag queueId offset,offset,...;...
    orderCountInfo   flag queueId count;...   or   flag qo<queueId>%<offset> count;...

``flag`` says where the message lies: 0 in the topic, 1 in ``%RETRY%group_topic``, 2 in
``%RETRY%group+topic``.

Not here: what a handle entitles to (the broker's in-flight table).
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from penstock.wire.rocketmq.command import Malformed

REVIVE_ORDERLY: Final = 999
"""``reviveQid`` of an orderly pop."""
INFO_ENTRIES_MAX: Final = 4096
"""Queues or messages one answer may list; a pop takes 32."""


class RetryFlag(IntEnum):
    """Where a popped message lies."""

    NORMAL = 0
    RETRY_V1 = 1
    RETRY_V2 = 2


class PopHandle(msgspec.Struct, gc=False):
    """What a client gives back to acknowledge one message."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_qid: int
    retry_flag: int
    broker_name: str
    queue_id: int
    offset: int
    commit_log_offset: int = -1
    """Only gRPC handles carry it."""

    def __str__(self) -> str:
        text = (
            f"{self.start_offset} {self.pop_time} {self.invisible_time} {self.revive_qid} "
            f"{self.retry_flag} {self.broker_name} {self.queue_id} {self.offset}"
        )
        return text if self.commit_log_offset < 0 else f"{text} {self.commit_log_offset}"


def parse_handle(text: str) -> PopHandle:
    """The handle in ``extraInfo``; old clients leave the offset out (-1: the request has it)."""
    parts = text.split(" ")
    if not 7 <= len(parts) <= 9:
        raise Malformed(f"pop handle {text[:80]!r} has {len(parts)} parts, not 8")
    broker_name = parts.pop(5)
    numbers = [_integer(part, text) for part in parts]
    numbers += [-1] * (8 - len(numbers))
    start, popped, invisible, revive, flag, queue, offset, position = numbers
    return PopHandle(
        start, popped, invisible, revive, flag, broker_name, queue, offset, position
    )  # fmt: skip


PopQueueKey = tuple[int, int]
"""(retry flag, queue id)."""


def format_start_offsets(starts: Mapping[PopQueueKey, int]) -> str:
    return ";".join([f"{flag} {queue} {start}" for (flag, queue), start in starts.items()])


def parse_start_offsets(text: str) -> dict[PopQueueKey, int]:
    """The first popped offset of each queue."""
    return {place: _integer(rest, text) for place, rest in _entries(text)}


def format_offsets(offsets: Mapping[PopQueueKey, Sequence[int]]) -> str:
    return ";".join(
        [f"{flag} {queue} {','.join(map(str, each))}" for (flag, queue), each in offsets.items()]
    )


def parse_offsets(text: str) -> dict[PopQueueKey, list[int]]:
    """The popped offsets of each queue, ascending as they were sent."""
    return {
        place: [_integer(part, text) for part in rest.split(",", INFO_ENTRIES_MAX)]
        for place, rest in _entries(text)
    }


def format_order_counts(counts: Mapping[tuple[int, int, int], int]) -> str:
    """``orderCountInfo`` from (flag, queue, offset) -> deliveries before this one."""
    return ";".join(
        [f"{flag} qo{queue}%{offset} {count}" for (flag, queue, offset), count in counts.items()]
    )


def parse_order_counts(text: str) -> dict[tuple[int, int, int], int]:
    """Deliveries so far by (flag, queue, offset); offset -1 counts for the whole queue."""
    counts: dict[tuple[int, int, int], int] = {}
    for flag, where, count in _triples(text):
        queue, _, offset = where.removeprefix("qo").partition("%")
        place = (_integer(flag, text), _integer(queue, text), _integer(offset or "-1", text))
        counts[place] = _integer(count, text)
    return counts


def _entries(text: str) -> list[tuple[PopQueueKey, str]]:
    return [
        ((_integer(flag, text), _integer(queue, text)), rest)
        for flag, queue, rest in _triples(text)
    ]


def _triples(text: str) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for entry in text.split(";", INFO_ENTRIES_MAX):
        if entry:
            flag, _, rest = entry.partition(" ")
            where, _, value = rest.partition(" ")
            found.append((flag, where, value))
    return found


def _integer(part: str, text: str) -> int:
    # int() alone would take "1_0", blanks and numbers of any length.
    if len(part) > 20 or not part.removeprefix("-").isdecimal() or not part.isascii():
        raise Malformed(f"{part[:40]!r} in {text[:80]!r} is no number")
    return int(part)
