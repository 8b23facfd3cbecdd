"""Offsets of groups and queues: query (14), update (15), max (30), min (31), time (29), age (32).

A new group on a queue that still has its first message begins at 0; on any other it is told that
nothing is stored (22) and decides by its ``consumeFromWhere`` (sheet 1.7). -1, which ali-ons
commits for queues it never read, is no offset. A queue that does not exist has 0 messages, as in
RocketMQ; the remark says so. Nothing that is not durable counts (D7).

Not here: where offsets are kept (``offset_book.py``), moving them (``reset_offsets.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.group_book import GroupBook
from penstock.adapters.rocketmq.offset_book import NO_OFFSET, OffsetBook
from penstock.adapters.rocketmq.replies import Answer, no_topic
from penstock.adapters.rocketmq.requests import Handler
from penstock.engine.topic import Queue
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import (
    OffsetAnswer,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampAnswer,
    UpdateOffsetHeader,
    fields,
    parse,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session

NO_ZERO: Final = "Not found, do not set to zero, maybe this group boot first"
BOOT_FIRST: Final = "Not found, V3_0_6_SNAPSHOT maybe this group boot first"
RESET_BEFORE: Final = "Offset has been previously reset"
UPPER: Final = "UPPER"
NO_TIME: Final = -1


def find_queue(house: House, topic: str, number: int) -> Queue | None:
    """A queue of a topic, if both exist."""
    place = house.topics.find(topic)
    if place is None or not 0 <= number < len(place.topic.queues):
        return None
    return place.topic.queues[number]


def search_offset(queue: Queue, store_ms: int, *, is_upper: bool = False) -> int:
    """The first offset stored at or after a wall time; ``is_upper``: the last one not after it."""
    low, end = queue.index.min_offset, queue.visible_end(False)
    if is_upper:
        return max(low, min(queue.index.search_time(store_ms + 1), end) - 1)
    return min(queue.index.search_time(store_ms), end)


def oldest_ms(queue: Queue) -> int:
    """When the oldest message that is still there was stored; -1 for none."""
    found = queue.index.entries(queue.index.min_offset, 1)
    if not found or found[0][1] >= queue.visible_end(False):
        return NO_TIME
    return found[0][3]


def _query(session: Session, command: Command) -> None:
    header = parse(QueryOffsetHeader, command)
    house = session.house
    queue = find_queue(house, header.topic, header.queue_id)
    if queue is None:
        raise Answer(ResponseCode.QUERY_NOT_FOUND, BOOT_FIRST)
    offset = house.part(OffsetBook).committed(queue, header.consumer_group)
    if offset == NO_OFFSET:
        if header.set_zero_if_not_found is False:
            raise Answer(ResponseCode.QUERY_NOT_FOUND, NO_ZERO)
        if queue.index.min_offset > 0:
            raise Answer(ResponseCode.QUERY_NOT_FOUND, BOOT_FIRST)
        offset = 0
    session.answer(command, ext=fields(OffsetAnswer(offset=offset)))


def _update(session: Session, command: Command) -> None:
    header = parse(UpdateOffsetHeader, command)
    house = session.house
    group, topic = header.consumer_group, header.topic
    if house.part(GroupBook).find(group) is None:
        raise Answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
    place = house.topics.find(topic)
    if place is None:
        raise no_topic(topic)
    if not 0 <= header.queue_id < len(place.topic.queues):
        raise Answer(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{header.queue_id}] is illegal, topic:[{topic}] has "
            f"{len(place.topic.queues)} queues",
        )
    queue = place.topic.queues[header.queue_id]
    book = house.part(OffsetBook)
    is_stored = book.commit(queue, group, header.commit_offset, session.name)
    is_reset = not is_stored and header.commit_offset >= 0
    session.answer(command, remark=RESET_BEFORE if is_reset else None)


def _max(session: Session, command: Command) -> None:
    header = parse(QueueHeader, command)
    queue = find_queue(session.house, header.topic, header.queue_id)
    _answer(session, command, None if queue is None else queue.visible_end(False))


def _min(session: Session, command: Command) -> None:
    header = parse(QueueHeader, command)
    queue = find_queue(session.house, header.topic, header.queue_id)
    _answer(session, command, None if queue is None else queue.index.min_offset)


def _search(session: Session, command: Command) -> None:
    header = parse(SearchOffsetHeader, command)
    queue = find_queue(session.house, header.topic, header.queue_id)
    if queue is None:
        _answer(session, command, None)
        return
    is_upper = (header.boundary_type or "").upper() == UPPER
    _answer(session, command, search_offset(queue, header.timestamp, is_upper=is_upper))


def _oldest(session: Session, command: Command) -> None:
    header = parse(QueueHeader, command)
    queue = find_queue(session.house, header.topic, header.queue_id)
    timestamp = NO_TIME if queue is None else oldest_ms(queue)
    session.answer(command, ext=fields(TimestampAnswer(timestamp=timestamp)))


def _answer(session: Session, command: Command, offset: int | None) -> None:
    remark = None
    if offset is None:
        remark = f"topic[{command.ext.get('topic', '')}] has no queue {command.ext.get('queueId')}"
    session.answer(command, ext=fields(OffsetAnswer(offset=offset or 0)), remark=remark)


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.QUERY_CONSUMER_OFFSET: _query,
    RequestCode.UPDATE_CONSUMER_OFFSET: _update,
    RequestCode.GET_MAX_OFFSET: _max,
    RequestCode.GET_MIN_OFFSET: _min,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _search,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _oldest,
}
