"""ACK_MESSAGE and BATCH_ACK_MESSAGE: popped messages are done (sheet 1.8).

An acknowledgement counts only under the receipt that is alive. It is answered at once: what a crash
takes back is delivered again, never lost (P2). A batch acknowledges what it can; receipts that are
void or make no sense are left out, for the others must not suffer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.pop_counts import PopCounts, PopEvent
from penstock.adapters.rocketmq.pop_receipt import (
    VoidReceipt,
    check_offset,
    queue_of,
    real_topic,
    receipt_of,
)
from penstock.adapters.rocketmq.pops import Pops
from penstock.adapters.rocketmq.replies import Answer
from penstock.wire.rocketmq.bodies import BatchAck, BatchAckBody, decode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.headers import AckHeader, parse
from penstock.wire.rocketmq.pop_handle import PopHandle

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.session import Session
    from penstock.wire.rocketmq.command import Command

_log = logging.getLogger(__name__)


def ack(session: Session, command: Command) -> None:
    """ACK_MESSAGE."""
    house = session.house
    try:
        receipt = receipt_of(house, parse(AckHeader, command))
    except VoidReceipt as void:
        session.answer(command, remark=void.remark)
        return
    receipt.reader.settle(receipt.queue, [receipt.offset])
    house.part(PopCounts).messages[PopEvent.ACKNOWLEDGED] += 1
    session.answer(command)


def batch_ack(session: Session, command: Command) -> None:
    """BATCH_ACK_MESSAGE."""
    body = decode_body(command.body, BatchAckBody)
    if body.broker_name and body.broker_name != session.house.broker_name:
        raise Answer(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the receipts are of broker {body.broker_name[:80]!r}, this is "
            f"{session.house.broker_name!r}",
        )
    for each in body.acks:
        try:
            settle(session.house, each)
        except Answer as problem:
            _log.info(
                "acknowledgements of a batch were left out",
                extra={"session": session.name, "problem": problem.remark},
            )
    session.answer(command)


def settle(house: House, batch: BatchAck) -> int:
    """Acknowledge what one pop gave of one queue; how many counted."""
    flag = int(batch.retry) if batch.retry.isdecimal() else 0
    queue = queue_of(house, real_topic(batch.topic, batch.consumer_group, flag), batch.queue_id)
    offsets = batch.offsets()
    for offset in offsets[:1] + offsets[-1:]:
        check_offset(queue, offset)
    reader = house.part(Pops).known(queue.topic, batch.consumer_group)
    if reader is None:
        return 0
    handle = PopHandle(
        batch.start_offset, batch.pop_time, batch.invisible_time, batch.revive_queue_id,
        flag, house.broker_name, batch.queue_id, -1,
    )  # fmt: skip
    alive = [offset for offset in offsets if reader.is_alive(queue, offset, handle)]
    counts = house.part(PopCounts).messages
    counts[PopEvent.ACKNOWLEDGED] += len(alive)
    counts[PopEvent.VOID] += len(offsets) - len(alive)
    return reader.settle(queue, alive) if alive else 0


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.ACK_MESSAGE: ack,
    RequestCode.BATCH_ACK_MESSAGE: batch_ack,
}
