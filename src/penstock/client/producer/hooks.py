"""Hooks: somebody who sees every send before it leaves and after it ended.

Message trace is one; write your own by subclassing ``SendHook`` and handing it to the producer
(``hooks=[...]``). Hooks are called on the client's own thread, in the order given, once per send
however many tries it takes: they must not block. What they raise is logged and changes nothing.

Not here: what trace does with it (``client/trace.py``).
"""

import logging
from collections.abc import Sequence
from enum import Enum
from typing import Final

from penstock.client.errors import ClientError
from penstock.client.message import Message, SendResult
from penstock.client.producer.transaction_state import TransactionState
from penstock.model.assignment import QueueRef

_log: Final = logging.getLogger(__name__)


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
        "address",
        "born_ms",
        "cost_ms",
        "error",
        "group",
        "is_oneway",
        "kind",
        "messages",
        "queue",
        "result",
        "stored_bytes",
        "unique_keys",
    )

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


class SendHook:
    """Subclass it and override what you need."""

    def before(self, context: SendContext) -> None:
        """A message is about to leave; its ``queue`` is where the first try goes."""

    def after(self, context: SendContext) -> None:
        """It is stored (``result``), failed (``error``) or gone (oneway)."""

    def transaction_ended(self, context: EndContext) -> None:
        """The end of a transaction was sent to the broker."""


def tell_before(hooks: Sequence[SendHook], context: SendContext) -> None:
    """Call ``before`` of each."""
    for hook in hooks:
        try:
            hook.before(context)
        except Exception:
            _log.exception("send hook failed", extra={"hook": repr(hook), "step": "before"})


def tell_after(hooks: Sequence[SendHook], context: SendContext) -> None:
    """Call ``after`` of each."""
    for hook in hooks:
        try:
            hook.after(context)
        except Exception:
            _log.exception("send hook failed", extra={"hook": repr(hook), "step": "after"})


def tell_ended(hooks: Sequence[SendHook], context: EndContext) -> None:
    """Call ``transaction_ended`` of each."""
    for hook in hooks:
        try:
            hook.transaction_ended(context)
        except Exception:
            _log.exception("send hook failed", extra={"hook": repr(hook), "step": "ended"})
