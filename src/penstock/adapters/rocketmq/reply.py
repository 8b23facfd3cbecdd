"""Request and reply: a reply goes through the broker to the client that waits for it (324, 325).

A request is a plain message with three properties more: CORRELATION_ID, REPLY_TO_CLIENT (the client
id of whoever waits) and TTL. Whoever consumes it sends its reply with the first two. The reply is
pushed (326) over the connection on which that client sends its producer heartbeats, and stored in
``<cluster>_REPLY_TOPIC`` unless ``rocketmq.is_storing_replies`` is off. It is answered when both
are over; as with RocketMQ the push alone decides how.

Bounds: replies that wait for a requester's response are counted (``CALLS_MAX``), have
``PUSHED_BYTES_MAX`` together and 10 s each; one that does not take what it is sent gets no more.
Not here: checks of a send (``send.py``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.admin import ClientCalls
from penstock.adapters.rocketmq.groups import ClientRegistry
from penstock.adapters.rocketmq.requests import ErrorResponse
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.frames import REGION, send_of
from penstock.wire.rocketmq.headers import ReplyHeader, SendAnswer, fields
from penstock.wire.rocketmq.message_id import decode_host, offset_message_id
from penstock.wire.rocketmq.properties import (
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    value_of,
    with_property,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RemotingPeer, RocketmqBroker
    from penstock.adapters.rocketmq.connection import RocketmqConnection
    from penstock.adapters.rocketmq.send import CallbackPublication, CheckedSend
    from penstock.model.refusal import Refusal

logger = logging.getLogger(__name__)

PUSHED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bodies of replies whose requesters have not said that they are there."""

NO_REQUESTER: Final = f"reply message properties[{REPLY_TO_CLIENT}] is null"
UNSTORED_ID: Final = "0"
"""Clients cannot read an answer without a number."""


def reply_message(connection: RocketmqConnection, command: Command) -> None:
    """SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2."""
    connection.broker.service(ReplyService).reply(connection, command)


class ReplyService:
    """Replies on their way to whoever asked."""

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._calls = ClientCalls(broker)
        self._clients = broker.service(ClientRegistry)
        self.pushed_bytes = 0
        """Of replies whose requesters have not answered yet."""
        self.counts = {"pushed": 0, "failed": 0}
        broker.engine.counter_families.register(
            "rocketmq_replies", "Replies that reached their requester, or not", "kind", self.counts
        )

    def reply(self, connection: RocketmqConnection, command: Command) -> None:
        """Push and store one reply; what is refused here is neither."""
        checked = connection.sends.checked(send_of(command))
        if self.pushed_bytes and self.pushed_bytes + len(command.body) > PUSHED_BYTES_MAX:
            raise ErrorResponse(
                ResponseCode.SYSTEM_BUSY,
                "[FLOW_CONTROL]broker busy, start flow control for a while: "
                f"{self.pushed_bytes} bytes of replies wait for their requesters",
            )
        reply = Reply(self, connection, command, checked.queue_number)
        if self._broker.settings.is_storing_replies:
            reply.parts += 1
        properties = checked.send.header.properties.encode()
        reply.client_id = value_of(properties, REPLY_TO_CLIENT).decode("utf-8", "replace")
        client = self._clients.producer(reply.client_id)
        problem = _problem(reply.client_id, client)
        if client is None or problem is not None:
            reply.pushed(problem)
        else:
            push = ReplyPush(reply, client, self._forwarded(connection, checked))
            self._calls.start(push)
            self.pushed_bytes += len(command.body)
        if self._broker.settings.is_storing_replies:
            publication = connection.sends.publication(checked)
            publication.stored = reply.stored
            publication.refused = reply.refused
            connection.sends.store([publication])

    def _forwarded(self, connection: RocketmqConnection, checked: CheckedSend) -> Command:
        header, now_ms = checked.send.header, self._broker.clock.wall_ms()
        properties = with_property(header.properties.encode(), PUSH_REPLY_TIME, str(now_ms))
        pushed = ReplyHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=properties.decode(),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=_address(connection.born_host),
            store_host=_address(self._broker.store_host),
            store_timestamp=now_ms,
        )
        code = int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
        return Command(code, fields(pushed), checked.send.body)


class Reply:
    """One reply between its coming and its one answer."""

    __slots__ = (
        "_command", "_message_id", "_offset", "_problem", "_queue_number", "_replier", "_service",
        "client_id", "parts",
    )  # fmt: skip

    def __init__(
        self,
        service: ReplyService,
        replier: RemotingPeer,
        command: Command,
        queue_number: int,
    ) -> None:
        self._service = service
        self._replier = replier
        self._command = command
        self._queue_number = queue_number
        self._problem: str | None = None
        self._message_id = UNSTORED_ID
        self._offset = 0
        self.client_id = ""
        self.parts = 1
        """What is not over yet: the push, and storing."""

    def pushed(self, problem: str | None) -> None:
        """The push is over, and what went wrong with it."""
        self._service.counts["pushed" if problem is None else "failed"] += 1
        self._problem = problem
        self._end()

    def stored(self, publication: CallbackPublication) -> None:
        host = self._replier.broker.store_host
        self._message_id = offset_message_id(host, int(publication.record.position))
        self._offset = int(publication.offset)
        self._end()

    def refused(self, refusal: Refusal) -> None:
        """It is not stored: RocketMQ does not say so to whoever replied, either."""
        logger.warning("a reply was not stored", extra={"reason": refusal.text})
        self._end()

    def taken(self) -> None:
        """Its requester has answered, or never will."""
        self._service.pushed_bytes -= len(self._command.body)

    def _end(self) -> None:
        self.parts -= 1
        if self.parts:
            return
        answer = SendAnswer(
            msg_id=self._message_id,
            queue_id=self._queue_number,
            queue_offset=self._offset,
            msg_region=REGION.decode(),
            trace_on=True,
        )
        code = ResponseCode.SUCCESS if self._problem is None else ResponseCode.SYSTEM_ERROR
        self._replier.answer(self._command, code, ext=fields(answer), remark=self._problem)


class ReplyPush:
    """The request to the client that waits for the reply; satisfies ``admin.WaitingCall``."""

    __slots__ = ("_reply", "client", "forwarded", "is_over")

    def __init__(self, reply: Reply, client: RemotingPeer, forwarded: Command) -> None:
        self._reply = reply
        self.client = client
        self.forwarded = forwarded
        self.is_over = False

    def on_response(self, answer: Command | None) -> None:
        """The client has it, does not want it, or is gone."""
        is_taken = answer is not None and answer.code == ResponseCode.SUCCESS
        self._over(None if is_taken else f"push reply message to {self._reply.client_id} fail.")

    def timed_out(self) -> None:
        if not self.is_over:
            self.client.forget(self.forwarded)
            self._over(f"push reply message to {self._reply.client_id} fail.")

    def _over(self, problem: str | None) -> None:
        if not self.is_over:
            self.is_over = True
            self._reply.taken()
            self._reply.pushed(problem)


def _problem(client_id: str, client: RemotingPeer | None) -> str | None:
    """Why nothing can be pushed there, in RocketMQ's words where it has some."""
    if not client_id:
        return NO_REQUESTER
    if client is None:
        return f"push reply message fail, channel of <{client_id}> not found."
    if not client.is_taking:
        return f"push reply message fail, <{client_id}> does not read what it is sent."
    return None


def _address(host: bytes) -> str:
    ip, port = decode_host(host)
    return f"{ip}:{port}"
