"""Billing: a push consumer that can be made slow, and remembers every order it was given."""

import json
import time
from collections.abc import Sequence
from typing import Final

from penstock.cli.story import TOPIC
from penstock.client import PushConsumer, ReceivedMessage
from penstock.client.consumer.statistics import HeldQueue

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
        """Consume from now on."""
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
