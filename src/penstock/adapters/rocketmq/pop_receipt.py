"""Receipts that come back: which message they mean, and whether they still count.

    13   the receipt cannot be read, or says another queue or offset than the request, or the queue
         does not exist
    17   there is no such topic
    208  the offset is outside the queue
    void the message was acknowledged, its time is up, or it has a newer receipt since its invisible
         time was changed

An acknowledgement under a void receipt is answered 0, as RocketMQ does, with a remark that nothing
was done: whoever asks twice because the first answer was lost must not take it for an error. More
time under a void receipt is 208: RocketMQ makes a new receipt, and so a second delivery; ours
cannot promise what is another consumer's by now. Clients take 208 for "no such message" and go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.adapters.rocketmq.naming import RETRY_PREFIX
from penstock.adapters.rocketmq.pop_counts import PopCounts, PopEvent
from penstock.adapters.rocketmq.pop_reader import PopReader, pop_retry_topic
from penstock.adapters.rocketmq.pops import Pops
from penstock.adapters.rocketmq.replies import Answer
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.pop_handle import PopHandle, RetryFlag, parse_handle

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.engine.topic import Queue
    from penstock.wire.rocketmq.headers import AckHeader, ChangeInvisibleHeader

VOID: Final = (
    "the receipt of offset %d is void: the message was acknowledged, its invisible time is over, "
    "or its receipt was replaced; nothing was done"
)


class VoidReceipt(Answer):
    """The receipt was good once."""

    def __init__(self, offset: int) -> None:
        super().__init__(ResponseCode.NO_MESSAGE, VOID % offset)


class Receipt(NamedTuple):
    """A message that is out, under this receipt."""

    reader: PopReader
    queue: Queue
    offset: int
    handle: PopHandle


def receipt_of(house: House, header: AckHeader | ChangeInvisibleHeader) -> Receipt:
    """What a request means; raises ``Answer`` when that is nothing."""
    try:
        handle = parse_handle(header.extra_info)
    except Malformed as problem:
        raise _illegal(str(problem)) from None
    if handle.queue_id != header.queue_id or handle.offset not in (-1, header.offset):
        raise _illegal(
            f"the receipt is of offset {handle.offset} in queue {handle.queue_id}, the request "
            f"of offset {header.offset} in queue {header.queue_id}"
        )
    if handle.broker_name != house.broker_name:
        raise _illegal(f"the receipt is of broker {handle.broker_name[:80]!r}")
    topic = real_topic(header.topic, header.consumer_group, handle.retry_flag)
    queue = queue_of(house, topic, header.queue_id)
    check_offset(queue, header.offset)
    reader = house.part(Pops).known(queue.topic, header.consumer_group)
    if reader is None or not reader.is_alive(queue, header.offset, handle):
        house.part(PopCounts).messages[PopEvent.VOID] += 1
        raise VoidReceipt(header.offset)
    return Receipt(reader, queue, header.offset, handle)


def real_topic(topic: str, group: str, flag: int) -> str:
    """The topic a message lies in; clients say it, or the topic it was popped under."""
    if flag == RetryFlag.NORMAL or topic.startswith(RETRY_PREFIX):
        return topic
    return pop_retry_topic(group, topic)


def queue_of(house: House, topic: str, number: int) -> Queue:
    """The queue a receipt names; raises ``Answer``."""
    place = house.topics.require(topic)
    queues = place.topic.queues
    if not 0 <= number < len(queues):
        raise _illegal(
            f"queueId[{number}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{place.config.read_queue_nums}]"
        )
    return queues[number]


def check_offset(queue: Queue, offset: int) -> None:
    """Raise ``Answer`` 208 when the queue never had, or no longer has, that offset."""
    lowest, end = queue.index.min_offset, queue.visible_end(False)
    if not lowest <= offset <= end:
        raise Answer(
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{queue.name}, commit:{offset}, store:{lowest}~{end}",
        )


def _illegal(remark: str) -> Answer:
    return Answer(ResponseCode.MESSAGE_ILLEGAL, remark)
