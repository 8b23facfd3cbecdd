"""What every part of the AMQP adapter is given: engine, clock, settings and shared counters.

Made first, owned by ``AmqpBroker``, and below everything else of the adapter: topology, channels
and connections know the context and not the broker, so nothing here knows any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.statistics import Rates

if TYPE_CHECKING:
    from penstock.engine.broker import Engine
    from penstock.model.clock import Clock
    from penstock.settings.load import Settings
    from penstock.wire.amqp.codes import AmqpError

CHURN: Final = (
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_created", "queue_deleted",
)  # fmt: skip
"""What comes and goes and is counted, in RabbitMQ's words."""


class AmqpContext:
    """Engine, clock and settings of one AMQP broker, and the counters that all its parts share."""

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
        self.rates: Final = Rates()
        """How fast everything goes; for those who look."""
        self.churn: Final = dict.fromkeys(CHURN, 0)
        self._closes: Final[dict[str, int]] = {}
        engine.counter_families.register(
            "amqp_closes", "Channels and connections that we closed", "reason", self._closes
        )
        self.undelivered: Final[dict[str, int]] = {}
        """Publishes that went to no queue, by reason."""
        engine.counter_families.register(
            "amqp_undelivered",
            "Publishes that went to no queue: dropped, returned, or replies nobody read",
            "reason",
            self.undelivered,
        )

    def note_close(self, error: AmqpError) -> None:
        """A channel or connection is closed for this error."""
        name = error.code.name
        self._closes[name] = self._closes.get(name, 0) + 1

    def note_undelivered(self, reason: str, messages: int) -> None:
        """Publishes had nowhere to go."""
        self.undelivered[reason] = self.undelivered.get(reason, 0) + messages
