"""Sends what a consumer itself has to send: copies for the retry topic, message traces.

One try to one queue of the topic; whoever calls it knows what to do when that fails.

Not here: producers of users (``producer/``).
"""

import os
import random
from typing import Final

from penstock.client.errors import BrokerRefused, NoRoute
from penstock.client.identity import local_ip
from penstock.client.instance import ClientInstance
from penstock.client.message import Message, SendStatus
from penstock.client.producer.encoding import Encoder
from penstock.wire.rocketmq.message_id import UniqueKeys

GROUP: Final = "CLIENT_INNER_PRODUCER"
TIMEOUT_MS: Final = 3_000
DEFAULT_QUEUES: Final = 4
_STORED: Final = frozenset(status.value for status in SendStatus)


class PlainSender:
    """Sends single messages; on the client's loop."""

    def __init__(self, instance: ClientInstance, group: str = GROUP) -> None:
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
        address = await self._instance.calls.master_of(queue)
        command = self._encoder.encode(message).command(queue)
        answer = await self._instance.network.request(address, command, timeout_ms=TIMEOUT_MS)
        if answer.code not in _STORED:
            raise BrokerRefused(answer.code, answer.remark, address)
