"""The basic family but for publishes and acks: consume, cancel, get, qos, nack, reject, recover.

basic.get takes through a silent consumer of the engine that belongs to this channel and queue, so
the message is in flight like any other and goes back when the channel ends. What this connection
published before it asked is in the queue first (``commands.py``). Its bound is F13's, as for any
consumer; beyond it the channel fails, since a get is answered at once.

basic.qos has RabbitMQ's two meanings (sheet 3.5)::

    global=0   what each consumer made from now on may have unsettled; those that live keep theirs
    global=1   what all consumers of the channel may have together, at once, what is out already
               counted; 0 lifts it. So does a later qos with global=0.

Both apply together. Consumers without acks and basic.get know no limit; F13 bounds everybody else,
also those with no limit of their own.

Nack and reject come here one by one, for all up to a tag mostly; runs of them, and all acks, go to
``ChannelConsumers`` straight. Not here: the consumers (``consumer.py``), the windows
(``flow/demand.py``).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from penstock.adapters.amqp.consumer import BasicConsumer
from penstock.adapters.amqp.queue_commands import named
from penstock.adapters.amqp.topology.router import DIRECT_REPLY_QUEUE
from penstock.engine.host import Mode
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.frames import method_frame
from penstock.wire.amqp.methods.basic import (
    Cancel,
    CancelOk,
    Consume,
    ConsumeOk,
    Get,
    GetEmpty,
    Nack,
    Qos,
    QosOk,
    Recover,
    RecoverAsync,
    RecoverOk,
    Reject,
)
from penstock.wire.amqp.serializer import get_ok_frames

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import AmqpChannel
    from penstock.adapters.amqp.topology.queue import AmqpQueue

PRIORITY: Final = "x-priority"


def consume(channel: AmqpChannel, method: Consume) -> None:
    consumers = channel.consumers
    tag = method.consumer_tag or new_tag()
    direct_reply = channel.publisher.direct_reply
    if tag in consumers.by_tag or (direct_reply.consumer and direct_reply.consumer.tag == tag):
        raise AmqpError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if method.queue == DIRECT_REPLY_QUEUE:
        direct_reply.consume(method, tag, consumers.unacked.skip)
    else:
        _attach(channel, method, tag)
    if not method.is_nowait:
        channel.answer(ConsumeOk(tag))


def _attach(channel: AmqpChannel, method: Consume, tag: str) -> None:
    consumers = channel.consumers
    count_max = channel.context.settings.consumers_per_channel_max
    if consumers.consumers_kept >= count_max:
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
    consumers.add(BasicConsumer(consumers, queue, method, tag, priority))


def check_exclusive(queue: AmqpQueue, method: Consume) -> None:
    """Refuse whoever would share a queue with an exclusive consumer."""
    is_single_active = queue.subscription.options.mode is Mode.SINGLE_ACTIVE
    wants_all = method.is_exclusive and (queue.consumers > 0 or is_single_active)
    if queue.exclusive_consumer or wants_all:
        text = f"queue '{queue.name}' in vhost '{queue.vhost_name}' in exclusive use"
        raise AmqpError(ReplyCode.ACCESS_REFUSED, text)


def cancel(channel: AmqpChannel, method: Cancel) -> None:
    """basic.cancel; a tag nobody knows is as good as cancelled."""
    tag = method.consumer_tag
    if tag in channel.consumers.by_tag:
        channel.consumers.remove(tag)
    else:
        channel.publisher.direct_reply.cancel(tag)
    if not method.is_nowait:
        channel.answer(CancelOk(tag))


def cancel_ok(channel: AmqpChannel, method: CancelOk) -> None:
    """The client heard that its queue is gone."""


def new_tag() -> str:
    """A tag for a consumer that brought none."""
    return "amq.ctag-" + urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


def get(channel: AmqpChannel, method: Get) -> None:
    """One message now, whatever the prefetch, or that there is none."""
    queue = channel.vhost.queues.find(named(channel, method.queue), channel.connection)
    is_no_ack = method.is_no_ack
    queue.touch()
    consumers = channel.consumers
    getter = consumers.getter(queue, is_no_ack=is_no_ack)
    assert getter.consumer is not None, "it is attached"
    if getter.consumer.inflight.is_blocked:
        text = (
            f"{getter.unacked} messages of {queue.resource} were got on this channel and not "
            "settled; no more before half of them are (flow.unacked_consumer_max)"
        )
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
    taken = getter.subscription.take(getter.consumer, 1, is_strict=True)
    again = int(bool(taken) and taken[0].is_redelivered)
    for counters in (consumers.counters, queue.counters):
        counters.got(len(taken), again, is_no_ack=is_no_ack)
    if not taken:
        channel.send(method_frame(channel.number, GetEmpty()))
        return
    delivery = taken[0]
    channel.replies.note_deliveries(1, delivery.size)
    frames = get_ok_frames(
        channel.number,
        getter.presented(delivery),
        consumers.unacked.skip(1) if is_no_ack else getter.note_unacked(taken, is_plain=False),
        is_redelivered=delivery.is_redelivered,
        messages=queue.ready,
        frame_max=channel.connection.frame_max,
    )
    channel.send(frames)


def qos(channel: AmqpChannel, method: Qos) -> None:
    if method.prefetch_size:
        text = f"prefetch_size!=0 ({method.prefetch_size})"
        raise AmqpError(ReplyCode.NOT_IMPLEMENTED, text)
    consumers = channel.consumers
    if method.is_global:
        consumers.window.resize(method.prefetch_count)
    else:
        consumers.prefetch_count = method.prefetch_count
        if consumers.window.count:
            consumers.window.resize(0)
    channel.answer(QosOk())


def nack(channel: AmqpChannel, method: Nack) -> None:
    channel.consumers.nack(
        method.delivery_tag, is_multiple=method.is_multiple, is_requeue=method.is_requeue
    )


def reject(channel: AmqpChannel, method: Reject) -> None:
    channel.consumers.nack(method.delivery_tag, is_multiple=False, is_requeue=method.is_requeue)


def recover(channel: AmqpChannel, method: Recover) -> None:
    """Everything unsettled goes back."""
    recover_async(channel, method)
    channel.answer(RecoverOk())


def recover_async(channel: AmqpChannel, method: Recover | RecoverAsync) -> None:
    """The same without an answer."""
    if not method.is_requeue:
        raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
    channel.consumers.requeue_all()


COMMANDS: Final[dict[type[Any], Callable[[AmqpChannel, Any], None]]] = {
    Consume: consume,
    Cancel: cancel,
    CancelOk: cancel_ok,
    Get: get,
    Qos: qos,
    Nack: nack,
    Reject: reject,
    Recover: recover,
    RecoverAsync: recover_async,
}
