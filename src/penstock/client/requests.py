"""Every request a client makes of brokers and name servers, one typed coroutine each.

A coroutine raises ``BrokerRefused`` when the code of the answer is no success, and ``Unreachable``,
``TimedOut`` or ``WouldBlock`` when there is no answer. What names a queue goes to the master of its
broker; where a caller passes an address, it chose the broker itself (a slave to pull from, the
broker that handed out a message, an operator's).

Not here: sends, which go straight through ``Network.start_frame`` (``producer/sender.py``).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from penstock.client.connection import Network
from penstock.client.errors import BrokerRefused, ClientError, Unreachable
from penstock.client.message import stored_messages
from penstock.client.routes import MASTER_ID, NameServers, RouteCache, make_command
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import (
    BatchAckBody,
    CheckClientBody,
    Cluster,
    ConsumerList,
    HeartbeatData,
    LockBatchAnswer,
    LockBatchBody,
    MessageModel,
    MessageQueue,
    QueryAssignmentAnswer,
    QueryAssignmentBody,
    QueueAssignment,
    RequestMode,
    SetRequestModeBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicList,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.headers import (
    AckHeader,
    ChangeInvisibleAnswer,
    ChangeInvisibleHeader,
    ConsumeStatsHeader,
    CreateTopicHeader,
    EndTransactionHeader,
    GroupHeader,
    GroupNameHeader,
    H,
    Header,
    OffsetAnswer,
    PopAnswer,
    PopHeader,
    ProducerGroupHeader,
    PullAnswer,
    PullHeader,
    QueryMessageHeader,
    QueryOffsetHeader,
    QueueHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    SendBackHeader,
    TimestampAnswer,
    TopicHeader,
    UnregisterHeader,
    UpdateOffsetHeader,
    ViewMessageHeader,
    parse,
)
from penstock.wire.rocketmq.stored import StoredMessage

_OK: Final = frozenset((int(ResponseCode.SUCCESS),))
_FOUND_OR_NOT: Final = frozenset((int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)))
_PULL_CODES: Final = frozenset(
    (
        int(ResponseCode.SUCCESS),
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.PULL_RETRY_IMMEDIATELY),
        int(ResponseCode.PULL_OFFSET_MOVED),
    )
)
_LITE_PULL_CODES: Final = _PULL_CODES | {int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)}
_POP_CODES: Final = frozenset(
    (
        int(ResponseCode.SUCCESS),
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.POLLING_FULL),
        int(ResponseCode.POLLING_TIMEOUT),
    )
)

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Members and statistics of a large cluster are read up to the size of a frame."""


class BrokerRequests:
    """The requests of one client instance (RocketMQ's ``MQClientAPIImpl``), on its event loop.

    Nothing is tried again here and nothing is kept but which brokers know no lite pulls.
    """

    def __init__(
        self,
        network: Network,
        routes: RouteCache,
        name_servers: NameServers,
        *,
        client_id: str,
        timeout_ms: int,
    ) -> None:
        self._network = network
        self._routes = routes
        self._name_servers = name_servers
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._without_lite: set[str] = set()
        """Addresses of brokers that know no lite pulls (4.x); as many as there are brokers."""

    async def _ask(
        self,
        address: str,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
        accepted: Collection[int] = _OK,
    ) -> Command:
        """The answer of a broker; one with another code than ``accepted`` is ``BrokerRefused``."""
        answer = await self._network.request(
            address, make_command(code, header, body), timeout_ms=timeout_ms or self._timeout_ms
        )
        if answer.code not in accepted:
            raise BrokerRefused(answer.code, answer.remark, address)
        return answer

    async def _ask_name_server(
        self, code: int, header: Header | dict[str, str] | None = None
    ) -> Command:
        """The answer of a name server; ``BrokerRefused`` unless it is SUCCESS."""
        answer = await self._name_servers.request(
            make_command(code, header), timeout_ms=self._timeout_ms
        )
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(answer.code, answer.remark, self._name_servers.current)
        return answer

    def _oneway(
        self, address: str, code: int, header: Header | None = None, body: bytes = b""
    ) -> None:
        """A request without an answer."""
        self._network.oneway(address, make_command(code, header, body))

    async def master_of(self, queue: QueueRef) -> str:
        """Where the master of a queue listens; its route is looked up when it is not known."""
        address = self._routes.address(queue.broker, MASTER_ID)
        if address is None:
            await self._routes.look_up(queue.topic)
            address = self._routes.address(queue.broker, MASTER_ID)
        if address is None:
            raise Unreachable(queue.broker, f"no route of {queue.topic!r} names its master")
        return address

    async def _any_of(self, topic: str) -> str:
        """The address of any broker of a topic; the master of it where there is one."""
        route = await self._routes.get_or_look_up(topic)
        known = [each for each in route.brokers.values() if each]
        if not known:
            raise Unreachable(topic, "its route names no broker")
        chosen = random.choice(known)
        return chosen.get(MASTER_ID) or chosen[min(chosen)]

    # --- membership -------------------------------------------------------------------------------

    async def heartbeat(
        self, address: str, data: HeartbeatData, *, timeout_ms: int | None = None
    ) -> int:
        """HEART_BEAT; the version of the broker, by which one sees what it can do."""
        answer = await self._ask(
            address, RequestCode.HEART_BEAT, body=encode_body(data), timeout_ms=timeout_ms
        )
        return answer.version

    async def unregister(
        self,
        address: str,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """UNREGISTER_CLIENT: this client is no longer a member of the group."""
        header = UnregisterHeader(
            client_id=self._client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        await self._ask(address, RequestCode.UNREGISTER_CLIENT, header, timeout_ms=timeout_ms)

    def end_transaction(self, address: str, header: EndTransactionHeader) -> None:
        """END_TRANSACTION: commit or roll back a half message; there is no answer."""
        self._oneway(address, RequestCode.END_TRANSACTION, header)

    # --- pulling, offsets, retries and queue locks ------------------------------------------------

    async def pull(
        self, address: str, header: PullHeader, *, timeout_ms: int, is_lite: bool = False
    ) -> Pulled:
        """PULL_MESSAGE (or LITE_PULL_MESSAGE); any code but 0, 19, 20, 21 is ``BrokerRefused``.

        Brokers of 4.x do not know lite pulls: those that say so get plain ones from then on.
        """
        if is_lite and address not in self._without_lite:
            code, accepted = RequestCode.LITE_PULL_MESSAGE, _LITE_PULL_CODES
        else:
            code, accepted = RequestCode.PULL_MESSAGE, _PULL_CODES
        answer = await self._ask(address, code, header, timeout_ms=timeout_ms, accepted=accepted)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._without_lite.add(address)
            return await self.pull(address, header, timeout_ms=timeout_ms)
        return Pulled(
            answer.code, read_header(PullAnswer, answer), answer.body, answer.remark or ""
        )

    async def query_offset(
        self, queue: QueueRef, group: str, *, zero_if_not_found: bool | None = None
    ) -> int | None:
        """Where the group is in a queue; None when the broker has no offset for it."""
        header = QueryOffsetHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue,
            set_zero_if_not_found=zero_if_not_found,
        )
        answer = await self._ask(
            await self.master_of(queue),
            RequestCode.QUERY_CONSUMER_OFFSET,
            header,
            accepted=_FOUND_OR_NOT,
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = read_header(OffsetAnswer, answer).offset
        return offset if offset >= 0 else None

    async def update_offset(
        self, queue: QueueRef, group: str, offset: int, *, oneway: bool = True
    ) -> None:
        """Store where the group is; without an answer unless asked for one."""
        header = UpdateOffsetHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue, commit_offset=offset
        )
        address = await self.master_of(queue)
        if oneway:
            self._oneway(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        else:
            await self._ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def max_offset(self, queue: QueueRef) -> int:
        """The offset of the next message of a queue."""
        return await self._queue_offset(RequestCode.GET_MAX_OFFSET, queue)

    async def min_offset(self, queue: QueueRef) -> int:
        """The offset of the oldest message of a queue."""
        return await self._queue_offset(RequestCode.GET_MIN_OFFSET, queue)

    async def search_offset(self, queue: QueueRef, at_ms: int, boundary: str = "LOWER") -> int:
        """The offset of the first (LOWER) or last (UPPER) message stored at a wall time."""
        header = SearchOffsetHeader(
            topic=queue.topic, queue_id=queue.queue, timestamp=at_ms, boundary_type=boundary
        )
        answer = await self._ask(
            await self.master_of(queue), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header
        )
        return read_header(OffsetAnswer, answer).offset

    async def earliest_store_time(self, queue: QueueRef) -> int:
        """Wall time at which the oldest message of a queue was stored; -1 when it is empty."""
        header = QueueHeader(topic=queue.topic, queue_id=queue.queue)
        answer = await self._ask(
            await self.master_of(queue), RequestCode.GET_EARLIEST_MSG_STORETIME, header
        )
        return read_header(TimestampAnswer, answer).timestamp

    async def send_back(
        self, address: str, header: SendBackHeader, *, timeout_ms: int | None = None
    ) -> None:
        """CONSUMER_SEND_MSG_BACK: have a message delivered again later, or buried."""
        await self._ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=timeout_ms)

    async def consumers_of(self, group: str, topic: str) -> list[str]:
        """Client ids of the members of a group, from any broker of a topic."""
        address = await self._any_of(topic)
        answer = await self._ask(
            address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(consumer_group=group)
        )
        found = decode_body(answer.body, ConsumerList, bytes_max=ANSWER_BYTES_MAX)
        return found.consumer_id_list

    async def lock(self, broker: str, group: str, queues: Iterable[QueueRef]) -> set[QueueRef]:
        """Lock queues of one broker for this client; those that it holds now."""
        listed = list(queues)
        if not listed:
            return set()
        address = await self.master_of(listed[0]._replace(broker=broker))
        body = self._lock_body(group, listed)
        answer = await self._ask(address, RequestCode.LOCK_BATCH_MQ, body=body)
        return {queue_ref(each) for each in decode_body(answer.body, LockBatchAnswer).locked}

    async def unlock(
        self, broker: str, group: str, queues: Iterable[QueueRef], *, oneway: bool = False
    ) -> None:
        """Give up locks on queues of one broker."""
        listed = list(queues)
        if not listed:
            return
        address = await self.master_of(listed[0]._replace(broker=broker))
        body = self._lock_body(group, listed)
        if oneway:
            self._oneway(address, RequestCode.UNLOCK_BATCH_MQ, body=body)
        else:
            await self._ask(address, RequestCode.UNLOCK_BATCH_MQ, body=body)

    async def check_client(self, group: str, subscription: SubscriptionData) -> None:
        """CHECK_CLIENT_CONFIG at a broker of the topic; ``BrokerRefused`` for SQL it cannot do."""
        body = CheckClientBody(
            client_id=self._client_id, group=group, subscription_data=subscription
        )
        address = await self._any_of(subscription.topic)
        await self._ask(address, RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(body))

    async def _queue_offset(self, code: int, queue: QueueRef) -> int:
        header = QueueHeader(topic=queue.topic, queue_id=queue.queue)
        answer = await self._ask(await self.master_of(queue), code, header)
        return read_header(OffsetAnswer, answer).offset

    def _lock_body(self, group: str, queues: list[QueueRef]) -> bytes:
        listed = [message_queue(each) for each in queues]
        return encode_body(
            LockBatchBody(consumer_group=group, client_id=self._client_id, mq_set=listed)
        )

    # --- pop mode ---------------------------------------------------------------------------------

    async def pop(self, address: str, header: PopHeader, *, timeout_ms: int) -> Popped:
        """POP_MESSAGE; any code but 0, 19, 209, 210 is ``BrokerRefused``."""
        answer = await self._ask(
            address,
            RequestCode.POP_MESSAGE,
            header,
            timeout_ms=timeout_ms,
            accepted=_POP_CODES,
        )
        found = None if answer.code else read_header(PopAnswer, answer)
        return Popped(answer.code, found, answer.body, answer.remark or "")

    async def ack(self, address: str, header: AckHeader) -> None:
        """ACK_MESSAGE."""
        await self._ask(address, RequestCode.ACK_MESSAGE, header)

    async def batch_ack(self, address: str, body: BatchAckBody) -> None:
        """BATCH_ACK_MESSAGE; ``BrokerRefused`` with code 3 where brokers are older than 5.0."""
        await self._ask(address, RequestCode.BATCH_ACK_MESSAGE, body=encode_body(body))

    async def change_invisible(
        self, address: str, header: ChangeInvisibleHeader
    ) -> ChangeInvisibleAnswer:
        """CHANGE_MESSAGE_INVISIBLETIME; the answer makes the new handle, the old one is void."""
        answer = await self._ask(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        return read_header(ChangeInvisibleAnswer, answer)

    async def query_assignment(
        self,
        topic: str,
        group: str,
        *,
        strategy: str = "AVG",
        model: MessageModel = MessageModel.CLUSTERING,
    ) -> list[QueueAssignment] | None:
        """QUERY_ASSIGNMENT: what this client shall read; None means keep what you have."""
        body = QueryAssignmentBody(
            topic=topic,
            consumer_group=group,
            client_id=self._client_id,
            strategy_name=strategy,
            message_model=model,
        )
        address = await self._any_of(topic)
        answer = await self._ask(address, RequestCode.QUERY_ASSIGNMENT, body=encode_body(body))
        return decode_body(answer.body, QueryAssignmentAnswer).message_queue_assignments

    async def set_request_mode(
        self, address: str, topic: str, group: str, mode: RequestMode, *, share: int = -1
    ) -> None:
        """SET_MESSAGE_REQUEST_MODE at one broker."""
        body = SetRequestModeBody(
            topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share
        )
        await self._ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_body(body))

    # --- operators: topics, groups, statistics, single messages -----------------------------------

    async def cluster(self) -> Cluster:
        """GET_BROKER_CLUSTER_INFO: all brokers that the name server knows."""
        answer = await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return decode_body(answer.body, Cluster, bytes_max=ANSWER_BYTES_MAX)

    async def topic_list(self) -> list[str]:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        answer = await self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return decode_body(answer.body, TopicList, bytes_max=ANSWER_BYTES_MAX).topic_list

    async def create_topic(self, address: str, header: CreateTopicHeader) -> None:
        """UPDATE_AND_CREATE_TOPIC at one broker."""
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete_topic(self, address: str, topic: str) -> None:
        """DELETE_TOPIC_IN_BROKER."""
        await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=topic))

    async def delete_topic_route(self, topic: str) -> None:
        """DELETE_TOPIC_IN_NAMESRV, at every name server."""
        for address in self._name_servers.addresses:
            header = TopicHeader(topic=topic)
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def put_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP at one broker."""
        await self._ask(
            address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(config)
        )

    async def delete_group(self, address: str, group: str, *, clean_offsets: bool) -> None:
        """DELETE_SUBSCRIPTIONGROUP at one broker."""
        header = GroupNameHeader(
            group_name=group, clean_offset=clean_offsets, remove_offset=clean_offsets
        )
        await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def group_configs(self, address: str) -> dict[str, Any]:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG: the JSON object of each group, by name."""
        answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table: dict[str, Any] = _json(answer).get("subscriptionGroupTable", {})
        return table

    async def topic_stats(self, address: str, topic: str) -> dict[QueueRef, dict[str, int]]:
        """GET_TOPIC_STATS_INFO: minOffset, maxOffset, lastUpdateTimestamp of each queue."""
        answer = await self._ask(
            address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic=topic)
        )
        return read_table(_json(answer).get("offsetTable", {}))

    async def consume_stats(
        self, address: str, group: str, topic: str | None = None
    ) -> dict[QueueRef, dict[str, int]]:
        """GET_CONSUME_STATS: brokerOffset, consumerOffset, lastTimestamp of each queue."""
        header = ConsumeStatsHeader(consumer_group=group, topic=topic)
        answer = await self._ask(address, RequestCode.GET_CONSUME_STATS, header)
        return read_table(_json(answer).get("offsetTable", {}))

    async def consumer_connections(self, address: str, group: str) -> dict[str, Any]:
        """GET_CONSUMER_CONNECTION_LIST as JSON."""
        answer = await self._ask(
            address, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader(consumer_group=group)
        )
        return _json(answer)

    async def producer_connections(self, address: str, group: str) -> dict[str, Any]:
        """GET_PRODUCER_CONNECTION_LIST as JSON."""
        header = ProducerGroupHeader(producer_group=group)
        return _json(await self._ask(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header))

    async def reset_offset(self, address: str, header: ResetOffsetHeader) -> dict[QueueRef, int]:
        """INVOKE_BROKER_TO_RESET_OFFSET; the new offsets."""
        answer = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return read_offsets(_json(answer).get("offsetTable", {}))

    async def view_message(self, address: str, commit_log_offset: int, topic: str) -> StoredMessage:
        """VIEW_MESSAGE_BY_ID."""
        header = ViewMessageHeader(offset=commit_log_offset, topic=topic or None)
        answer = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        found = stored_messages(answer.body)
        if not found:
            raise ClientError(f"{address} answered with no message at {commit_log_offset}")
        return found[0]

    async def query_messages(self, address: str, header: QueryMessageHeader) -> list[StoredMessage]:
        """QUERY_MESSAGE by key or unique key; brokers compare hashes, so check the key again."""
        answer = await self._ask(address, RequestCode.QUERY_MESSAGE, header, accepted=_FOUND_OR_NOT)
        return stored_messages(answer.body)

    async def running_info(
        self, address: str, group: str, client_id: str, *, with_stacks: bool = False
    ) -> dict[str, Any]:
        """GET_CONSUMER_RUNNING_INFO, passed on by a broker; as JSON."""
        header = {
            "consumerGroup": group,
            "clientId": client_id,
            "jstackEnable": "true" if with_stacks else "false",
        }
        return _json(await self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header))


class Pulled(msgspec.Struct, gc=False):
    """The answer to a pull."""

    code: int
    """0 found, 19 not found, 20 retry at once, 21 the offset is outside the queue or was reset."""
    header: PullAnswer
    body: bytes
    """Stored messages, for ``received_messages``."""
    remark: str = ""


class Popped(msgspec.Struct, gc=False):
    """The answer to a pop."""

    code: int
    """0 found, 19 nothing, 209 too many wait already, 210 nothing came in time."""
    header: PopAnswer | None
    """None unless something was found."""
    body: bytes
    remark: str = ""


def read_header(kind: type[H], answer: Command) -> H:
    """The typed header of an answer; ``ClientError`` where a broker forgot a field."""
    try:
        return parse(kind, answer)
    except Malformed as problem:
        raise ClientError(f"the answer of a broker cannot be read: {problem}") from None


def _json(answer: Command) -> dict[str, Any]:
    return decode_body(answer.body, dict[str, Any], bytes_max=ANSWER_BYTES_MAX)


# JSON maps whose keys are queues, which fastjson writes as objects: ``{{"queueId":0,...}:5}``.
# ``decode_body`` reads such keys as the text of the object; here they become ``QueueRef``s, and
# back into what Java reads. Newer brokers send lists or plain text instead; both are understood.


def queue_ref(queue: MessageQueue) -> QueueRef:
    """The queue under its name on this side."""
    return QueueRef(queue.topic, queue.broker_name, queue.queue_id)


def message_queue(queue: QueueRef) -> MessageQueue:
    """The queue under its name on the wire."""
    return MessageQueue(topic=queue.topic, broker_name=queue.broker, queue_id=queue.queue)


def read_table(table: Mapping[str, Any]) -> dict[QueueRef, Any]:
    """A map by queue, after ``decode_body`` made its keys text."""
    return {
        queue_ref(decode_body(key.encode(), MessageQueue)): value for key, value in table.items()
    }


def read_offsets(table: Mapping[str, Any] | list[dict[str, Any]]) -> dict[QueueRef, int]:
    """Offsets by queue: a map, or the list of queues that C++ clients are sent."""
    if isinstance(table, list):
        return {
            QueueRef(str(row["topic"]), str(row["brokerName"]), int(row["queueId"])): int(
                row["offset"]
            )
            for row in table
        }
    return {queue: int(value) for queue, value in read_table(table).items()}


def encode_tables(body: Mapping[str, Any]) -> bytes:
    """A JSON body in which maps with ``QueueRef`` keys get objects as keys, as Java expects."""
    parts = []
    for name, value in body.items():
        text = encode_body(value) if not _is_by_queue(value) else _table(value)
        parts.append(encode_body(name) + b":" + text)
    return b"{" + b",".join(parts) + b"}"


def _is_by_queue(value: object) -> bool:
    return isinstance(value, dict) and any(isinstance(key, QueueRef) for key in value)


def _table(rows: Mapping[QueueRef, object]) -> bytes:
    pairs = [
        encode_body(message_queue(queue)) + b":" + encode_body(row) for queue, row in rows.items()
    ]
    return b"{" + b",".join(pairs) + b"}"
