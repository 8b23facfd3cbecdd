"""Offsets: query (14), update (15), max (30), min (31), by time (29), age (32), reset (222).

A new group on a queue that still has its first message begins at 0; on any other it is told that
nothing is stored (22) and decides by its ``consumeFromWhere`` (sheet 1.7). -1, which ali-ons
commits for queues it never read, is no offset. A queue that does not exist has 0 messages, as in
RocketMQ; the remark says so. Nothing that is not durable counts (D7).

Not here: where offsets are kept (``group_registry.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.group_registry import NO_OFFSET, GroupRegistry, OffsetRegistry
from penstock.adapters.rocketmq.groups import GroupChangeNotifier
from penstock.adapters.rocketmq.requests import ErrorResponse, no_topic
from penstock.engine.topic import Queue
from penstock.wire.rocketmq.bodies import MessageQueue, encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command
from penstock.wire.rocketmq.headers import (
    OffsetAnswer,
    QueryOffsetHeader,
    QueueHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    TimestampAnswer,
    UpdateOffsetHeader,
    fields,
    parse,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker
    from penstock.adapters.rocketmq.connection import RocketmqConnection

NO_ZERO: Final = "Not found, do not set to zero, maybe this group boot first"
BOOT_FIRST: Final = "Not found, V3_0_6_SNAPSHOT maybe this group boot first"
RESET_BEFORE: Final = "Offset has been previously reset"
UPPER: Final = "UPPER"
NO_TIME: Final = -1
OFFSET_TABLE: Final = "offsetTable"
CPP: Final = "CPP"


def find_queue(broker: RocketmqBroker, topic: str, number: int) -> Queue | None:
    """A queue of a topic, if both exist."""
    rmq_topic = broker.topics.find(topic)
    if rmq_topic is None or not 0 <= number < len(rmq_topic.topic.queues):
        return None
    return rmq_topic.topic.queues[number]


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


def query_offset(connection: RocketmqConnection, command: Command) -> None:
    header = parse(QueryOffsetHeader, command)
    broker = connection.broker
    queue = find_queue(broker, header.topic, header.queue_id)
    if queue is None:
        raise ErrorResponse(ResponseCode.QUERY_NOT_FOUND, BOOT_FIRST)
    offset = broker.service(OffsetRegistry).committed(queue, header.consumer_group)
    if offset == NO_OFFSET:
        if header.set_zero_if_not_found is False:
            raise ErrorResponse(ResponseCode.QUERY_NOT_FOUND, NO_ZERO)
        if queue.index.min_offset > 0:
            raise ErrorResponse(ResponseCode.QUERY_NOT_FOUND, BOOT_FIRST)
        offset = 0
    connection.answer(command, ext=fields(OffsetAnswer(offset=offset)))


def update_offset(connection: RocketmqConnection, command: Command) -> None:
    header = parse(UpdateOffsetHeader, command)
    broker = connection.broker
    group, topic = header.consumer_group, header.topic
    # Not made here: a group begins with a heartbeat, a pull or an operator. Names cost nothing, and
    # one client could fill the table for everybody.
    if broker.service(GroupRegistry).get(group) is None:
        raise ErrorResponse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
    rmq_topic = broker.topics.find(topic)
    if rmq_topic is None:
        raise no_topic(topic)
    if not 0 <= header.queue_id < len(rmq_topic.topic.queues):
        raise ErrorResponse(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{header.queue_id}] is illegal, topic:[{topic}] has "
            f"{len(rmq_topic.topic.queues)} queues",
        )
    queue = rmq_topic.topic.queues[header.queue_id]
    registry = broker.service(OffsetRegistry)
    is_stored = registry.commit(queue, group, header.commit_offset, connection.name)
    is_reset = not is_stored and header.commit_offset >= 0
    connection.answer(command, remark=RESET_BEFORE if is_reset else None)


def get_max_offset(connection: RocketmqConnection, command: Command) -> None:
    header = parse(QueueHeader, command)
    queue = find_queue(connection.broker, header.topic, header.queue_id)
    _answer(connection, command, None if queue is None else queue.visible_end(False))


def get_min_offset(connection: RocketmqConnection, command: Command) -> None:
    header = parse(QueueHeader, command)
    queue = find_queue(connection.broker, header.topic, header.queue_id)
    _answer(connection, command, None if queue is None else queue.index.min_offset)


def search_offset_by_time(connection: RocketmqConnection, command: Command) -> None:
    header = parse(SearchOffsetHeader, command)
    queue = find_queue(connection.broker, header.topic, header.queue_id)
    if queue is None:
        _answer(connection, command, None)
        return
    is_upper = (header.boundary_type or "").upper() == UPPER
    _answer(connection, command, search_offset(queue, header.timestamp, is_upper=is_upper))


def earliest_store_time(connection: RocketmqConnection, command: Command) -> None:
    header = parse(QueueHeader, command)
    queue = find_queue(connection.broker, header.topic, header.queue_id)
    timestamp = NO_TIME if queue is None else oldest_ms(queue)
    connection.answer(command, ext=fields(TimestampAnswer(timestamp=timestamp)))


def _answer(connection: RocketmqConnection, command: Command, offset: int | None) -> None:
    remark = None
    if offset is None:
        remark = f"topic[{command.ext.get('topic', '')}] has no queue {command.ext.get('queueId')}"
    connection.answer(command, ext=fields(OffsetAnswer(offset=offset or 0)), remark=remark)


def reset_offset(connection: RocketmqConnection, command: Command) -> None:
    """INVOKE_BROKER_TO_RESET_OFFSET: move a group's offsets on purpose.

    The 5.x way (default): the broker stores the new offsets, ignores older commits, and every
    reader is told by its next pull (21, OFFSET_RESET). The 4.x way: the broker works the offsets
    out and sends them to all members (220), which drop their queues and go on there; nobody online
    is 206.

    By time the group goes to the first message stored then or later, -1 is the end; without force
    it only goes back. With a queue and an offset exactly that queue moves.
    """
    broker = connection.broker
    header = parse(ResetOffsetHeader, command)
    moves = _planned(broker, header)
    if not broker.settings.is_resetting_here:
        _tell_members(broker, header, moves)
    else:
        registry = broker.service(OffsetRegistry)
        for queue, offset in moves.items():
            moves[queue] = registry.reset(queue, header.group, offset)
    body = table_body(OFFSET_TABLE, _named(broker, header.topic, moves))
    broker.engine.after_durable(lambda: connection.answer(command, body=body))


def _planned(broker: RocketmqBroker, header: ResetOffsetHeader) -> dict[Queue, int]:
    """Where each queue of the group is to go; raises ``ErrorResponse``."""
    if broker.service(GroupRegistry).get(header.group) is None:
        raise ErrorResponse(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"Group {header.group} does not exist",
        )
    queues = broker.topics.require(header.topic).topic.queues
    if header.queue_id >= 0:
        if header.queue_id >= len(queues):
            raise ErrorResponse(
                broker.settings.invalid_parameter_code,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has "
                f"{len(queues)} queues",
            )
        queues = (queues[header.queue_id],)
    if header.offset is not None and header.offset >= 0 and header.queue_id >= 0:
        queue, offset = queues[0], header.offset
        low, end = queue.index.min_offset, queue.visible_end(False)
        if not low <= offset <= end:
            raise ErrorResponse(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {offset} not in consume queue range [{low}-{end}]",
            )
        return {queue: offset}
    return {queue: _by_time(broker, queue, header) for queue in queues}


def _by_time(broker: RocketmqBroker, queue: Queue, header: ResetOffsetHeader) -> int:
    end = queue.visible_end(False)
    wanted = end if header.timestamp < 0 else search_offset(queue, header.timestamp)
    stored = broker.service(OffsetRegistry).committed(queue, header.group)
    if header.is_force or stored == NO_OFFSET or wanted < stored:
        return wanted
    return stored


def _tell_members(
    broker: RocketmqBroker, header: ResetOffsetHeader, moves: dict[Queue, int]
) -> None:
    """Every member gets all of it; each knows which queues are its own."""
    connections = broker.service(GroupChangeNotifier).connections_of(header.group)
    group = broker.consumers.group(header.group)
    if not connections or group is None:
        raise ErrorResponse(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} "
            f"Topic: {header.topic} Timestamp: {header.timestamp}",
        )
    rows = _named(broker, header.topic, moves)
    ext = fields(header)
    for connection in connections:
        member = group.members[int(connection.connection_id)]
        is_cpp = member.client.language == CPP
        body = queue_list(rows) if is_cpp else table_body(OFFSET_TABLE, rows)
        code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        connection.push(Command(code, ext, body, flag=FLAG_ONEWAY))


def _named(broker: RocketmqBroker, topic: str, moves: dict[Queue, int]) -> dict[MessageQueue, int]:
    name = broker.broker_name
    return {
        MessageQueue(topic=topic, broker_name=name, queue_id=queue.number): offset
        for queue, offset in moves.items()
    }


# ---- JSON maps whose keys are queues ------------------------------------------------------------
# Java's fastjson writes an object as a key, ``{{"queueId":0,...}:5}``: no standard JSON, but what
# its readers expect (``bodies.decode_body`` reads it, too). C++ clients take a list instead (sheet
# 1.9).


def queue_table(rows: Mapping[MessageQueue, object]) -> bytes:
    """A map by queue, with objects as keys."""
    pairs = [encode_body(queue) + b":" + encode_body(row) for queue, row in rows.items()]
    return b"{" + b",".join(pairs) + b"}"


def table_body(name: str, rows: Mapping[MessageQueue, object], **others: object) -> bytes:
    """A body with such a map under a name, and plain values beside it."""
    fields = [encode_body(name) + b":" + queue_table(rows)]
    fields += [encode_body(each) + b":" + encode_body(value) for each, value in others.items()]
    return b"{" + b",".join(fields) + b"}"


def queue_list(rows: Mapping[MessageQueue, int]) -> bytes:
    """The same as a list of queues with their offset among their fields."""
    listed = [
        {
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "topic": queue.topic,
            "offset": offset,
        }
        for queue, offset in rows.items()
    ]
    return encode_body({"offsetTable": listed})
