"""Channel 0: the handshake, then a new secret now and then, and a close at any time.

Not here: the steps of the handshake (``handshake.py``), how a connection ends (``closing.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.frames import Command, Event
from penstock.wire.amqp.methods.connection import Close, UpdateSecret, UpdateSecretOk
from penstock.wire.amqp.methods.method import Method

if TYPE_CHECKING:
    from penstock.adapters.amqp.session import Session


def run(session: Session, event: Event) -> None:
    """An event on channel 0, or one that came before the virtual host is open."""
    if event.channel or type(event) is not Command:
        text = f"frame on channel {event.channel} before the connection is open"
        raise AmqpError(ReplyCode.UNEXPECTED_FRAME, text)
    method = event.method
    handler = COMMANDS.get(type(method))
    try:
        if type(method) is Close:
            session.leave()
        elif not session.is_established:
            session.handshake.take(method)
        elif handler is not None:
            handler(session, method)
        else:
            text = "unexpected method in connection state running"
            raise AmqpError(ReplyCode.CHANNEL_ERROR, text)
    except AmqpError as error:
        raise error.about(0, method.class_id, method.method_id) from None


def update_secret(session: Session, method: UpdateSecret) -> None:
    """There are no secrets that end; a new one is as good as the old one."""
    del method
    session.say(UpdateSecretOk())


COMMANDS: Final[dict[type[Method], Callable[[Session, Any], None]]] = {
    UpdateSecret: update_secret,
}
