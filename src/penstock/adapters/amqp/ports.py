"""What the parts of a channel use of the channel, and of the connection it is on.

``ChannelPublisher``, ``ChannelConsumers``, transactions and direct replies are made by
``AmqpChannel`` and know it by ``ChannelPort`` only, so that they can be read without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.adapters.amqp.context import AmqpContext
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.adapters.amqp.users import User
    from penstock.adapters.contract import Peer
    from penstock.adapters.replies import ReplyQueue
    from penstock.engine.connection import Channel, Connection
    from penstock.flow.budgets import UnsentLimit
    from penstock.model.ids import ConnectionId
    from penstock.wire.amqp.codes import AmqpError
    from penstock.wire.amqp.methods.method import Method


class ConnectionPort(Protocol):
    """An open connection, as seen from one of its channels."""

    @property
    def connection_id(self) -> ConnectionId: ...
    @property
    def name(self) -> str: ...
    @property
    def peer(self) -> Peer: ...
    @property
    def user(self) -> User: ...
    @property
    def frame_max(self) -> int: ...
    @property
    def client_capabilities(self) -> frozenset[str]: ...
    @property
    def engine_connection(self) -> Connection: ...
    @property
    def unsent(self) -> UnsentLimit:
        """What the socket has not taken of the deliveries to all consumers (F14)."""
        ...

    def note_requeued(self) -> None:
        """Messages went back to a queue with a limit: commands that look wait for what it does."""
        ...


class ChannelPort(Protocol):
    """An open channel, as seen from its publisher and its consumers."""

    @property
    def number(self) -> int: ...
    @property
    def context(self) -> AmqpContext: ...
    @property
    def connection(self) -> ConnectionPort: ...
    @property
    def vhost(self) -> VirtualHost: ...
    @property
    def replies(self) -> ReplyQueue: ...
    @property
    def engine_channel(self) -> Channel | None: ...
    @property
    def is_open(self) -> bool: ...

    def open_engine_channel(self) -> Channel:
        """The engine's channel, opened when something is published first."""
        ...

    def send(self, data: bytes) -> None:
        """Frames, behind everything this channel has said; nothing after its end."""
        ...

    def answer(self, method: Method) -> None: ...

    def answer_later(self) -> Callable[[Method | None], None]:
        """A slot for a reply: call it with the reply, or None when there is none after all."""
        ...

    def confirm_later(self) -> None:
        """``ChannelPublisher.send_confirms`` is called at the end of the turn."""
        ...

    def fail(self, error: AmqpError) -> None:
        """Close the channel for this error, or the whole connection for a hard one."""
        ...
