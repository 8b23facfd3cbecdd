"""Where orders are sent from: one till per protocol, all with the same few verbs.

The shop paces and counts, a till sends one order and says later what became of it. A listener that
comes later gets a till of its own and a line in ``open_tills``; nothing else changes.
"""

from importlib.util import find_spec
from typing import Final

from penstock.cli.story import TOPIC
from penstock.cli.story.till import Fate, OnFate, Till
from penstock.client import BrokerBusy, Message, Producer, SendResult
from penstock.client.errors import ClientError

NO_PIKA: Final = (
    "pika is not installed, so all orders come by RocketMQ; pip install 'penstock[demo]' adds it"
)


class RocketTill:
    """A till that uses ``penstock.client``."""

    name = "rocketmq"

    def __init__(self, name_server: str) -> None:
        # One try per order: an order that was refused is counted, not hidden by a second attempt.
        self._producer = Producer(name_server, "shop", retries=0, send_timeout_ms=10_000)
        self._producer.start()

    @property
    def has_room(self) -> bool:
        """Always: a full window makes ``send`` wait."""
        return True

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
    tills: list[Till] = []
    if "rocketmq" in endpoints:
        tills.append(RocketTill(endpoints["rocketmq"]))
    if "amqp" in endpoints and has_pika():
        from penstock.cli.story.amqp_till import PikaTill

        tills.append(PikaTill(endpoints["amqp"]))
    return tills


def has_pika() -> bool:
    """Whether RabbitMQ's Python client is there."""
    return find_spec("pika") is not None
