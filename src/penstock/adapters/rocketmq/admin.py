"""What operators and their tools ask a broker: topics, messages, statistics, clients.

RocketMQ's ``AdminBrokerProcessor``, and ``RocketmqOperatorService`` for Penstock's own HTTP pages
and commands. Only what is durable is found (D7); changes are answered once they are durable.

Not here: the same questions to the name server (``name_server/``), groups (``groups.py``),
questions about the broker as a whole (``broker_admin.py``).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, Protocol

from penstock.adapters.rocketmq.group_registry import (
    NO_OFFSET,
    PREFIX,
    GroupRegistry,
    OffsetRegistry,
)
from penstock.adapters.rocketmq.groups import RequestModeRegistry, delete_group
from penstock.adapters.rocketmq.naming import SYSTEM_TOPICS, wire_name
from penstock.adapters.rocketmq.offsets import table_body
from penstock.adapters.rocketmq.pop.service import forget_retries
from penstock.adapters.rocketmq.present import present_at
from penstock.adapters.rocketmq.requests import ErrorResponse, no_topic, system_error
from penstock.adapters.rocketmq.topics import QUEUES_MAX
from penstock.engine.group.assignment import ConsumeMode, ModeSetting
from penstock.engine.group.membership import Group, TopicSubscription
from penstock.engine.topic import Queue, Topic
from penstock.model.errors import PenstockError
from penstock.model.ids import ConnectionId
from penstock.model.names import TopicName
from penstock.model.record import Record, Wire
from penstock.wire.rocketmq.bodies import (
    MessageQueue,
    SubscriptionData,
    TopicConfig,
    TopicConfigTable,
    encode_body,
)
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.headers import (
    ConsumeStatsHeader,
    CreateTopicHeader,
    GroupHeader,
    ProducerGroupHeader,
    QueryMessageHeader,
    TopicHeader,
    ViewMessageHeader,
    parse,
)
from penstock.wire.rocketmq.message_id import parse_offset_message_id
from penstock.wire.rocketmq.stored import RocketmqFacts

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.adapters.rocketmq.broker import RemotingPeer, RocketmqBroker
    from penstock.adapters.rocketmq.connection import RocketmqConnection

PERM_MAX: Final = 15
ATTRIBUTES_MAX: Final = 64
GET_ALL_TOPIC_CONFIG: Final = 21

QUERY_MAX: Final = 64
"""Messages one query answers with."""
UNIQUE_QUERY_MAX: Final = 32
"""The same for a query by unique key, whatever it asks for."""
CANDIDATES_MAX: Final = 256
"""Entries of the key index that one query looks at: their hashes may lie."""
NOT_FOUND: Final = "can not find message, maybe time range not correct"

RATE_MS: Final = 60_000
"""Rates are means of the last minute, as RocketMQ's."""

CALL_MS: Final = 10_000
"""How long a client may take to answer."""
CALLS_MAX: Final = 1_000
"""Questions that wait for clients."""

_ROCKETMQ: Final = int(Wire.ROCKETMQ)
_FACTS: Final = RocketmqFacts()


# ---- topics -------------------------------------------------------------------------------------


def put_topic(connection: RocketmqConnection, command: Command) -> None:
    """UPDATE_AND_CREATE_TOPIC; answered once it is durable."""
    header = parse(CreateTopicHeader, command)
    broker = connection.broker
    _check(broker, header)
    known = broker.topics.find(header.topic)
    attributes = dict(known.config.attributes) if known is not None else {}
    config = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag,
        order=header.order,
        attributes=_changed(broker, attributes, header.attributes or ""),
    )
    broker.topics.put(config, connection.peer.maker)
    broker.engine.after_durable(lambda: connection.answer(command))


def delete_topic(connection: RocketmqConnection, command: Command) -> None:
    """DELETE_TOPIC_IN_BROKER; answered once it is durable, also when there was none."""
    header = parse(TopicHeader, command)
    broker = connection.broker
    if not header.topic.strip():
        raise _invalid(broker, "The specified topic is blank.")
    _check_system(broker, header.topic)
    forget_retries(broker, header.topic)
    broker.topics.delete(header.topic)
    broker.service(RequestModeRegistry).forget_topic(header.topic)
    broker.engine.after_durable(lambda: connection.answer(command))


def list_topics(connection: RocketmqConnection, command: Command) -> None:
    topics = connection.broker.topics
    table = TopicConfigTable(topic_config_table=topics.configs(), data_version=topics.version)
    connection.answer(command, body=encode_body(table))


def show_topic(connection: RocketmqConnection, command: Command) -> None:
    """GET_TOPIC_CONFIG: RocketMQ's tools ask for it before they show a group's lag."""
    topic = parse(TopicHeader, command).topic
    config = connection.broker.topics.config(topic)
    if config is None:
        raise ErrorResponse(
            ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}"
        )
    connection.answer(command, body=encode_body(config))


def _check(broker: RocketmqBroker, header: CreateTopicHeader) -> None:
    broker.topics.check_name(header.topic)
    _check_system(broker, header.topic)
    for name, count in (
        ("readQueueNums", header.read_queue_nums),
        ("writeQueueNums", header.write_queue_nums),
    ):
        if not 0 < count <= QUEUES_MAX:
            raise _invalid(broker, f"{name} is {count}; use 1 to {QUEUES_MAX}")
    if not 0 <= header.perm <= PERM_MAX:
        raise _invalid(broker, f"perm is {header.perm}; use 2 (write), 4 (read) or 6 (both)")


def _check_system(broker: RocketmqBroker, topic: str) -> None:
    if topic in SYSTEM_TOPICS:
        raise _invalid(broker, f"The topic[{topic}] is conflict with system topic.")


def _changed(broker: RocketmqBroker, attributes: dict[str, str], text: str) -> dict[str, str]:
    """Attributes after ``+name=value,-name`` was applied to them."""
    for change in filter(None, text.split(",")):
        name, equals, value = change[1:].partition("=")
        if change[0] == "+" and name and equals:
            attributes[name] = value
        elif change[0] == "-" and name and not equals:
            attributes.pop(name, None)
        else:
            raise _invalid(broker, f"attribute {change[:80]!r}; write +name=value or -name")
    if len(attributes) > ATTRIBUTES_MAX:
        raise _invalid(broker, f"a topic has at most {ATTRIBUTES_MAX} attributes")
    return attributes


def _invalid(broker: RocketmqBroker, remark: str) -> ErrorResponse:
    return ErrorResponse(broker.settings.invalid_parameter_code, remark)


# ---- messages by id and by key ------------------------------------------------------------------


def view_message(connection: RocketmqConnection, command: Command) -> None:
    """VIEW_MESSAGE_BY_ID: by commitLogOffset, half messages included.

    It is a position, plus the number of the message in its batch or of the target in its fan-out
    (D4).
    """
    header = parse(ViewMessageHeader, command)
    body = present_at(connection.broker, header.offset)
    if body is None:
        raise system_error(f"can not find message by the offset, {header.offset}")
    connection.answer(command, body=body)


def query_message(connection: RocketmqConnection, command: Command) -> None:
    """QUERY_MESSAGE by key; half messages are found once they are committed (sheet 2.9).

    The key index answers with what may have the key; the real keys are compared here.
    """
    header = parse(QueryMessageHeader, command)
    broker = connection.broker
    rmq_topic = broker.topics.require(header.topic)
    count_max = min(max(1, header.max_num), QUERY_MAX)
    if header.unique_key_query:
        count_max = UNIQUE_QUERY_MAX
    key = header.key.encode()
    positions = broker.engine.positions_of(
        rmq_topic.topic,
        key,
        begin_ms=header.begin_timestamp,
        end_ms=header.end_timestamp,
        count_max=CANDIDATES_MAX,
    )
    found: list[bytes] = []
    last_ms = 0
    for position in positions:
        located = broker.engine.locate(position)
        if located is None or not _has_key(broker, located.record, key):
            continue
        body = present_at(broker, position)
        if body is not None:
            found.append(body)
            last_ms = max(last_ms, located.record.store_ms)
        if len(found) == count_max:
            break
    if not found:
        raise ErrorResponse(ResponseCode.QUERY_NOT_FOUND, NOT_FOUND)
    ext = {
        "indexLastUpdateTimestamp": str(last_ms),
        "indexLastUpdatePhyoffset": str(max(positions)),
    }
    connection.answer(command, ext=ext, body=b"".join(found))


def _has_key(broker: RocketmqBroker, record: Record, key: bytes) -> bool:
    if record.wire == _ROCKETMQ:
        return key in _FACTS.keys(record)
    reader = broker.engine.facts.get(record.wire)
    return reader is None or key in reader.keys(record)


# ---- statistics ---------------------------------------------------------------------------------


def newest_ms(queue: Queue, offset: int) -> int:
    """When the message before ``offset`` was stored; 0 for none."""
    found = queue.index.entries(offset - 1, 1) if offset > queue.index.min_offset else []
    return found[0][3] if found and found[0][1] < offset else 0


def topic_stats(connection: RocketmqConnection, command: Command) -> None:
    """GET_TOPIC_STATS_INFO; the rate is that of the last minute, found in the index."""
    broker = connection.broker
    name = parse(TopicHeader, command).topic
    rmq_topic = broker.topics.find(name)
    if rmq_topic is None:
        raise no_topic(name)
    rows: dict[MessageQueue, object] = {}
    for queue in rmq_topic.topic.queues:
        end = queue.visible_end(False)
        rows[named_queue(broker, name, queue)] = {
            "minOffset": queue.index.min_offset,
            "maxOffset": end,
            "lastUpdateTimestamp": newest_ms(queue, end),
        }
    since_ms = broker.clock.wall_ms() - RATE_MS
    stored = sum([stored_since(queue, since_ms) for queue in rmq_topic.topic.queues])
    rate = stored * 1000 / RATE_MS
    connection.answer(command, body=table_body("offsetTable", rows, topicPutTps=rate))


def stored_since(queue: Queue, since_ms: int) -> int:
    """Messages that a queue got since that wall time."""
    return max(0, queue.visible_end(False) - queue.index.search_time(since_ms))


def consume_stats(connection: RocketmqConnection, command: Command) -> None:
    """GET_CONSUME_STATS: lag is ``brokerOffset - consumerOffset``.

    What lies between consumer offset and ``pullOffset`` was read and is not settled. A queue the
    group never committed has consumer offset 0 there, as in RocketMQ. A group's rate is 0: nobody
    keeps it, ``/metrics`` has the counters.
    """
    broker = connection.broker
    header = parse(ConsumeStatsHeader, command)
    topics = [broker.topics.require(header.topic).topic] if header.topic else []
    topics = topics or broker.service(OffsetRegistry).topics_of(header.consumer_group)
    rows: dict[MessageQueue, object] = {}
    for topic in topics:
        rows |= lag_rows(broker, topic, header.consumer_group)
    connection.answer(command, body=table_body("offsetTable", rows, consumeTps=0.0))


def lag_rows(
    broker: RocketmqBroker, topic: Topic, group: str
) -> dict[MessageQueue, dict[str, int]]:
    """How far a group is in each queue of a topic."""
    offsets = broker.service(OffsetRegistry)
    name = wire_name(topic.name)
    rows: dict[MessageQueue, dict[str, int]] = {}
    for queue in topic.queues:
        stored = offsets.committed(queue, group)
        offset = 0 if stored == NO_OFFSET else stored
        rows[named_queue(broker, name, queue)] = {
            "brokerOffset": queue.visible_end(False),
            "consumerOffset": offset,
            "pullOffset": offsets.read_up_to(queue, group),
            "lastTimestamp": newest_ms(queue, offset),
        }
    return rows


def consumer_connections(connection: RocketmqConnection, command: Command) -> None:
    broker = connection.broker
    name = parse(GroupHeader, command).consumer_group
    group = broker.consumers.group(name)
    if group is None or group.is_empty:
        raise ErrorResponse(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
        )
    table = {topic: subscription_data(topic, each) for topic, each in group.wanted.items()}
    body = {
        "connectionSet": _connections(broker, group),
        "subscriptionTable": table,
        "consumeType": group.traits.manner,
        "messageModel": "BROADCASTING" if group.traits.is_broadcast else "CLUSTERING",
        "consumeFromWhere": group.traits.start,
    }
    connection.answer(command, body=encode_body(body))


def subscription_data(topic: str, wanted: TopicSubscription) -> SubscriptionData:
    """What a group wants of a topic, in RocketMQ's words."""
    return SubscriptionData(
        topic=topic,
        sub_string=wanted.expression,
        expression_type=wanted.language.upper(),
        sub_version=wanted.version,
    )


def producer_connections(connection: RocketmqConnection, command: Command) -> None:
    broker = connection.broker
    name = parse(ProducerGroupHeader, command).producer_group
    group = broker.producers.group(name)
    if group is None or group.is_empty:
        raise system_error(f"the producer group[{name}] not exist")
    connection.answer(command, body=encode_body({"connectionSet": _connections(broker, group)}))


def _connections(broker: RocketmqBroker, group: Group) -> list[dict[str, object]]:
    found = []
    for member in group.members.values():
        connection = broker.connections.get(ConnectionId(member.connection))
        row: dict[str, object] = {
            "clientId": member.client_id,
            "clientAddr": str(connection.peer) if connection is not None else "",
            "language": member.client.language,
            "version": member.client.version,
        }
        found.append(row)
    return found


def named_queue(broker: RocketmqBroker, topic: str, queue: Queue) -> MessageQueue:
    """A queue as RocketMQ names it."""
    return MessageQueue(topic=topic, broker_name=broker.broker_name, queue_id=queue.number)


# ---- requests to a client through the broker: running info (307), consume this message (309) ----


def consumer_running_info(connection: RocketmqConnection, command: Command) -> None:
    connection.broker.service(ClientCalls).forward(connection, command)


def consume_directly(connection: RocketmqConnection, command: Command) -> None:
    broker = connection.broker
    text = command.ext.get("msgId", "")
    try:
        _, position = parse_offset_message_id(text)
    except Malformed as problem:
        raise system_error(f"msgId {text[:80]!r} is not an offset id: {problem}") from None
    body = present_at(broker, position)
    if body is None:
        raise ErrorResponse(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {position}")
    broker.service(ClientCalls).forward(connection, command, body)


class ClientCall:
    """One request on its way to a client and back: 307 as it is, 309 with the message as its body.

    A client that does not answer within 10 s ends it with 207, one that is not here with 1 (sheet
    1.9). It is answered exactly once, unless the caller goes first.
    """

    __slots__ = ("caller", "client", "command", "forwarded", "is_over", "who")

    def __init__(
        self, caller: RocketmqConnection, command: Command, client: RemotingPeer, who: str
    ) -> None:
        self.caller = caller
        self.command = command
        self.client = client
        self.who = who
        self.forwarded = Command(command.code, dict(command.ext), command.body)
        self.is_over = False

    def on_response(self, answer: Command | None) -> None:
        """The client said something, or is gone."""
        if self.is_over:
            return
        self.is_over = True
        if answer is None:
            text = f"The Consumer {self.who} not online"
            self.caller.answer(self.command, ResponseCode.SYSTEM_ERROR, remark=text)
            return
        self.caller.answer(
            self.command, answer.code, ext=answer.ext, body=answer.body, remark=answer.remark
        )

    def timed_out(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.client.forget(self.forwarded)
            text = f"consumer {self.who} Timeout: no answer within {CALL_MS} ms"
            self.caller.answer(self.command, ResponseCode.CONSUME_MSG_TIMEOUT, remark=text)


class WaitingCall(Protocol):
    """A request to a client whose response somebody waits for."""

    is_over: bool

    @property
    def client(self) -> RemotingPeer: ...

    @property
    def forwarded(self) -> Command: ...

    def on_response(self, answer: Command | None) -> None: ...

    def timed_out(self) -> None: ...


class ClientCalls:
    """The calls that wait for their client."""

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._calls_made = 0
        self._waiting: list[tuple[int, int, WaitingCall]] = []
        broker.timers.add(self)

    def __len__(self) -> int:
        return sum(not call.is_over for _, _, call in self._waiting)

    def forward(
        self, connection: RocketmqConnection, command: Command, body: bytes | None = None
    ) -> None:
        """Ask the client that the request names."""
        group = command.ext.get("consumerGroup", "")
        client_id = command.ext.get("clientId", "")
        who = f"<{group}> <{client_id}>"
        call = ClientCall(connection, command, self._client(group, client_id, who), who)
        if body is not None:
            call.forwarded.body = body
            call.forwarded.ext["brokerName"] = self._broker.broker_name
        self.start(call)

    def start(self, call: WaitingCall) -> None:
        """Ask; the call is told of the response, or that there was none in time."""
        self._tidy()
        if len(self._waiting) >= CALLS_MAX:
            raise system_error(f"{CALLS_MAX} questions wait for clients already; ask again later")
        self._calls_made += 1
        deadline_ms = self._broker.clock.monotonic_ms() + CALL_MS
        heapq.heappush(self._waiting, (deadline_ms, self._calls_made, call))
        self._broker.timers.reschedule()
        call.client.push(call.forwarded, call.on_response)

    def next_deadline_ms(self) -> int | None:
        """When the oldest question was not answered in time."""
        self._tidy()
        return self._waiting[0][0] if self._waiting else None

    def due(self, now_ms: int) -> None:
        """Give up on clients that do not answer."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            heapq.heappop(self._waiting)[2].timed_out()

    def _tidy(self) -> None:
        while self._waiting and self._waiting[0][2].is_over:
            heapq.heappop(self._waiting)

    def _client(self, group: str, client_id: str, who: str) -> RemotingPeer:
        found = self._broker.consumers.group(group)
        member = None if found is None else found.by_client_id(client_id)
        connection = (
            None
            if member is None
            else self._broker.connections.get(ConnectionId(member.connection))
        )
        if connection is None:
            raise system_error(f"The Consumer {who} not online")
        return connection


# ---- operators ----------------------------------------------------------------------------------


class RocketmqOperatorService:
    """Operators' requests from pages and commands; satisfies ``server.admin.ProtocolAdmin``.

    Topics made here keep their messages ``retention_ms`` like those of any RocketMQ client, and are
    told to name servers. A reset is announced to members with their next pull, as request 222 does
    it.
    """

    prefix: Final = PREFIX

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._groups = broker.service(GroupRegistry)
        self._offsets = broker.service(OffsetRegistry)

    def place(self) -> dict[str, str]:
        """This broker as its name server lists it."""
        broker = self._broker
        return {
            "broker": broker.broker_name,
            "cluster": broker.cluster,
            "address": broker.address if broker.broker_port else "",
            "name_server": broker.name_server,
        }

    def create_topic(self, name: TopicName, queues: int) -> None:
        """A topic that clients may send to and read from."""
        config = TopicConfig(
            topic_name=wire_name(name), read_queue_nums=queues, write_queue_nums=queues
        )
        self._broker.topics.put(config)

    def delete_topic(self, topic: Topic) -> None:
        """The topic goes, with its configuration and its groups' modes."""
        name = wire_name(topic.name)
        forget_retries(self._broker, name)
        self._broker.topics.delete(name)
        self._broker.service(RequestModeRegistry).forget_topic(name)

    def group_names(self) -> Collection[str]:
        """Every configured group, and whoever is connected."""
        return self._groups.all()

    def members(self, group: str) -> Sequence[str]:
        found = self._broker.consumers.group(group)
        return found.client_ids if found is not None else []

    def has_offset(self, queue: Queue, group: str) -> bool:
        """Whether it was ever committed."""
        return self._offsets.committed(queue, group) != NO_OFFSET

    def mode(self, topic: Topic, group: str) -> tuple[str, int]:
        """Pull or pop, and how many help."""
        setting = self._broker.modes.get(wire_name(topic.name), group)
        return setting.mode.value, setting.share

    def set_mode(self, topic: Topic, group: str, mode: str, share: int) -> None:
        """Pull or pop from the members' next look on."""
        setting = ModeSetting(ConsumeMode(mode), share)
        try:
            self._broker.service(RequestModeRegistry).set(wire_name(topic.name), group, setting)
        except ErrorResponse as refused:
            raise PenstockError(refused.remark) from None

    def reset(self, queue: Queue, group: str, offset: int) -> None:
        """Members notice with their next pull."""
        self._offsets.reset(queue, group, offset)

    def forget(self, topic: Topic | None, group: str) -> None:
        """Offsets of one topic, or the group."""
        if topic is not None:
            self._offsets.forget(topic, group)
        else:
            delete_group(self._broker, group, is_forgetting=True)
