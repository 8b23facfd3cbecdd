"""Events of a connection on their way to channels.

Channel 0, and all that comes before the virtual host is open, is the connection's. A method on
another number without a channel must be channel.open; a failed channel hears close and close-ok;
everything else goes to the parts of the channel or to its family's handler. Errors learn here which
class and method they are about.

Not here: handlers (``families.py``), what an error does (``ChannelState.fail``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp import connection_commands
from penstock.adapters.amqp.channel import OPEN, ChannelPhase, ChannelState
from penstock.adapters.amqp.families import HANDLERS
from penstock.adapters.amqp.settling import acks, settle
from penstock.model.errors import AlreadyExists, NotFound
from penstock.wire.amqp.codes import CLASS_BASIC, AmqpError, ReplyCode
from penstock.wire.amqp.frames import (
    AckRun,
    Command,
    Event,
    PublishRun,
    Refused,
    SettleRun,
    method_frame,
)
from penstock.wire.amqp.methods.channel import Close, CloseOk, Open, OpenOk
from penstock.wire.amqp.methods.method import Method

if TYPE_CHECKING:
    from penstock.adapters.amqp.session import Session

logger = logging.getLogger(__name__)

_PUBLISH: Final = 40
_ACK: Final = 80
_CLOSE_OK: Final = CloseOk()


def run_event(session: Session, event: Event) -> bool:
    """One thing that the peer said; False when it was the end of the connection."""
    channel = session.channels.get(event.channel)
    try:
        if channel is None:
            _without_channel(session, event)
        elif type(event) is Command:
            _command(channel, event.method)
        elif channel.phase is not OPEN:
            pass
        elif type(event) is PublishRun:
            channel.publishing.publish(event)
        elif type(event) is AckRun:
            acks(channel, event)
        elif type(event) is SettleRun:
            settle(channel, event)
        elif type(event) is Refused:
            raise event.error
    except AmqpError as error:
        if channel is None:
            session.fail(error)
        else:
            channel.fail(error.about(event.channel, *_ids(event)))
    except (NotFound, AlreadyExists) as error:
        # Two words for the same thing, a check that was forgotten: ours, and the peer may know.
        logger.exception("a command of %s failed by our mistake", session.name)
        session.fail(AmqpError(ReplyCode.INTERNAL_ERROR, str(error)))
    return not session.is_over


def _command(channel: ChannelState, method: Method) -> None:
    if channel.phase is OPEN:
        handler = HANDLERS.get(type(method))
        if handler is None:
            text = f"unexpected method {type(method).__name__}"
            raise AmqpError(ReplyCode.COMMAND_INVALID, text)
        handler(channel, method)
    elif channel.phase is ChannelPhase.FAILED:
        if type(method) is CloseOk:
            channel.session.forget(channel)
        elif type(method) is Close:
            # Both closed it at the same time; its close-ok to ours is still to come.
            channel.session.send(method_frame(channel.number, _CLOSE_OK))


def _without_channel(session: Session, event: Event) -> None:
    number = event.channel
    if not number or not session.is_established:
        connection_commands.run(session, event)
        return
    try:
        if type(event) is not Command or type(event.method) is not Open:
            raise AmqpError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
        _open(session, number)
    except AmqpError as error:
        raise error.about(number, *_ids(event)) from None


def _open(session: Session, number: int) -> None:
    limit = session.channel_max
    if number > limit:
        text = (
            f"number of channels opened ({number}) has reached the negotiated channel_max ({limit})"
        )
        raise AmqpError(ReplyCode.NOT_ALLOWED, text)
    session.channels[number] = channel = ChannelState(number, session)
    channel.answer(OpenOk())


def _ids(event: Event) -> tuple[int, int]:
    """Class and method that the event came by."""
    if type(event) is Command:
        return event.method.class_id, event.method.method_id
    if type(event) is SettleRun:
        return CLASS_BASIC, event.words[0] & ~1
    return CLASS_BASIC, _ACK if type(event) is AckRun else _PUBLISH
