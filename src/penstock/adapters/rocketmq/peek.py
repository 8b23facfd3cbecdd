"""PEEK_MESSAGE: what a group would pop next, without taking it (sheet 1.8).

The answer looks like that of a pop, but there are no receipts in it, and nothing is in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.pop import BYTES_MAX, RETRY_FIRST_PERCENT
from penstock.adapters.rocketmq.pop_checks import MESSAGES_MAX, readable
from penstock.adapters.rocketmq.pops import Pops
from penstock.adapters.rocketmq.replies import Answer, system_error
from penstock.adapters.rocketmq.shown import shown
from penstock.engine.pull import Pull, PullStatus
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.headers import PeekHeader, PopAnswer, fields, parse

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.pop_reader import PopReader
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.session import Session
    from penstock.engine.topic import Queue
    from penstock.wire.rocketmq.command import Command


def peek(session: Session, command: Command) -> None:
    """PEEK_MESSAGE."""
    house = session.house
    header = parse(PeekHeader, command)
    if not 0 < header.max_msg_nums <= MESSAGES_MAX:
        raise system_error(f"peek 1 to {MESSAGES_MAX} messages, not {header.max_msg_nums}")
    place = readable(house, header)
    sources: list[tuple[PopReader, Queue]] = [(place.reader, queue) for queue in place.queues]
    first = house.random.randrange(len(sources))
    sources = sources[first:] + sources[:first]
    retry = house.part(Pops).retry_reader(header.topic, header.consumer_group)
    if retry is not None:
        retries = [(retry, queue) for queue in retry.topic.queues]
        is_first = house.random.randrange(100) < RETRY_FIRST_PERCENT
        sources = retries + sources if is_first else sources + retries
    messages: list[bytes] = []
    rest = 0
    for reader, queue in sources:
        rest += reader.waiting(queue)
        messages += _look(session, reader, queue, header.max_msg_nums - len(messages))
    if not messages:
        raise Answer(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
    answer = PopAnswer(
        pop_time=house.clock.wall_ms(), invisible_time=0, rest_num=max(0, rest - len(messages))
    )
    session.answer(command, ext=fields(answer), body=b"".join(messages), remark="FOUND")


def _look(session: Session, reader: PopReader, queue: Queue, messages_max: int) -> list[bytes]:
    if messages_max <= 0:
        return []
    offset = reader.next_offset(queue)
    pull = Pull(session, queue, offset, messages_max=messages_max, bytes_max=BYTES_MAX)
    found = session.house.engine.pulls.read(pull)
    if found.status in (PullStatus.OFFSET_TOO_SMALL, PullStatus.OFFSET_TOO_LARGE):
        pull.offset = found.next_offset
        found = session.house.engine.pulls.read(pull)
    return [
        data
        for record, entry in zip(found.records, found.entries, strict=True)
        for data in shown(session.house, queue, record, entry)
    ]


HANDLERS: Final[dict[int, Handler]] = {RequestCode.PEEK_MESSAGE: peek}
