"""Requests of consumers that pull: messages, offsets, retries, locks, members.

Everything that names a queue goes to the master of its broker; only ``pull`` takes an address,
because a broker may suggest a slave.

Not here: pop (``calls_pop.py``), when to call what (``consumer/``).
"""

import random
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.client.asking import Asker, read_header
from penstock.client.errors import Unreachable
from penstock.client.queue_tables import message_queue, queue_ref
from penstock.client.routes import MASTER_ID
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import (
    CheckClientBody,
    ConsumerList,
    LockBatchAnswer,
    LockBatchBody,
    SubscriptionData,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.headers import (
    GroupHeader,
    OffsetAnswer,
    PullAnswer,
    PullHeader,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendBackHeader,
    TimestampAnswer,
    UpdateOffsetHeader,
)

MEMBERS_BYTES_MAX: Final = 16 * 1024 * 1024

_PULL_CODES: Final = frozenset(
    (
        int(ResponseCode.SUCCESS),
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.PULL_RETRY_IMMEDIATELY),
        int(ResponseCode.PULL_OFFSET_MOVED),
    )
)
_LITE_PULL_CODES: Final = _PULL_CODES | {int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)}
_FOUND_OR_NOT: Final = frozenset((int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)))


class Pulled(msgspec.Struct, gc=False):
    """The answer to a pull."""

    code: int
    """0 found, 19 not found, 20 retry at once, 21 the offset is outside the queue."""
    header: PullAnswer
    body: bytes
    """Stored messages, for ``message.received``."""
    remark: str = ""


class ConsumeCalls(Asker):
    """The requests of a consumer."""

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
        answer = await self.ask(address, code, header, timeout_ms=timeout_ms, accepted=accepted)
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
        answer = await self.ask(
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
            self.tell(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        else:
            await self.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def max_offset(self, queue: QueueRef) -> int:
        """The offset of the next message of a queue."""
        return await self._offset(RequestCode.GET_MAX_OFFSET, queue)

    async def min_offset(self, queue: QueueRef) -> int:
        """The offset of the oldest message of a queue."""
        return await self._offset(RequestCode.GET_MIN_OFFSET, queue)

    async def search_offset(self, queue: QueueRef, at_ms: int, boundary: str = "LOWER") -> int:
        """The offset of the first (LOWER) or last (UPPER) message stored at a wall time."""
        header = SearchOffsetHeader(
            topic=queue.topic, queue_id=queue.queue, timestamp=at_ms, boundary_type=boundary
        )
        answer = await self.ask(
            await self.master_of(queue), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header
        )
        return read_header(OffsetAnswer, answer).offset

    async def earliest_store_time(self, queue: QueueRef) -> int:
        """Wall time at which the oldest message of a queue was stored; -1 when it is empty."""
        header = QueueHeader(topic=queue.topic, queue_id=queue.queue)
        answer = await self.ask(
            await self.master_of(queue), RequestCode.GET_EARLIEST_MSG_STORETIME, header
        )
        return read_header(TimestampAnswer, answer).timestamp

    async def send_back(
        self, address: str, header: SendBackHeader, *, timeout_ms: int | None = None
    ) -> None:
        """CONSUMER_SEND_MSG_BACK: have a message delivered again later, or buried."""
        await self.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=timeout_ms)

    async def consumers_of(self, group: str, topic: str) -> list[str]:
        """Client ids of the members of a group, from any broker of a topic."""
        address = await self._any_of(topic)
        answer = await self.ask(
            address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(consumer_group=group)
        )
        found = decode_body(answer.body, ConsumerList, bytes_max=MEMBERS_BYTES_MAX)
        return found.consumer_id_list

    async def lock(self, broker: str, group: str, queues: Iterable[QueueRef]) -> set[QueueRef]:
        """Lock queues of one broker for this client; those that it holds now."""
        listed = list(queues)
        if not listed:
            return set()
        answer = await self.ask(
            await self._master_named(broker, listed[0]),
            RequestCode.LOCK_BATCH_MQ,
            body=encode_body(self._lock_body(group, listed)),
        )
        return {queue_ref(each) for each in decode_body(answer.body, LockBatchAnswer).locked}

    async def unlock(
        self, broker: str, group: str, queues: Iterable[QueueRef], *, oneway: bool = False
    ) -> None:
        """Give up locks on queues of one broker."""
        listed = list(queues)
        if not listed:
            return
        address = await self._master_named(broker, listed[0])
        body = encode_body(self._lock_body(group, listed))
        if oneway:
            self.tell(address, RequestCode.UNLOCK_BATCH_MQ, body=body)
        else:
            await self.ask(address, RequestCode.UNLOCK_BATCH_MQ, body=body)

    async def check_client(self, group: str, subscription: SubscriptionData) -> None:
        """CHECK_CLIENT_CONFIG at a broker of the topic; ``BrokerRefused`` for SQL it cannot do."""
        body = CheckClientBody(
            client_id=self._client_id, group=group, subscription_data=subscription
        )
        address = await self._any_of(subscription.topic)
        await self.ask(address, RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(body))

    async def _offset(self, code: int, queue: QueueRef) -> int:
        header = QueueHeader(topic=queue.topic, queue_id=queue.queue)
        answer = await self.ask(await self.master_of(queue), code, header)
        return read_header(OffsetAnswer, answer).offset

    async def _any_of(self, topic: str) -> str:
        """The address of any broker of a topic; the master of it where there is one."""
        route = await self._routes.get_or_look_up(topic)
        known = [each for each in route.brokers.values() if each]
        if not known:
            raise Unreachable(topic, "its route names no broker")
        chosen = random.choice(known)
        return chosen.get(MASTER_ID) or chosen[min(chosen)]

    async def _master_named(self, broker: str, queue: QueueRef) -> str:
        return await self.master_of(queue._replace(broker=broker))

    def _lock_body(self, group: str, queues: list[QueueRef]) -> LockBatchBody:
        return LockBatchBody(
            consumer_group=group,
            client_id=self._client_id,
            mq_set=[message_queue(each) for each in queues],
        )
