"""The demo's AMQP till: pika as anybody would use it."""

import contextlib
import queue

import pika
import pytest

from penstock.demo.story import TOPIC
from penstock.demo.story.pika_publisher import PikaPublisher
from penstock.demo.story.shop import SendOutcome
from penstock.testing.running import BrokerProcess

ORDERS = 300
ANSWER_S_MAX = 20


def fates_of(fates, count):
    return [fates.get(timeout=ANSWER_S_MAX) for _ in range(count)]


def place(publisher, fates, count):
    for number in range(count):
        publisher.send(f"order-{number}", b"{}", lambda fate, _reason: fates.put(fate))


@pytest.fixture
def broker(tmp_path):
    with BrokerProcess(tmp_path / "data") as process:
        yield process


@pytest.fixture
def orders(broker):
    """A channel on which the topic is a queue."""
    host, _, port = broker.endpoints["amqp"].rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    channel = connection.channel()
    channel.queue_declare(TOPIC, durable=True)
    yield channel
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()


def test_orders_are_confirmed_and_carry_key_and_tag(broker, orders):
    publisher, fates = PikaPublisher(broker.endpoints["amqp"]), queue.SimpleQueue()
    place(publisher, fates, ORDERS)
    publisher.close()
    assert fates_of(fates, ORDERS) == [SendOutcome.CONFIRMED] * ORDERS
    method, properties, body = orders.basic_get(TOPIC, auto_ack=True)
    assert method.message_count == ORDERS - 1
    assert (properties.type, properties.headers, body) == ("new", {"key": "order-0"}, b"{}")


def test_what_a_dead_broker_did_not_answer_is_unknown(broker, orders):
    publisher, fates = PikaPublisher(broker.endpoints["amqp"]), queue.SimpleQueue()
    assert publisher.has_room
    broker.kill()
    place(publisher, fates, 3)
    assert fates_of(fates, 3) == [SendOutcome.UNKNOWN] * 3
    publisher.close()
