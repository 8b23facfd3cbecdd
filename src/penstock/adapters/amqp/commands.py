"""When the commands of a connection are done: in order, after its publishes, some in every turn.

RabbitMQ handles publishes and commands in order. Here a publish reaches its queues in the engine's
next turn, so a command that counts or drops messages waits for that turn. What is held, by an alarm
or a full queue, is not waited for; neither is more than a few turns' worth.

A queue that is to go, and has dead to bury first, is waited for by whoever said so, and by whoever
looks for it: then it is gone.

One read of a socket may bring ten thousand commands, or words about as many messages. Beyond
``COMMANDS_AT_ONCE`` they wait for the next turn, so that others are served between them (law 5).
Neighbours are settled together for next to nothing, however many; tags picked here and there are
not, so a long list of those is cut into portions.

Who stops: this connection; whatever came behind what waits does, too, and the socket is not read.
What wakes it: the end of the turn, for which it asked. Bound: what one read of the socket brought.
Seen as ``undone`` of the connection's stage while it lasts. Not here: doing it (``dispatch.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp import channel as channel_commands
from penstock.adapters.amqp import (
    consumer,
    consumer_commands,
    exchange_commands,
    publisher,
    queue_commands,
    transactions,
)
from penstock.adapters.amqp.channel import OPEN, AmqpChannel, ChannelPhase
from penstock.adapters.amqp.consumer import acks, settle, stretches
from penstock.flow.diagnosis import COMMANDS as DIAGNOSIS_COMMANDS
from penstock.flow.diagnosis import UndoneView
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
from penstock.wire.amqp.methods.basic import Get
from penstock.wire.amqp.methods.channel import Close, CloseOk, Open, OpenOk
from penstock.wire.amqp.methods.connection import Close as ConnectionClose
from penstock.wire.amqp.methods.connection import UpdateSecret, UpdateSecretOk
from penstock.wire.amqp.methods.method import Method
from penstock.wire.amqp.methods.queue import Declare, Delete, Purge

if TYPE_CHECKING:
    from penstock.adapters.amqp.connection import AmqpConnection
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.engine.connection import Channel
    from penstock.wire.amqp.parser import Inflow

TURNS_MAX: Final = 8
"""Turns one command waits for."""
COMMANDS_AT_ONCE: Final = 400
"""Commands one connection has done in one turn."""
TAGS_AT_ONCE: Final = 1000
"""Tags up to which nobody looks whether they are neighbours: a portion."""
TAGS_PER_COMMAND: Final = 4
"""Messages that are settled for the price of a command when they may be anywhere."""
NEIGHBOURS_PER_COMMAND: Final = 40
"""The same when they are next to each other; so one read of them is one turn's."""
LOOKING: Final = (Get, Declare, Delete, Purge)


class Backlog:
    """What one peer said and is not done yet."""

    __slots__ = (
        "_awaited",
        "_events",
        "_inflow",
        "_session",
        "_since_ms",
        "_turns_left",
        "is_waiting",
    )

    def __init__(self, connection: AmqpConnection, inflow: Inflow) -> None:
        self._session = connection
        self._inflow = inflow
        self._events: list[Event] = []
        self._turns_left = TURNS_MAX
        self._since_ms = 0
        self._awaited: AmqpQueue | None = None
        self.is_waiting = False
        """True while something is not done, or not even read, and the connection is not over."""

    def take(self, events: list[Event], left: int = COMMANDS_AT_ONCE) -> bool:
        """Do these, in order; False when something has to wait, or was the end."""
        if self._events or self._awaited is not None:
            self._events += events
            return False
        self.is_waiting = False
        connection = self._session
        for number, event in enumerate(events):
            # Publishes cost nothing here: they are the engine's to spread.
            if type(event) is AckRun or type(event) is SettleRun:
                tags = len(event.tags)
                if tags > TAGS_AT_ONCE and len(portions := _portions(event)) > 1:
                    return self.take([*portions, *events[number + 1 :]], left)
                # What is longer was not cut, so they are neighbours.
                left -= tags // (
                    TAGS_PER_COMMAND if tags <= TAGS_AT_ONCE else NEIGHBOURS_PER_COMMAND
                )
            elif type(event) is Command:
                left -= 1
            if left < 0 or (type(event) is Command and self._is_early(event)):
                self._put_off(events[number:])
                return False
            if not run_event(connection, event):
                return False
            if self.is_waiting:
                # For a queue that this was to delete.
                self._put_off(events[number + 1 :])
                return False
        if self._inflow.has_more:
            self._put_off([])
        return not self._inflow.has_more

    def go_on(self) -> bool:
        """A turn has passed: do what waited; the same answer."""
        if self._awaited is not None and not self._awaited.is_deleted:
            return False
        self._awaited = None
        events, self._events = self._events, []
        if not events and self._inflow.has_more:
            events = self._inflow.feed(b"", self._session.broker.clock.wall_ms())
        is_done = self.take(events)
        if not self.is_waiting:
            self.clear()
        return is_done

    def clear(self) -> None:
        """Nothing is left, or the connection is over."""
        self._events = []
        self._awaited = None
        self.is_waiting = False
        if self._session.is_established:
            self._session.engine_connection.undone = None

    def wait_for(self, queue: AmqpQueue) -> None:
        """Nothing is done before this queue, which is to go, is gone."""
        self._awaited = queue
        self.is_waiting = True
        queue.on_gone.append(self._session.wake)

    def view(self) -> UndoneView:
        """What waits, for operators: commands, and runs of publishes and acks behind them."""
        # At least one: the command in front may be half done, or others not even read.
        count = max(1, len(self._events))
        return UndoneView(DIAGNOSIS_COMMANDS, count, self._since_ms, self._waits_for())

    def _waits_for(self) -> str:
        """Label of the stage for which it waits; empty when it is the next turn."""
        if self._awaited is not None:
            return self._awaited.topic.queues[0].stage.label
        channel = next(_on_their_way(self._session), None)
        return "" if channel is None else channel.stage.label

    def _put_off(self, events: list[Event]) -> None:
        """These wait for the next turn."""
        connection = self._session
        self._events = events
        self.is_waiting = not connection.is_over
        if connection.is_established and connection.engine_connection.undone is None:
            self._since_ms = connection.now_ms
            connection.engine_connection.undone = self
        connection.wake()

    def _is_early(self, command: Command) -> bool:
        """True while publishes in front of a command are on their way to what it looks into."""
        method = command.method
        if not isinstance(method, LOOKING):
            return False
        leaving = leaving_queue(self._session, command.channel, method.queue)
        if leaving is not None:
            self.wait_for(leaving)
            return True
        if self._turns_left > 0 and is_publishing(self._session):
            self._turns_left -= 1
            return True
        self._turns_left = TURNS_MAX
        return False


def _portions(event: AckRun | SettleRun) -> list[Event]:
    """A long list of tags, cut when they cannot be settled together."""
    tags = event.tags
    starts = range(0, len(tags), TAGS_AT_ONCE)
    if type(event) is AckRun and _is_scattered(tags):
        return [
            AckRun(event.channel, event.tags[at : at + TAGS_AT_ONCE], event.is_multiple)
            for at in starts
        ]
    if type(event) is SettleRun:
        words = event.words
        # Those that are refused are buried in the order in which they were named, one by one.
        is_one_by_one = words.count(words[0] | 1) < len(words) and event.tags != sorted(event.tags)
        is_mixed = words.count(words[0]) < len(words)
        if is_mixed or is_one_by_one or _is_scattered(event.tags):
            return [
                SettleRun(
                    event.channel, event.tags[at : at + TAGS_AT_ONCE], words[at : at + TAGS_AT_ONCE]
                )
                for at in starts
            ]
    return [event]


def _is_scattered(tags: list[int]) -> bool:
    return len(stretches(tags)) > len(tags) // NEIGHBOURS_PER_COMMAND


def leaving_queue(connection: AmqpConnection, number: int, name: str) -> AmqpQueue | None:
    """The queue that a command on this channel names, if it is to go and has dead to bury first."""
    channel = connection.channels.get(number)
    return None if channel is None else connection.vhost.queues.leaving(name or channel.last_queue)


def is_publishing(connection: AmqpConnection) -> bool:
    """True while publishes of this connection wait for their turn, and nothing holds them."""
    return connection.is_established and any(_on_their_way(connection))


def _on_their_way(connection: AmqpConnection) -> Iterator[Channel]:
    """Channels of an open connection whose publishes the next turn will store."""
    for channel in connection.engine_connection.channels.values():
        if channel.inbox_messages and channel.hold is None:
            yield channel


# ---- dispatch -----------------------------------------------------------------------------------
# Events of a connection on their way to channels.
#
# Channel 0, and all that comes before the virtual host is open, is the connection's. A method on
# another number without a channel must be channel.open; a failed channel hears close and close-ok;
# everything else goes to the parts of the channel or to its family's handler. Errors learn here
# which class and method they are about.
#
# Not here: handlers (``families.py``), what an error does (``AmqpChannel.fail``).


logger = logging.getLogger(__name__)

_PUBLISH: Final = 40
_ACK: Final = 80
_CLOSE_OK: Final = CloseOk()


def run_event(connection: AmqpConnection, event: Event) -> bool:
    """One thing that the peer said; False when it was the end of the connection."""
    channel = connection.channels.get(event.channel)
    try:
        if channel is None:
            _without_channel(connection, event)
        elif type(event) is Command:
            _command(channel, event.method)
        elif channel.phase is not OPEN:
            pass
        elif type(event) is PublishRun:
            channel.publisher.publish(event)
        elif type(event) is AckRun:
            acks(channel, event)
        elif type(event) is SettleRun:
            settle(channel, event)
        elif type(event) is Refused:
            raise event.error
    except AmqpError as error:
        if channel is None:
            connection.fail(error)
        else:
            channel.fail(error.about(event.channel, *_ids(event)))
    except (NotFound, AlreadyExists) as error:
        # Two words for the same thing, a check that was forgotten: ours, and the peer may know.
        logger.exception("a command of %s failed by our mistake", connection.name)
        connection.fail(AmqpError(ReplyCode.INTERNAL_ERROR, str(error)))
    return not connection.is_over


def _command(channel: AmqpChannel, method: Method) -> None:
    if channel.phase is OPEN:
        handler = HANDLERS.get(type(method))
        if handler is None:
            text = f"unexpected method {type(method).__name__}"
            raise AmqpError(ReplyCode.COMMAND_INVALID, text)
        handler(channel, method)
    elif channel.phase is ChannelPhase.FAILED:
        if type(method) is CloseOk:
            channel.connection.forget(channel)
        elif type(method) is Close:
            # Both closed it at the same time; its close-ok to ours is still to come.
            channel.connection.send(method_frame(channel.number, _CLOSE_OK))


def _without_channel(connection: AmqpConnection, event: Event) -> None:
    number = event.channel
    if not number or not connection.is_established:
        run(connection, event)
        return
    try:
        if type(event) is not Command or type(event.method) is not Open:
            raise AmqpError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
        _open(connection, number)
    except AmqpError as error:
        raise error.about(number, *_ids(event)) from None


def _open(connection: AmqpConnection, number: int) -> None:
    limit = connection.channel_max
    if number > limit:
        text = (
            f"number of channels opened ({number}) has reached the negotiated channel_max ({limit})"
        )
        raise AmqpError(ReplyCode.NOT_ALLOWED, text)
    connection.channels[number] = channel = AmqpChannel(number, connection)
    channel.answer(OpenOk())


def _ids(event: Event) -> tuple[int, int]:
    """Class and method that the event came by."""
    if type(event) is Command:
        return event.method.class_id, event.method.method_id
    if type(event) is SettleRun:
        return CLASS_BASIC, event.words[0] & ~1
    return CLASS_BASIC, _ACK if type(event) is AckRun else _PUBLISH


# ---- families -----------------------------------------------------------------------------------
# Which method of an open channel goes to which handler: one dict per family, joined here.
#
# A handler gets the channel and the method, answers through the channel, and raises ``AmqpError``
# when something is wrong; the connection adds class and method to it and closes what has to be
# closed.


Handler = Callable[["AmqpChannel", Any], None]

HANDLERS: Final[dict[type[Method], Handler]] = {
    **channel_commands.COMMANDS,
    **exchange_commands.COMMANDS,
    **queue_commands.COMMANDS,
    **publisher.COMMANDS,
    **transactions.COMMANDS,
    **consumer_commands.CONSUME_COMMANDS,
    **consumer_commands.GET_COMMANDS,
    **consumer_commands.QOS_COMMANDS,
    **consumer.COMMANDS,
}


# ---- connection commands ------------------------------------------------------------------------
# Channel 0: the handshake, then a new secret now and then, and a close at any time.
#
# Not here: the steps of the handshake (``handshake.py``), how a connection ends (``closing.py``).


def run(connection: AmqpConnection, event: Event) -> None:
    """An event on channel 0, or one that came before the virtual host is open."""
    if event.channel or type(event) is not Command:
        text = f"frame on channel {event.channel} before the connection is open"
        raise AmqpError(ReplyCode.UNEXPECTED_FRAME, text)
    method = event.method
    handler = COMMANDS.get(type(method))
    try:
        if type(method) is ConnectionClose:
            connection.leave()
        elif not connection.is_established:
            connection.handshake.take(method)
        elif handler is not None:
            handler(connection, method)
        else:
            text = "unexpected method in connection state running"
            raise AmqpError(ReplyCode.CHANNEL_ERROR, text)
    except AmqpError as error:
        raise error.about(0, method.class_id, method.method_id) from None


def update_secret(connection: AmqpConnection, method: UpdateSecret) -> None:
    """There are no secrets that end; a new one is as good as the old one."""
    del method
    connection.say(UpdateSecretOk())


COMMANDS: Final[dict[type[Method], Callable[[AmqpConnection, Any], None]]] = {
    UpdateSecret: update_secret,
}
