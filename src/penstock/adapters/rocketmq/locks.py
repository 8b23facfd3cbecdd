"""Queue locks for ordered consumption: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42), sheet 2.4.

A queue is granted when it is free, the asker's own, or its holder has been silent for more than
60 s; clients renew every 20 s. The answer names the queues that were granted, others are simply
missing. Queues that this broker does not have are not granted: a client that waits for them would
otherwise hold what nobody serves.

Not here: the table (``engine/group/locks.py``), what it means for send-backs (``send_back.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.requests import Handler
from penstock.wire.rocketmq.bodies import (
    LockBatchAnswer,
    LockBatchBody,
    MessageQueue,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session

_Key = tuple[str, int]


def _lock(session: Session, command: Command) -> None:
    house = session.house
    body = decode_body(command.body, LockBatchBody)
    asked = _ours(house, body)
    granted = house.locks.lock(
        body.consumer_group, list(asked), body.client_id, house.clock.monotonic_ms()
    )
    answer = LockBatchAnswer(locked=[asked[key] for key in granted])
    session.answer(command, body=encode_body(answer))


def _unlock(session: Session, command: Command) -> None:
    house = session.house
    body = decode_body(command.body, LockBatchBody)
    house.locks.unlock(body.consumer_group, list(_ours(house, body)), body.client_id)
    session.answer(command)


def _ours(house: House, body: LockBatchBody) -> dict[_Key, MessageQueue]:
    """The queues that are on this broker."""
    found: dict[_Key, MessageQueue] = {}
    for each in body.mq_set:
        if each.broker_name in ("", house.broker_name):
            found[each.topic, each.queue_id] = each
    return found


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _unlock,
}
