"""basic.consume and basic.cancel, and what a channel knows of all its consumers.

``ChannelConsumers`` is the receiving half of a channel: consumers by tag, the ledger of delivery
tags, the two windows of basic.qos, and the silent takers of basic.get. ``COMMANDS`` are the
handlers of this family; ``qos.py``, ``get.py`` and ``settling.py`` have the others.

Invariants: when a channel is closed everything unsettled is back in its place before a queue that
its last consumer leaves is deleted; a consumer that was cancelled keeps what it has.
Bounds: ``amqp.consumers_per_channel_max`` consumers, with those that are cancelled and still have
something unsettled; takers of basic.get by ``GETTERS_MAX``.
Not here: one consumer (``consumers.py``), deliveries (``outflow.py``).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from penstock.adapters.amqp import consumer
from penstock.adapters.amqp.consumer import AttachedConsumer, BasicConsumer, UnackedTags
from penstock.adapters.amqp.queue_commands import named
from penstock.adapters.amqp.statistics import DeliveryCounters
from penstock.adapters.amqp.topology.router import DIRECT_REPLY_QUEUE
from penstock.engine.host import Mode
from penstock.flow.demand import ChannelWindow, Unlimited
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.frames import method_frame
from penstock.wire.amqp.methods.basic import (
    Cancel,
    CancelOk,
    Consume,
    ConsumeOk,
    Get,
    GetEmpty,
    Qos,
    QosOk,
)
from penstock.wire.amqp.serializer import got

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import AmqpChannel
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.engine.subscription.subscription import Subscription

PRIORITY: Final = "x-priority"
GETTERS_MAX: Final = 256
"""Queues one channel has takers of basic.get for; beyond it those who hold nothing go."""


class ChannelConsumers:
    """The receiving half of one channel."""

    __slots__ = (
        "by_tag",
        "channel",
        "counters",
        "getters",
        "is_closed",
        "lingering",
        "prefetch_count",
        "unacked",
        "window",
    )

    def __init__(self, channel: AmqpChannel) -> None:
        self.channel = channel
        self.by_tag: dict[str, BasicConsumer] = {}
        """By tag."""
        self.counters: Final = DeliveryCounters()
        """What its client was given and acknowledged."""
        self.unacked = UnackedTags()
        self.window = ChannelWindow()
        """All consumers together; counts from the start, so that a limit may come later."""
        self.prefetch_count = 0
        """What consumers made from now on may have each; 0 = no limit."""
        self.getters: dict[tuple[Subscription, bool], AttachedConsumer] = {}
        """Who takes by hand: by queue, and whether it needs no ack."""
        self.lingering: dict[AttachedConsumer, None] = {}
        """Consumers that were cancelled and still have something unsettled."""
        self.is_closed = False

    @property
    def unacked_count(self) -> int:
        """Messages its client was given and did not settle."""
        return self.unacked.count

    @property
    def global_prefetch_count(self) -> int:
        """What all its consumers may have together; 0 = no limit."""
        return self.window.count

    @property
    def consumers_kept(self) -> int:
        """Consumers, and those that were cancelled and are not done."""
        return len(self.by_tag) + len(self.lingering)

    def wake(self) -> None:
        """The socket took what it had: the engine may go on (F14)."""
        for entry in self.by_tag.values():
            if entry.consumer is not None:
                entry.consumer.wake()

    def next_deadline_ms(self) -> int | None:
        """When ``due`` may find something that is unsettled for too long."""
        oldest_ms = self.unacked.oldest_ms
        limit_ms = self.channel.context.settings.consumer_timeout_ms
        return oldest_ms + limit_ms if limit_ms and oldest_ms is not None else None

    def due(self, now_ms: int) -> None:
        """Fail the channel when a delivery is unsettled for longer than allowed."""
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is not None and now_ms >= deadline_ms:
            limit_ms = self.channel.context.settings.consumer_timeout_ms
            text = (
                f"delivery acknowledgement on channel {self.channel.number} timed out. "
                f"Timeout value used: {limit_ms} ms. This timeout value can be configured "
                "(amqp.consumer_timeout_ms)"
            )
            self.channel.fail(AmqpError(ReplyCode.PRECONDITION_FAILED, text))

    # Who comes and goes.

    def add(self, entry: BasicConsumer) -> None:
        entry.start()
        self.by_tag[entry.tag] = entry
        entry.queue.exclusive_consumer = entry.is_exclusive
        self.channel.vhost.queues.consumer_added(entry.queue)

    def remove(self, tag: str) -> None:
        """A consumer takes no more; its queue may be deleted by that."""
        entry = self.by_tag.pop(tag)
        entry.cancel()
        if entry.unacked:
            self.lingering[entry] = None
        self._left(entry)

    def forget(self, entry: BasicConsumer) -> bool:
        """Its queue is gone; False when the channel did not know it any more."""
        return self.by_tag.pop(entry.tag, None) is not None

    def forget_getter(self, getter: AttachedConsumer) -> None:
        """The queue of a taker by hand is gone."""
        self.getters = {key: each for key, each in self.getters.items() if each is not getter}

    def tidy(self) -> None:
        """After a settlement: cancelled consumers that have nothing left are forgotten."""
        for holder in [each for each in self.lingering if not each.unacked]:
            del self.lingering[holder]
            holder.detach()

    def make_room_for_getter(self) -> None:
        """Let takers by hand go that hold nothing, once there are many."""
        if len(self.getters) >= GETTERS_MAX:
            for key, getter in list(self.getters.items()):
                if not getter.unacked:
                    del self.getters[key]
                    getter.detach()

    def close(self) -> None:
        """The channel ends: everything goes back; may be called twice."""
        if self.is_closed:
            return
        self.is_closed = True
        entries = list(self.by_tag.values())
        self.by_tag.clear()
        for holder in (*entries, *self.lingering, *self.getters.values()):
            holder.detach()
        self.lingering.clear()
        self.getters.clear()
        self.unacked.take_all()
        for entry in entries:
            self._left(entry)

    def _left(self, entry: BasicConsumer) -> None:
        if entry.is_exclusive:
            entry.queue.exclusive_consumer = False
        self.channel.vhost.queues.consumer_removed(entry.queue)


def consume(channel: AmqpChannel, method: Consume) -> None:
    consuming = channel.consumers
    tag = method.consumer_tag or new_tag()
    replies = channel.publisher.replies
    if tag in consuming.by_tag or (replies.consumer and replies.consumer.tag == tag):
        raise AmqpError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if method.queue == DIRECT_REPLY_QUEUE:
        replies.consume(method, tag)
    else:
        begin(channel, method, tag)
    if not method.is_nowait:
        channel.answer(ConsumeOk(tag))


def begin(channel: AmqpChannel, method: Consume, tag: str) -> None:
    consuming = channel.consumers
    count_max = channel.context.settings.consumers_per_channel_max
    if consuming.consumers_kept >= count_max:
        text = (
            f"reached maximum ({count_max}) of consumers per channel "
            "(amqp.consumers_per_channel_max)"
        )
        raise AmqpError(ReplyCode.NOT_ALLOWED, text)
    queue = channel.vhost.queues.find(named(channel, method.queue), channel.connection)
    priority = method.arguments.get(PRIORITY, 0)
    if type(priority) is not int:
        text = f"invalid arg '{PRIORITY}' for consumer '{tag}': a whole number is expected"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
    channel.vhost.limits.check_arguments(method.arguments)
    check_exclusive(queue, method)
    consuming.add(BasicConsumer(channel, queue, method, tag, priority))


def check_exclusive(queue: AmqpQueue, method: Consume) -> None:
    """Refuse whoever would share a queue with an exclusive consumer."""
    is_in_line = queue.subscription.options.mode is Mode.SINGLE_ACTIVE
    wants_all = method.is_exclusive and (queue.consumers > 0 or is_in_line)
    if queue.exclusive_consumer or wants_all:
        text = f"queue '{queue.name}' in vhost '{queue.vhost_name}' in exclusive use"
        raise AmqpError(ReplyCode.ACCESS_REFUSED, text)


def cancel(channel: AmqpChannel, method: Cancel) -> None:
    """basic.cancel; a tag nobody knows is as good as cancelled."""
    tag = method.consumer_tag
    if tag in channel.consumers.by_tag:
        channel.consumers.remove(tag)
    else:
        channel.publisher.replies.cancel(tag)
    if not method.is_nowait:
        channel.answer(CancelOk(tag))


def cancel_ok(channel: AmqpChannel, method: CancelOk) -> None:
    """The client heard that its queue is gone."""


def new_tag() -> str:
    """A tag for a consumer that brought none."""
    return "amq.ctag-" + urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


CONSUME_COMMANDS: Final[dict[type[Any], Callable[[AmqpChannel, Any], None]]] = {
    Consume: consume,
    Cancel: cancel,
    CancelOk: cancel_ok,
}


# ---- get ----------------------------------------------------------------------------------------
# basic.get: one message now, whatever the prefetch.
#
# It takes through a silent consumer of the engine that belongs to this channel and queue, so the
# message is in flight like any other and goes back when the channel ends. What this connection
# published before it asked is in the queue first (``ordering.py``).
#
# Bound: F13's, as for any consumer; beyond it the channel fails, since a get is answered at once.
# Not here: the ledger (``unacked.py``).


def get(channel: AmqpChannel, method: Get) -> None:
    queue = channel.vhost.queues.find(named(channel, method.queue), channel.connection)
    channel.send(take_one(channel, queue, is_no_ack=method.is_no_ack))


def take_one(channel: AmqpChannel, queue: AmqpQueue, *, is_no_ack: bool) -> bytes:
    """The frames that answer a basic.get: a message, or that there is none."""
    queue.touch()
    holder = getter(channel, queue, is_no_ack=is_no_ack)
    assert holder.consumer is not None, "a holder that is attached"
    if holder.consumer.inflight.is_blocked:
        text = (
            f"{holder.unacked} messages of {queue.resource} were got on this channel and not "
            "settled; no more before half of them are (flow.unacked_consumer_max)"
        )
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
    taken = holder.subscription.take(holder.consumer, 1)
    again = int(bool(taken) and taken[0].is_redelivered)
    for tally in (channel.consumers.counters, queue.counters):
        tally.got(len(taken), again, is_no_ack=is_no_ack)
    if not taken:
        return method_frame(channel.number, GetEmpty())
    delivery = taken[0]
    unacked = channel.consumers.unacked
    channel.line.note_deliveries(1, delivery.size)
    return got(
        channel.number,
        consumer.presented(holder, delivery),
        unacked.skip(1) if is_no_ack else consumer.note(holder, taken, is_plain=False),
        is_redelivered=delivery.is_redelivered,
        messages=queue.ready,
        frame_max=channel.connection.frame_max,
    )


def getter(channel: AmqpChannel, queue: AmqpQueue, *, is_no_ack: bool) -> AttachedConsumer:
    """Who takes from this queue by hand, on this channel."""
    consuming = channel.consumers
    found = consuming.getters.get((queue.subscription, is_no_ack))
    if found is None:
        consuming.make_room_for_getter()
        found = AttachedConsumer(channel, queue)
        name = f"{channel.connection.name} ({channel.number}) basic.get"
        found.attach(Unlimited(), name, is_passive=True, is_auto_settled=is_no_ack)
        consuming.getters[queue.subscription, is_no_ack] = found
    return found


GET_COMMANDS: Final[dict[type[Any], Callable[[AmqpChannel, Any], None]]] = {Get: get}


# ---- qos ----------------------------------------------------------------------------------------
# basic.qos in RabbitMQ's two meanings (sheet 3.5).
#
# | global=0   what each consumer made from now on may have unsettled; those that live keep theirs
# | global=1   what all consumers of the channel may have together, at once, what is out already
# |            counted; 0 lifts it. So does a later qos with global=0.
#
# Both apply together. Consumers without acks and basic.get know no limit; F13 bounds everybody
# else, also those with no limit of their own. Not here: the windows (``flow/demand.py``).


def qos(channel: AmqpChannel, method: Qos) -> None:
    if method.prefetch_size:
        text = f"prefetch_size!=0 ({method.prefetch_size})"
        raise AmqpError(ReplyCode.NOT_IMPLEMENTED, text)
    consuming = channel.consumers
    if method.is_global:
        consuming.window.resize(method.prefetch_count)
    else:
        consuming.prefetch_count = method.prefetch_count
        if consuming.window.count:
            consuming.window.resize(0)
    channel.answer(QosOk())


QOS_COMMANDS: Final[dict[type[Any], Callable[[AmqpChannel, Any], None]]] = {Qos: qos}
