"""Requests of pop mode: take, acknowledge, change the invisible time; broker-side assignment.

Not here: handles (``wire/rocketmq/pop_handle``), when to call what (``consumer/pop.py``).
"""

from typing import Final

import msgspec

from penstock.client.asking import read_header
from penstock.client.calls_consume import ConsumeCalls
from penstock.wire.rocketmq.bodies import (
    BatchAckBody,
    MessageModel,
    QueryAssignmentAnswer,
    QueryAssignmentBody,
    QueueAssignment,
    RequestMode,
    SetRequestModeBody,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.headers import (
    AckHeader,
    ChangeInvisibleAnswer,
    ChangeInvisibleHeader,
    NotificationAnswer,
    NotificationHeader,
    PeekHeader,
    PopAnswer,
    PopHeader,
)

_NOTHING: Final = frozenset(
    (
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.POLLING_FULL),
        int(ResponseCode.POLLING_TIMEOUT),
    )
)
_POP_CODES: Final = _NOTHING | {int(ResponseCode.SUCCESS)}


class Popped(msgspec.Struct, gc=False):
    """The answer to a pop or a peek."""

    code: int
    """0 found, 19 nothing, 209 too many wait already, 210 nothing came in time."""
    header: PopAnswer | None
    """None unless something was found."""
    body: bytes
    remark: str = ""


class PopCalls(ConsumeCalls):
    """The requests of a consumer in pop mode."""

    async def pop(self, address: str, header: PopHeader, *, timeout_ms: int) -> Popped:
        """POP_MESSAGE; any code but 0, 19, 209, 210 is ``BrokerRefused``."""
        answer = await self.ask(
            address,
            RequestCode.POP_MESSAGE,
            header,
            timeout_ms=timeout_ms,
            accepted=_POP_CODES,
        )
        found = None if answer.code else read_header(PopAnswer, answer)
        return Popped(answer.code, found, answer.body, answer.remark or "")

    async def peek(self, address: str, header: PeekHeader) -> Popped:
        """PEEK_MESSAGE: look without taking."""
        answer = await self.ask(address, RequestCode.PEEK_MESSAGE, header, accepted=_POP_CODES)
        found = None if answer.code else read_header(PopAnswer, answer)
        return Popped(answer.code, found, answer.body, answer.remark or "")

    async def ack(self, address: str, header: AckHeader) -> None:
        """ACK_MESSAGE."""
        await self.ask(address, RequestCode.ACK_MESSAGE, header)

    async def batch_ack(self, address: str, body: BatchAckBody) -> None:
        """BATCH_ACK_MESSAGE; ``BrokerRefused`` with code 3 where brokers are older than 5.0."""
        await self.ask(address, RequestCode.BATCH_ACK_MESSAGE, body=encode_body(body))

    async def change_invisible(
        self, address: str, header: ChangeInvisibleHeader
    ) -> ChangeInvisibleAnswer:
        """CHANGE_MESSAGE_INVISIBLETIME; the answer makes the new handle, the old one is void."""
        answer = await self.ask(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        return read_header(ChangeInvisibleAnswer, answer)

    async def notification(
        self, address: str, header: NotificationHeader, *, timeout_ms: int
    ) -> NotificationAnswer:
        """NOTIFICATION: wait until there is something to pop."""
        answer = await self.ask(address, RequestCode.NOTIFICATION, header, timeout_ms=timeout_ms)
        return read_header(NotificationAnswer, answer)

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
        answer = await self.ask(address, RequestCode.QUERY_ASSIGNMENT, body=encode_body(body))
        return decode_body(answer.body, QueryAssignmentAnswer).message_queue_assignments

    async def set_request_mode(
        self, address: str, topic: str, group: str, mode: RequestMode, *, share: int = -1
    ) -> None:
        """SET_MESSAGE_REQUEST_MODE at one broker."""
        body = SetRequestModeBody(
            topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share
        )
        await self.ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_body(body))
