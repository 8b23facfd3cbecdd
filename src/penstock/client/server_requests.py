"""What brokers ask of a client, and what it answers.

    39 check a transaction, 40 divide the queues anew, 220 reset and 221 tell offsets,
    307 running info, 309 consume this message now

Answers go back on the connection the request came from; what is not known is answered with code 3,
what fails with code 1 and a sentence. Requests marked oneway are never answered.

Bound: ``UNDER_WAY_MAX`` questions are worked on at a time, others are refused as busy.
Not here: what members do about it (``consumer/``, ``producer/transaction.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.client.message import stored_messages
from penstock.client.queue_tables import encode_tables, read_offsets
from penstock.wire.rocketmq.bodies import decode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed, response_to
from penstock.wire.rocketmq.headers import (
    CheckTransactionHeader,
    GroupHeader,
    RelayHeader,
    ResetOffsetHeader,
    parse,
)
from penstock.wire.rocketmq.properties import value_of

if TYPE_CHECKING:
    from penstock.client.connection import Connection
    from penstock.client.instance import ClientInstance
    from penstock.client.members import ConsumerMember

_log = logging.getLogger(__name__)

UNDER_WAY_MAX: Final = 256
"""Direct consumption and the like run user code; a client is no batch system."""

Body = bytes | None
Handler = Callable[["Connection", Command], Awaitable[Body]]


class NotHere(Exception):
    """The group that was asked for has no member here."""


class ServerRequests:
    """The requests of brokers to one instance."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._under_way = 0
        self._handlers: dict[int, Handler] = {
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._consume_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def asked(self, connection: Connection, command: Command) -> None:
        """A broker asks something; the network calls it."""
        code = command.code
        if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._members_changed(command)
            return
        if code == RequestCode.CHECK_TRANSACTION_STATE:
            self._check_transaction(connection, command)
            return
        handler = self._handlers.get(code)
        if handler is None:
            refuse(
                connection,
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {code} not supported",
            )
        elif self._under_way >= UNDER_WAY_MAX:
            text = f"{UNDER_WAY_MAX} requests are under way in this client; ask again later"
            refuse(connection, command, ResponseCode.SYSTEM_BUSY, text)
        else:
            self._under_way += 1
            self._instance.spawn(self._work(handler, connection, command), f"request {code}")

    async def _work(self, handler: Handler, connection: Connection, command: Command) -> None:
        try:
            body = await handler(connection, command)
        except (Malformed, NotHere) as problem:
            refuse(connection, command, ResponseCode.SYSTEM_ERROR, str(problem))
        except Exception as problem:
            _log.exception("a broker's request failed", extra={"code": command.code})
            text = f"{type(problem).__name__}: {problem}"
            refuse(connection, command, ResponseCode.SYSTEM_ERROR, text)
        else:
            if not command.is_oneway:
                connection.answer(response_to(command, ResponseCode.SUCCESS, body=body or b""))
        finally:
            self._under_way -= 1

    def _members_changed(self, command: Command) -> None:
        group = parse(GroupHeader, command).consumer_group
        _log.debug("group changed", extra={"group": group})
        if self._instance.consumer(group) is not None:
            self._instance.rebalance_now()

    def _check_transaction(self, connection: Connection, command: Command) -> None:
        header = parse(CheckTransactionHeader, command)
        messages = stored_messages(command.body)
        if not messages:
            raise Malformed("a transaction check without a message")
        group = value_of(messages[0].properties, "PGROUP").decode("utf-8", "replace")
        producer = self._instance.producer(group)
        if producer is None:
            _log.warning("transaction check for a group without a producer", extra={"group": group})
            return
        producer.check_transaction(connection.address, header, messages[0])

    async def _reset_offsets(self, _: Connection, command: Command) -> Body:
        header = parse(ResetOffsetHeader, command)
        body = decode_body(command.body, dict[str, Any])
        offsets = read_offsets(body.get("offsetTable", {}))
        await self._consumer(header.group).reset_offsets(header.topic, offsets)
        return None

    async def _consume_status(self, _: Connection, command: Command) -> Body:
        header = parse(ResetOffsetHeader, command)
        status = self._consumer(header.group).consume_status(header.topic)
        return encode_tables({"messageQueueTable": status, "consumerTable": {}})

    async def _running_info(self, _: Connection, command: Command) -> Body:
        header = parse(RelayHeader, command)
        with_stacks = command.ext.get("jstackEnable") == "true"
        return encode_tables(self._consumer(header.consumer_group).running_info(with_stacks))

    async def _consume_directly(self, connection: Connection, command: Command) -> Body:
        header = parse(RelayHeader, command)
        messages = stored_messages(command.body)
        if not messages:
            raise Malformed("asked to consume a message, but there is none")
        broker = command.ext.get("brokerName") or self._instance.routes.broker_at(
            connection.address
        )
        member = self._consumer(header.consumer_group)
        return encode_tables(await member.consume_directly(messages[0], broker or ""))

    def _consumer(self, group: str) -> ConsumerMember:
        found = self._instance.consumer(group)
        if found is None:
            raise NotHere(f"client {self._instance.client_id} has no consumer of group {group!r}")
        return found


def refuse(connection: Connection, command: Command, code: int, text: str) -> None:
    """Answer with an error, unless nobody waits for an answer."""
    if not command.is_oneway:
        connection.answer(response_to(command, code, remark=text))
