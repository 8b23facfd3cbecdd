"""Which method of an open channel goes to which handler: one dict per family, joined here.

A handler gets the channel and the method, answers through the channel, and raises ``AmqpError``
when something is wrong; the session adds class and method to it and closes what has to be closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp import (
    channel_commands,
    confirm,
    consume,
    exchanges,
    get,
    qos,
    queues,
    settling,
    tx,
)
from penstock.wire.amqp.methods.method import Method

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import ChannelState

Handler = Callable[["ChannelState", Any], None]

HANDLERS: Final[dict[type[Method], Handler]] = {
    **channel_commands.COMMANDS,
    **exchanges.COMMANDS,
    **queues.COMMANDS,
    **confirm.COMMANDS,
    **tx.COMMANDS,
    **consume.COMMANDS,
    **get.COMMANDS,
    **qos.COMMANDS,
    **settling.COMMANDS,
}
