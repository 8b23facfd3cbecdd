"""What every part of the AMQP adapter is given: engine, clock, settings, shared counters, the log.

Made first, owned by ``AmqpBroker``, and below everything else of the adapter: topology, channels
and connections know the context and not the broker, so nothing here knows any of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.statistics import Rates

if TYPE_CHECKING:
    from penstock.adapters.contract import Peer
    from penstock.engine.broker import Engine
    from penstock.model.clock import Clock
    from penstock.settings.load import Settings
    from penstock.wire.amqp.codes import AmqpError

CHURN: Final = (
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_created", "queue_deleted",
)  # fmt: skip
"""What comes and goes and is counted, in RabbitMQ's words."""
FOLD_LINES_MAX: Final = 10
FOLD_MS: Final = 10_000
"""So many lines of one kind about one address in so much time; the rest is told as a number."""
FOLDED_MAX: Final = 256
"""Kinds and addresses with lines of their own; those that come then share theirs."""
LOGGED_TEXT_MAX: Final = 300
"""Characters of a field that a client had a hand in."""

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
        self.rates: Final = Rates()
        """How fast everything goes; for those who look."""
        self.churn: Final = dict.fromkeys(CHURN, 0)
        self.client_log: Final = ClientLog(clock)
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


# ---- log ----------------------------------------------------------------------------------------
# Lines about clients: a peer decides how many there are and what stands in them. So they are
# folded, whatever it says is made harmless, and nobody hands a password to them.


class ClientLog:
    """Who came, who went, who was refused and why; a task of the timers.

    The first lines of a kind about an address are written as they are; those behind them are
    counted, and the number is told when ``FOLD_MS`` are over. Bound: ``FOLDED_MAX`` entries.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._folds: dict[tuple[str, str], LineFold] = {}

    def say(self, level: int, message: str, peer: Peer, **fields: object) -> None:
        """One line; texts in ``fields`` may come from the client as they are."""
        now_ms = self._clock.monotonic_ms()
        if self._folds and now_ms >= next(iter(self._folds.values())).until_ms:
            self.due(now_ms)
        key = (message, peer.host)
        if key not in self._folds and len(self._folds) >= FOLDED_MAX:
            key = (message, "other addresses")
        fold = self._folds.get(key)
        if fold is None:
            fold = self._folds[key] = LineFold(level, now_ms + FOLD_MS)
        fold.lines += 1
        if fold.lines <= FOLD_LINES_MAX:
            logger.log(level, message, extra={"peer": str(peer), **_harmless(fields)})

    def next_deadline_ms(self) -> int | None:
        """When the oldest number is to be told; entries are in the order of their time."""
        fold = next(iter(self._folds.values()), None)
        return None if fold is None else fold.until_ms

    def due(self, now_ms: int) -> None:
        over = [key for key, fold in self._folds.items() if now_ms >= fold.until_ms]
        for key in over:
            fold = self._folds.pop(key)
            if fold.lines > FOLD_LINES_MAX:
                message, host = key
                extra = {"count": fold.lines - FOLD_LINES_MAX, "host": host}
                logger.log(fold.level, f"{message}: more of the same", extra=extra)


class LineFold:
    """Lines of one kind about one address, in one stretch of time."""

    __slots__ = ("level", "lines", "until_ms")

    def __init__(self, level: int, until_ms: int) -> None:
        self.level: Final = level
        self.lines = 0
        self.until_ms: Final = until_ms


def _harmless(fields: dict[str, object]) -> dict[str, object]:
    """No line break, escape or half character can come from a client into a line."""
    return {
        name: _printable(value) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _printable(text: str) -> str:
    text = text[:LOGGED_TEXT_MAX]
    return "".join([each if each.isprintable() else ascii(each)[1:-1] for each in text])
