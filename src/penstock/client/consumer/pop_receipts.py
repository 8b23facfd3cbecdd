"""Receipts of popped messages: the client makes them from the lists of the answer.

A pop's answer names, for each queue, where its batch begins (``startOffsetInfo``) and which offsets
were taken (``msgOffsetInfo``). One receipt (``POP_CK``) per message says all the broker needs to
find it again. Messages that come back lie in a retry topic of their own; the listener shall see the
topic it subscribed to, and the receipt remembers where the message really is.

Invariants: a receipt names the queue the message was popped from, never the rewritten topic; the
receipt of a changed invisible time replaces the old one, which is void.
Not here: what is done with receipts (``pop_acks.py``), when (``pop_delays.py``).
"""

from typing import Final

import msgspec

from penstock.client.consumer.consume_from import RETRY_PREFIX
from penstock.wire.rocketmq.headers import ChangeInvisibleAnswer, PopAnswer
from penstock.wire.rocketmq.pop_handle import (
    PopHandle,
    RetryFlag,
    parse_offsets,
    parse_order_counts,
    parse_start_offsets,
)
from penstock.wire.rocketmq.properties import NAME_END, PAIR_END
from penstock.wire.rocketmq.stored import StoredMessage

POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
_FIRST_POP: Final = FIRST_POP_TIME.encode() + NAME_END


class Popped(msgspec.Struct, gc=False):
    """One popped message and its receipt."""

    message: StoredMessage
    """Under the topic that was asked for."""
    handle: PopHandle
    text: str
    """The receipt as it is sent."""


def receipts(
    answer: PopAnswer, messages: list[StoredMessage], topic: str, broker: str
) -> list[Popped]:
    """The messages of one answer with their receipts, in the order they came."""
    starts = parse_start_offsets(answer.start_offset_info or "")
    listed = parse_offsets(answer.msg_offset_info or "")
    counts = parse_order_counts(answer.order_count_info or "")
    nth: dict[tuple[int, int], int] = {}
    found: list[Popped] = []
    for message in messages:
        flag = retry_flag(message.topic)
        place = (flag, message.queue_id)
        taken = nth.get(place, 0)
        nth[place] = taken + 1
        offsets = listed.get(place, ())
        # The list is the broker's word: offsets inside a message may be those of another queue.
        offset = offsets[taken] if taken < len(offsets) else message.queue_offset
        handle = PopHandle(
            starts.get(place, offset),
            answer.pop_time,
            answer.invisible_time,
            answer.revive_qid,
            flag,
            broker,
            message.queue_id,
            offset,
        )
        delivered = counts.get((*place, offset), counts.get((*place, -1), 0))
        found.append(_made_over(message, handle, topic, max(delivered, message.reconsume_times)))
    return found


def retry_flag(topic: str) -> RetryFlag:
    """Which kind of place a topic is."""
    if not topic.startswith(RETRY_PREFIX):
        return RetryFlag.NORMAL
    return RetryFlag.RETRY_V2 if "+" in topic else RetryFlag.RETRY_V1


def real_topic(handle: PopHandle, topic: str, group: str) -> str:
    """The topic in which the message of a receipt lies."""
    if handle.retry_flag == RetryFlag.RETRY_V1:
        return retry_topic(topic, group)
    if handle.retry_flag == RetryFlag.RETRY_V2:
        return f"{RETRY_PREFIX}{group}+{topic}"
    return topic


def retry_topic(topic: str, group: str) -> str:
    """Where popped messages of a topic come back for a group."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def renewed(handle: PopHandle, answer: ChangeInvisibleAnswer) -> PopHandle:
    """The receipt after its invisible time was changed."""
    # A batch of its own: the new checkpoint covers this message alone.
    return msgspec.structs.replace(
        handle,
        start_offset=handle.offset,
        pop_time=answer.pop_time,
        invisible_time=answer.invisible_time,
        revive_qid=answer.revive_qid,
    )


def _made_over(message: StoredMessage, handle: PopHandle, topic: str, delivered: int) -> Popped:
    text = str(handle)
    properties = message.properties
    more = f"{POP_CK}\x01{text}\x02"
    if _FIRST_POP not in properties:
        more += f"{FIRST_POP_TIME}\x01{handle.pop_time}\x02"
    if properties and not properties.endswith(PAIR_END):
        properties += PAIR_END
    message.topic = topic
    message.properties = properties + more.encode()
    message.reconsume_times = delivered
    return Popped(message, handle, text)
