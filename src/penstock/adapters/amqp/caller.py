"""Who is at the other end of a connection, and the way to speak to it.

The part of a session that the handshake fills in: login, virtual host, what was negotiated, what
the client says of itself; its outbox, and what it is told of alarms.
Not here: what is done with what it says (``session.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp.blocked import CAPABILITY, BlockedNotices
from penstock.adapters.contract import Peer
from penstock.flow.reason import Reason
from penstock.model.ids import ConnectionId
from penstock.wire.amqp.codes import FRAME_MAX_MIN
from penstock.wire.amqp.frames import method_frame
from penstock.wire.amqp.methods.method import Method

if TYPE_CHECKING:
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.users import User
    from penstock.adapters.amqp.vhost import VirtualHost
    from penstock.engine.connection import Connection
    from penstock.engine.pull import Pull, PullResult
    from penstock.engine.subscription.consumer import Consumer, Delivery

OWN_NAME_MAX: Final = 64
"""Characters of a client's own name that operators are shown beside its address."""


class Caller:
    """What every session is."""

    # A session has more than thirty attributes: without slots each would be a look-up in a table.
    __slots__ = (
        "_notices", "_outbox", "auth_mechanism", "channel_max", "client_capabilities",
        "client_properties", "clock", "connected_ms", "connection", "connection_id",
        "connection_name", "frame_max", "heartbeat", "house", "is_over", "name", "peer",
        "received_bytes", "receives", "sends", "sent_bytes", "user", "vhost", "wake",
    )  # fmt: skip

    def __init__(
        self, connection_id: ConnectionId, peer: Peer, house: House, wake: Callable[[], None]
    ) -> None:
        self.connection_id: Final = connection_id
        self.peer: Final = peer
        self.house: Final = house
        self.clock: Final = house.clock
        self.wake: Final = wake
        self.name: Final = f"{peer} -> {Peer(peer.local_host, peer.local_port, '', 0)}"
        """As RabbitMQ names connections."""
        self.connected_ms: Final = house.clock.wall_ms()
        # Known when the handshake is done, not before.
        self.user: User
        self.vhost: VirtualHost
        self.connection: Connection
        self.auth_mechanism = ""
        self.client_properties: dict[str, Any] = {}
        self.client_capabilities: frozenset[str] = frozenset()
        self.connection_name = ""
        """What the client calls it."""
        self.channel_max = house.settings.channel_max
        self.frame_max = FRAME_MAX_MIN
        self.heartbeat = 0
        """Seconds, as negotiated."""
        self.is_over = False
        """Closed by either side, or lost: nothing is heard or said any more."""
        self.received_bytes = self.sent_bytes = 0
        self.receives = self.sends = 0
        """Pieces in which they came and went."""
        self._outbox: list[bytes] = []
        self._notices: Final = BlockedNotices()

    @property
    def now_ms(self) -> int:
        """Monotonic time."""
        return self.clock.monotonic_ms()

    @property
    def user_name(self) -> str:
        """Who is logged in."""
        return self.user.name

    def may_claim(self, user_id: bytes) -> bool:
        """True when messages of this connection may carry that user-id."""
        return user_id == self.user.name.encode() or self.user.is_impersonator

    def send(self, data: bytes) -> None:
        """Frames that are made already."""
        if not self.is_over:
            self._outbox.append(data)
            self.sent_bytes += len(data)
            self.sends += 1
            self.wake()

    def say(self, method: Method) -> None:
        """A method on channel 0."""
        self.send(method_frame(0, method))

    def introduce(self, properties: dict[str, Any]) -> None:
        """What the client says of itself."""
        self.client_properties = properties
        capabilities = properties.get("capabilities")
        if isinstance(capabilities, dict):
            self.client_capabilities = frozenset(
                name for name, is_there in capabilities.items() if is_there is True
            )
        name = properties.get("connection_name")
        if isinstance(name, str):
            # What is not UTF-8 came as surrogates, which nobody can print.
            self.connection_name = name.encode("utf-8", "replace").decode()

    @property
    def known_as(self) -> str:
        """How operators meet this connection, with the name it gave itself: ``penstock why``."""
        own = self.connection_name[:OWN_NAME_MAX]
        return f"amqp-{self.connection_id} {self.peer}" + (f" {own}" if own else "")

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """Tell the peer of alarms, if it wants to know; ``is_reading`` does the rest."""
        notice = self._notices.changed(reasons)
        if notice is not None and CAPABILITY in self.client_capabilities:
            self.say(notice)
        self.wake()

    # What the engine says and nobody here listens to.

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Consumers have outlets of their own."""

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """See ``deliver``."""

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """See ``deliver``."""

    def answered(self, pull: Pull, result: PullResult) -> None:
        """Nobody pulls here."""
