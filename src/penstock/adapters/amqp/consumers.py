"""Who on a channel holds messages: consumers, and one silent taker per queue for basic.get.

Each of them is a consumer of the engine and its own outlet, so a list of deliveries finds its way
without a look-up. ``demand`` of a consumer is its window inside the channel's (F10), or none for
those without acks; the socket's backlog (F14) is the connection's, shared by all of its consumers.

Invariants: a holder that is not listed as a consumer any more stays known to the channel until
nothing of it is unsettled: only then may the engine forget it.
Not here: commands (``consume.py``, ``get.py``), frames (``outflow.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp import outflow
from penstock.engine.host import Mode
from penstock.engine.subscription.consumer import Consumer
from penstock.flow.demand import Demand, Unlimited, Window
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.basic import Cancel, Consume
from penstock.wire.amqp.serializer import Deliveries

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import ChannelState
    from penstock.adapters.amqp.queue import AmqpQueue
    from penstock.engine.subscription.consumer import Delivery
    from penstock.engine.subscription.subscription import Subscription

QUORUM: Final = "quorum"
QUORUM_PREFETCH: Final = 2000
"""What "no limit" means for consumers of quorum queues, as RabbitMQ has it."""
CANCEL_NOTIFY: Final = "consumer_cancel_notify"


class Holder:
    """Somebody of this channel whom messages of one queue were given to."""

    __slots__ = ("channel", "consumer", "is_counted", "queue", "subscription")

    def __init__(self, channel: ChannelState, queue: AmqpQueue) -> None:
        self.channel = channel
        self.queue = queue
        self.subscription: Subscription = queue.subscription
        """The one it was attached to; a queue made anew under that name has another."""
        self.is_counted = queue.kind == QUORUM
        """Whether coming back is counted as an attempt (``x-delivery-count``)."""
        self.consumer: Consumer | None = None

    @property
    def unacked(self) -> int:
        """Messages it has and did not settle."""
        return self.consumer.inflight.messages if self.consumer is not None else 0

    def attach(self, demand: Demand, name: str, **keywords: Any) -> None:
        """Become a consumer of the engine; raises when it takes no more of them."""
        attached = self.subscription.attach(
            self, demand, unsent=self.channel.session.unsent, name=name, **keywords
        )
        if not isinstance(attached, Consumer):
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, attached.text)
        self.consumer = attached

    def detach(self) -> None:
        """It is gone; what it has goes back to its place."""
        if self.consumer is not None and not self.subscription.is_closed:
            self.subscription.detach(self.consumer, count=self.is_counted)

    # What the engine calls.

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Only consumers are given messages without asking."""

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """The queue is gone: so is whoever took from it by hand."""
        self.channel.consuming.forget_getter(self)

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """Only consumers wait in line."""


class ConsumerEntry(Holder):
    """A consumer as its client knows it: by its tag."""

    __slots__ = (
        "arguments",
        "deliveries",
        "is_active",
        "is_exclusive",
        "is_no_ack",
        "prefetch_count",
        "priority",
        "tag",
        "window",
    )

    def __init__(
        self, channel: ChannelState, queue: AmqpQueue, method: Consume, tag: str, priority: int
    ) -> None:
        super().__init__(channel, queue)
        self.tag = tag
        self.arguments: dict[str, Any] = method.arguments
        self.is_no_ack = method.is_no_ack
        self.is_exclusive = method.is_exclusive
        self.priority = priority
        self.prefetch_count = 0 if method.is_no_ack else channel.consuming.prefetch_count
        """As its client asked; 0 = no limit."""
        self.is_active = True
        """False for those who wait until the single active consumer leaves."""
        self.window: Window | None = None
        self.deliveries = Deliveries(channel.number, tag, channel.session.frame_max)

    def start(self) -> None:
        """Take messages from now on."""
        self.is_active = self.subscription.options.mode is not Mode.SINGLE_ACTIVE
        demand: Demand = Unlimited()
        if not self.is_no_ack:
            count = self.prefetch_count or (QUORUM_PREFETCH if self.is_counted else 0)
            demand = self.window = Window(count, self.channel.consuming.window)
        session = self.channel.session
        self.attach(
            demand,
            f"{session.name} ({self.channel.number}) {self.tag}",
            priority=self.priority,
            is_auto_settled=self.is_no_ack,
        )

    def cancel(self) -> None:
        """Take no more; what it has stays its own."""
        if self.window is not None:
            self.window.close()
        if self.consumer is not None and not self.subscription.is_closed:
            self.subscription.cancel(self.consumer)

    def detach(self) -> None:
        """It is gone; what it has goes back to its place."""
        if self.window is not None:
            self.window.close()
        super().detach()

    # What the engine calls.

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Messages: one piece of bytes for all of them."""
        outflow.deliver(self, deliveries)

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """The queue is gone; its client is told if it wants to know."""
        if self.window is not None:
            self.window.close()
        channel = self.channel
        if channel.consuming.forget(self) and CANCEL_NOTIFY in channel.session.client_capabilities:
            channel.answer(Cancel(self.tag, is_nowait=True))

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """It became the single active one, or ceased to be it."""
        self.is_active = is_active
