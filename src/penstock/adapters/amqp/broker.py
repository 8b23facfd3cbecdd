"""What all AMQP connections of a broker share: virtual hosts, users, connections, deadlines.

One per process, made when the listeners are open and before anybody is accepted. Virtual host ``/``
is space "" (D9), any other ``v`` is space ``v``; ``/`` always exists.

Parts with deadlines that belong to no connection add themselves to ``broker.timers``.
Not here: what even those below know (``context.py``), one connection (``connection.py``), what a
virtual host has (``topology/vhost.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.context import AmqpContext
from penstock.adapters.amqp.direct_reply import DirectReplyRegistry
from penstock.adapters.amqp.statistics import DeliveryCounters
from penstock.adapters.amqp.topology.limits import TopologyLimits
from penstock.adapters.amqp.topology.policies import prepare_policy
from penstock.adapters.amqp.topology.vhost import DEFAULT_VHOST, VirtualHost
from penstock.adapters.amqp.transactions import TxBudget
from penstock.adapters.amqp.users import Users
from penstock.adapters.timers import Timers
from penstock.engine.broker import Engine
from penstock.engine.content_budget import ContentShare
from penstock.engine.topic import Topic
from penstock.model.clock import Clock
from penstock.model.ids import ConnectionId
from penstock.settings.load import Settings
from penstock.wire.amqp.codes import AmqpError, ReplyCode

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import AmqpChannel
    from penstock.adapters.amqp.connection import AmqpConnection
    from penstock.adapters.amqp.topology.policies import Policy, PreparedPolicy

VHOST_KIND: Final = "amqp.vhost"
LOOK_MS: Final = 60_000
"""A delivery is found to be late by at most this, and what a look takes."""
LOOK_CHANNELS: Final = 250
"""Channels looked at in one go: half a millisecond."""
LOOK_PAUSE_MS: Final = 20


class AmqpBroker:
    """The AMQP side of the broker: who may log in, who is connected, what is declared.

    Made with what the catalog knows; what changes later is defined in the catalog by whoever
    changes it. Connections know it by ``ConnectionHost`` only.
    """

    def __init__(self, engine: Engine, clock: Clock, settings: Settings) -> None:
        self.context: Final = AmqpContext(engine, clock, settings)
        self.engine: Final = engine
        self.clock: Final = clock
        self.all_settings: Final = settings
        self.settings: Final = settings.amqp
        self.timers: Final = Timers()
        self.timers.add(self.context.client_log)
        self.timers.add(PolicyUpdates(self))
        self.gone: Final = DeliveryCounters()
        """What vhosts counted that are dropped."""
        self.connections: Final[dict[ConnectionId, AmqpConnection]] = {}
        """Connections that live and have opened a virtual host."""
        self.users: Final = Users(engine, is_guest_local=settings.amqp.is_guest_local)
        self.transactions: Final = TxBudget(
            engine.inflight_pool, settings.flow.connection_bytes_max
        )
        self.direct_replies: Final = DirectReplyRegistry()
        """Requesters that wait for direct replies."""
        self.vhosts: Final[dict[str, VirtualHost]] = {}
        self.limits: Final = TopologyLimits(settings.amqp, self.vhosts)
        self.vhosts[DEFAULT_VHOST] = VirtualHost(self.context, DEFAULT_VHOST, self.limits)
        for name in engine.definitions(VHOST_KIND):
            if name not in self.vhosts:
                self.vhosts[name] = VirtualHost(self.context, name, self.limits)
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
            self.limits.check_vhosts()
            found = self.vhosts[name] = VirtualHost(self.context, name, self.limits)
            self.engine.define(VHOST_KIND, name, b"")
        return found

    def drop_vhost(self, name: str) -> bool:
        """A virtual host goes with all that is in it; False when there is none. ``/`` stays."""
        vhost = self.vhosts.get(name)
        if vhost is None or name == DEFAULT_VHOST:
            return False
        for connection in list(self.connections.values()):
            if connection.vhost is vhost:
                self.close_connection(connection.connection_id, f"vhost '{name}' is deleted")
        vhost.drop()
        self.gone.add(vhost.gone)
        del self.vhosts[name]
        self.engine.define(VHOST_KIND, name, None)
        return True

    def put_policies(self, vhost: VirtualHost, policies: Sequence[tuple[bool, Policy]]) -> None:
        """All of these (is_operator, policy) in a vhost; raises for the first that cannot be."""
        bytes_max = self.limits.arguments_bytes_max
        self.put_prepared_policies(
            vhost,
            [
                prepare_policy(policy, is_operator=is_operator, bytes_max=bytes_max)
                for is_operator, policy in policies
            ],
        )

    def put_prepared_policies(self, vhost: VirtualHost, policies: Sequence[PreparedPolicy]) -> None:
        """The same for many, which were prepared one by one."""
        vhost.put_policies(policies)
        self.timers.reschedule()

    def delete_policy(self, vhost: VirtualHost, name: str, *, is_operator: bool) -> bool:
        """One goes; False when there is none."""
        is_deleted = vhost.delete_policy(name, is_operator=is_operator)
        self.timers.reschedule()
        return is_deleted

    def enter(self, connection: AmqpConnection) -> None:
        """A connection has opened its virtual host."""
        self.connections[connection.connection_id] = connection
        self.context.churn["connection_created"] += 1

    def leave(self, connection: AmqpConnection) -> bool:
        """It is gone; False when it never entered, or left before."""
        if self.connections.pop(connection.connection_id, None) is None:
            return False
        self.context.churn["connection_closed"] += 1
        return True

    def content_share(self, name: str, wake: Callable[[], None]) -> ContentShare:
        """What a new connection keeps of contents that are not complete."""
        return ContentShare(
            name,
            self.engine.contents,
            bytes_max=self.context.message_bytes_max,
            ms_max=self.settings.content_ms_max,
            wake=wake,
        )

    def close_connection(self, connection_id: ConnectionId, reason: str) -> bool:
        """An operator ends a connection: 320; False when it is gone already."""
        connection = self.connections.get(connection_id)
        if connection is None:
            return False
        connection.fail(AmqpError(ReplyCode.CONNECTION_FORCED, reason))
        return True

    def _removed(self, topic: Topic) -> None:
        """Whoever removed it, its vhost forgets the queue."""
        vhost = self.vhost_of(topic)
        if vhost is not None:
            vhost.queues.removed(topic)


class PolicyUpdates:
    """Puts changed policies into effect on living objects: a task of the timers.

    A slice of one vhost at a time, with turns of the broker and of its sockets in between.
    """

    def __init__(self, broker: AmqpBroker) -> None:
        self._broker = broker

    def next_deadline_ms(self) -> int | None:
        """At once while something is to be done."""
        vhosts = self._broker.vhosts.values()
        return 0 if any(vhost.sweep.is_running for vhost in vhosts) else None

    def due(self, _now_ms: int) -> None:
        for vhost in self._broker.vhosts.values():
            if vhost.sweep.is_running:
                vhost.sweep.run_slice()
                return


class ConsumerTimeouts:
    """Looks now and then whether a consumer forgot what it was given: a task of the timers.

    A delivery that stays unsettled for longer than ``amqp.consumer_timeout_ms`` costs its channel:
    406, and everything is requeued. Only the oldest run of each channel is looked at, as rarely as
    RabbitMQ does it, and of very many channels ``LOOK_CHANNELS`` at a time.
    """

    def __init__(self, broker: AmqpBroker) -> None:
        self._broker = broker
        self._next_ms = self._again_ms = broker.clock.monotonic_ms() + self._pause_ms
        self._look: Iterator[AmqpChannel] | None = None
        """One that is under way."""

    @property
    def _pause_ms(self) -> int:
        return min(LOOK_MS, self._broker.settings.consumer_timeout_ms)

    def next_deadline_ms(self) -> int | None:
        """The next look, or its next piece; never without a limit."""
        return self._next_ms if self._broker.settings.consumer_timeout_ms else None

    def due(self, now_ms: int) -> None:
        if self._look is None:
            self._again_ms = now_ms + self._pause_ms
            self._look = self._channels()
        for looked, channel in enumerate(self._look, 1):
            channel.consumers.due(now_ms)
            if looked == LOOK_CHANNELS:
                self._next_ms = now_ms + LOOK_PAUSE_MS
                return
        self._look = None
        self._next_ms = max(self._again_ms, now_ms + 1)

    def _channels(self) -> Iterator[AmqpChannel]:
        """Every channel there is now; who comes meanwhile has time."""
        for connection in list(self._broker.connections.values()):
            yield from list(connection.channels.values())
