"""Single messages, for operators: by id, by key, by time.

Brokers find messages of a key by its hash; what only has the same hash is left out here.

Not here: consuming (``consumer/``).
"""

from typing import Final

from penstock.client.admin_session import AdminSession
from penstock.client.errors import BrokerRefused
from penstock.client.message import ReceivedMessage, received
from penstock.client.twins import awaitable, blocking
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import PullFlag, PullHeader, QueryMessageHeader
from penstock.wire.rocketmq.message_id import decode_host, parse_offset_message_id
from penstock.wire.rocketmq.stored import StoredMessage

ALWAYS_MS: Final = (1 << 63) - 1
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group under which RocketMQ's own tools read; brokers have it."""
PULL_MESSAGES: Final = 32
PULL_TIMEOUT_MS: Final = 10_000


class MessageAdmin(AdminSession):
    """What an operator asks about messages."""

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
            for name, addresses in (await self._all_brokers()).items()
            for address in addresses.values()
        }
        name = names.get(f"{ip}:{port}")
        if name is None:
            return None
        try:
            stored = await self._calls.view_message(f"{ip}:{port}", position, topic)
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
            start = await self._calls.search_offset(queue, begin_ms)
            found += await self._read(queue, start, begin_ms, end_ms, count_max)
        found.sort(key=lambda each: (each.stored_at_ms, each.queue, each.offset))
        return found[:count_max]

    messages_between = blocking(_messages_between)
    messages_between_async = awaitable(_messages_between)

    async def _read(
        self, queue: QueueRef, start: int, begin_ms: int, end_ms: int, count_max: int
    ) -> list[ReceivedMessage]:
        address = await self._calls.master_of(queue)
        end = await self._calls.max_offset(queue)
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
            pulled = await self._calls.pull(address, header, timeout_ms=PULL_TIMEOUT_MS)
            messages = received(pulled.body, queue) if not pulled.code else []
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
            for stored in await self._calls.query_messages(address, header):
                message = _received(stored, name)
                is_real = message.message_id == key if is_unique else key in message.keys
                if is_real:
                    found.append(message)
        found.sort(key=lambda each: (each.stored_at_ms, each.queue, each.offset))
        return found[-count_max:] if is_unique else found[:count_max]


def _received(stored: StoredMessage, broker: str) -> ReceivedMessage:
    return ReceivedMessage(stored, QueueRef(stored.topic, broker, stored.queue_id))
