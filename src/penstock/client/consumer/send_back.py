"""Giving a message back to its broker, to come again later or to become a dead letter.

    1. send-back (36) to the master of the broker it came from: it knows the message by its place
    2. where that fails, a fresh copy to the group's retry topic, on any broker
    3. where that fails, too, the caller tries the message again here, after 5 s

The delay grows with each try: level 3 + tries (10 s, 30 s, 1 min, ... 2 h); the broker chooses it
when the level is 0. After ``retries_max`` tries the broker files it under ``%DLQ%`` and the group.

Not here: when to give back (``concurrent.py``, ``ordered.py``), pop (``pop_acks.py``).
"""

import logging
from typing import Final, Protocol

from penstock.client.consumer.subscription import retry_topic
from penstock.client.errors import ClientError
from penstock.client.message import Message, ReceivedMessage
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.headers import SendBackHeader

_log = logging.getLogger(__name__)

FIRST_RETRY_LEVEL: Final = 3
TIME_OUT_LEVEL: Final = 3
"""Of a message whose listener takes too long."""
RETRIES_MAX_DEFAULT: Final = 16
"""What -1 means to a concurrent consumer."""

SEND_BACK_TIMEOUT_MS: Final = 5_000
DEAD_LETTER_LEVEL: Final = -1
"""Files a message under the dead letters at once."""

_NOT_COPIED: Final = frozenset(
    ("TRAN_MSG", "WAIT", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
)
"""Of a fresh copy: it is no half message and does not wait for its first delivery again."""


class BackSender(Protocol):
    """What the broker is asked; ``Calls`` answers it."""

    async def master_of(self, queue: QueueRef) -> str:
        """Where the master of a queue listens."""
        ...

    async def send_back(
        self, address: str, header: SendBackHeader, *, timeout_ms: int | None = None
    ) -> None:
        """Ask a broker to keep a message of its own for later."""
        ...


class CopySender(Protocol):
    """Who sends the fresh copy; ``PlainSender``."""

    async def send(self, message: Message) -> None:
        """Send it; raises when it is not stored."""
        ...


def back_header(
    message: ReceivedMessage, group: str, delay_level: int, retries_max: int
) -> SendBackHeader:
    """The request that gives a message back."""
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


class SendBack:
    """Gives messages of one group back."""

    def __init__(
        self, group: str, retries_max: int, broker: BackSender, copies: CopySender
    ) -> None:
        self._group = group
        self.retries_max = RETRIES_MAX_DEFAULT if retries_max < 0 else retries_max
        self._broker = broker
        self._copies = copies

    async def give_back(self, message: ReceivedMessage, delay_level: int = 0) -> bool:
        """True when some broker has it now; False: it is still ours."""
        try:
            address = await self._broker.master_of(message.queue)
            header = back_header(message, self._group, delay_level, self.retries_max)
            await self._broker.send_back(address, header, timeout_ms=SEND_BACK_TIMEOUT_MS)
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
