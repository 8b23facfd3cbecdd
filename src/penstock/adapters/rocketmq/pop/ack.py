"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME: receipts of pops coming back.

An acknowledgement counts only under the receipt that is alive. It is answered at once: what a crash
takes back is delivered again, never lost (P2). A batch acknowledges what it can; receipts that are
void or make no sense are left out, for the others must not suffer.

    13    the receipt cannot be read, or says another queue or offset than the request, or the queue
          does not exist
    17    there is no such topic
    208   the offset is outside the queue
    void  the message was acknowledged, its time is up, or it has a newer receipt since its
          invisible time was changed

An acknowledgement under a void receipt is answered 0, as RocketMQ does, with a remark that nothing
was done: whoever asks twice because the first response was lost must not take it for an error. More
time under a void receipt is 208: RocketMQ makes a new receipt, and so a second delivery; ours
cannot promise what is another consumer's by now. Clients take 208 for "no such message" and go on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.adapters.rocketmq.naming import RETRY_PREFIX
from penstock.adapters.rocketmq.pop.processor import INVISIBLE_MS_MAX
from penstock.adapters.rocketmq.pop.service import (
    PopEvent,
    PopService,
    PopStatistics,
    PopSubscription,
    pop_retry_topic,
    tag_of,
)
from penstock.adapters.rocketmq.requests import ErrorResponse
from penstock.wire.rocketmq.bodies import BatchAck, BatchAckBody, decode_body
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import (
    AckHeader,
    ChangeInvisibleAnswer,
    ChangeInvisibleHeader,
    fields,
    parse,
)
from penstock.wire.rocketmq.pop_handle import REVIVE_ORDERLY, PopHandle, RetryFlag, parse_handle

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker
    from penstock.adapters.rocketmq.connection import RocketmqConnection
    from penstock.engine.topic import Queue
    from penstock.wire.rocketmq.command import Command

_log = logging.getLogger(__name__)

VOID: Final = (
    "the receipt of offset %d is void: the message was acknowledged, its invisible time is over, "
    "or its receipt was replaced; nothing was done"
)


def ack(connection: RocketmqConnection, command: Command) -> None:
    broker = connection.broker
    try:
        receipt = receipt_of(broker, parse(AckHeader, command))
    except VoidReceipt as void:
        connection.answer(command, remark=void.remark)
        return
    receipt.pop_sub.settle(receipt.queue, [receipt.offset])
    broker.service(PopStatistics).messages[PopEvent.ACKNOWLEDGED] += 1
    connection.answer(command)


def batch_ack(connection: RocketmqConnection, command: Command) -> None:
    body = decode_body(command.body, BatchAckBody)
    if body.broker_name and body.broker_name != connection.broker.broker_name:
        raise ErrorResponse(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the receipts are of broker {body.broker_name[:80]!r}, this is "
            f"{connection.broker.broker_name!r}",
        )
    for each in body.acks:
        try:
            _settle(connection.broker, each)
        except ErrorResponse as problem:
            _log.info(
                "acknowledgements of a batch were left out",
                extra={"session": connection.name, "problem": problem.remark},
            )
    connection.answer(command)


def _settle(broker: RocketmqBroker, batch: BatchAck) -> int:
    """Acknowledge what one pop gave of one queue; how many counted."""
    flag = int(batch.retry) if batch.retry.isdecimal() else 0
    queue = queue_of(broker, real_topic(batch.topic, batch.consumer_group, flag), batch.queue_id)
    offsets = batch.offsets()
    for offset in offsets[:1] + offsets[-1:]:
        check_offset(queue, offset)
    pop_sub = broker.service(PopService).find(queue.topic, batch.consumer_group)
    if pop_sub is None:
        return 0
    handle = PopHandle(
        batch.start_offset, batch.pop_time, batch.invisible_time, batch.revive_queue_id,
        flag, broker.broker_name, batch.queue_id, -1,
    )  # fmt: skip
    alive = [offset for offset in offsets if pop_sub.is_alive(queue, offset, handle)]
    counts = broker.service(PopStatistics).messages
    counts[PopEvent.ACKNOWLEDGED] += len(alive)
    counts[PopEvent.VOID] += len(offsets) - len(alive)
    return pop_sub.settle(queue, alive) if alive else 0


def change_invisible(connection: RocketmqConnection, command: Command) -> None:
    """CHANGE_MESSAGE_INVISIBLETIME: more time, or less, for one popped message (sheet 2.7).

    The response carries the parts of a new receipt; the old one is void from then on, or an
    acknowledgement meant for the past could end the new delivery. No time at all (0) brings the
    message back at once, which is how clients say "not now".
    """
    broker = connection.broker
    header = parse(ChangeInvisibleHeader, command)
    if not 0 <= header.invisible_time <= INVISIBLE_MS_MAX:
        raise ErrorResponse(
            broker.settings.invalid_parameter_code,
            f"invisibleTime[{header.invisible_time}] is illegal, use 0 to {INVISIBLE_MS_MAX} ms",
        )
    receipt = receipt_of(broker, header)
    pop_service = broker.service(PopService)
    is_orderly = receipt.handle.revive_qid == REVIVE_ORDERLY
    revive_qid = pop_service.next_revive_qid(is_orderly=is_orderly)
    pop_ms = pop_service.pop_ms(is_again=True)
    receipt.pop_sub.extend(
        receipt.queue,
        receipt.offset,
        deadline_ms=broker.clock.monotonic_ms() + header.invisible_time,
        tag=tag_of(pop_ms, revive_qid),
    )
    broker.service(PopStatistics).messages[PopEvent.EXTENDED] += 1
    answer = ChangeInvisibleAnswer(
        pop_time=pop_ms, invisible_time=header.invisible_time, revive_qid=revive_qid
    )
    connection.answer(command, ext=fields(answer))


class VoidReceipt(ErrorResponse):
    """The receipt was good once."""

    def __init__(self, offset: int) -> None:
        super().__init__(ResponseCode.NO_MESSAGE, VOID % offset)


class Receipt(NamedTuple):
    """A message that is out, under this receipt."""

    pop_sub: PopSubscription
    queue: Queue
    offset: int
    handle: PopHandle


def receipt_of(broker: RocketmqBroker, header: AckHeader | ChangeInvisibleHeader) -> Receipt:
    """What a request means; raises ``ErrorResponse`` when that is nothing."""
    try:
        handle = parse_handle(header.extra_info)
    except Malformed as problem:
        raise _illegal(str(problem)) from None
    if handle.queue_id != header.queue_id or handle.offset not in (-1, header.offset):
        raise _illegal(
            f"the receipt is of offset {handle.offset} in queue {handle.queue_id}, the request "
            f"of offset {header.offset} in queue {header.queue_id}"
        )
    if handle.broker_name != broker.broker_name:
        raise _illegal(f"the receipt is of broker {handle.broker_name[:80]!r}")
    topic = real_topic(header.topic, header.consumer_group, handle.retry_flag)
    queue = queue_of(broker, topic, header.queue_id)
    check_offset(queue, header.offset)
    pop_sub = broker.service(PopService).find(queue.topic, header.consumer_group)
    if pop_sub is None or not pop_sub.is_alive(queue, header.offset, handle):
        broker.service(PopStatistics).messages[PopEvent.VOID] += 1
        raise VoidReceipt(header.offset)
    return Receipt(pop_sub, queue, header.offset, handle)


def real_topic(topic: str, group: str, flag: int) -> str:
    """The topic a message lies in; clients say it, or the topic it was popped under."""
    if flag == RetryFlag.NORMAL or topic.startswith(RETRY_PREFIX):
        return topic
    return pop_retry_topic(group, topic)


def queue_of(broker: RocketmqBroker, topic: str, number: int) -> Queue:
    """The queue a receipt names; raises ``ErrorResponse``."""
    rmq_topic = broker.topics.require(topic)
    queues = rmq_topic.topic.queues
    if not 0 <= number < len(queues):
        raise _illegal(
            f"queueId[{number}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{rmq_topic.config.read_queue_nums}]"
        )
    return queues[number]


def check_offset(queue: Queue, offset: int) -> None:
    """Raise ``ErrorResponse`` 208 when the queue never had, or no longer has, that offset."""
    lowest, end = queue.index.min_offset, queue.visible_end(False)
    if not lowest <= offset <= end:
        raise ErrorResponse(
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{queue.name}, commit:{offset}, store:{lowest}~{end}",
        )


def _illegal(remark: str) -> ErrorResponse:
    return ErrorResponse(ResponseCode.MESSAGE_ILLEGAL, remark)
