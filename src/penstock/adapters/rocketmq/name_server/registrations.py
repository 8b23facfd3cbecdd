"""Brokers at the name server, from both sides: what others tell ours, what ours tells others (D20).

A registration of a RocketMQ broker carries every topic, or only those that were just changed, and
does not say which: so topics are added and changed by it, never taken away. Ours says that it is
complete, and a topic that was deleted leaves the route with it. The body is JSON or packed.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.rocketmq.name_server.headers import BrokerHeader, BrokerNameHeader
from penstock.adapters.rocketmq.name_server.routes import ORDER_NAMESPACE, RouteBook
from penstock.adapters.rocketmq.replies import system_error
from penstock.wire.rocketmq.bodies import (
    MASTER,
    DataVersion,
    KeyValueTable,
    RegisterBrokerBody,
    TopicConfigTable,
    decode_body,
    encode_body,
    unpack_registration,
)
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.headers import parse

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.name_server.session import NameHandler, NameSession

_DEFLATED: Final = b"\x78"
"""How deflated bytes begin and JSON never does: brokers of 5.3 compress and say they did not."""
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Some 40,000 topics of one broker."""


def register(session: NameSession, command: Command) -> None:
    """REGISTER_BROKER."""
    header = parse(BrokerHeader, command)
    body = command.body
    if header.body_crc32 and header.body_crc32 != zlib.crc32(body) & 0x7FFFFFFF:
        raise system_error("crc32 not match")
    known = _body(body, is_compressed=header.compressed)
    book = session.house.part(RouteBook)
    broker = book.enter(
        header.broker_name,
        header.cluster_name,
        str(header.broker_id),
        header.broker_addr,
        owner=session,
    )
    session.on_close = lambda: book.left(session)
    book.heard(broker, header.heartbeat_timeout_millis)
    if header.broker_id == int(MASTER):
        book.tell_topics(broker, known.topics, is_complete=header.is_complete)
    table = KeyValueTable(table=session.house.key_values.table(ORDER_NAMESPACE))
    master = "" if header.broker_id == int(MASTER) else broker.addresses.get(MASTER, "")
    session.answer(command, ext={"haServerAddr": "", "masterAddr": master}, body=encode_body(table))


def unregister(session: NameSession, command: Command) -> None:
    """UNREGISTER_BROKER."""
    header = parse(BrokerHeader, command)
    session.house.part(RouteBook).leave(header.broker_name, str(header.broker_id))
    session.answer(command)


def compare_version(session: NameSession, command: Command) -> None:
    """QUERY_DATA_VERSION: whether the broker must register its topics again."""
    header = parse(BrokerHeader, command)
    version = decode_body(command.body, DataVersion)
    book = session.house.part(RouteBook)
    broker = book.broker(header.broker_name)
    is_changed = broker is None or broker.version != version
    if broker is not None and not is_changed:
        book.heard(broker)
    body = encode_body(broker.version) if broker is not None else b""
    session.answer(command, ext={"changed": "true" if is_changed else "false"}, body=body)


def heartbeat(session: NameSession, command: Command) -> None:
    """BROKER_HEARTBEAT."""
    book = session.house.part(RouteBook)
    broker = book.broker(parse(BrokerHeader, command).broker_name)
    if broker is not None:
        book.heard(broker)
    session.answer(command)


def wipe_write(session: NameSession, command: Command) -> None:
    """WIPE_WRITE_PERM_OF_BROKER."""
    name = parse(BrokerNameHeader, command).broker_name
    count = session.house.part(RouteBook).set_wiped(name, True)
    session.answer(command, ext={"wipeTopicCount": str(count)})


def add_write(session: NameSession, command: Command) -> None:
    """ADD_WRITE_PERM_OF_BROKER."""
    name = parse(BrokerNameHeader, command).broker_name
    count = session.house.part(RouteBook).set_wiped(name, False)
    session.answer(command, ext={"addTopicCount": str(count)})


def _body(data: bytes, *, is_compressed: bool) -> RegisterBrokerBody:
    if not data:
        return RegisterBrokerBody()
    if is_compressed or data.startswith(_DEFLATED):
        return unpack_registration(data, BODY_BYTES_MAX)
    return decode_body(data, RegisterBrokerBody, bytes_max=BODY_BYTES_MAX)


# What a broker of ours says to the name server it joined.


def registration(house: House) -> Command:
    """REGISTER_BROKER for this broker."""
    topics = TopicConfigTable(
        topic_config_table=house.topics.configs(), data_version=house.topics.version
    )
    body = encode_body(RegisterBrokerBody(topics=topics))
    ext = _identity(house) | {
        "haServerAddr": "",
        "compressed": "false",
        "isComplete": "true",
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }
    return Command(int(RequestCode.REGISTER_BROKER), ext, body)


def farewell(house: House) -> Command:
    """UNREGISTER_BROKER for this broker."""
    return Command(int(RequestCode.UNREGISTER_BROKER), _identity(house))


def learn(house: House, answer: Command) -> None:
    """What the name server said to a registration: the order configuration."""
    try:
        table = decode_body(answer.body, KeyValueTable).table if answer.body else {}
    except (Malformed, msgspec.MsgspecError):
        return
    for key, value in table.items():
        if house.key_values.get(ORDER_NAMESPACE, key) != value:
            house.key_values.put(ORDER_NAMESPACE, key, value)


def _identity(house: House) -> dict[str, str]:
    return {
        "brokerName": house.broker_name,
        "brokerAddr": house.address,
        "clusterName": house.cluster,
        "brokerId": MASTER,
    }


HANDLERS: Final[dict[int, NameHandler]] = {
    RequestCode.REGISTER_BROKER: register,
    RequestCode.UNREGISTER_BROKER: unregister,
    RequestCode.QUERY_DATA_VERSION: compare_version,
    RequestCode.BROKER_HEARTBEAT: heartbeat,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write,
}
