"""CHANGE_MESSAGE_INVISIBLETIME: more time, or less, for one popped message (sheet 2.7).

The answer carries the parts of a new receipt; the old one is void from then on, or an
acknowledgement meant for the past could end the new delivery. No time at all (0) brings the message
back at once, which is how clients say "not now".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.pop_checks import INVISIBLE_MS_MAX
from penstock.adapters.rocketmq.pop_counts import PopCounts, PopEvent
from penstock.adapters.rocketmq.pop_reader import tag_of
from penstock.adapters.rocketmq.pop_receipt import receipt_of
from penstock.adapters.rocketmq.pops import Pops
from penstock.adapters.rocketmq.replies import Answer
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.headers import (
    ChangeInvisibleAnswer,
    ChangeInvisibleHeader,
    fields,
    parse,
)
from penstock.wire.rocketmq.pop_handle import REVIVE_ORDERLY

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.session import Session
    from penstock.wire.rocketmq.command import Command


def change_invisible(session: Session, command: Command) -> None:
    """CHANGE_MESSAGE_INVISIBLETIME."""
    house = session.house
    header = parse(ChangeInvisibleHeader, command)
    if not 0 <= header.invisible_time <= INVISIBLE_MS_MAX:
        raise Answer(
            house.settings.invalid_parameter_code,
            f"invisibleTime[{header.invisible_time}] is illegal, use 0 to {INVISIBLE_MS_MAX} ms",
        )
    receipt = receipt_of(house, header)
    pops = house.part(Pops)
    is_orderly = receipt.handle.revive_qid == REVIVE_ORDERLY
    revive_qid = pops.next_revive_qid(is_orderly=is_orderly)
    pop_ms = pops.pop_ms(is_again=True)
    receipt.reader.extend(
        receipt.queue,
        receipt.offset,
        deadline_ms=house.clock.monotonic_ms() + header.invisible_time,
        tag=tag_of(pop_ms, revive_qid),
    )
    house.part(PopCounts).messages[PopEvent.EXTENDED] += 1
    answer = ChangeInvisibleAnswer(
        pop_time=pop_ms, invisible_time=header.invisible_time, revive_qid=revive_qid
    )
    session.answer(command, ext=fields(answer))


HANDLERS: Final[dict[int, Handler]] = {RequestCode.CHANGE_MESSAGE_INVISIBLETIME: change_invisible}
