"""Settling popped messages at their brokers: acknowledged, given back, or buried.

Acknowledgements of one turn of the event loop go out together (``pop_acks.py``). A broker that does
not know the shared request gets single ones from then on. Nothing is tried twice: a message whose
acknowledgement is lost comes again after its invisible time, and that is what this promises.

Invariants: a message is settled with its newest receipt; ``drain`` returns when every request under
way is answered.
Not here: which of the three it is to be (``pop_service.py``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

from penstock.client.consumer.pop_acks import batched, can_share, single
from penstock.client.consumer.pop_queue import PoppedMessage
from penstock.client.consumer.pop_receipts import real_topic, renewed
from penstock.client.errors import BrokerRefused, ClientError
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.bodies import BatchAckBody
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.headers import (
    AckHeader,
    ChangeInvisibleAnswer,
    ChangeInvisibleHeader,
    SendBackHeader,
)

_log = logging.getLogger(__name__)

BURY_LEVEL = -1
"""``delayLevel`` of a send-back that makes a dead letter."""


class SettlingCalls(Protocol):
    """The requests that are needed here; ``Calls`` has them."""

    async def master_of(self, queue: QueueRef) -> str:
        """Where the master of a queue listens."""
        ...

    async def ack(self, address: str, header: AckHeader) -> None:
        """ACK_MESSAGE."""
        ...

    async def batch_ack(self, address: str, body: BatchAckBody) -> None:
        """BATCH_ACK_MESSAGE."""
        ...

    async def change_invisible(
        self, address: str, header: ChangeInvisibleHeader
    ) -> ChangeInvisibleAnswer:
        """CHANGE_MESSAGE_INVISIBLETIME."""
        ...

    async def send_back(self, address: str, header: SendBackHeader) -> None:
        """CONSUMER_SEND_MSG_BACK."""
        ...


class Settling:
    """What becomes of popped messages, for one group."""

    def __init__(self, calls: SettlingCalls, group: str, clock: Clock) -> None:
        self._calls = calls
        self._group = group
        self._clock = clock
        self._acks: list[PoppedMessage] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._singles_only: set[str] = set()
        """Brokers that do not know the shared request."""
        self.acked = 0
        self.given_back = 0
        self.buried = 0
        self.lost = 0
        """Settlements that failed: these messages come again."""

    def ack(self, messages: Iterable[PoppedMessage]) -> None:
        """Done; they never come again."""
        if not self._acks:
            asyncio.get_running_loop().call_soon(self._flush)
        self._acks += messages

    def give_back(self, messages: Iterable[PoppedMessage], invisible_ms: int) -> None:
        """Not done; they come again when the new invisible time has passed."""
        for message in messages:
            self._spawn(self._give_back(message, invisible_ms))

    def bury(self, messages: Iterable[PoppedMessage]) -> None:
        """Not done, and never to come again: dead letters."""
        for message in messages:
            self._spawn(self._bury(message))

    async def extend(self, message: PoppedMessage, invisible_ms: int) -> None:
        """More time (or less) for a message in work, from now on; raises ``ClientError``."""
        handle = message.handle
        address = await self._address(message)
        begun_ms = self._clock.monotonic_ms()
        header = ChangeInvisibleHeader(
            consumer_group=self._group,
            topic=real_topic(handle, message.topic, self._group),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.offset,
            invisible_time=invisible_ms,
        )
        answer = await self._calls.change_invisible(address, header)
        message.renew(renewed(handle, answer), begun_ms + invisible_ms)

    async def drain(self) -> None:
        """Wait for everything under way."""
        self._flush()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _flush(self) -> None:
        acks, self._acks = self._acks, []
        by_broker: dict[str, list[PoppedMessage]] = {}
        for message in acks:
            by_broker.setdefault(message.handle.broker_name, []).append(message)
        for broker, messages in by_broker.items():
            shared = [each for each in messages if can_share(each.handle)]
            if len(shared) < 2 or broker in self._singles_only:
                shared = []
            if shared:
                self._spawn(self._ack_together(shared))
            alone = messages if not shared else [m for m in messages if not can_share(m.handle)]
            for message in alone:
                self._spawn(self._ack_one(message))

    async def _ack_together(self, messages: Sequence[PoppedMessage]) -> None:
        broker = messages[0].handle.broker_name
        pairs = [(message.topic, message.handle) for message in messages]
        try:
            address = await self._address(messages[0])
            for _, body in batched(self._group, pairs):
                await self._calls.batch_ack(address, body)
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._failed("acknowledgement", messages, refusal)
                return
            self._singles_only.add(broker)
            for message in messages:
                self._spawn(self._ack_one(message))
        except ClientError as problem:
            self._failed("acknowledgement", messages, problem)
        else:
            self.acked += len(messages)

    async def _ack_one(self, message: PoppedMessage) -> None:
        await self._try("acknowledgement", message, self._send_ack)

    async def _send_ack(self, message: PoppedMessage) -> None:
        header = single(message.topic, self._group, message.handle)
        await self._calls.ack(await self._address(message), header)
        self.acked += 1

    async def _give_back(self, message: PoppedMessage, invisible_ms: int) -> None:
        async def change(message: PoppedMessage) -> None:
            await self.extend(message, invisible_ms)
            self.given_back += 1

        await self._try("change of the invisible time", message, change)

    async def _bury(self, message: PoppedMessage) -> None:
        async def send_back_and_ack(message: PoppedMessage) -> None:
            header = SendBackHeader(
                offset=message.commit_log_offset,
                group=self._group,
                delay_level=BURY_LEVEL,
                origin_msg_id=message.message_id,
                origin_topic=message.queue.topic,
            )
            await self._calls.send_back(await self._address(message), header)
            # Buried first: a crash in between makes two of it, the other order none.
            await self._calls.ack(
                await self._address(message), single(message.topic, self._group, message.handle)
            )
            self.buried += 1

        await self._try("burial", message, send_back_and_ack)

    async def _try(
        self, what: str, message: PoppedMessage, call: Callable[[PoppedMessage], Awaitable[None]]
    ) -> None:
        try:
            await call(message)
        except ClientError as problem:
            self._failed(what, [message], problem)

    async def _address(self, message: PoppedMessage) -> str:
        # The route of the topic: that of a retry topic need not be known here.
        queue = QueueRef(message.topic, message.handle.broker_name, message.handle.queue_id)
        return await self._calls.master_of(queue)

    def _failed(self, what: str, messages: Sequence[PoppedMessage], problem: ClientError) -> None:
        self.lost += len(messages)
        _log.warning(
            "popped messages not settled, they come again",
            extra={
                "group": self._group,
                "what": what,
                "messages": len(messages),
                "queue": messages[0].queue,
                "error": str(problem),
            },
        )

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
