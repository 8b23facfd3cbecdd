"""Hooks: somebody who sees every send before it leaves and after it ended.

Write your own by subclassing ``SendHook`` and handing it to the producer (``hooks=[...]``); message
trace is one (``SendTraceHook``). Hooks are called on the client's own thread, in the order given,
once per send however many tries it takes: they must not block. What they raise is logged and
changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from penstock.client.errors import ClientError
from penstock.client.message import Message, SendResult
from penstock.client.trace import TraceDispatcher, publish_record, transaction_record
from penstock.model.assignment import QueueRef

_log: Final = logging.getLogger(__name__)


class SendHook:
    """Subclass it and override what you need."""

    def before(self, context: SendContext) -> None:
        """A message is about to leave; its ``queue`` is where the first try goes."""

    def after(self, context: SendContext) -> None:
        """It is stored (``result``), failed (``error``) or gone (oneway)."""

    def transaction_ended(self, context: EndContext) -> None:
        """The end of a transaction was sent to the broker."""


def call_hooks(hooks: Sequence[SendHook], step: str, call: Callable[[SendHook], object]) -> None:
    """``call`` each hook; an error of one is logged and keeps no other from being called."""
    for hook in hooks:
        try:
            call(hook)
        except Exception:
            _log.exception("send hook failed", extra={"hook": repr(hook), "step": step})


class SendKind(Enum):
    """What kind of message it is; the values are the numbers that message trace gives them."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAYED = 3
    ORDERED = 4


class SendContext:
    """One send, as hooks see it."""

    __slots__ = (
        "address", "born_ms", "cost_ms", "error", "group", "is_oneway", "kind", "messages", "queue",
        "result", "stored_bytes", "unique_keys",
    )  # fmt: skip

    def __init__(
        self, group: str, messages: Sequence[Message], unique_keys: Sequence[str], born_ms: int
    ) -> None:
        self.group = group
        self.messages = messages
        """One, or those of a batch."""
        self.unique_keys = unique_keys
        """Their ids, in the same order."""
        self.born_ms = born_ms
        """Wall time at which it was handed in."""
        self.kind = SendKind.NORMAL
        self.is_oneway = False
        self.queue: QueueRef | None = None
        """Where the first try goes, and afterwards where the last one went."""
        self.address = ""
        """Of that queue's broker."""
        self.stored_bytes = 0
        """Bytes of the body as sent, after compression."""
        self.result: SendResult | None = None
        """Afterwards: None when it failed, or when nobody answers (oneway)."""
        self.error: ClientError | None = None
        self.cost_ms = 0


class EndContext:
    """The end of one transaction, as hooks see it."""

    __slots__ = (
        "address", "group", "is_from_check", "keys", "message_id", "offset_message_id", "state",
        "tag", "topic", "transaction_id",
    )  # fmt: skip

    def __init__(self, group: str, topic: str, message_id: str, state: TransactionState) -> None:
        self.group = group
        self.topic = topic
        self.message_id = message_id
        self.state = state
        self.tag = ""
        self.keys = ""
        """Joined by spaces."""
        self.address = ""
        """Of the broker that holds the half message."""
        self.offset_message_id = ""
        self.transaction_id = ""
        self.is_from_check = False
        """True when the broker had to ask."""


class TransactionState(Enum):
    """What a producer says of its transaction; the values are those that the wire carries."""

    COMMIT = 8
    """The message is delivered."""
    ROLLBACK = 12
    """The message is dropped."""
    UNKNOWN = 0
    """Not known yet: the broker asks again (15 times by default, then it gives up)."""


_TRACED_STATES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}


class SendTraceHook(SendHook):
    """Records every send and every end of a transaction."""

    def __init__(self, trace: TraceDispatcher) -> None:
        self._trace = trace

    def after(self, context: SendContext) -> None:
        """One record per message of the send; oneway sends leave none, nobody knows their end."""
        if context.is_oneway or context.messages[0].topic == self._trace.topic:
            return
        result = context.result
        cost_ms = context.cost_ms // len(context.messages)
        offset_ids = result.offset_message_id.split(",") if result is not None else []
        # A send that failed has none, and an answer may name fewer than it stored.
        offset_ids += [""] * (len(context.messages) - len(offset_ids))
        self._trace.record(
            *(
                publish_record(
                    at_ms=context.born_ms,
                    group=context.group,
                    topic=message.topic,
                    message_id=unique_key,
                    tag=message.tag or "",
                    keys=" ".join(message.keys),
                    store_host=context.address,
                    body_bytes=len(message.body),
                    cost_ms=cost_ms,
                    kind=context.kind.value,
                    offset_message_id=offset_id,
                    is_ok=result is not None,
                )
                for message, unique_key, offset_id in zip(
                    context.messages, context.unique_keys, offset_ids, strict=False
                )
            )
        )

    def transaction_ended(self, context: EndContext) -> None:
        """One record."""
        record = transaction_record(
            at_ms=time.time_ns() // 1_000_000,
            group=context.group,
            topic=context.topic,
            message_id=context.message_id,
            tag=context.tag,
            keys=context.keys,
            store_host=context.address,
            transaction_id=context.transaction_id,
            state=_TRACED_STATES[context.state],
            is_from_check=context.is_from_check,
        )
        self._trace.record(record)
