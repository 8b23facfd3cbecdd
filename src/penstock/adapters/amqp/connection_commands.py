"""Methods on channel 0 once the connection is open: its end, a new secret.

A close is heard at any time, also during the handshake and while we close ourselves.
Not here: the handshake (``handshake.py``), how a connection ends (``closing.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.connection_methods import UpdateSecret, UpdateSecretOk
from penstock.wire.amqp.method import Method

if TYPE_CHECKING:
    from penstock.adapters.amqp.session import Session


def run(session: Session, method: Method) -> None:
    """One method on channel 0 of an open connection."""
    handler = COMMANDS.get(type(method))
    if handler is None:
        text = "unexpected method in connection state running"
        raise AmqpError(ReplyCode.CHANNEL_ERROR, text)
    handler(session, method)


def update_secret(session: Session, method: UpdateSecret) -> None:
    """There are no secrets that end; a new one is as good as the old one."""
    del method
    session.say(UpdateSecretOk())


COMMANDS: Final[dict[type[Method], Callable[[Session, Any], None]]] = {
    UpdateSecret: update_secret,
}
