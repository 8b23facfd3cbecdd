"""One channel: its publisher and consumers, its replies in order, its end.

Invariants: after an error only close and close-ok are heard; what it had unsettled is requeued at
once; a number is free again when close-ok was said. One channel's error harms no other.
Not here: publishes (``publisher.py``), deliveries and acks (``consumer.py``), the table of its
states (``states.py``), which method goes where (``commands.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.adapters.amqp.consumer import ChannelConsumers
from penstock.adapters.amqp.ports import ConnectionPort
from penstock.adapters.amqp.publisher import ChannelPublisher
from penstock.adapters.amqp.states import ChannelInput, ChannelState, next_channel_state
from penstock.adapters.replies import ReplyQueue
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.frames import method_frame
from penstock.wire.amqp.methods.channel import (
    AccessRequest,
    AccessRequestOk,
    Close,
    CloseOk,
    ConfirmSelect,
    ConfirmSelectOk,
    Flow,
    FlowOk,
    Open,
    TxCommit,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.wire.amqp.methods.method import Method

if TYPE_CHECKING:
    from penstock.adapters.amqp.context import AmqpContext
    from penstock.adapters.amqp.direct_reply import DirectReplyRegistry
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.adapters.amqp.transactions import TxBudget
    from penstock.engine.connection import Channel


class ChannelOwner(ConnectionPort, Protocol):
    """The connection, as its channels use it."""

    @property
    def context(self) -> AmqpContext: ...
    @property
    def vhost(self) -> VirtualHost: ...
    @property
    def maker(self) -> str: ...
    @property
    def engine_channels(self) -> dict[Channel, AmqpChannel]:
        """Channels of the engine that belong to channels here."""
        ...

    @property
    def waiting(self) -> dict[AmqpChannel, None]:
        """Channels whose replies wait for the disk."""
        ...

    @property
    def confirming(self) -> dict[AmqpChannel, None]:
        """Channels with confirms that are sent at the end of the turn."""
        ...

    def send(self, data: bytes) -> None: ...

    def wake(self) -> None: ...

    def fail(self, error: AmqpError) -> None: ...

    def forget(self, channel: AmqpChannel) -> None:
        """A channel is gone, its number is free."""
        ...

    def wait_for_deletion(self, queue: AmqpQueue) -> None:
        """No further command is done before this queue is gone."""
        ...


class AmqpChannel:
    """One open channel of one connection."""

    def __init__(
        self,
        number: int,
        connection: ChannelOwner,
        direct_replies: DirectReplyRegistry,
        transactions: TxBudget,
    ) -> None:
        self.number: Final = number
        self.connection: Final = connection
        self.vhost: Final = connection.vhost
        self.context: Final = connection.context
        self.state = next_channel_state(ChannelState.FREE, ChannelInput.OPEN)
        self.is_open = True
        """The state is OPEN: kept beside it because every run of publishes and acks asks."""
        self.last_queue = ""
        """The queue declared last: what an empty name means."""
        self.replies: Final = ReplyQueue(connection.send, self._replies_changed)
        self.engine_channel: Channel | None = None
        """The engine's channel, if anything was published."""
        self.publisher: Final = ChannelPublisher(self, direct_replies, transactions)
        self.consumers: Final = ChannelConsumers(self, self.publisher)
        self.context.churn["channel_created"] += 1

    def __repr__(self) -> str:
        return f"<AmqpChannel {self.number} of {self.connection.name}>"

    def open_engine_channel(self) -> Channel:
        """The engine's channel, opened when something is published first."""
        found = self.engine_channel
        if found is None:
            engine_connection = self.connection.engine_connection
            found = self.engine_channel = engine_connection.open_channel(str(self.number))
            self.connection.engine_channels[found] = self
        return found

    # Replies.

    def send(self, data: bytes) -> None:
        """Frames, behind everything this channel has said; nothing after its end."""
        if self.is_open:
            # Past the queue of replies while nothing waits in it, which is the rule.
            (self.replies if self.replies.is_waiting else self.connection).send(data)

    def answer(self, method: Method) -> None:
        self.send(method_frame(self.number, method))

    def answer_when_durable(self, method: Method) -> None:
        """A method that leaves after every definition so far is durable (D6)."""
        later = self.answer_later()
        self.context.engine.after_durable(lambda: later(method))

    def answer_definition(self, ok: Method, *, is_durable: bool, is_nowait: bool = False) -> None:
        """Say that topology is as asked; when the catalog has it, if that is to outlive us."""
        if is_nowait:
            return
        if is_durable:
            self.answer_when_durable(ok)
        else:
            self.answer(ok)

    def answer_later(self) -> Callable[[Method | None], None]:
        """A slot for a reply: call it with the reply, or None when there is none after all."""
        if not self.is_open:
            return _nobody
        slot = self.replies.reserve()
        return lambda method: slot.fill(
            b"" if method is None else method_frame(self.number, method)
        )

    def confirm_later(self) -> None:
        """Confirms are sent at the end of the turn, so that they are one answer."""
        self.connection.confirming[self] = None
        self.connection.wake()

    def _replies_changed(self) -> None:
        if self.replies.is_waiting:
            self.connection.waiting[self] = None
        else:
            self.connection.waiting.pop(self, None)
            self._free_number()
        self.connection.wake()

    # Its end.

    def fail(self, error: AmqpError) -> None:
        """Close the channel for this error (a hard one: the whole connection)."""
        error.about(self.number)
        if error.code.is_hard:
            self.connection.fail(error)
        elif self.is_open:
            self._advance(ChannelInput.ERROR)
            self.context.note_close(error)
            self.context.client_log.say(
                logging.WARNING,
                "channel error",
                self.connection.peer,
                connection=self.connection.connection_id,
                user=self.connection.user.name,
                channel=self.number,
                code=int(error.code),
                text=str(error),
            )
            self._give_back(is_polite=False)
            close = Close(int(error.code), error.reply_text, error.class_id, error.method_id)
            self.replies.send(method_frame(self.number, close))

    def end(self) -> None:
        """The client closed it: say so behind all other replies; its number is free then."""
        self._advance(ChannelInput.CLOSE)
        self._give_back(is_polite=True)
        self.replies.send(method_frame(self.number, CloseOk()))
        if not self.replies.is_waiting:
            self._free_number()

    def _free_number(self) -> None:
        """No reply waits any more: if the client closed the channel, that was its end."""
        if self.state is ChannelState.ENDING:
            self._advance(ChannelInput.REPLIED)
            self.connection.forget(self)

    def receive_closing(self, method: Method) -> None:
        """A method on a channel that is not open any more: only our close is still answered."""
        if self.state is not ChannelState.CLOSING:
            return
        if type(method) is CloseOk:
            self._advance(ChannelInput.CLOSE_OK)
            self.connection.forget(self)
        elif type(method) is Close:
            self._advance(ChannelInput.CLOSE)
            self.connection.send(method_frame(self.number, CloseOk()))

    def connection_over(self, *, is_polite: bool) -> None:
        """The connection is over: nothing is said, everything goes back."""
        self._advance(ChannelInput.LOST)
        self.replies.clear()
        self._give_back(is_polite=is_polite)

    def _advance(self, received: ChannelInput) -> None:
        self.state = next_channel_state(self.state, received)
        self.is_open = self.state is ChannelState.OPEN

    def _give_back(self, *, is_polite: bool) -> None:
        """Requeue what is unsettled, let consumers and publishes go; may be called twice.

        Held publishes wait on after the client's own close, and after nothing else.
        """
        if not self.consumers.is_closed:
            self.context.churn["channel_closed"] += 1
        self.consumers.close()
        self.publisher.close()
        if self.engine_channel is not None:
            self.connection.engine_channels.pop(self.engine_channel, None)
            if is_polite:
                self.engine_channel.close()
            else:
                self.engine_channel.abort()
            self.engine_channel = None


def _nobody(method: Method | None) -> None:
    """Nobody waits for this reply."""


# Handlers of the classes channel, access, confirm and tx.


def open_again(channel: AmqpChannel, method: Open) -> None:
    """Raises 504: an open channel cannot be opened."""
    del method
    next_channel_state(channel.state, ChannelInput.OPEN)


def close(channel: AmqpChannel, method: Close) -> None:
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


def select_confirms(channel: AmqpChannel, method: ConfirmSelect) -> None:
    channel.publisher.select_confirms()
    if not method.is_nowait:
        channel.answer(ConfirmSelectOk())


def select_tx(channel: AmqpChannel, _method: TxSelect) -> None:
    channel.publisher.select_tx()
    channel.answer(TxSelectOk())


def commit_tx(channel: AmqpChannel, _method: TxCommit) -> None:
    """tx.commit: the answer leaves when everything is durable."""
    channel.publisher.commit()


def roll_back_tx(channel: AmqpChannel, _method: TxRollback) -> None:
    channel.publisher.rollback()
    channel.answer(TxRollbackOk())


COMMANDS: Final[dict[type[Method], Callable[[AmqpChannel, Any], None]]] = {
    Open: open_again,
    Close: close,
    Flow: flow,
    AccessRequest: access,
    ConfirmSelect: select_confirms,
    TxSelect: select_tx,
    TxCommit: commit_tx,
    TxRollback: roll_back_tx,
}
