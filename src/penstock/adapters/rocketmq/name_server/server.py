"""The name server: its connections, its requests, and what our broker says to one that it joined.

Nothing waits here: a request is answered at once, or when it is durable. A registration of a
RocketMQ broker carries every topic, or only those that were just changed, and does not say which:
so topics are added and changed by it, never taken away. Ours says that it is complete, and a topic
that was deleted leaves the route with it (D20). The body is JSON or packed.

Invariant: what cannot be answered in RocketMQ's words closes the connection and nothing else.
Not here: the routes themselves (``routes.py``), the socket of a broker that joins
(``server/join.py``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.broker import RocketmqBroker
from penstock.adapters.rocketmq.name_server.routes import ORDER_NAMESPACE, KvConfig, RouteRegistry
from penstock.adapters.rocketmq.naming import SYSTEM_TOPICS
from penstock.adapters.rocketmq.remoting import RemotingConnection
from penstock.adapters.rocketmq.requests import (
    ErrorResponse,
    no_change,
    no_route,
    system_error,
    unknown_code,
)
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.ids import ConnectionId
from penstock.wire.rocketmq.bodies import (
    MASTER,
    DataVersion,
    KeyValueTable,
    RegisterBrokerBody,
    TopicConfigTable,
    TopicList,
    decode_body,
    encode_body,
    unpack_registration,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.frames import HEADER_BYTES_MAX
from penstock.wire.rocketmq.headers import I64, Header, TopicHeader, parse

if TYPE_CHECKING:
    from penstock.engine.broker import Engine

NAME_SERVER: Final = "rocketmq"

BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Some 40,000 topics of one broker."""

REQUEST_BYTES_MAX: Final = 1024 * 1024
"""A frame of anything but a registration: questions, and values of the key-value table."""

_DEFLATED: Final = b"\x78"
"""How deflated bytes begin and JSON never does: brokers of 5.3 compress and say they did not."""

NameServerHandler = Callable[["NameServerConnection", Command], None]


class NameServerConnection(RemotingConnection):
    """One client, or one broker that registers; satisfies ``adapters.contract.Adapter``."""

    def __init__(
        self,
        peer: Peer,
        broker: RocketmqBroker,
        handlers: Mapping[int, NameServerHandler],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(
            peer,
            broker.clock,
            wake,
            name=f"name server connection of {peer}",
            settings=broker.settings,
            contents=broker.engine.contents,
            first_requests=broker.first_requests,
            client_log=broker.client_log,
            frame_bytes_max=4 + HEADER_BYTES_MAX + BODY_BYTES_MAX,
        )
        self.broker: Final = broker
        self.on_close: Callable[[], None] = lambda: None
        self._handlers = handlers
        self._is_size_checked = False
        """The frame that is arriving is large, and may be."""

    def receive(self, data: bytes) -> None:
        if self.wants_close:
            return
        self._feed(data)
        is_served = False
        try:
            while commands := self._frames.commands():
                is_served = True
                for command in commands:
                    if not command.is_response:
                        self._serve(command)
            if is_served or not self._is_size_checked:
                begun = self._frames.begun(REQUEST_BYTES_MAX + 1)
                self._is_size_checked = begun is not None
                if begun is not None:
                    _check_size(begun, self._frames.announced_bytes)
        except Malformed as problem:
            self._give_up(problem)
        else:
            self._keep_rest(is_new=is_served)

    def _serve(self, command: Command) -> None:
        _check_size(command, len(command.body))
        if not self.is_established:
            self._is_known()
        handler = self._handlers.get(command.code)
        try:
            if handler is None:
                raise unknown_code(command.code)
            handler(self, command)
        except ErrorResponse as answer:
            self.answer(command, answer.code, remark=answer.remark)
        except (Malformed, PenstockError) as problem:
            self.answer(command, ResponseCode.SYSTEM_ERROR, remark=str(problem))

    def closed(self, reason: str) -> None:
        """A broker that registered over it leaves the routes."""
        if not self.is_closed:
            self.is_closed = True
            self._close_contents()
            self.on_close()


def _check_size(command: Command, size_bytes: int) -> None:
    """Raise ``Malformed`` for a frame, arriving or whole, that only a registration may have."""
    if size_bytes > REQUEST_BYTES_MAX and command.code != RequestCode.REGISTER_BROKER:
        raise Malformed(
            f"request {command.code} of {size_bytes} bytes, limit {REQUEST_BYTES_MAX}; "
            f"only a registration may have {BODY_BYTES_MAX}",
            opaque=command.opaque,
        )


class NameServerFactory:
    """Makes name server connections; satisfies ``adapters.contract.AdapterFactory``."""

    protocol = NAME_SERVER

    def __init__(self, broker: Callable[[], RocketmqBroker]) -> None:
        self._broker = broker

    def make(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        engine: Engine,
        clock: Clock,
        wake: Callable[[], None],
    ) -> NameServerConnection:
        del connection_id, engine, clock
        return NameServerConnection(peer, self._broker(), HANDLERS, wake)


# ---- routes, clusters, topic lists, key-values --------------------------------------------------


def route(connection: NameServerConnection, command: Command) -> None:
    topic = parse(TopicHeader, command).topic
    found = connection.broker.service(RouteRegistry).route(topic, connection.peer.local_host)
    if found is None:
        raise no_route(topic)
    connection.answer(command, body=encode_body(found))


def cluster(connection: NameServerConnection, command: Command) -> None:
    found = connection.broker.service(RouteRegistry).cluster(connection.peer.local_host)
    connection.answer(command, body=encode_body(found))


def topics(connection: NameServerConnection, command: Command) -> None:
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    found = connection.broker.service(RouteRegistry).topics()
    connection.answer(command, body=encode_body(TopicList(topic_list=found)))


def topics_by_cluster(connection: NameServerConnection, command: Command) -> None:
    found = connection.broker.service(RouteRegistry).topics(parse(ClusterHeader, command).cluster)
    connection.answer(command, body=encode_body(TopicList(topic_list=found)))


def system_topics(connection: NameServerConnection, command: Command) -> None:
    """GET_SYSTEM_TOPIC_LIST_FROM_NS: clusters, brokers and the topics nobody sends to."""
    found = connection.broker.service(RouteRegistry).cluster(connection.peer.local_host)
    brokers = list(found.broker_addr_table.values())
    names = [*found.cluster_addr_table, *found.broker_addr_table, *sorted(SYSTEM_TOPICS)]
    address = next(iter(brokers[0].broker_addrs.values()), None) if brokers else None
    connection.answer(command, body=encode_body(TopicList(topic_list=names, broker_addr=address)))


def delete_topic(connection: NameServerConnection, command: Command) -> None:
    """DELETE_TOPIC_IN_NAMESRV: the route only; each broker deletes its own messages (215)."""
    header = parse(DeleteTopicHeader, command)
    connection.broker.service(RouteRegistry).forget_topic(header.topic, header.cluster_name)
    connection.answer(command)


def config(connection: NameServerConnection, command: Command) -> None:
    """GET_NAMESRV_CONFIG: every setting of this process, and RocketMQ's names for some."""
    named = {"listenPort": connection.peer.local_port, "orderMessageEnable": True}
    connection.answer(command, body=connection.broker.settings_text(named))


def update_config(connection: NameServerConnection, command: Command) -> None:
    """UPDATE_NAMESRV_CONFIG is refused."""
    del connection
    raise no_change(command)


def put_value(connection: NameServerConnection, command: Command) -> None:
    header = parse(KeyValueHeader, command)
    connection.broker.service(KvConfig).put(header.namespace, header.key, header.value)
    connection.broker.engine.after_durable(lambda: connection.answer(command))


def get_value(connection: NameServerConnection, command: Command) -> None:
    header = parse(KeyValueHeader, command)
    value = connection.broker.service(KvConfig).get(header.namespace, header.key)
    if value is None:
        remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
        raise ErrorResponse(ResponseCode.QUERY_NOT_FOUND, remark)
    connection.answer(command, ext={"value": value})


def delete_value(connection: NameServerConnection, command: Command) -> None:
    header = parse(KeyValueHeader, command)
    connection.broker.service(KvConfig).delete(header.namespace, header.key)
    connection.broker.engine.after_durable(lambda: connection.answer(command))


def list_values(connection: NameServerConnection, command: Command) -> None:
    header = parse(KeyValueHeader, command)
    table = connection.broker.service(KvConfig).table(header.namespace)
    if not table:
        remark = f"No config item, Namespace: {header.namespace}"
        raise ErrorResponse(ResponseCode.QUERY_NOT_FOUND, remark)
    connection.answer(command, body=encode_body(KeyValueTable(table=table)))


# ---- brokers that register here -----------------------------------------------------------------


def register(connection: NameServerConnection, command: Command) -> None:
    header = parse(BrokerHeader, command)
    body = command.body
    if header.body_crc32 and header.body_crc32 != zlib.crc32(body) & 0x7FFFFFFF:
        raise system_error("crc32 not match")
    known = _body(body, is_compressed=header.compressed)
    routes = connection.broker.service(RouteRegistry)
    broker = routes.register(
        header.broker_name,
        header.cluster_name,
        str(header.broker_id),
        header.broker_addr,
        owner=connection,
    )
    connection.on_close = lambda: routes.connection_closed(connection)
    routes.touch(broker, header.heartbeat_timeout_millis)
    if header.broker_id == int(MASTER):
        routes.update_topics(broker, known.topics, is_complete=header.is_complete)
    table = KeyValueTable(table=connection.broker.service(KvConfig).table(ORDER_NAMESPACE))
    master = "" if header.broker_id == int(MASTER) else broker.addresses.get(MASTER, "")
    connection.answer(
        command, ext={"haServerAddr": "", "masterAddr": master}, body=encode_body(table)
    )


def unregister(connection: NameServerConnection, command: Command) -> None:
    header = parse(BrokerHeader, command)
    connection.broker.service(RouteRegistry).unregister(header.broker_name, str(header.broker_id))
    connection.answer(command)


def compare_version(connection: NameServerConnection, command: Command) -> None:
    """QUERY_DATA_VERSION: whether the broker must register its topics again."""
    header = parse(BrokerHeader, command)
    version = decode_body(command.body, DataVersion)
    routes = connection.broker.service(RouteRegistry)
    broker = routes.broker(header.broker_name)
    is_changed = broker is None or broker.version != version
    if broker is not None and not is_changed:
        routes.touch(broker)
    body = encode_body(broker.version) if broker is not None else b""
    connection.answer(command, ext={"changed": "true" if is_changed else "false"}, body=body)


def heartbeat(connection: NameServerConnection, command: Command) -> None:
    routes = connection.broker.service(RouteRegistry)
    broker = routes.broker(parse(BrokerHeader, command).broker_name)
    if broker is not None:
        routes.touch(broker)
    connection.answer(command)


def wipe_write(connection: NameServerConnection, command: Command) -> None:
    """WIPE_WRITE_PERM_OF_BROKER."""
    name = parse(BrokerNameHeader, command).broker_name
    count = connection.broker.service(RouteRegistry).set_wiped(name, True)
    connection.answer(command, ext={"wipeTopicCount": str(count)})


def add_write(connection: NameServerConnection, command: Command) -> None:
    name = parse(BrokerNameHeader, command).broker_name
    count = connection.broker.service(RouteRegistry).set_wiped(name, False)
    connection.answer(command, ext={"addTopicCount": str(count)})


def _body(data: bytes, *, is_compressed: bool) -> RegisterBrokerBody:
    if not data:
        return RegisterBrokerBody()
    if is_compressed or data.startswith(_DEFLATED):
        return unpack_registration(data, BODY_BYTES_MAX)
    return decode_body(data, RegisterBrokerBody, bytes_max=BODY_BYTES_MAX)


HANDLERS: Final[dict[int, NameServerHandler]] = {
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
    RequestCode.GET_NAMESRV_CONFIG: config,
    RequestCode.UPDATE_NAMESRV_CONFIG: update_config,
    RequestCode.REGISTER_BROKER: register,
    RequestCode.UNREGISTER_BROKER: unregister,
    RequestCode.QUERY_DATA_VERSION: compare_version,
    RequestCode.BROKER_HEARTBEAT: heartbeat,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write,
}


# ---- what our broker says to the name server it joined ------------------------------------------


def register_request(broker: RocketmqBroker) -> Command:
    """REGISTER_BROKER for this broker."""
    topics = TopicConfigTable(
        topic_config_table=broker.topics.configs(), data_version=broker.topics.version
    )
    body = encode_body(RegisterBrokerBody(topics=topics))
    ext = _identity(broker) | {
        "haServerAddr": "",
        "compressed": "false",
        "isComplete": "true",
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }
    return Command(int(RequestCode.REGISTER_BROKER), ext, body)


def unregister_request(broker: RocketmqBroker) -> Command:
    """UNREGISTER_BROKER for this broker."""
    return Command(int(RequestCode.UNREGISTER_BROKER), _identity(broker))


def apply_registration(broker: RocketmqBroker, answer: Command) -> None:
    """What the name server said to a registration: the order configuration."""
    try:
        table = decode_body(answer.body, KeyValueTable).table if answer.body else {}
    except (Malformed, msgspec.MsgspecError):
        return
    for key, value in table.items():
        if broker.service(KvConfig).get(ORDER_NAMESPACE, key) != value:
            broker.service(KvConfig).put(ORDER_NAMESPACE, key, value)


def _identity(broker: RocketmqBroker) -> dict[str, str]:
    return {
        "brokerName": broker.broker_name,
        "brokerAddr": broker.address,
        "clusterName": broker.cluster,
        "brokerId": MASTER,
    }


# ---- ``ext`` of requests that only a name server gets -------------------------------------------


class KeyValueHeader(Header, kw_only=True):
    """PUT, GET and DELETE_KV_CONFIG, GET_KVLIST_BY_NAMESPACE."""

    namespace: str
    key: str = ""
    value: str = ""


class ClusterHeader(Header, kw_only=True):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class BrokerHeader(Header, kw_only=True):
    """REGISTER_BROKER, UNREGISTER_BROKER, QUERY_DATA_VERSION, BROKER_HEARTBEAT."""

    broker_name: str
    broker_addr: str = ""
    cluster_name: str = ""
    ha_server_addr: str = ""
    broker_id: I64 = 0
    heartbeat_timeout_millis: I64 = 0
    compressed: bool = False
    body_crc32: I64 = 0
    is_complete: bool = False
    """Ours: a topic that is not in the registration is gone."""


class BrokerNameHeader(Header, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class DeleteTopicHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV."""

    topic: str
    cluster_name: str = ""
