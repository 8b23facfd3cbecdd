"""Requests about topics to the broker: make, change, delete, list (sheet 1.7).

Not here: the same questions to the name server (``name_server/``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.mode import Modes
from penstock.adapters.rocketmq.naming import SYSTEM_TOPICS
from penstock.adapters.rocketmq.pops import forget_retries
from penstock.adapters.rocketmq.replies import Answer
from penstock.adapters.rocketmq.topics import QUEUES_MAX
from penstock.wire.rocketmq.bodies import TopicConfig, TopicConfigTable, encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import CreateTopicHeader, TopicHeader, parse

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.session import Session

PERM_MAX: Final = 15
ATTRIBUTES_MAX: Final = 64
GET_ALL_TOPIC_CONFIG: Final = 21


def put_topic(session: Session, command: Command) -> None:
    """UPDATE_AND_CREATE_TOPIC; answered once it is durable."""
    header = parse(CreateTopicHeader, command)
    house = session.house
    _check(house, header)
    known = house.topics.find(header.topic)
    attributes = dict(known.config.attributes) if known is not None else {}
    config = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag,
        order=header.order,
        attributes=_changed(house, attributes, header.attributes or ""),
    )
    house.topics.put(config)
    house.engine.after_durable(lambda: session.answer(command))


def delete_topic(session: Session, command: Command) -> None:
    """DELETE_TOPIC_IN_BROKER; answered once it is durable, also when there was none."""
    header = parse(TopicHeader, command)
    house = session.house
    if not header.topic.strip():
        raise _invalid(house, "The specified topic is blank.")
    _check_system(house, header.topic)
    forget_retries(house, header.topic)
    house.topics.delete(header.topic)
    house.part(Modes).forget_topic(header.topic)
    house.engine.after_durable(lambda: session.answer(command))


def all_topics(session: Session, command: Command) -> None:
    """GET_ALL_TOPIC_CONFIG."""
    topics = session.house.topics
    table = TopicConfigTable(topic_config_table=topics.configs(), data_version=topics.version)
    session.answer(command, body=encode_body(table))


def one_topic(session: Session, command: Command) -> None:
    """GET_TOPIC_CONFIG: RocketMQ's tools ask for it before they show a group's lag."""
    topic = parse(TopicHeader, command).topic
    config = session.house.topics.config(topic)
    if config is None:
        raise Answer(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
    session.answer(command, body=encode_body(config))


def _check(house: House, header: CreateTopicHeader) -> None:
    house.topics.check_name(header.topic)
    _check_system(house, header.topic)
    for name, count in (
        ("readQueueNums", header.read_queue_nums),
        ("writeQueueNums", header.write_queue_nums),
    ):
        if not 0 < count <= QUEUES_MAX:
            raise _invalid(house, f"{name} is {count}; use 1 to {QUEUES_MAX}")
    if not 0 <= header.perm <= PERM_MAX:
        raise _invalid(house, f"perm is {header.perm}; use 2 (write), 4 (read) or 6 (both)")


def _check_system(house: House, topic: str) -> None:
    if topic in SYSTEM_TOPICS:
        raise _invalid(house, f"The topic[{topic}] is conflict with system topic.")


def _changed(house: House, attributes: dict[str, str], text: str) -> dict[str, str]:
    """Attributes after ``+name=value,-name`` was applied to them."""
    for change in filter(None, text.split(",")):
        name, equals, value = change[1:].partition("=")
        if change[0] == "+" and name and equals:
            attributes[name] = value
        elif change[0] == "-" and name and not equals:
            attributes.pop(name, None)
        else:
            raise _invalid(house, f"attribute {change[:80]!r}; write +name=value or -name")
    if len(attributes) > ATTRIBUTES_MAX:
        raise _invalid(house, f"a topic has at most {ATTRIBUTES_MAX} attributes")
    return attributes


def _invalid(house: House, remark: str) -> Answer:
    return Answer(house.settings.invalid_parameter_code, remark)


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: put_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    GET_ALL_TOPIC_CONFIG: all_topics,
    RequestCode.GET_TOPIC_CONFIG: one_topic,
}
