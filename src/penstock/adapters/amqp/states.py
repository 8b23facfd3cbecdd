"""The states of an AMQP connection and of a channel, and everything that changes them.

Each is an enum of states, an enum of inputs and one table ``(state, input) -> state``. A pair that
is missing is an error of the peer, with the code and text below, never an ``else`` somewhere else.
``docs/internals/amqp-states.md`` is drawn from these tables.

Only ``AmqpConnection._advance`` and ``AmqpChannel._advance`` apply them. What else happens on the
way (login, close frames, giving everything back to the engine) is theirs.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.connection import Close, Open, StartOk, TuneOk, UpdateSecret
from penstock.wire.amqp.methods.method import Method


class ConnectionState(Enum):
    """How far a connection is; the value says what is awaited, in the words of the error text."""

    AWAIT_HEADER = "protocol header"
    AWAIT_START_OK = "start-ok"
    AWAIT_TUNE_OK = "tune-ok"
    AWAIT_OPEN = "open"
    RUNNING = "running"
    """A virtual host is open: channels may be."""
    CLOSING = "close-ok"
    """Close or close-ok was sent: close-ok, the end of the stream or a deadline ends it."""
    CLOSED = "closed"


class ConnectionInput(Enum):
    """What moves a connection; the value is the label in the drawing."""

    HEADER = "protocol header"
    START_OK = "start-ok, login accepted"
    TUNE_OK = "tune-ok within limits"
    OPEN = "open of a vhost"
    UPDATE_SECRET = "update-secret"
    CLOSE = "close from the client"
    ERROR = "close from the broker"
    CLOSE_OK = "close-ok"
    LOST = "socket lost"


CONNECTION_INPUTS: Final[dict[type[Method], ConnectionInput]] = {
    StartOk: ConnectionInput.START_OK,
    TuneOk: ConnectionInput.TUNE_OK,
    Open: ConnectionInput.OPEN,
    UpdateSecret: ConnectionInput.UPDATE_SECRET,
    Close: ConnectionInput.CLOSE,
}
"""Methods a client may say on channel 0; ``close-ok`` is looked for in the bytes themselves."""

_HANDSHAKE: Final = (
    ConnectionState.AWAIT_START_OK,
    ConnectionState.AWAIT_TUNE_OK,
    ConnectionState.AWAIT_OPEN,
)

CONNECTION_TRANSITIONS: Final[dict[tuple[ConnectionState, ConnectionInput], ConnectionState]] = {
    (ConnectionState.AWAIT_HEADER, ConnectionInput.HEADER): ConnectionState.AWAIT_START_OK,
    (ConnectionState.AWAIT_START_OK, ConnectionInput.START_OK): ConnectionState.AWAIT_TUNE_OK,
    (ConnectionState.AWAIT_TUNE_OK, ConnectionInput.TUNE_OK): ConnectionState.AWAIT_OPEN,
    (ConnectionState.AWAIT_OPEN, ConnectionInput.OPEN): ConnectionState.RUNNING,
    (ConnectionState.RUNNING, ConnectionInput.UPDATE_SECRET): ConnectionState.RUNNING,
    # The client may leave as soon as it can say so; the broker may close, or lose it, at any time.
    **{
        (state, ConnectionInput.CLOSE): ConnectionState.CLOSING
        for state in (*_HANDSHAKE, ConnectionState.RUNNING)
    },
    **{
        (state, ConnectionInput.ERROR): ConnectionState.CLOSING
        for state in (ConnectionState.AWAIT_HEADER, *_HANDSHAKE, ConnectionState.RUNNING)
    },
    (ConnectionState.CLOSING, ConnectionInput.CLOSE_OK): ConnectionState.CLOSED,
    **{
        (state, ConnectionInput.LOST): ConnectionState.CLOSED
        for state in ConnectionState
        if state is not ConnectionState.CLOSED
    },
}

OVER: Final = frozenset((ConnectionState.CLOSING, ConnectionState.CLOSED))
"""Nothing is heard or said any more, but for the rest of the closing."""


def next_connection_state(
    state: ConnectionState, received: ConnectionInput | None
) -> ConnectionState:
    """Where this input leads; raises 504 when it is not awaited (None: no method of channel 0)."""
    if received is not None:
        found = CONNECTION_TRANSITIONS.get((state, received))
        if found is not None:
            return found
    if state is ConnectionState.RUNNING:
        text = "unexpected method in connection state running"
    else:
        text = f"unexpected method, awaited is {state.value}"
    raise AmqpError(ReplyCode.CHANNEL_ERROR, text)


class ChannelState(Enum):
    """What a channel number is."""

    FREE = "free"
    OPEN = "open"
    CLOSING = "closing"
    """The broker closed it for an error: only close and close-ok are heard."""
    ENDING = "ending"
    """The client closed it: close-ok leaves behind the replies that wait for the disk."""


class ChannelInput(Enum):
    """What moves a channel; the value is the label in the drawing."""

    OPEN = "open"
    CLOSE = "close from the client"
    CLOSE_OK = "close-ok"
    ERROR = "close from the broker"
    REPLIED = "last reply left"
    LOST = "connection over"


CHANNEL_TRANSITIONS: Final[dict[tuple[ChannelState, ChannelInput], ChannelState]] = {
    (ChannelState.FREE, ChannelInput.OPEN): ChannelState.OPEN,
    (ChannelState.OPEN, ChannelInput.CLOSE): ChannelState.ENDING,
    (ChannelState.OPEN, ChannelInput.ERROR): ChannelState.CLOSING,
    # Both closed it at the same time: its close-ok to our close is still to come.
    (ChannelState.CLOSING, ChannelInput.CLOSE): ChannelState.CLOSING,
    (ChannelState.CLOSING, ChannelInput.CLOSE_OK): ChannelState.FREE,
    (ChannelState.ENDING, ChannelInput.REPLIED): ChannelState.FREE,
    (ChannelState.OPEN, ChannelInput.LOST): ChannelState.FREE,
    (ChannelState.CLOSING, ChannelInput.LOST): ChannelState.FREE,
    (ChannelState.ENDING, ChannelInput.LOST): ChannelState.FREE,
}

DISCARDING: Final = frozenset((ChannelState.CLOSING, ChannelState.ENDING))
"""What is not in the table is thrown away: it was sent before the client knew of the end."""


def next_channel_state(state: ChannelState, received: ChannelInput | None) -> ChannelState:
    """Where this input leads; raises 504 for a free number, and for a second open."""
    if received is not None:
        found = CHANNEL_TRANSITIONS.get((state, received))
        if found is not None:
            return found
    if state in DISCARDING:
        return state
    if state is ChannelState.FREE:
        raise AmqpError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
    raise AmqpError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")
