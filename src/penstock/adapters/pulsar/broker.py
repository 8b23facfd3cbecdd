"""What all Pulsar connections share: topics, namespaces, schemas, names of producers, deadlines.

Made with what the catalog knows; what changes later is defined there by whoever changes it.
Not here: one connection (``connection.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.adapters.client_log import ClientLog
from penstock.adapters.contract import Peer
from penstock.adapters.pulsar.access import AccessTable
from penstock.adapters.pulsar.compaction import Compaction
from penstock.adapters.pulsar.dedup import Deduplication
from penstock.adapters.pulsar.inactive import InactiveTopics
from penstock.adapters.pulsar.namespaces import Namespaces
from penstock.adapters.pulsar.schemas import SchemaRegistry
from penstock.adapters.pulsar.subscriptions import PulsarSubscriptions
from penstock.adapters.pulsar.topic_watch import TopicWatches
from penstock.adapters.pulsar.topics import PulsarTopics
from penstock.adapters.timers import Timers
from penstock.engine.broker import Engine
from penstock.model.clock import Clock
from penstock.model.ids import ConnectionId
from penstock.settings.load import Settings

if TYPE_CHECKING:
    from penstock.adapters.pulsar.ports import ClientConnection
    from penstock.wire.pulsar.names import PulsarName

logger = logging.getLogger(__name__)

MayConsume = Callable[["ClientConnection", "PulsarName", str], bool]
"""The right to consume from (topic, subscription); raising is a refusal with its text."""


def everybody_may(_connection: ClientConnection, _topic: PulsarName, _subscription: str, /) -> bool:
    """There are no users yet."""
    return True


class PulsarBroker:
    """The Pulsar side of the broker."""

    def __init__(self, engine: Engine, clock: Clock, settings: Settings) -> None:
        self.engine: Final = engine
        self.clock: Final = clock
        self.all_settings: Final = settings
        self.settings: Final = settings.pulsar
        self.timers: Final = Timers()
        self.client_log: Final = ClientLog(clock, logger)
        self.timers.add(self.client_log)
        self.connections: Final[dict[ConnectionId, ClientConnection]] = {}
        """Connections that are open, from CONNECTED on."""
        self.namespaces: Final = Namespaces(engine, settings.pulsar)
        self.topics: Final = PulsarTopics(engine, self.namespaces)
        self.compaction: Final = Compaction(
            engine, clock, settings.pulsar, self.topics.find, self.timers.reschedule
        )
        self.timers.add(self.compaction)
        self.subscriptions: Final = PulsarSubscriptions(
            engine, self.namespaces, settings.pulsar, self.compaction
        )
        self.compaction.on_replaced = self.subscriptions.leave_view
        self.access: Final = AccessTable(engine)
        self.deduplication: Final = Deduplication(engine, clock, self.namespaces)
        self.timers.add(self.deduplication)
        self.schemas: Final = SchemaRegistry(engine, clock, self.namespaces)
        self.watches: Final = TopicWatches(engine, clock, self.topics)
        self.timers.add(self.watches)
        self.timers.add(InactiveTopics(engine, clock, self.namespaces, self.topics, self.settings))
        self.may_consume: MayConsume = everybody_may
        """Asked first by every SUBSCRIBE (B34)."""
        self._producers_named = 0

    def new_producer_name(self) -> str:
        """Unique while this process lives, and unlike those of its last life."""
        self._producers_named += 1
        return f"penstock-{self.clock.wall_ms():x}-{self._producers_named}"

    def terminate(self, name: PulsarName) -> None:
        """A topic takes no more messages, for good; raises ``NotFound``.

        Its producers are closed, and who has acked all of it hears that this is the end. Durable
        once ``Engine.after_durable`` calls back.
        """
        self.engine.terminate_topic(name.topic_name)
        for topic in self.topics.used(name):
            self.access.of(topic).close("terminated")
            self.subscriptions.topic_ended(topic)

    def dialled(self, peer: Peer) -> str:
        """The address by which a client reached us, and will again."""
        host = f"[{peer.local_host}]" if ":" in peer.local_host else peer.local_host
        return f"{self.settings.advertised_host or host}:{peer.local_port}"
