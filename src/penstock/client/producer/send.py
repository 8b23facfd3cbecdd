"""One send on its way: what was handed in, what happened so far, who is told the end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from queue import SimpleQueue
from threading import Event
from typing import Final, Protocol

import msgspec

from penstock.client.errors import Attempt, ClientError, StateError
from penstock.client.loop import Relay
from penstock.client.message import Message, SendResult
from penstock.client.producer.encoding import Encoded
from penstock.client.producer.selection import Selector
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.command import Command

Outcome = SendResult | ClientError

NOWHERE: Final = QueueRef("", "", -1)


class Judge(Protocol):
    """Who decides what follows from the answer to a try."""

    def answered(self, send: Send, answer: Command | ClientError) -> None:
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


# ---- hooks --------------------------------------------------------------------------------------
# Hooks: somebody who sees every send before it leaves and after it ended.
#
# Message trace is one; write your own by subclassing ``SendHook`` and handing it to the producer
# (``hooks=[...]``). Hooks are called on the client's own thread, in the order given, once per send
# however many tries it takes: they must not block. What they raise is logged and changes nothing.
#
# Not here: what trace does with it (``client/trace.py``).


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


# ---- transaction state --------------------------------------------------------------------------
# What a producer says of its transaction: the message exists, it never did, or ask me later.


class TransactionState(Enum):
    """The values are those that the wire carries."""

    COMMIT = 8
    """The message is delivered."""
    ROLLBACK = 12
    """The message is dropped."""
    UNKNOWN = 0
    """Not known yet: the broker asks again (15 times by default, then it gives up)."""


# ---- handing back -------------------------------------------------------------------------------
# Three ways in which a sender hears the end: a thread that blocks, a future, a callback.
#
# The end comes on the client's thread, which must not run a user's code nor wait for it. Blocked
# threads are woken, futures settled through a relay to their loop (many results, one wake-up), and
# callbacks run one after the other on a thread of the producer's own, which gets them in lists.
#
# Bound: a callback's send keeps its permit until the callback begins, so at most
# ``in_flight_messages_max`` outcomes wait for slow callbacks.
# Not here: the send itself (``sending.py``).


GRACE_S: Final = 5.0
"""How long a blocked thread waits beyond its deadline for a client that does not answer at all."""

OnDone = Callable[[SendResult | ClientError], object]


class BlockedSend(Send, kw_only=True):
    """A thread waits for the end."""

    lock: threading.Lock
    """Held until then."""
    outcome: Outcome | None = None

    def done(self, outcome: Outcome) -> None:
        """Wake the thread."""
        self.outcome = outcome
        self.lock.release()

    def result(self) -> SendResult:
        """On the thread that waits; raises what went wrong."""
        self.lock.acquire(timeout=self.timeout_ms / 1000 + GRACE_S)
        outcome = self.outcome
        if outcome is None:
            raise StateError("the client's thread does not answer; was the process forked?")
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome


class AwaitedSend(Send, kw_only=True):
    """A future gets the end."""

    future: asyncio.Future[SendResult]
    relay: Relay[AwaitedSend] | None = None
    """To the future's loop; None when that is the client's own."""
    outcome: Outcome | None = None

    def done(self, outcome: Outcome) -> None:
        """Send it to the future's loop."""
        self.outcome = outcome
        if self.relay is None:
            settle(self)
        else:
            self.relay.put(self)

    @property
    def is_given_up(self) -> bool:
        """True when the future was cancelled."""
        return self.future.cancelled()


def settle(send: AwaitedSend) -> None:
    """Give the future its result; on its loop."""
    future, outcome = send.future, send.outcome
    if future.done():
        return
    if isinstance(outcome, SendResult):
        future.set_result(outcome)
    elif outcome is not None:
        future.set_exception(outcome)


class CalledSend(Send, kw_only=True):
    """A callback gets the end."""

    on_done: OnDone
    thread: CallbackThread
    outcome: Outcome | None = None

    def done(self, outcome: Outcome) -> None:
        """Have the callback called."""
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


class CallbackThread:
    """Runs callbacks in the order in which their sends ended; started with the first one."""

    def __init__(
        self,
        group: str,
        give_back: Callable[[Send], object],
        call_soon: Callable[[Callable[[], object]], object],
    ) -> None:
        self._name = f"penstock-callbacks-{group}"
        self._give_back = give_back
        self._call_soon = call_soon
        """Calls at the end of a turn of the client's loop."""
        self._ended: list[CalledSend] = []
        """Of this turn."""
        self._handed: SimpleQueue[list[CalledSend] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def is_current(self) -> bool:
        """True on this thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Before the first callback is needed; from any thread."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def put(self, send: CalledSend) -> None:
        """A send ended; on the client's thread."""
        self._ended.append(send)
        if len(self._ended) == 1:
            self._call_soon(self._hand_over)

    def stop(self, timeout_ms: int) -> None:
        """Return when the callbacks put so far have run, or the time is up."""
        thread = self._thread
        if thread is None:
            return
        self._handed.put(None)
        if not self.is_current:
            thread.join(timeout_ms / 1000)

    def _hand_over(self) -> None:
        self._handed.put(self._ended)
        self._ended = []

    def _run(self) -> None:
        while (ended := self._handed.get()) is not None:
            for send in ended:
                self._give_back(send)
                send.call()
