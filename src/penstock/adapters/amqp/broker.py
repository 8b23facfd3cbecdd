"""What all AMQP connections of a broker share: virtual hosts, users, sessions, deadlines.

One per process, made when the listeners are open and before anybody is accepted; ``open_house`` in
``factory.py`` fills it with what the catalog knows. Virtual host ``/`` is space "" (D9), any other
``v`` is space ``v``; ``/`` always exists.

Parts with deadlines that belong to no connection add themselves to ``broker.timers``.
Not here: one connection (``session.py``), what a virtual host has (``vhost.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.direct_reply import DirectReplies
from penstock.adapters.amqp.statistics import Rates, Tally
from penstock.adapters.amqp.topology.matching import check_vhosts
from penstock.adapters.amqp.topology.vhost import VirtualHost
from penstock.adapters.amqp.transactions import TxBudget
from penstock.adapters.amqp.users import Users
from penstock.adapters.content_budget import ContentBudget, ContentShare
from penstock.adapters.timers import Timers
from penstock.engine.broker import Engine
from penstock.engine.topic import Topic
from penstock.model.clock import Clock
from penstock.model.ids import ConnectionId
from penstock.settings.load import Settings
from penstock.wire.amqp.codes import AmqpError, ReplyCode

if TYPE_CHECKING:
    from penstock.adapters.amqp.connection import Session

VHOST_KIND: Final = "amqp.vhost"
DEFAULT_VHOST: Final = "/"
CHURN: Final = (
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_created", "queue_deleted",
)  # fmt: skip
"""What comes and goes and is counted, in RabbitMQ's words."""


class AmqpBroker:
    """Shared state of the AMQP listener."""

    def __init__(self, engine: Engine, clock: Clock, settings: Settings) -> None:
        self.engine: Final = engine
        self.clock: Final = clock
        self.all_settings: Final = settings
        self.settings: Final = settings.amqp
        self.message_bytes_max: Final = min(
            self.settings.message_bytes_max, settings.topics.message_bytes_max
        )
        """Largest body: found by its header, before the engine would refuse it in fewer words."""
        self.cluster_name: Final = self.settings.cluster_name or settings.broker.name
        self.timers: Final = Timers()
        self._closes: dict[str, int] = {}
        engine.tallies.show(
            "amqp_closes", "Channels and connections that we closed", "reason", self._closes
        )
        self.undelivered: Final[dict[str, int]] = {}
        """Publishes that went to no queue, by reason."""
        engine.tallies.show(
            "amqp_undelivered",
            "Publishes that went to no queue: dropped, returned, or replies nobody read",
            "reason",
            self.undelivered,
        )
        self.rates: Final = Rates()
        """How fast everything goes; for those who look."""
        self.churn: Final = dict.fromkeys(CHURN, 0)
        self.gone: Final = Tally()
        """What vhosts counted that are dropped."""
        self.sessions: Final[dict[ConnectionId, Session]] = {}
        """Connections that live and have opened a virtual host."""
        self.contents: Final = ContentBudget(engine.inflight_pool)
        """Connections in the midst of a content, when room is short (D22)."""
        engine.tallies.show(
            "amqp_content_waits",
            "Times a connection stopped in the midst of a publish for lack of room",
            "room",
            self.contents.waits,
        )
        self.users: Final = Users(self)
        self.transactions: Final = TxBudget(
            engine.inflight_pool, settings.flow.connection_bytes_max
        )
        self.replies: Final = DirectReplies()
        """Requesters that wait for direct replies."""
        self.vhosts: Final[dict[str, VirtualHost]] = {}
        self.vhosts[DEFAULT_VHOST] = VirtualHost(self, DEFAULT_VHOST)
        for name in engine.definitions(VHOST_KIND):
            if name not in self.vhosts:
                self.vhosts[name] = VirtualHost(self, name)
        engine.watch_removals(self._removed)

    def vhost(self, name: str) -> VirtualHost | None:
        """The virtual host of that name, if there is one."""
        return self.vhosts.get(name)

    def vhost_of(self, topic: Topic) -> VirtualHost | None:
        """The virtual host whose space a topic is in, if it is one's."""
        return self.vhosts.get(topic.name.space or DEFAULT_VHOST)

    def make_vhost(self, name: str) -> VirtualHost:
        """A virtual host, new or there already; durable after the next commit."""
        found = self.vhosts.get(name)
        if found is None:
            check_vhosts(self)
            found = self.vhosts[name] = VirtualHost(self, name)
            self.engine.define(VHOST_KIND, name, b"")
        return found

    def drop_vhost(self, name: str) -> bool:
        """A virtual host goes with all that is in it; False when there is none. ``/`` stays."""
        vhost = self.vhosts.get(name)
        if vhost is None or name == DEFAULT_VHOST:
            return False
        for session in list(self.sessions.values()):
            if session.vhost is vhost:
                self.close_connection(session.connection_id, f"vhost '{name}' is deleted")
        vhost.drop()
        self.gone.add(vhost.gone)
        del self.vhosts[name]
        self.engine.define(VHOST_KIND, name, None)
        return True

    def enter(self, session: Session) -> None:
        """A connection has opened its virtual host."""
        self.sessions[session.connection_id] = session
        self.churn["connection_created"] += 1

    def leave(self, session: Session) -> bool:
        """It is gone; False when it never entered, or left before."""
        if self.sessions.pop(session.connection_id, None) is None:
            return False
        self.churn["connection_closed"] += 1
        return True

    def content_share(self, name: str, wake: Callable[[], None]) -> ContentShare:
        """What a new connection keeps of contents that are not complete."""
        settings = self.settings
        return ContentShare(
            name,
            self.contents,
            bytes_max=self.message_bytes_max,
            ms_max=settings.content_ms_max,
            wake=wake,
        )

    def note_close(self, error: AmqpError) -> None:
        """A channel or connection is closed for this error."""
        name = error.code.name
        self._closes[name] = self._closes.get(name, 0) + 1

    def note_undelivered(self, reason: str, messages: int) -> None:
        """Publishes had nowhere to go."""
        self.undelivered[reason] = self.undelivered.get(reason, 0) + messages

    def close_connection(self, connection_id: ConnectionId, reason: str) -> bool:
        """An operator ends a connection: 320; False when it is gone already."""
        session = self.sessions.get(connection_id)
        if session is None:
            return False
        session.fail(AmqpError(ReplyCode.CONNECTION_FORCED, reason))
        return True

    def _removed(self, topic: Topic) -> None:
        """Whoever removed it, its vhost forgets the queue."""
        vhost = self.vhost_of(topic)
        if vhost is not None:
            vhost.queues.removed(topic)
