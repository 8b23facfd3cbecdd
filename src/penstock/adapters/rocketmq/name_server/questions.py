"""What clients and operators ask a name server: routes, clusters, topic lists, key-values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.name_server.headers import (
    ClusterHeader,
    DeleteTopicHeader,
    KeyValueHeader,
)
from penstock.adapters.rocketmq.name_server.routes import RouteBook
from penstock.adapters.rocketmq.naming import SYSTEM_TOPICS
from penstock.adapters.rocketmq.replies import Answer, no_route
from penstock.wire.rocketmq.bodies import KeyValueTable, TopicList, encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import TopicHeader, parse

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.name_server.session import NameHandler, NameSession


def route(session: NameSession, command: Command) -> None:
    """GET_ROUTEINFO_BY_TOPIC."""
    topic = parse(TopicHeader, command).topic
    found = session.house.part(RouteBook).route(topic, session.peer.local_host)
    if found is None:
        raise no_route(topic)
    session.answer(command, body=encode_body(found))


def cluster(session: NameSession, command: Command) -> None:
    """GET_BROKER_CLUSTER_INFO."""
    found = session.house.part(RouteBook).cluster(session.peer.local_host)
    session.answer(command, body=encode_body(found))


def topics(session: NameSession, command: Command) -> None:
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    found = session.house.part(RouteBook).topics()
    session.answer(command, body=encode_body(TopicList(topic_list=found)))


def topics_by_cluster(session: NameSession, command: Command) -> None:
    """GET_TOPICS_BY_CLUSTER."""
    found = session.house.part(RouteBook).topics(parse(ClusterHeader, command).cluster)
    session.answer(command, body=encode_body(TopicList(topic_list=found)))


def system_topics(session: NameSession, command: Command) -> None:
    """GET_SYSTEM_TOPIC_LIST_FROM_NS: clusters, brokers and the topics nobody sends to."""
    found = session.house.part(RouteBook).cluster(session.peer.local_host)
    brokers = list(found.broker_addr_table.values())
    names = [*found.cluster_addr_table, *found.broker_addr_table, *sorted(SYSTEM_TOPICS)]
    address = next(iter(brokers[0].broker_addrs.values()), None) if brokers else None
    session.answer(command, body=encode_body(TopicList(topic_list=names, broker_addr=address)))


def delete_topic(session: NameSession, command: Command) -> None:
    """DELETE_TOPIC_IN_NAMESRV: the route only; each broker deletes its own messages (215)."""
    header = parse(DeleteTopicHeader, command)
    session.house.part(RouteBook).forget_topic(header.topic, header.cluster_name)
    session.answer(command)


def put_value(session: NameSession, command: Command) -> None:
    """PUT_KV_CONFIG."""
    header = parse(KeyValueHeader, command)
    session.house.key_values.put(header.namespace, header.key, header.value)
    session.house.engine.after_durable(lambda: session.answer(command))


def get_value(session: NameSession, command: Command) -> None:
    """GET_KV_CONFIG."""
    header = parse(KeyValueHeader, command)
    value = session.house.key_values.get(header.namespace, header.key)
    if value is None:
        remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
        raise Answer(ResponseCode.QUERY_NOT_FOUND, remark)
    session.answer(command, ext={"value": value})


def delete_value(session: NameSession, command: Command) -> None:
    """DELETE_KV_CONFIG."""
    header = parse(KeyValueHeader, command)
    session.house.key_values.delete(header.namespace, header.key)
    session.house.engine.after_durable(lambda: session.answer(command))


def list_values(session: NameSession, command: Command) -> None:
    """GET_KVLIST_BY_NAMESPACE."""
    header = parse(KeyValueHeader, command)
    table = session.house.key_values.table(header.namespace)
    if not table:
        remark = f"No config item, Namespace: {header.namespace}"
        raise Answer(ResponseCode.QUERY_NOT_FOUND, remark)
    session.answer(command, body=encode_body(KeyValueTable(table=table)))


HANDLERS: Final[dict[int, NameHandler]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: route,
    RequestCode.GET_BROKER_CLUSTER_INFO: cluster,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: topics_by_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: system_topics,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.PUT_KV_CONFIG: put_value,
    RequestCode.GET_KV_CONFIG: get_value,
    RequestCode.DELETE_KV_CONFIG: delete_value,
    RequestCode.GET_KVLIST_BY_NAMESPACE: list_values,
}
