"""``Admin``: topics, groups, offsets, lag and single messages, for operators and scripts.

    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("orders", queues=4)
        admin.lag("billing", "orders")
        admin.reset_offsets("billing", "orders", "earliest")
        admin.messages_by_key("orders", "order-4711")

Every method is a coroutine here (``_topics``) with two public forms: ``topics`` blocks,
``topics_async`` is awaited. Topics and groups are made and deleted on the master of every broker
that the name server knows, so that nothing of them is left behind where nobody looks.

Not here: the requests themselves (``requests.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeVar, Unpack

import msgspec

from penstock.client.errors import BrokerRefused, ClientError, NoRoute, StateError
from penstock.client.instance import ClientInstance, client_id, local_ip, process_name
from penstock.client.loop import awaitable, blocking
from penstock.client.message import ReceivedMessage, received_messages
from penstock.client.options import InstanceOptions, resolve
from penstock.client.requests import BrokerRequests
from penstock.client.routes import MASTER_ID, NameServerList, Route, RouteCache, parse_name_servers
from penstock.client.states import StartStop
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import (
    Body,
    Perm,
    RequestMode,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import (
    CreateTopicHeader,
    PullFlag,
    PullHeader,
    QueryMessageHeader,
    ResetOffsetHeader,
)
from penstock.wire.rocketmq.message_id import decode_host, parse_offset_message_id
from penstock.wire.rocketmq.stored import StoredMessage

READ_WRITE: Final = int(Perm.READ | Perm.WRITE)
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
End = Literal["earliest", "latest"]
Row = TypeVar("Row")
ALWAYS_MS: Final = (1 << 63) - 1
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group under which RocketMQ's own tools read; brokers have it."""
PULL_MESSAGES: Final = 32
PULL_TIMEOUT_MS: Final = 10_000

_OFFLINE: Final = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)
"""What brokers say of a group of which nobody is connected; older ones use the second."""


class Admin(StartStop):
    """An operator's view of a cluster; it belongs to no group and disturbs nobody.

    ``Admin("127.0.0.1:9876")``; several name servers are a list, or one text with semicolons.
    """

    def __init__(self, name_servers: NameServerList, **options: Unpack[InstanceOptions]) -> None:
        self._addresses = parse_name_servers(name_servers)
        self._options = resolve(InstanceOptions, options)
        self._instance: ClientInstance | None = None
        self._is_stopped = False

    # --- topics -----------------------------------------------------------------------------------

    async def _topics(self) -> list[str]:
        """Names of all topics that the name server knows, internal ones too; sorted."""
        return sorted(await self._requests.topic_list())

    topics = blocking(_topics)
    topics_async = awaitable(_topics)

    async def _brokers(self) -> dict[str, dict[int, str]]:
        """Addresses of all brokers by name and broker id; 0 is a master."""
        cluster = await self._requests.cluster()
        return {
            name: {int(number): address for number, address in data.broker_addrs.items()}
            for name, data in sorted(cluster.broker_addr_table.items())
        }

    brokers = blocking(_brokers)
    brokers_async = awaitable(_brokers)

    async def _create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        perm: int = READ_WRITE,
        is_ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Make a topic, or change it; on every broker, or on those named."""
        header = CreateTopicHeader(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues if read_queues is None else read_queues,
            write_queue_nums=queues,
            perm=perm,
            order=is_ordered,
            attributes=_attributes(attributes),
        )
        for address in await self._masters(brokers):
            await self._requests.create_topic(address, header)

    create_topic = blocking(_create_topic)
    create_topic_async = awaitable(_create_topic)

    async def _delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages, everywhere."""
        for address in await self._masters():
            await self._requests.delete_topic(address, topic)
        await self._requests.delete_topic_route(topic)
        self._routes.forget([topic])

    delete_topic = blocking(_delete_topic)
    delete_topic_async = awaitable(_delete_topic)

    async def _route(self, topic: str) -> Route | None:
        """Where the queues of a topic are; None when the name server knows no such topic."""
        try:
            return await self._routes.look_up(topic)
        except NoRoute:
            return None

    route = blocking(_route)
    route_async = awaitable(_route)

    async def _topic_stats(self, topic: str) -> dict[QueueRef, QueueStats]:
        """First and next offset of every queue, and when it changed last."""
        found = {}
        for address in await self._masters_of(topic):
            found.update(await self._requests.topic_stats(address, topic))
        return read_rows(found, QueueStats)

    topic_stats = blocking(_topic_stats)
    topic_stats_async = awaitable(_topic_stats)

    async def _offsets_at(self, topic: str, at_ms: int) -> dict[QueueRef, int]:
        """In every queue the offset of the first message stored at a wall time or later."""
        route = await self._routes.look_up(topic)
        return {
            each: await self._requests.search_offset(each, at_ms) for each in route.read_queues()
        }

    offsets_at = blocking(_offsets_at)
    offsets_at_async = awaitable(_offsets_at)

    # --- groups -----------------------------------------------------------------------------------

    async def _groups(self) -> dict[str, SubscriptionGroupConfig]:
        """The settings of every group, by name."""
        found: dict[str, Any] = {}
        for address in await self._masters():
            found |= await self._requests.group_configs(address)
        return {
            name: msgspec.convert(found[name], SubscriptionGroupConfig, strict=False)
            for name in sorted(found)
        }

    groups = blocking(_groups)
    groups_async = awaitable(_groups)

    async def _create_group(
        self,
        group: str,
        *,
        is_enabled: bool = True,
        is_broadcast_enabled: bool = True,
        is_ordered: bool = False,
        retries_max: int = 16,
        retry_queues: int = 1,
    ) -> None:
        """Make a group, or change its settings; on every broker."""
        config = SubscriptionGroupConfig(
            group_name=group,
            consume_enable=is_enabled,
            consume_broadcast_enable=is_broadcast_enabled,
            consume_message_orderly=is_ordered,
            retry_max_times=retries_max,
            retry_queue_nums=retry_queues,
        )
        for address in await self._masters():
            await self._requests.put_group(address, config)

    create_group = blocking(_create_group)
    create_group_async = awaitable(_create_group)

    async def _delete_group(self, group: str, *, keeps_offsets: bool = False) -> None:
        """Delete a group everywhere; members that are connected make it anew."""
        for address in await self._masters():
            await self._requests.delete_group(address, group, clean_offsets=not keeps_offsets)

    delete_group = blocking(_delete_group)
    delete_group_async = awaitable(_delete_group)

    async def _connections(self, group: str) -> GroupConnections:
        """Who consumes for a group now, and what; no connections when nobody does."""
        return await self._connected(group, self._requests.consumer_connections)

    connections = blocking(_connections)
    connections_async = awaitable(_connections)

    async def _producer_connections(self, group: str) -> GroupConnections:
        """Who produces for a group now; no connections when nobody does."""
        return await self._connected(group, self._requests.producer_connections)

    producer_connections = blocking(_producer_connections)
    producer_connections_async = awaitable(_producer_connections)

    async def _running_info(
        self, group: str, client_id: str, *, with_stacks: bool = False
    ) -> dict[str, Any]:
        """What a consumer says of itself (queues, caches, held by which threshold), as JSON."""
        last: ClientError | None = None
        for address in await self._masters():
            try:
                return await self._requests.running_info(
                    address, group, client_id, with_stacks=with_stacks
                )
            except BrokerRefused as refused:
                last = refused
        raise last or ClientError("the name server knows no broker")

    running_info = blocking(_running_info)
    running_info_async = awaitable(_running_info)

    async def _committed(self, group: str, queue: QueueRef) -> int | None:
        """Where a group is in one queue; None when nothing is stored."""
        return await self._requests.query_offset(queue, group)

    committed = blocking(_committed)
    committed_async = awaitable(_committed)

    async def _progress(
        self, group: str, topic: str | None = None
    ) -> dict[QueueRef, QueueProgress]:
        """How far a group is in every queue of a topic, or of all it reads."""
        found = {}
        for address in await self._masters():
            found.update(await self._requests.consume_stats(address, group, topic))
        return read_rows(found, QueueProgress)

    progress = blocking(_progress)
    progress_async = awaitable(_progress)

    async def _lag(self, group: str, topic: str | None = None) -> int:
        """Messages that a group has still to consume."""
        return sum(each.lag for each in (await self._progress(group, topic)).values())

    lag = blocking(_lag)
    lag_async = awaitable(_lag)

    async def _reset_offsets(
        self, group: str, topic: str, to: End | datetime | int, *, is_forced: bool = True
    ) -> dict[QueueRef, int]:
        """Move a group: to an end, or to the first message stored at a time (a datetime or ms).

        Without ``is_forced`` it is only moved back. Returns the new offsets.
        """
        header = ResetOffsetHeader(
            topic=topic, group=group, timestamp=_timestamp(to), is_force=is_forced
        )
        moved: dict[QueueRef, int] = {}
        for address in await self._masters_of(topic):
            try:
                moved |= await self._requests.reset_offset(address, header)
            except BrokerRefused as refused:
                # Brokers of 4.x tell the members; with none there, the offsets are stored instead.
                if not _is_offline(refused):
                    raise
                moved |= await self._store_offsets(group, topic, address, header)
        return moved

    reset_offsets = blocking(_reset_offsets)
    reset_offsets_async = awaitable(_reset_offsets)

    async def _set_offset(self, group: str, queue: QueueRef, offset: int) -> None:
        """Move a group in one queue to an offset; its members go on there."""
        header = ResetOffsetHeader(
            topic=queue.topic, group=group, queue_id=queue.queue, offset=offset, is_force=True
        )
        address = await self._requests.master_of(queue)
        try:
            await self._requests.reset_offset(address, header)
        except BrokerRefused as refused:
            if not _is_offline(refused):
                raise
            await self._requests.update_offset(queue, group, offset, oneway=False)

    set_offset = blocking(_set_offset)
    set_offset_async = awaitable(_set_offset)

    async def _set_consume_mode(
        self, group: str, topic: str, mode: RequestMode | Literal["PULL", "POP"], *, share: int = -1
    ) -> None:
        """Have a group served by pull or by pop; with pop ``share`` members share each queue."""
        for address in await self._masters_of(topic):
            await self._requests.set_request_mode(
                address, topic, group, RequestMode(mode), share=share
            )

    set_consume_mode = blocking(_set_consume_mode)
    set_consume_mode_async = awaitable(_set_consume_mode)

    # --- messages ---------------------------------------------------------------------------------

    async def _message(self, topic: str, message_id: str) -> ReceivedMessage | None:
        """The message of an id: the sender's (``message_id``) or the broker's; None: none."""
        found = await self._by_key(topic, message_id, 1, 0, ALWAYS_MS, is_unique=True)
        if found:
            return found[-1]
        try:
            host, position = parse_offset_message_id(message_id)
        except Malformed:
            return None
        ip, port = decode_host(host)
        # A sender's id looks the same: a broker is only asked where there is one.
        names = {
            address: name
            for name, addresses in (await self._brokers()).items()
            for address in addresses.values()
        }
        name = names.get(f"{ip}:{port}")
        if name is None:
            return None
        try:
            stored = await self._requests.view_message(f"{ip}:{port}", position, topic)
        except BrokerRefused as refused:
            if refused.code not in (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND):
                raise
            return None
        return _received(stored, name)

    message = blocking(_message)
    message_async = awaitable(_message)

    async def _messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = ALWAYS_MS,
    ) -> list[ReceivedMessage]:
        """Messages that carry a key, stored between two wall times; oldest first."""
        return await self._by_key(topic, key, count_max, begin_ms, end_ms)

    messages_by_key = blocking(_messages_by_key)
    messages_by_key_async = awaitable(_messages_by_key)

    async def _messages_between(
        self, topic: str, begin_ms: int, end_ms: int, *, count_max: int = 64
    ) -> list[ReceivedMessage]:
        """Messages stored at or after ``begin_ms`` and before ``end_ms``; oldest first.

        Every queue is read, so that the first ``count_max`` of the topic are really the first.
        """
        route = await self._routes.look_up(topic)
        found: list[ReceivedMessage] = []
        for queue in route.read_queues():
            start = await self._requests.search_offset(queue, begin_ms)
            found += await self._read_queue(queue, start, begin_ms, end_ms, count_max)
        found.sort(key=lambda each: (each.stored_at_ms, each.queue, each.offset))
        return found[:count_max]

    messages_between = blocking(_messages_between)
    messages_between_async = awaitable(_messages_between)

    # --- start and stop ---------------------------------------------------------------------------

    async def _start(self) -> None:
        """Be ready; nothing is sent before the first question."""
        # A network of its own that nobody else shares: no member of a group, no heartbeats, no
        # routes kept fresh, and it costs nothing between two questions.
        if self._instance is not None or self._is_stopped:
            raise StateError("this Admin was started before; make a new one")
        ip = self._options["client_ip"] or local_ip()
        identity = client_id(ip, f"admin-{process_name()}", self._options["unit_name"])
        self._instance = ClientInstance(self._addresses, self._options, identity)

    start = blocking(_start)
    start_async = awaitable(_start)

    async def _stop(self) -> None:
        """Close the connections."""
        self._is_stopped = True
        found, self._instance = self._instance, None
        if found is not None:
            await found.network.close()

    stop = blocking(_stop)
    stop_async = awaitable(_stop)

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _running(self) -> ClientInstance:
        if self._instance is None:
            raise StateError("this Admin does not run; use it in a with statement, or start() it")
        return self._instance

    @property
    def _requests(self) -> BrokerRequests:
        return self._running.requests

    @property
    def _routes(self) -> RouteCache:
        return self._running.routes

    async def _masters(self, brokers: Iterable[str] | None = None) -> list[str]:
        """Addresses of all masters, or of those of the brokers named."""
        known = await self._brokers()
        if brokers is None:
            return [each[MASTER_ID] for each in known.values() if MASTER_ID in each]
        wanted = [brokers] if isinstance(brokers, str) else list(brokers)
        missing = [name for name in wanted if MASTER_ID not in known.get(name, {})]
        if missing:
            raise ValueError(
                f"no master of {', '.join(missing)}; the name server knows {', '.join(known)}"
            )
        return [known[name][MASTER_ID] for name in wanted]

    async def _masters_of(self, topic: str) -> dict[str, str]:
        """Names of the brokers that have a topic, by the address of their master."""
        route = await self._routes.look_up(topic)
        found = {
            addresses[MASTER_ID]: name
            for name, addresses in route.brokers.items()
            if MASTER_ID in addresses
        }
        if not found:
            raise NoRoute(topic, "none of its brokers has a master now")
        return found

    async def _connected(
        self, group: str, ask: Callable[[str, str], Awaitable[dict[str, Any]]]
    ) -> GroupConnections:
        answers = []
        for address in await self._masters():
            try:
                answers.append(await ask(address, group))
            except BrokerRefused as refused:
                if refused.code not in _OFFLINE:
                    raise
        return merge_connections(answers)

    async def _store_offsets(
        self, group: str, topic: str, address: str, header: ResetOffsetHeader
    ) -> dict[QueueRef, int]:
        route = await self._routes.look_up(topic)
        moved: dict[QueueRef, int] = {}
        for queue in route.read_queues():
            if await self._requests.master_of(queue) != address:
                continue
            wanted = (
                await self._requests.max_offset(queue)
                if header.timestamp < 0
                else await self._requests.search_offset(queue, header.timestamp)
            )
            stored = await self._requests.query_offset(queue, group)
            if header.is_force or stored is None or wanted < stored:
                await self._requests.update_offset(queue, group, wanted, oneway=False)
                moved[queue] = wanted
        return moved

    async def _read_queue(
        self, queue: QueueRef, start: int, begin_ms: int, end_ms: int, count_max: int
    ) -> list[ReceivedMessage]:
        address = await self._requests.master_of(queue)
        end = await self._requests.max_offset(queue)
        found: list[ReceivedMessage] = []
        while start < end and len(found) < count_max:
            header = PullHeader(
                consumer_group=TOOLS_GROUP,
                topic=queue.topic,
                queue_id=queue.queue,
                queue_offset=start,
                max_msg_nums=PULL_MESSAGES,
                sys_flag=int(PullFlag.SUBSCRIPTION),
                commit_offset=0,
                suspend_timeout_millis=0,
                subscription="*",
                sub_version=0,
                expression_type="TAG",
            )
            pulled = await self._requests.pull(address, header, timeout_ms=PULL_TIMEOUT_MS)
            messages = received_messages(pulled.body, queue) if not pulled.code else []
            found += [each for each in messages if begin_ms <= each.stored_at_ms < end_ms]
            if any(each.stored_at_ms >= end_ms for each in messages):
                break
            if pulled.header.next_begin_offset <= start:
                break
            start = pulled.header.next_begin_offset
        return found[:count_max]

    async def _by_key(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        *,
        is_unique: bool = False,
    ) -> list[ReceivedMessage]:
        header = QueryMessageHeader(
            topic=topic,
            key=key,
            max_num=count_max,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=is_unique,
        )
        found: list[ReceivedMessage] = []
        names = await self._masters_of(topic)
        for address, name in names.items():
            for stored in await self._requests.query_messages(address, header):
                message = _received(stored, name)
                is_real = message.message_id == key if is_unique else key in message.keys
                if is_real:
                    found.append(message)
        found.sort(key=lambda each: (each.stored_at_ms, each.queue, each.offset))
        return found[-count_max:] if is_unique else found[:count_max]


class QueueStats(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    """How much is in one queue."""

    min_offset: int
    max_offset: int
    """That of the next message."""
    changed_at_ms: int = msgspec.field(name="lastUpdateTimestamp", default=0)

    @property
    def messages(self) -> int:
        """How many there are."""
        return self.max_offset - self.min_offset


class QueueProgress(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    """How far a group is in one queue."""

    broker_offset: int
    """That of the next message."""
    committed: int = msgspec.field(name="consumerOffset")
    pull_offset: int = 0
    """Where its reader asked last; 0 from brokers that do not say."""
    committed_at_ms: int = msgspec.field(name="lastTimestamp", default=0)
    """When the last message before ``committed`` was stored."""

    @property
    def lag(self) -> int:
        """Messages to go."""
        return max(self.broker_offset - max(self.committed, 0), 0)

    @property
    def in_flight(self) -> int:
        """Messages that were read and are not settled."""
        return max(self.pull_offset - max(self.committed, 0), 0)


class ClientConnection(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    """One client that is connected."""

    client_id: str
    address: str = msgspec.field(name="clientAddr", default="")
    language: str = ""
    version: int = 0


class GroupConnections(msgspec.Struct, frozen=True):
    """Who is connected for a group, and what it reads; the rest is empty for producers."""

    connections: list[ClientConnection] = []
    subscriptions: dict[str, SubscriptionData] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from: str = ""

    @property
    def client_ids(self) -> list[str]:
        """Ids of the connected clients, sorted as brokers sort them."""
        return sorted({each.client_id for each in self.connections})


class _Connections(Body, gc=False, kw_only=True, rename="camel"):
    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


def _attributes(given: Mapping[str, str] | None) -> str | None:
    """``+name=value,+name=value``, as brokers read changes of attributes."""
    if not given:
        return None
    return ",".join(f"+{name}={value}" for name, value in given.items())


def _is_offline(refused: BrokerRefused) -> bool:
    """A broker that tells the members found none; 4.9 has no code of its own for that."""
    is_unknown = refused.code == ResponseCode.SYSTEM_ERROR and "consumer group" in refused.remark
    return refused.code == ResponseCode.CONSUMER_NOT_ONLINE or is_unknown


def _timestamp(to: End | datetime | int) -> int:
    """Milliseconds as brokers take them: 0 is before everything, -1 is the end."""
    if isinstance(to, datetime):
        return int(to.timestamp() * 1000)
    if isinstance(to, int):
        return to
    try:
        return {EARLIEST: 0, LATEST: -1}[to]
    except KeyError:
        raise ValueError(
            f"{to!r} is neither 'earliest', 'latest', a datetime nor milliseconds"
        ) from None


def _received(stored: StoredMessage, broker: str) -> ReceivedMessage:
    return ReceivedMessage(stored, QueueRef(stored.topic, broker, stored.queue_id))


def read_rows(rows: Mapping[QueueRef, Any], kind: type[Row]) -> dict[QueueRef, Row]:
    """What brokers answered of each queue, typed, sorted by queue."""
    return {queue: msgspec.convert(rows[queue], kind, strict=False) for queue in sorted(rows)}


def merge_connections(answers: Iterable[Mapping[str, Any]]) -> GroupConnections:
    """Of one or several brokers: a client is connected to each, and is listed once."""
    found: dict[str, ClientConnection] = {}
    subscriptions: dict[str, SubscriptionData] = {}
    last = _Connections()
    for answer in answers:
        last = msgspec.convert(answer, _Connections, strict=False)
        found |= {each.client_id: each for each in last.connection_set}
        subscriptions |= last.subscription_table
    return GroupConnections(
        [found[client_id] for client_id in sorted(found)],
        subscriptions,
        last.consume_type,
        last.message_model,
        last.consume_from_where,
    )
