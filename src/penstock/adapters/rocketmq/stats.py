"""Numbers for tools: topics (202), how far groups are (208), who is connected (203, 204).

Lag of a group in a queue is ``brokerOffset - consumerOffset``; a queue the group never committed
has consumer offset 0 there, as in RocketMQ. A topic's rate is that of the last minute, found in the
index; a group's rate is 0: nobody keeps it, ``/metrics`` has the counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.naming import wire_name
from penstock.adapters.rocketmq.offset_book import NO_OFFSET, OffsetBook
from penstock.adapters.rocketmq.queue_tables import table_body
from penstock.adapters.rocketmq.replies import Answer, no_topic, system_error
from penstock.adapters.rocketmq.requests import Handler
from penstock.engine.group.membership import Group
from penstock.engine.topic import Queue, Topic
from penstock.model.ids import ConnectionId
from penstock.wire.rocketmq.bodies import MessageQueue, SubscriptionData, encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import (
    ConsumeStatsHeader,
    GroupHeader,
    ProducerGroupHeader,
    TopicHeader,
    parse,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session


RATE_MS: Final = 60_000
"""Rates are means of the last minute, as RocketMQ's."""


def newest_ms(queue: Queue, offset: int) -> int:
    """When the message before ``offset`` was stored; 0 for none."""
    found = queue.index.entries(offset - 1, 1) if offset > queue.index.min_offset else []
    return found[0][3] if found and found[0][1] < offset else 0


def _topic_stats(session: Session, command: Command) -> None:
    house = session.house
    name = parse(TopicHeader, command).topic
    place = house.topics.find(name)
    if place is None:
        raise no_topic(name)
    rows: dict[MessageQueue, object] = {}
    for queue in place.topic.queues:
        end = queue.visible_end(False)
        rows[_named(house, name, queue)] = {
            "minOffset": queue.index.min_offset,
            "maxOffset": end,
            "lastUpdateTimestamp": newest_ms(queue, end),
        }
    since_ms = house.clock.wall_ms() - RATE_MS
    stored = sum([_stored_since(queue, since_ms) for queue in place.topic.queues])
    rate = stored * 1000 / RATE_MS
    session.answer(command, body=table_body("offsetTable", rows, topicPutTps=rate))


def _stored_since(queue: Queue, since_ms: int) -> int:
    return max(0, queue.visible_end(False) - queue.index.search_time(since_ms))


def _consume_stats(session: Session, command: Command) -> None:
    house = session.house
    header = parse(ConsumeStatsHeader, command)
    topics = [house.topics.require(header.topic).topic] if header.topic else []
    topics = topics or house.part(OffsetBook).topics_of(header.consumer_group)
    rows: dict[MessageQueue, object] = {}
    for topic in topics:
        rows |= _lag_rows(house, topic, header.consumer_group)
    session.answer(command, body=table_body("offsetTable", rows, consumeTps=0.0))


def _lag_rows(house: House, topic: Topic, group: str) -> dict[MessageQueue, object]:
    book = house.part(OffsetBook)
    name = wire_name(topic.name)
    rows: dict[MessageQueue, object] = {}
    for queue in topic.queues:
        stored = book.committed(queue, group)
        offset = 0 if stored == NO_OFFSET else stored
        rows[_named(house, name, queue)] = {
            "brokerOffset": queue.visible_end(False),
            "consumerOffset": offset,
            "pullOffset": offset,
            "lastTimestamp": newest_ms(queue, offset),
        }
    return rows


def _consumer_connections(session: Session, command: Command) -> None:
    house = session.house
    name = parse(GroupHeader, command).consumer_group
    group = house.consumers.group(name)
    if group is None or group.is_empty:
        raise Answer(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    table = {
        topic: SubscriptionData(
            topic=topic,
            sub_string=each.expression,
            expression_type=each.language.upper(),
            sub_version=each.version,
        )
        for topic, each in group.wanted.items()
    }
    body = {
        "connectionSet": _connections(house, group),
        "subscriptionTable": table,
        "consumeType": group.traits.manner,
        "messageModel": "BROADCASTING" if group.traits.is_broadcast else "CLUSTERING",
        "consumeFromWhere": group.traits.start,
    }
    session.answer(command, body=encode_body(body))


def _producer_connections(session: Session, command: Command) -> None:
    house = session.house
    name = parse(ProducerGroupHeader, command).producer_group
    group = house.producers.group(name)
    if group is None or group.is_empty:
        raise system_error(f"the producer group[{name}] not exist")
    session.answer(command, body=encode_body({"connectionSet": _connections(house, group)}))


def _connections(house: House, group: Group) -> list[dict[str, object]]:
    found = []
    for member in group.members.values():
        session = house.sessions.get(ConnectionId(member.connection))
        row: dict[str, object] = {
            "clientId": member.client_id,
            "clientAddr": str(session.peer) if session is not None else "",
            "language": member.client.language,
            "version": member.client.version,
        }
        found.append(row)
    return found


def _named(house: House, topic: str, queue: Queue) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=house.broker_name, queue_id=queue.number)


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.GET_TOPIC_STATS_INFO: _topic_stats,
    RequestCode.GET_CONSUME_STATS: _consume_stats,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _producer_connections,
}
