"""What sends the orders: a publisher per protocol, all with the same few verbs.

The shop paces and counts, a publisher sends one order and says later what became of it. A
protocol that comes later gets a publisher of its own and a line in ``open_publishers``; nothing
else changes.
"""

import json
import os
import threading
import time
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any, Final, Protocol

from penstock.client import (
    BrokerBusy,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
)
from penstock.client.consumer.statistics import HeldQueue
from penstock.client.errors import ClientError
from penstock.client.pulsar import Client as PulsarClient
from penstock.client.pulsar import InvalidUse, MessageId
from penstock.client.pulsar import Refused as PulsarRefused
from penstock.demo.story import LARGE_TOPIC, TOPIC
from penstock.demo.story.shop import OnFate, OrderPublisher, SendOutcome
from penstock.model.errors import PenstockError

CLIENTS: Final = {"amqp": ("pika", "pika"), "pulsar": ("pulsar-client", "_pulsar")}
"""Protocol -> the client that a till uses, and a module only it has; RocketMQ's is our own, and so
is Pulsar's where that one is missing."""
INSTALLED_BY: Final = "pip install 'penstock-broker[demo]'"


class RocketmqPublisher:
    """Uses ``penstock.client``."""

    name = "rocketmq"
    title = "RocketMQ"

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


PULSAR_WINDOW: Final = 500
"""Orders without a receipt; less than the client itself would keep."""
PULSAR_BATCH_MS: Final = 10
PULSAR_ANSWERS_S_MAX: Final = 25.0
"""Longer than the broker holds anything (``flow.hold_ms_max``)."""


class PulsarPublisher:
    """Uses pulsar-client as anybody would: batches, keys, a window.

    The client's own threads send and say what became of an order. A SEND that the broker holds has
    no receipt for so long, and the window fills: then the shop uses another publisher. Closed by
    the broker, the client comes again with what has no receipt, for as long as it takes: no
    time-out, so no order whose fate nobody knows.
    """

    name = "pulsar"
    title = "Pulsar (pulsar-client)"

    def __init__(self, endpoint: str) -> None:
        import pulsar

        self._ok: Final = pulsar.Result.Ok
        self._refusals: Final = (
            # What the broker says before it stores anything.
            pulsar.Result.ProducerBlockedQuotaExceededException,
            pulsar.Result.MessageTooBig,
            pulsar.Result.TopicTerminated,
        )
        self._lock = threading.Lock()
        self._promised = 0
        self._is_idle = threading.Event()
        # It would write its lines between those of the story.
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        self._client = pulsar.Client(f"pulsar://{endpoint}", logger=quiet)
        try:
            self._producer = self._client.create_producer(
                TOPIC,
                producer_name="shop",
                send_timeout_millis=0,
                batching_enabled=True,
                batching_max_publish_delay_ms=PULSAR_BATCH_MS,
            )
        except pulsar.PulsarException as error:
            self._client.close()
            raise PenstockError(f"the Pulsar till does not open: {error}") from None

    @property
    def has_room(self) -> bool:
        """True while its window is not full."""
        return self._promised < PULSAR_WINDOW

    def send(self, key: str, body: bytes, on_fate: OnFate) -> None:
        with self._lock:
            self._promised += 1
            self._is_idle.clear()

        def answered(result: Any, _message_id: object) -> None:
            if result == self._ok:
                on_fate(SendOutcome.CONFIRMED, "")
            elif result in self._refusals:
                on_fate(SendOutcome.REFUSED, str(result))
            else:
                on_fate(SendOutcome.UNKNOWN, str(result))
            with self._lock:
                self._promised -= 1
                if not self._promised:
                    self._is_idle.set()

        # The tag is a property of this name (D16).
        self._producer.send_async(body, answered, {"TAGS": "new"}, partition_key=key)

    def close(self) -> None:
        """Wait for answers under way and leave."""
        if self._promised:
            self._is_idle.wait(PULSAR_ANSWERS_S_MAX)
        self._client.close()


class OwnPulsarPublisher:
    """The same with ``penstock.client.pulsar``, where pulsar-client has no wheel."""

    name = "pulsar"
    title = "Pulsar (penstock.client)"

    def __init__(self, endpoint: str) -> None:
        self._client = PulsarClient(f"pulsar://{endpoint}")
        try:
            self._producer = self._client.create_producer(
                TOPIC,
                producer_name="shop",
                send_timeout_ms=0,
                max_pending_messages=PULSAR_WINDOW,
                batching_max_publish_delay_ms=PULSAR_BATCH_MS,
            )
        except ClientError as error:
            self._client.close()
            raise PenstockError(f"the Pulsar till does not open: {error}") from None

    @property
    def has_room(self) -> bool:
        """True while its window is not full."""
        return self._producer.statistics().pending_messages < PULSAR_WINDOW

    def send(self, key: str, body: bytes, on_fate: OnFate) -> None:

        def answered(outcome: MessageId | ClientError) -> None:
            if isinstance(outcome, MessageId):
                on_fate(SendOutcome.CONFIRMED, "")
            elif isinstance(outcome, (PulsarRefused, InvalidUse)):
                on_fate(SendOutcome.REFUSED, str(outcome))
            else:
                on_fate(SendOutcome.UNKNOWN, str(outcome))

        self._producer.send_callback(body, answered, key=key, properties={"TAGS": "new"})

    def close(self) -> None:
        """Wait for answers under way and leave."""
        self._producer.close()
        self._client.close()


def open_publishers(endpoints: dict[str, str]) -> list[OrderPublisher]:
    """A publisher for every protocol that the broker listens to and that has one."""
    publishers: list[OrderPublisher] = []
    if "rocketmq" in endpoints:
        publishers.append(RocketmqPublisher(endpoints["rocketmq"]))
    if "amqp" in endpoints and has_client("amqp"):
        from penstock.demo.story.pika_publisher import PikaPublisher

        publishers.append(PikaPublisher(endpoints["amqp"]))
    if "pulsar" in endpoints:
        till = PulsarPublisher if has_client("pulsar") else OwnPulsarPublisher
        publishers.append(till(endpoints["pulsar"]))
    return publishers


def has_client(protocol: str) -> bool:
    """Whether the Python client of that protocol is there."""
    _, module = CLIENTS[protocol]
    return find_spec(module) is not None


def tills_text(publishers: Sequence[OrderPublisher]) -> str:
    """Which tills are open, and how to open the others."""
    # Pulsar has one in any case: our own client, where the other one is not there.
    return _by_text([each.title for each in publishers], ("amqp",))


def _by_text(titles: Sequence[str], protocols: Iterable[str]) -> str:
    text = " and ".join([", ".join(titles[:-1]), titles[-1]] if titles[1:] else titles)
    shut = [protocol for protocol in protocols if not has_client(protocol)]
    if not shut:
        return text
    missing = " and ".join(CLIENTS[protocol][0] for protocol in shut)
    return f"{text} (without {missing}; {INSTALLED_BY} adds what there is for this machine)"


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


# ---- large orders -------------------------------------------------------------------------------
# What Spark's sink wrote, read back by clients that have never heard of Spark.


READ_PREFETCH: Final = 500
READ_SILENCE_S_MAX: Final = 10.0
"""What a busy machine may need for the next message; then no more are expected."""


class LargeOrderReader(Protocol):
    """Reads the topic by one protocol, from its first message."""

    title: str

    def read(self) -> list[bytes]:
        """The body of every message there is, as often as it is there."""
        ...


class RocketmqReader:
    """Pulls from each queue what is in it."""

    title = "RocketMQ"

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server

    def read(self) -> list[bytes]:
        with PullConsumer(self._name_server, "auditors", registers_group=False) as consumer:
            return [
                message.body
                for queue in consumer.queues(LARGE_TOPIC)
                for message in consumer.read(queue, 0, consumer.max_offset(queue))
            ]


class PikaReader:
    """Consumes the queue that the topic is for AMQP."""

    title = "AMQP (pika)"

    def __init__(self, endpoint: str) -> None:
        import pika

        host, _, port = endpoint.rpartition(":")
        self._where = pika.ConnectionParameters(host.strip("[]"), int(port))
        # Of a topic that is older, AMQP sees what comes from now on.
        with pika.BlockingConnection(self._where) as connection:
            connection.channel().queue_declare(LARGE_TOPIC, durable=True)

    def read(self) -> list[bytes]:
        import pika

        found: list[bytes] = []
        with pika.BlockingConnection(self._where) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=READ_PREFETCH)
            count = channel.queue_declare(LARGE_TOPIC, passive=True).method.message_count
            coming = channel.consume(LARGE_TOPIC, inactivity_timeout=READ_SILENCE_S_MAX)
            while len(found) < count:
                method, _, body = next(coming)
                if method is None:
                    return found
                found.append(body)
                channel.basic_ack(method.delivery_tag)
            channel.cancel()
            # One more than it said would be one too many, and is to be seen.
            _, _, more = channel.basic_get(LARGE_TOPIC)
            return found if more is None else [*found, more]


def open_readers(endpoints: dict[str, str]) -> list[LargeOrderReader]:
    """One that is always there, and pika where it is installed."""
    readers: list[LargeOrderReader] = [RocketmqReader(endpoints["rocketmq"])]
    if has_client("amqp"):
        readers.append(PikaReader(endpoints["amqp"]))
    return readers


def readers_text(readers: Sequence[LargeOrderReader]) -> str:
    """Who reads, and who would."""
    return _by_text([each.title for each in readers], ("amqp",))
