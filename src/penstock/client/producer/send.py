"""One send on its way: what was handed in, what happened so far, and how its caller hears the end.

The end comes on the client's thread, which must not run a user's code nor wait for it. Blocked
threads are woken, futures settled through a relay to their loop (many results, one wake-up), and
callbacks run one after the other on a thread of the producer's own, which gets them in lists.

Bound: a send with a callback keeps its permit until the callback begins, so at most
``in_flight_messages_max`` outcomes wait for slow callbacks.
Not here: what happens to a send (``sender.py``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.client.callbacks import CallbackThread, settle_future
from penstock.client.errors import Attempt, ClientError
from penstock.client.loop import Relay
from penstock.client.message import Message, SendResult
from penstock.client.producer.encoding import EncodedMessage
from penstock.client.producer.hooks import SendContext, SendKind
from penstock.client.producer.selection import Selector
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.command import Command

_log: Final = logging.getLogger(__name__)

Outcome = SendResult | ClientError
OnDone = Callable[[SendResult | ClientError], object]

NOWHERE: Final = QueueRef("", "", -1)


class Send(msgspec.Struct, eq=False):
    """State of one send; after ``Sender.begin`` only the client's thread touches it.

    Nobody hears the end of this one (oneway); the three subclasses tell it. Nothing that a send
    holds may hold the send: it is gone when it is over, and needs no garbage collector.
    """

    message: Message
    """Of a batch the first."""
    encoded: EncodedMessage
    started_ms: int
    timeout_ms: int
    deadline_ms: int
    on_answer: Callable[[Send, Command | ClientError], object] | None = None
    """The sender's, set when it begins."""
    batch: Sequence[Message] = ()
    pinned: QueueRef | None = None
    """The one queue it may go to, once that is known."""
    selector: Selector | None = None
    is_half: bool = False
    is_oneway: bool = False
    is_internal: bool = False
    """True for the client's own messages: hooks are not shown them."""
    has_permit: bool = False
    keeps_permit: bool = False
    """True when the callback thread gives the permit back."""
    admitted: threading.Event | None = None
    """Set when it has its permit, or gets none: its caller blocks until then."""
    tries: int = 0
    tried_ms: int = 0
    queue: QueueRef = NOWHERE
    address: str = ""
    avoided: tuple[str, ...] = ()
    """Brokers of earlier tries, the last one last."""
    attempts: list[Attempt] | None = None
    degraded: SendResult | None = None
    """Stored, but not as well as wanted: better than an error of the tries that followed."""
    context: SendContext | None = None
    outcome: Outcome | None = None

    def __call__(self, answer: Command | ClientError) -> None:
        """What the network calls with the answer to a try."""
        assert self.on_answer is not None, "it was begun"
        self.on_answer(self, answer)

    def done(self, outcome: Outcome) -> None:
        """It is over; called once, on the client's thread."""

    @property
    def is_cancelled(self) -> bool:
        """True when nobody waits for its result any more."""
        return False

    @property
    def topic(self) -> str:
        return self.encoded.topic

    def hook_context(self, group: str) -> SendContext:
        """What hooks are shown before it leaves."""
        messages = self.batch or (self.message,)
        keys = self.encoded.unique_key.split(",")
        self.context = context = SendContext(group, messages, keys, self.encoded.born_ms)
        context.kind = self.kind
        context.is_oneway = self.is_oneway
        context.queue = self.queue
        context.address = self.address
        context.stored_bytes = len(self.encoded.body)
        return context

    def fill_context(self, outcome: Outcome | None, now_ms: int) -> None:
        """What hooks are shown after it ended."""
        context = self.context
        if context is None:
            return
        context.queue = self.queue
        context.address = self.address
        context.cost_ms = now_ms - self.started_ms
        if isinstance(outcome, SendResult):
            context.result = outcome
        else:
            context.error = outcome

    @property
    def kind(self) -> SendKind:
        first = self.message
        if self.is_half:
            return SendKind.TRANSACTION_HALF
        if first.delay_level or first.delay_ms or first.deliver_at_ms:
            return SendKind.DELAYED
        return SendKind.ORDERED if first.ordering_key or self.selector else SendKind.NORMAL


class BlockedSend(Send, kw_only=True):
    """A thread waits for the end."""

    lock: threading.Lock
    """Held until then."""

    def done(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.lock.release()


class AwaitedSend(Send, kw_only=True):
    """A future gets the end."""

    future: asyncio.Future[SendResult]
    relay: Relay[AwaitedSend] | None = None
    """To the future's loop; None when that is the client's own."""

    def done(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.relay is None:
            settle_future(self)
        else:
            self.relay.put(self)

    @property
    def is_cancelled(self) -> bool:
        """True when the future was cancelled."""
        return self.future.cancelled()


class CallbackSend(Send, kw_only=True):
    """A callback gets the end."""

    on_done: OnDone
    thread: CallbackThread[CallbackSend]

    def done(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.thread.put(self)

    def call(self) -> None:
        """On the thread for callbacks; an error of the callback stays here."""
        if self.outcome is None:
            return
        try:
            self.on_done(self.outcome)
        except Exception:
            _log.exception("send callback failed", extra={"topic": self.topic})
