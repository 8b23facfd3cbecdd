"""Sends that are not simply stored in their queue: to a retry topic, half, or delayed.

Asked by ``send.py`` for what may be one of them; the order is RocketMQ's: a message that its group
gives up goes to the dead letters at once, a half message waits for its producer and for no time.

``queueOffset`` of the answer: a half message's is its position, which the producer brings back in
END_TRANSACTION; a delayed message has none yet and says its position, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.adapters.rocketmq import transactions
from penstock.adapters.rocketmq.busy import refusal_answer
from penstock.adapters.rocketmq.delay import TIMER_NAMES, DelayRefused, plan
from penstock.adapters.rocketmq.naming import RETRY_PREFIX
from penstock.adapters.rocketmq.replies import Answer
from penstock.adapters.rocketmq.send_back import destination
from penstock.adapters.rocketmq.storing import Storing
from penstock.adapters.rocketmq.transactions import Transactions
from penstock.model.record import Record, RecordFlag
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.frames import send_answer
from penstock.wire.rocketmq.properties import DELAY, without_properties
from penstock.wire.rocketmq.stored import RocketmqFacts

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.draft import Draft, Special
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.topics import Place

_FACTS = RocketmqFacts()


def install(house: House) -> Special:
    """Let the sends of this house be asked."""
    house.specials.append(take)
    return take


def take(draft: Draft) -> bool:
    """Store the draft in its special way; False when it is an ordinary one after all."""
    place, number = draft.place, draft.queue_number
    if place.name.startswith(RETRY_PREFIX):
        grave = _grave(draft)
        if grave is not None:
            properties = without_properties(draft.properties, (DELAY, *TIMER_NAMES))
            _store(draft, draft.record(grave.name, 0, properties), grave)
            return True
    if transactions.is_half(place.name, draft.properties):
        _store_half(draft)
        return True
    house = draft.session.house
    try:
        delay = plan(draft.properties, house.clock.wall_ms(), house.settings.timer_ms_max)
    except DelayRefused as problem:
        raise Answer(ResponseCode.MESSAGE_ILLEGAL, str(problem)) from None
    if not delay.deliver_ms:
        return False
    record = draft.record(place.name, number, delay.properties, deliver_ms=delay.deliver_ms)
    record.reshape(flags=record.flags | RecordFlag.DELAYED)
    _store(draft, record, place)
    return True


def _grave(draft: Draft) -> Place | None:
    header = draft.send.header
    return destination(
        draft.session.house,
        draft.place.name.removeprefix(RETRY_PREFIX),
        times=header.reconsume_times,
        times_max=header.max_reconsume_times,
        version=draft.send.version,
    )


def _store_half(draft: Draft) -> None:
    house = draft.session.house
    table = house.part(Transactions)
    table.check_room()
    properties = without_properties(draft.properties, (DELAY, *TIMER_NAMES))
    record = draft.record(
        draft.place.name,
        draft.queue_number,
        transactions.half_properties(properties),
        sys_flag=transactions.committed_flag(draft.send.header.sys_flag),
    )
    transactions.make_half(record)

    def stored(storing: Storing) -> None:
        table.stored(storing.record)
        _answer(draft, storing)

    _put(draft, Storing(record, route=draft.place.routes[draft.queue_number], stored=stored))


def _store(draft: Draft, record: Record, place: Place) -> None:
    number = draft.queue_number if place is draft.place else 0
    _put(
        draft,
        Storing(
            record,
            route=place.routes[number],
            keys=tuple(_FACTS.keys(record)),
            stored=lambda storing: _answer(draft, storing),
        ),
    )


def _put(draft: Draft, storing: Storing) -> None:
    sends = draft.session.sends
    storing.refused = lambda refusal: sends.end(draft.send, *refusal_answer(refusal))
    sends.store([storing])


def _answer(draft: Draft, storing: Storing) -> None:
    session = draft.session
    if draft.send.is_oneway or session.is_closed:
        return
    offset = int(storing.offset)
    session.write(
        send_answer(
            draft.send,
            storing.record.position,
            offset if offset >= 0 else int(storing.record.position),
            host_hex=session.house.store_host_hex,
            queue_id=draft.queue_number if draft.place.queues > draft.queue_number else 0,
            unique_key=draft.unique_key,
        )
    )
