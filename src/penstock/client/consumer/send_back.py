"""Giving a message back to its broker, to come again later or to become a dead letter.

    1. send-back (36) to the master of the broker it came from: it knows the message by its offset
    2. where that fails, a fresh copy to the group's retry topic, on any broker
    3. where that fails, too, the caller tries the message again here, after 5 s

The delay grows with each try: level 3 + tries (10 s, 30 s, 1 min, ... 2 h); the broker chooses it
when the level is 0. After ``retries_max`` tries the broker files it under ``%DLQ%`` and the group.

Not here: when to give back (``concurrent.py``, ``ordered.py``), pop (``pop_settling.py``).
"""

from __future__ import annotations

import logging
import os
import random
from typing import Final

from penstock.client.consumer.subscription import retry_topic
from penstock.client.errors import BrokerRefused, ClientError, NoRoute
from penstock.client.instance import ClientInstance, local_ip
from penstock.client.message import Message, ReceivedMessage, SendStatus
from penstock.client.producer.encoding import Encoder
from penstock.client.requests import BrokerRequests
from penstock.wire.rocketmq.headers import SendBackHeader
from penstock.wire.rocketmq.message_id import UniqueKeys

_log = logging.getLogger(__name__)

FIRST_RETRY_LEVEL: Final = 3
RETRIES_MAX_DEFAULT: Final = 16
"""What -1 means to a concurrent consumer."""

SEND_BACK_TIMEOUT_MS: Final = 5_000
DEAD_LETTER_LEVEL: Final = -1
"""Files a message under the dead letters at once."""

_NOT_COPIED: Final = frozenset(
    ("TRAN_MSG", "WAIT", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
)
"""Of a fresh copy: it is no half message and does not wait for its first delivery again."""

INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"
SEND_TIMEOUT_MS: Final = 3_000
DEFAULT_QUEUES: Final = 4
_STORED: Final = frozenset(status.value for status in SendStatus)


class SendBack:
    """Gives messages of one group back to a broker."""

    def __init__(
        self, group: str, retries_max: int, requests: BrokerRequests, copies: InnerProducer
    ) -> None:
        self._group = group
        self.retries_max = RETRIES_MAX_DEFAULT if retries_max < 0 else retries_max
        self._requests = requests
        self._copies = copies

    async def give_back(self, message: ReceivedMessage, delay_level: int = 0) -> bool:
        """True when some broker has it now; False: it is still ours."""
        try:
            address = await self._requests.master_of(message.queue)
            header = back_header(message, self._group, delay_level, self.retries_max)
            await self._requests.send_back(address, header, timeout_ms=SEND_BACK_TIMEOUT_MS)
        except ClientError as problem:
            _log.warning(
                "message could not be sent back, a copy is sent instead",
                extra={"group": self._group, "message_id": message.message_id, "why": str(problem)},
            )
        else:
            return True
        try:
            await self._copies.send(copy_for_retry(message, self._group, self.retries_max))
        except ClientError as problem:
            _log.warning(
                "message could not be given back, it is tried again here",
                extra={"group": self._group, "message_id": message.message_id, "why": str(problem)},
            )
            return False
        return True


def back_header(
    message: ReceivedMessage, group: str, delay_level: int, retries_max: int
) -> SendBackHeader:
    return SendBackHeader(
        offset=message.commit_log_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.offset_message_id,
        origin_topic=message.topic,
        unit_mode=False,
        max_reconsume_times=retries_max,
    )


def copy_for_retry(message: ReceivedMessage, group: str, retries_max: int) -> Message:
    """The message as a fresh one for the retry topic of the group."""
    properties = {
        name: value for name, value in message.properties.items() if name not in _NOT_COPIED
    }
    tag = properties.pop("TAGS", None)
    keys = properties.pop("KEYS", "").split()
    properties["ORIGIN_MESSAGE_ID"] = (
        properties.get("ORIGIN_MESSAGE_ID") or message.offset_message_id
    )
    properties["RETRY_TOPIC"] = message.topic
    properties["RECONSUME_TIME"] = str(message.reconsume_times + 1)
    properties["MAX_RECONSUME_TIMES"] = str(retries_max)
    return Message(
        retry_topic(group),
        message.body,
        tag=tag,
        keys=keys,
        properties=properties,
        flag=message.flag,
        delay_level=FIRST_RETRY_LEVEL + message.reconsume_times,
    )


class InnerProducer:
    """Sends what a consumer itself has to send: copies for the retry topic, message traces.

    One try to one queue of the topic; whoever calls it knows what to do when that fails.
    """

    def __init__(self, instance: ClientInstance, group: str = INNER_GROUP) -> None:
        self._instance = instance
        keys = UniqueKeys(local_ip(), os.getpid(), instance.clock, salt=id(self))
        self._encoder = Encoder(group, keys, instance.clock)

    async def send(self, message: Message) -> None:
        """Store it at some broker of its topic; raises ``ClientError`` when that failed."""
        route = await self._instance.routes.get_or_look_up(
            message.topic, default_queues=DEFAULT_QUEUES
        )
        queues = route.write_queues()
        if not queues:
            raise NoRoute(message.topic, "no queue of it takes messages")
        queue = random.choice(queues)
        address = await self._instance.requests.master_of(queue)
        command = self._encoder.encode(message).command(queue)
        answer = await self._instance.network.request(address, command, timeout_ms=SEND_TIMEOUT_MS)
        if answer.code not in _STORED:
            raise BrokerRefused(answer.code, answer.remark, address)
