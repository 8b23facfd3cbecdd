"""basic.get: one message now, whatever the prefetch.

It takes through a silent consumer of the engine that belongs to this channel and queue, so the
message is in flight like any other and goes back when the channel ends. What this connection
published before it asked is in the queue first (``ordering.py``).

Bound: F13's, as for any consumer; beyond it the channel fails, since a get is answered at once.
Not here: the ledger (``unacked.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp import outflow
from penstock.adapters.amqp.consumers import Holder
from penstock.adapters.amqp.queues import named
from penstock.flow.demand import Unlimited
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.frames import method_frame
from penstock.wire.amqp.methods.basic import Get, GetEmpty
from penstock.wire.amqp.serializer import got

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import ChannelState
    from penstock.adapters.amqp.queue import AmqpQueue


def get(channel: ChannelState, method: Get) -> None:
    """basic.get."""
    queue = channel.vhost.queues.find(named(channel, method.queue), channel.session)
    channel.send(take_one(channel, queue, is_no_ack=method.is_no_ack))


def take_one(channel: ChannelState, queue: AmqpQueue, *, is_no_ack: bool) -> bytes:
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
    for tally in (channel.consuming.tally, queue.tally):
        tally.got(len(taken), again, is_no_ack=is_no_ack)
    if not taken:
        return method_frame(channel.number, GetEmpty())
    delivery = taken[0]
    unacked = channel.consuming.unacked
    channel.line.note_deliveries(1, delivery.size)
    return got(
        channel.number,
        outflow.presented(holder, delivery),
        unacked.skip(1) if is_no_ack else outflow.note(holder, taken, is_plain=False),
        is_redelivered=delivery.is_redelivered,
        messages=queue.ready,
        frame_max=channel.session.frame_max,
    )


def getter(channel: ChannelState, queue: AmqpQueue, *, is_no_ack: bool) -> Holder:
    """Who takes from this queue by hand, on this channel."""
    consuming = channel.consuming
    found = consuming.getters.get((queue.subscription, is_no_ack))
    if found is None:
        consuming.make_room_for_getter()
        found = Holder(channel, queue)
        name = f"{channel.session.name} ({channel.number}) basic.get"
        found.attach(Unlimited(), name, is_passive=True, is_auto_settled=is_no_ack)
        consuming.getters[queue.subscription, is_no_ack] = found
    return found


COMMANDS: Final[dict[type[Any], Callable[[ChannelState, Any], None]]] = {Get: get}
