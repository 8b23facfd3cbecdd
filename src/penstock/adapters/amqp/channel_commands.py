"""Classes channel and access: open, close, flow, and a ticket nobody needs.

Not here: what a close gives back (``channel.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.channel import (
    AccessRequest,
    AccessRequestOk,
    Close,
    Flow,
    FlowOk,
    Open,
)
from penstock.wire.amqp.methods.method import Method

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import ChannelState


def open_again(channel: ChannelState, method: Open) -> None:
    """It is open already."""
    del channel, method
    raise AmqpError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")


def close(channel: ChannelState, method: Close) -> None:
    """The client is done with it."""
    del method
    channel.end()


def flow(channel: ChannelState, method: Flow) -> None:
    """Deliveries always flow; the window (basic.qos) is the way to slow them down."""
    if not method.is_active:
        raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "active=false")
    channel.answer(FlowOk(True))


def access(channel: ChannelState, method: AccessRequest) -> None:
    """Tickets are of AMQP 0-8; everybody gets the same one."""
    del method
    channel.answer(AccessRequestOk(1))


COMMANDS: Final[dict[type[Method], Callable[[ChannelState, Any], None]]] = {
    Open: open_again,
    Close: close,
    Flow: flow,
    AccessRequest: access,
}
