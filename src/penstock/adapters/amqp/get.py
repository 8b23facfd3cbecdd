"""basic.get: one message now, whatever the prefetch.

It takes through a silent consumer of the engine that belongs to this channel and queue, so the
message is in flight like any other and goes back when the channel ends. What this connection
published before it asked is in the queue first: while such publishes wait for their turn, so does
the answer.
Not here: the ledger (``unacked.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp import outflow
from penstock.adapters.amqp.consumers import Holder
from penstock.adapters.amqp.queues import named
from penstock.flow.demand import Unlimited
from penstock.wire.amqp.basic_methods import Get, GetEmpty
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.deliveries import got
from penstock.wire.amqp.frame import method_frame

if TYPE_CHECKING:
    from penstock.adapters.amqp.answer_line import Place
    from penstock.adapters.amqp.channel import ChannelState
    from penstock.adapters.amqp.queue import AmqpQueue

WAITS_MAX: Final = 8
"""Commits that one basic.get waits for the publishes before it; then it takes what there is."""


def get(channel: ChannelState, method: Get) -> None:
    """basic.get."""
    queue = _queue(channel, method)
    if is_publishing(channel):
        _wait(channel, method, channel.line.reserve(), WAITS_MAX)
    else:
        channel.send(take_one(channel, queue, is_no_ack=method.is_no_ack))


def take_one(channel: ChannelState, queue: AmqpQueue, *, is_no_ack: bool) -> bytes:
    """The frames that answer a basic.get: a message, or that there is none."""
    queue.touch()
    holder = getter(channel, queue, is_no_ack=is_no_ack)
    assert holder.consumer is not None, "a holder that is attached"
    taken = holder.subscription.take(holder.consumer, 1)
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


def _wait(channel: ChannelState, method: Get, place: Place, waits: int) -> None:
    """Let the publishes before it have a turn; they are given a few, then it goes on."""

    def again() -> None:
        if not channel.is_open:
            place.fill(b"")
        elif waits and is_publishing(channel):
            _wait(channel, method, place, waits - 1)
        else:
            try:
                place.fill(take_one(channel, _queue(channel, method), is_no_ack=method.is_no_ack))
            except AmqpError as error:
                place.fill(b"")
                channel.fail(error.about(channel.number, method.class_id, method.method_id))

    channel.house.engine.after_durable(again)


def _queue(channel: ChannelState, method: Get) -> AmqpQueue:
    return channel.vhost.queues.find(named(channel, method.queue), channel.session)


def is_publishing(channel: ChannelState) -> bool:
    """True while publishes of this connection wait for their turn, and nothing holds them."""
    channels = channel.session.connection.channels.values()
    return any(each.inbox_messages and each.hold is None for each in channels)


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
