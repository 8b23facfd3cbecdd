"""One send on its way: what was handed in, what happened so far, who is told the end."""

from collections.abc import Sequence
from threading import Event
from typing import Final, Protocol

import msgspec

from penstock.client.errors import Attempt, ClientError
from penstock.client.message import Message, SendResult
from penstock.client.producer.encoding import Encoded
from penstock.client.producer.hooks import SendContext, SendKind
from penstock.client.producer.selection import Selector
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.command import Command

Outcome = SendResult | ClientError

NOWHERE: Final = QueueRef("", "", -1)


class Judge(Protocol):
    """Who decides what follows from the answer to a try."""

    def answered(self, send: "Send", answer: Command | ClientError) -> None:
        """The last try of a send is over."""
        ...


class Send(msgspec.Struct, eq=False):
    """State of one send; after ``begin`` only the client's thread touches it.

    Nobody hears the end of this one; subclasses tell (``handing_back.py``). Nothing that a send
    holds may hold the send: it is gone when it is over, and needs no garbage collector.
    """

    message: Message
    """Of a batch the first."""
    encoded: Encoded
    started_ms: int
    timeout_ms: int
    deadline_ms: int
    judge: Judge | None = None
    """Set when it begins."""
    batch: Sequence[Message] = ()
    pinned: QueueRef | None = None
    """The one queue it may go to, once that is known."""
    selector: Selector | None = None
    is_half: bool = False
    is_oneway: bool = False
    is_unseen: bool = False
    """True for the client's own messages: hooks are not shown them."""
    has_permit: bool = False
    keeps_permit: bool = False
    """True when whoever hears the end gives the permit back (``give_back``)."""
    entered: Event | None = None
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

    def __call__(self, answer: Command | ClientError) -> None:
        """What the network calls with the answer to a try."""
        assert self.judge is not None, "it was begun"
        self.judge.answered(self, answer)

    def done(self, outcome: Outcome) -> None:
        """It is over; called once, on the client's thread."""

    @property
    def is_given_up(self) -> bool:
        """True when nobody waits for its result any more."""
        return False

    @property
    def topic(self) -> str:
        """Where it goes."""
        return self.encoded.topic

    @property
    def messages(self) -> Sequence[Message]:
        """All that it carries."""
        return self.batch or (self.message,)

    def hook_context(self, group: str) -> SendContext:
        """What hooks are shown before it leaves."""
        keys = self.encoded.unique_key.split(",")
        self.context = context = SendContext(group, self.messages, keys, self.encoded.born_ms)
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
        """What hooks are told."""
        first = self.message
        if self.is_half:
            return SendKind.TRANSACTION_HALF
        if first.delay_level or first.delay_ms or first.deliver_at_ms:
            return SendKind.DELAYED
        return SendKind.ORDERED if first.ordering_key or self.selector else SendKind.NORMAL
