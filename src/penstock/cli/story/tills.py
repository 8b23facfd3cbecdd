"""Where orders are sent from: one till per protocol, all with the same few verbs.

The shop paces and counts, a till sends one order and says later what became of it. A listener that
comes later gets a till of its own here and a line in ``open_tills``; nothing else changes.
"""

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from penstock.cli.story import TOPIC
from penstock.client import BrokerBusy, Message, Producer, SendResult
from penstock.client.errors import ClientError


class Fate(Enum):
    """What became of an order."""

    CONFIRMED = "confirmed"
    REFUSED = "refused"
    """The broker said so before it stored anything."""
    UNKNOWN = "unknown"
    """No answer came; it may have been stored."""


OnFate = Callable[[Fate, str], None]
"""Told once per order, with the broker's reason for a refusal."""


class Till(Protocol):
    """Sends orders by one protocol."""

    name: str

    def send(self, key: str, body: bytes, on_fate: OnFate) -> None:
        """Send one order; blocks only while the client's own window is full."""
        ...

    def close(self) -> None:
        """Wait for answers under way and leave."""
        ...


class RocketTill:
    """A till that uses ``penstock.client``."""

    name = "rocketmq"

    def __init__(self, name_server: str) -> None:
        # One try per order: an order that was refused is counted, not hidden by a second attempt.
        self._producer = Producer(name_server, "shop", retries=0, send_timeout_ms=10_000)
        self._producer.start()

    def send(self, key: str, body: bytes, on_fate: OnFate) -> None:
        """Send one order."""

        def done(outcome: SendResult | ClientError) -> None:
            if isinstance(outcome, SendResult):
                on_fate(Fate.CONFIRMED, "")
            elif isinstance(outcome, BrokerBusy):
                on_fate(Fate.REFUSED, outcome.reason)
            else:
                on_fate(Fate.UNKNOWN, str(outcome))

        self._producer.send_callback(Message(TOPIC, body, tag="new", keys=key), done)

    def close(self) -> None:
        """Wait for answers under way and leave."""
        self._producer.stop()


def open_tills(endpoints: dict[str, str]) -> list[Till]:
    """A till for every protocol that the broker listens to and that has one."""
    return [RocketTill(endpoints["rocketmq"])] if "rocketmq" in endpoints else []
