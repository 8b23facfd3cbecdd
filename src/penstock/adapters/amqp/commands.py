"""The commands of a connection: when each is done, and which handler does it.

RabbitMQ handles publishes and commands in order. Here a publish reaches its queues in the engine's
next turn, so a command that counts or drops messages waits for that turn. What is held, by an alarm
or a full queue, is not waited for; neither is more than a few turns' worth. The same goes for what
this connection gave back to a queue with a limit: what is too much is gone, and its dead letters
are stored, before a command looks.

A queue that is being deleted, and has dead letters to route first, is waited for by whoever deleted
it, and by whoever looks for it: then it is gone.

One read of a socket may bring ten thousand commands, or acks of as many messages. Beyond
``COMMANDS_AT_ONCE`` they wait for the next turn, so that others are served between them (law 5).
Neighbouring tags are settled together for next to nothing, however many; tags picked here and there
are not, so a long list of those is cut into portions.

Who stops: this connection; whatever came behind what waits does, too, and the socket is not read.
What wakes it: the end of the turn, for which it asked. Bound: what one read of the socket brought.
Seen as ``undone`` of the connection's stage while it lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.adapters.amqp import consumer_commands, exchange_commands, queue_commands
from penstock.adapters.amqp.channel import COMMANDS as CHANNEL_COMMANDS
from penstock.adapters.amqp.consumer import tag_ranges
from penstock.flow.views import COMMANDS as DIAGNOSIS_COMMANDS
from penstock.flow.views import UndoneView
from penstock.wire.amqp.frames import AckRun, Command, Event, SettleRun
from penstock.wire.amqp.methods.basic import Get
from penstock.wire.amqp.methods.method import Method
from penstock.wire.amqp.methods.queue import Declare, Delete, Purge

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import AmqpChannel
    from penstock.adapters.amqp.context import AmqpContext
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.engine.connection import Channel, Connection
    from penstock.wire.amqp.parser import AmqpParser

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
"""Commands that look into a queue: they come after the publishes in front of them."""

HANDLERS: Final[dict[type[Method], Callable[[AmqpChannel, Any], None]]] = {
    **CHANNEL_COMMANDS,
    **exchange_commands.COMMANDS,
    **queue_commands.COMMANDS,
    **consumer_commands.COMMANDS,
}
"""Which method of an open channel goes to which handler.

A handler gets the channel and the method, answers through the channel, and raises ``AmqpError``
when something is wrong; the connection adds class and method and closes what has to be closed.
"""


class CommandTarget(Protocol):
    """The connection, as its queue of commands uses it."""

    @property
    def channels(self) -> Mapping[int, AmqpChannel]: ...
    @property
    def context(self) -> AmqpContext: ...
    @property
    def vhost(self) -> VirtualHost: ...
    @property
    def engine_connection(self) -> Connection: ...
    @property
    def is_established(self) -> bool: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def now_ms(self) -> int: ...
    @property
    def wall_ms(self) -> int: ...

    def wake(self) -> None: ...

    def dispatch(self, event: Event) -> bool:
        """One thing that the peer said; False when it was the end of the connection."""
        ...


class CommandQueue:
    """What one peer said and is not done yet, in order."""

    __slots__ = (
        "_awaited",
        "_connection",
        "_events",
        "_inflow",
        "_since_ms",
        "_turns_left",
        "has_requeued",
        "is_waiting",
    )

    def __init__(self, connection: CommandTarget, inflow: AmqpParser) -> None:
        self._connection = connection
        self._inflow = inflow
        self._events: list[Event] = []
        self._turns_left = TURNS_MAX
        self._since_ms = 0
        self._awaited: AmqpQueue | None = None
        self.has_requeued = False
        """True since messages went back to a queue with a limit, until somebody looked."""
        self.is_waiting = False
        """True while something is not done, or not even read, and the connection is not over."""

    def take(self, events: list[Event], left: int = COMMANDS_AT_ONCE) -> bool:
        """Do these, in order; False when something has to wait, or was the end."""
        if self._events or self._awaited is not None:
            self._events += events
            return False
        self.is_waiting = False
        dispatch = self._connection.dispatch
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
            if not dispatch(event):
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
            events = self._inflow.feed(b"", self._connection.wall_ms)
        is_done = self.take(events)
        if not self.is_waiting:
            self.clear()
        return is_done

    def clear(self) -> None:
        """Nothing is left, or the connection is over."""
        self._events = []
        self._awaited = None
        self.is_waiting = False
        if self._connection.is_established:
            self._connection.engine_connection.undone = None

    def wait_for(self, queue: AmqpQueue) -> None:
        """Nothing is done before this queue, which is to go, is gone."""
        self._awaited = queue
        self.is_waiting = True
        queue.on_gone.append(self._connection.wake)

    def view(self) -> UndoneView:
        """What waits, for operators: commands, and runs of publishes and acks behind them."""
        # At least one: the command in front may be half done, or others not even read.
        count = max(1, len(self._events))
        return UndoneView(DIAGNOSIS_COMMANDS, count, self._since_ms, self._waits_for())

    def _waits_for(self) -> str:
        """Label of the stage for which it waits; empty when it is the next turn."""
        if self._awaited is not None:
            return self._awaited.topic.queues[0].stage.label
        channel = next(_on_their_way(self._connection), None)
        return "" if channel is None else channel.stage.label

    def _put_off(self, events: list[Event]) -> None:
        """These wait for the next turn."""
        connection = self._connection
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
        leaving = leaving_queue(self._connection, command.channel, method.queue)
        if leaving is not None:
            self.wait_for(leaving)
            return True
        connection = self._connection
        if self._turns_left > 0 and (
            is_publishing(connection)
            or (self.has_requeued and connection.context.engine.is_making_room)
        ):
            self._turns_left -= 1
            return True
        self.has_requeued = False
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
    return len(tag_ranges(tags)) > len(tags) // NEIGHBOURS_PER_COMMAND


def leaving_queue(connection: CommandTarget, number: int, name: str) -> AmqpQueue | None:
    """The queue that a command on this channel names, if it is to go and has dead to bury first."""
    channel = connection.channels.get(number)
    return None if channel is None else connection.vhost.queues.leaving(name or channel.last_queue)


def is_publishing(connection: CommandTarget) -> bool:
    """True while publishes of this connection wait for their turn, and nothing holds them."""
    return connection.is_established and any(_on_their_way(connection))


def _on_their_way(connection: CommandTarget) -> Iterator[Channel]:
    """Channels of an open connection whose publishes the next turn will store."""
    for channel in connection.engine_connection.channels.values():
        if channel.inbox_messages and channel.hold is None:
            yield channel
