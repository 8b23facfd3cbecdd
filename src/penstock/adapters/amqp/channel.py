"""One channel: its parts, its answers in order, its end.

    opened --- error of its own ------> failed ---- close-ok ----------> gone
    opened --- the client's close ----> ended ----- last answer left --> gone

Invariants: after an error only close and close-ok are heard; what it had unsettled is requeued at
once; a number is free again when close-ok was said. One channel's error harms no other.
Not here: publishes (``publish.py``), consumers (``consume.py``), which method goes where
(``families.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp.consumer_commands import ChannelConsumers
from penstock.adapters.amqp.publisher import ChannelPublisher
from penstock.adapters.replies import ReplyQueue
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.frames import method_frame
from penstock.wire.amqp.methods.channel import (
    AccessRequest,
    AccessRequestOk,
    Close,
    CloseOk,
    Flow,
    FlowOk,
    Open,
)
from penstock.wire.amqp.methods.method import Method

if TYPE_CHECKING:
    from penstock.adapters.amqp.broker import AmqpBroker
    from penstock.adapters.amqp.connection import AmqpConnection
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.engine.connection import Channel


class ChannelPhase(Enum):
    """What a channel still hears."""

    OPEN = "open"
    FAILED = "failed"
    """We closed it: close and close-ok are heard."""
    ENDED = "ended"
    """The client closed it, or the connection is gone: nothing is heard."""


OPEN: Final = ChannelPhase.OPEN
"""For those who ask often: a member is slow to find by its name, as slow as a call."""


class AmqpChannel:
    """One open channel of one connection."""

    def __init__(self, number: int, connection: AmqpConnection) -> None:
        self.number: Final = number
        self.connection: Final = connection
        self.vhost: Final[VirtualHost] = connection.vhost
        self.broker: Final[AmqpBroker] = connection.broker
        self.context: Final = connection.context
        self.phase = ChannelPhase.OPEN
        self.last_queue = ""
        """The queue declared last: what an empty name means."""
        self.line: Final = ReplyQueue(connection.send, self._line_changed)
        self.engine_channel: Channel | None = None
        """The engine's channel, if anything was published; ``flow`` opens it."""
        self.publisher: Final = ChannelPublisher(self)
        self.consumers: Final = ChannelConsumers(self)
        self.context.churn["channel_created"] += 1

    def __repr__(self) -> str:
        return f"<AmqpChannel {self.number} of {self.connection.name}>"

    @property
    def is_open(self) -> bool:
        """True while it hears everything."""
        return self.phase is ChannelPhase.OPEN

    @property
    def flow(self) -> Channel:
        """The engine's channel, opened when something is published first."""
        flow = self.engine_channel
        if flow is None:
            flow = self.engine_channel = self.connection.engine_connection.open_channel(
                str(self.number)
            )
            self.connection.flows[flow] = self
        return flow

    # Answers.

    def send(self, data: bytes) -> None:
        """Frames, behind everything this channel has said; nothing after its end."""
        if self.phase is not OPEN:
            return
        # Past the line while nobody stands in it, which is the rule.
        (self.line if self.line.is_waiting else self.connection).send(data)

    def answer(self, method: Method) -> None:
        self.send(method_frame(self.number, method))

    def answer_when_durable(self, method: Method) -> None:
        """A method that leaves after every definition so far is durable (D6)."""
        later = self.answer_later()
        self.context.engine.after_durable(lambda: later(method))

    def answer_later(self) -> Callable[[Method | None], None]:
        """A place in the line: call it with the answer, or None when there is none after all."""
        if not self.is_open:
            return _nobody
        place = self.line.reserve()
        return lambda method: place.fill(
            b"" if method is None else method_frame(self.number, method)
        )

    # Ends.

    def fail(self, error: AmqpError) -> None:
        """Something is wrong with this channel (a hard error: with the whole connection)."""
        error.about(self.number)
        if error.code.is_hard:
            self.connection.fail(error)
        elif self.is_open:
            self.phase = ChannelPhase.FAILED
            self.context.note_close(error)
            self.give_back()
            self._say(Close(int(error.code), error.reply_text, error.class_id, error.method_id))

    def end(self) -> None:
        """The client closed it: say so behind all other answers; its number is free then."""
        if self.phase is ChannelPhase.ENDED:
            return
        self.phase = ChannelPhase.ENDED
        self.give_back()
        self._say(CloseOk())
        if not self.line.is_waiting:
            self.connection.forget(self)

    def give_back(self) -> None:
        """Requeue what is unsettled, let consumers and publishes go; may be called twice."""
        if not self.consumers.is_closed:
            self.context.churn["channel_closed"] += 1
        self.consumers.close()
        self.publisher.close()
        if self.engine_channel is not None:
            self.connection.flows.pop(self.engine_channel, None)
            self.engine_channel.close()
            self.engine_channel = None

    def vanish(self) -> None:
        self.phase = ChannelPhase.ENDED
        self.line.clear()
        self.give_back()

    def _say(self, method: Method) -> None:
        self.line.send(method_frame(self.number, method))

    def _line_changed(self) -> None:
        if self.line.is_waiting:
            self.connection.waiting[self] = None
        else:
            self.connection.waiting.pop(self, None)
            if self.phase is ChannelPhase.ENDED:
                self.connection.forget(self)
        self.connection.wake()


def _nobody(method: Method | None) -> None:
    """Nobody waits for this answer."""


# ---- channel commands ---------------------------------------------------------------------------
# Classes channel and access: open, close, flow, and a ticket nobody needs.
#
# Not here: what a close gives back (``channel.py``).


def open_again(channel: AmqpChannel, method: Open) -> None:
    del channel, method
    raise AmqpError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")


def close(channel: AmqpChannel, method: Close) -> None:
    """The client is done with it."""
    del method
    channel.end()


def flow(channel: AmqpChannel, method: Flow) -> None:
    """Deliveries always flow; the window (basic.qos) is the way to slow them down."""
    if not method.is_active:
        raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "active=false")
    channel.answer(FlowOk(True))


def access(channel: AmqpChannel, method: AccessRequest) -> None:
    """Tickets are of AMQP 0-8; everybody gets the same one."""
    del method
    channel.answer(AccessRequestOk(1))


COMMANDS: Final[dict[type[Method], Callable[[AmqpChannel, Any], None]]] = {
    Open: open_again,
    Close: close,
    Flow: flow,
    AccessRequest: access,
}
