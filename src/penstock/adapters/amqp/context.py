"""What every part of the AMQP adapter is given: engine, clock, settings, shared counters, the log.

Made first, owned by ``AmqpBroker``, and below everything else of the adapter: topology, channels
and connections know the context and not the broker, so nothing here knows any of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.statistics import Rates
from penstock.adapters.client_log import ClientLog

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

logger = logging.getLogger(__name__)


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
        self.rates: Final = Rates(engine.sampler)
        """How fast everything goes; for those who look."""
        self.churn: Final = dict.fromkeys(CHURN, 0)
        self.client_log: Final = ClientLog(clock, logger)
        self._closes: Final[dict[str, int]] = {}
        engine.counter_families.register(
            "amqp_closes", "Channels and connections that we closed", "reason", self._closes
        )
        self._replies: Final = {"unread": 0}
        engine.counter_families.register(
            "amqp_direct_replies",
            "Direct replies that were unroutable because their requester does not read",
            "outcome",
            self._replies,
        )

    def note_close(self, error: AmqpError) -> None:
        """A channel or connection is closed for this error."""
        name = error.code.name
        self._closes[name] = self._closes.get(name, 0) + 1

    def note_unread_replies(self, messages: int) -> None:
        """Direct replies found a requester that does not read what it gets."""
        self._replies["unread"] += messages
