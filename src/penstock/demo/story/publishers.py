"""What sends the orders: a publisher per protocol, all with the same few verbs.

The shop paces and counts, a publisher sends one order and says later what became of it. A
protocol that comes later gets a publisher of its own and a line in ``open_publishers``; nothing
else changes.
"""

import json
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from penstock.client import BrokerBusy, Message, Producer, PushConsumer, ReceivedMessage, SendResult
from penstock.client.consumer.statistics import HeldQueue
from penstock.client.errors import ClientError
from penstock.demo.story import TOPIC
from penstock.demo.story.shop import OnFate, OrderPublisher, SendOutcome

NO_PIKA: Final = (
    "pika is not installed, so all orders come by RocketMQ; "
    "pip install 'penstock-broker[demo]' adds it"
)


class RocketmqPublisher:
    """Uses ``penstock.client``."""

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

        def done(outcome: SendResult | ClientError) -> None:
            if isinstance(outcome, SendResult):
                on_fate(SendOutcome.CONFIRMED, "")
            elif isinstance(outcome, BrokerBusy):
                on_fate(SendOutcome.REFUSED, outcome.reason)
            else:
                on_fate(SendOutcome.UNKNOWN, str(outcome))

        self._producer.send_callback(Message(TOPIC, body, tag="new", keys=key), done)

    def close(self) -> None:
        """Wait for answers under way and leave."""
        self._producer.stop()


def open_publishers(endpoints: dict[str, str]) -> list[OrderPublisher]:
    """A publisher for every protocol that the broker listens to and that has one."""
    publishers: list[OrderPublisher] = []
    if "rocketmq" in endpoints:
        publishers.append(RocketmqPublisher(endpoints["rocketmq"]))
    if "amqp" in endpoints and has_pika():
        from penstock.demo.story.pika_publisher import PikaPublisher

        publishers.append(PikaPublisher(endpoints["amqp"]))
    return publishers


def has_pika() -> bool:
    """Whether RabbitMQ's Python client is there."""
    return find_spec("pika") is not None


# ---- billing ------------------------------------------------------------------------------------
# Billing: a push consumer that can be made slow, and remembers every order it was given.


THREADS: Final = 4
BATCH: Final = 8
PULL: Final = 32
THRESHOLD: Final = 100
"""Orders of a queue that wait here before the consumer stops asking for more."""


class Billing:
    """Consumes all orders."""

    def __init__(self, name_server: str) -> None:
        self.numbers: list[int] = []
        """Every order in the order in which it came; one that came twice is there twice."""
        self.order_s = 0.0
        """What one order costs; 0 = as fast as it goes."""
        self._consumer = PushConsumer(
            name_server,
            "billing",
            self._bill,
            consume_from="first",
            consume_threads=THREADS,
            consume_batch=BATCH,
            pull_batch=PULL,
            pull_threshold_messages=THRESHOLD,
        )
        self._consumer.subscribe(TOPIC)

    def open(self) -> None:
        self._consumer.start()

    def close(self) -> None:
        """Settle what runs, and leave."""
        self._consumer.stop()

    @property
    def held(self) -> Sequence[HeldQueue]:
        """Queues that are not pulled because of a threshold."""
        return self._consumer.statistics().held

    @property
    def fullest(self) -> int:
        """Messages in the fullest cache."""
        queues = self._consumer.statistics().queues
        return max((each.cached_messages for each in queues), default=0)

    def _bill(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            if self.order_s:
                time.sleep(self.order_s)
            self.numbers.append(int(json.loads(message.body)["id"]))
