"""Moving a group's offsets on purpose: INVOKE_BROKER_TO_RESET_OFFSET (222).

The 5.x way (default): the broker stores the new offsets, ignores older commits, and every reader is
told by its next pull (21, OFFSET_RESET). The 4.x way: the broker works the offsets out and sends
them to all members (220), which drop their queues and go on there; nobody online is 206.

By time the group goes to the first message stored then or later, -1 is the end; without force it
only goes back. With a queue and an offset exactly that queue moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.group_book import GroupBook
from penstock.adapters.rocketmq.notices import Notices
from penstock.adapters.rocketmq.offset_book import NO_OFFSET, OffsetBook
from penstock.adapters.rocketmq.offsets import search_offset
from penstock.adapters.rocketmq.queue_tables import queue_list, table_body
from penstock.adapters.rocketmq.replies import Answer
from penstock.adapters.rocketmq.requests import Handler
from penstock.engine.topic import Queue
from penstock.wire.rocketmq.bodies import MessageQueue
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command
from penstock.wire.rocketmq.headers import ResetOffsetHeader, fields, parse

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session

TABLE: Final = "offsetTable"
CPP: Final = "CPP"


def planned(house: House, header: ResetOffsetHeader) -> dict[Queue, int]:
    """Where each queue of the group is to go; raises ``Answer``."""
    if house.part(GroupBook).get(header.group) is None:
        raise Answer(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"Group {header.group} does not exist",
        )
    queues = house.topics.require(header.topic).topic.queues
    if header.queue_id >= 0:
        if header.queue_id >= len(queues):
            raise Answer(
                house.settings.invalid_parameter_code,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has "
                f"{len(queues)} queues",
            )
        queues = (queues[header.queue_id],)
    if header.offset is not None and header.offset >= 0 and header.queue_id >= 0:
        queue, offset = queues[0], header.offset
        low, end = queue.index.min_offset, queue.visible_end(False)
        if not low <= offset <= end:
            raise Answer(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {offset} not in consume queue range [{low}-{end}]",
            )
        return {queue: offset}
    return {queue: _by_time(house, queue, header) for queue in queues}


def _by_time(house: House, queue: Queue, header: ResetOffsetHeader) -> int:
    end = queue.visible_end(False)
    wanted = end if header.timestamp < 0 else search_offset(queue, header.timestamp)
    stored = house.part(OffsetBook).committed(queue, header.group)
    if header.is_force or stored == NO_OFFSET or wanted < stored:
        return wanted
    return stored


def _reset(session: Session, command: Command) -> None:
    house = session.house
    header = parse(ResetOffsetHeader, command)
    moves = planned(house, header)
    if not house.settings.is_resetting_here:
        _tell_members(house, header, moves)
    else:
        book = house.part(OffsetBook)
        for queue, offset in moves.items():
            moves[queue] = book.reset(queue, header.group, offset)
    body = table_body(TABLE, _named(house, header.topic, moves))
    house.engine.after_durable(lambda: session.answer(command, body=body))


def _tell_members(house: House, header: ResetOffsetHeader, moves: dict[Queue, int]) -> None:
    """Every member gets all of it; each knows which queues are its own."""
    sessions = house.part(Notices).sessions_of(header.group)
    group = house.consumers.group(header.group)
    if not sessions or group is None:
        raise Answer(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} "
            f"Topic: {header.topic} Timestamp: {header.timestamp}",
        )
    rows = _named(house, header.topic, moves)
    ext = fields(header)
    for session in sessions:
        member = group.members[int(session.connection_id)]
        is_cpp = member.client.language == CPP
        body = queue_list(rows) if is_cpp else table_body(TABLE, rows)
        code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        session.push(Command(code, ext, body, flag=FLAG_ONEWAY))


def _named(house: House, topic: str, moves: dict[Queue, int]) -> dict[MessageQueue, int]:
    name = house.broker_name
    return {
        MessageQueue(topic=topic, broker_name=name, queue_id=queue.number): offset
        for queue, offset in moves.items()
    }


HANDLERS: Final[dict[int, Handler]] = {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _reset}
