"""When the commands of a connection are done: in order, after its publishes, some in every turn.

RabbitMQ handles publishes and commands in order. Here a publish reaches its queues in the engine's
next turn, so a command that counts or drops messages waits for that turn. What is held, by an alarm
or a full queue, is not waited for; neither is more than a few turns' worth.

One read of a socket may bring ten thousand commands. Beyond ``COMMANDS_AT_ONCE`` they wait for the
next turn, so that others are served between them (law 5).

Who stops: this connection; whatever came behind what waits does, too, and the socket is not read.
What wakes it: the end of the turn, for which it asked. Bound: what one read of the socket brought.
Not here: doing it (``dispatch.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.wire.amqp.basic_methods import Get
from penstock.wire.amqp.content import Command
from penstock.wire.amqp.queue_methods import Declare, Delete, Purge

if TYPE_CHECKING:
    from penstock.adapters.amqp.session import Session
    from penstock.wire.amqp.content import Event

TURNS_MAX: Final = 8
"""Turns one command waits for."""
COMMANDS_AT_ONCE: Final = 400
"""Commands one connection has done in one turn."""
LOOKING: Final = frozenset((Get, Declare, Delete, Purge))


class Backlog:
    """What one peer said and is not done yet."""

    __slots__ = ("_events", "_session", "_turns_left")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._events: list[Event] = []
        self._turns_left = TURNS_MAX

    def __bool__(self) -> bool:
        return bool(self._events)

    def take(self, events: list[Event]) -> bool:
        """Do these, in order; False when some have to wait, or one was the end."""
        if self._events:
            self._events += events
            return False
        session = self._session
        left = COMMANDS_AT_ONCE
        for number, event in enumerate(events):
            if type(event) is Command:
                left -= 1
                if left < 0 or self._is_early(event):
                    self._events = events[number:]
                    session.wake()
                    return False
            if not session.take(event):
                return False
        return True

    def go_on(self) -> bool:
        """A turn has passed: do what waited; the same answer."""
        events, self._events = self._events, []
        return self.take(events)

    def clear(self) -> None:
        """The connection is over."""
        self._events = []

    def _is_early(self, command: Command) -> bool:
        """True while publishes in front of a command are on their way to what it looks into."""
        if type(command.method) not in LOOKING:
            return False
        if self._turns_left > 0 and is_publishing(self._session):
            self._turns_left -= 1
            return True
        self._turns_left = TURNS_MAX
        return False


def is_publishing(session: Session) -> bool:
    """True while publishes of this connection wait for their turn, and nothing holds them."""
    if not session.is_established:
        return False
    channels = session.connection.channels.values()
    return any(each.inbox_messages and each.hold is None for each in channels)
