"""basic.qos in RabbitMQ's two meanings (sheet 3.5).

    global=0   what each consumer made from now on may have unsettled; those that live keep theirs
    global=1   what all consumers of the channel may have together, at once, what is out already
               counted; 0 lifts it. So does a later qos with global=0.

Both apply together. Consumers without acks and basic.get know no limit; F13 bounds everybody else,
also those with no limit of their own.
Not here: the windows (``flow/demand.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.basic import Qos, QosOk

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import ChannelState


def qos(channel: ChannelState, method: Qos) -> None:
    """basic.qos."""
    if method.prefetch_size:
        text = f"prefetch_size!=0 ({method.prefetch_size})"
        raise AmqpError(ReplyCode.NOT_IMPLEMENTED, text)
    consuming = channel.consuming
    if method.is_global:
        consuming.window.resize(method.prefetch_count)
    else:
        consuming.prefetch_count = method.prefetch_count
        if consuming.window.count:
            consuming.window.resize(0)
    channel.answer(QosOk())


COMMANDS: Final[dict[type[Any], Callable[[ChannelState, Any], None]]] = {Qos: qos}
