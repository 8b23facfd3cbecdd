"""The golden table (D16): one message, seen by clients of two protocols, over real sockets.

pika speaks AMQP, ``penstock.client`` RocketMQ. What one publishes the other consumes, with key,
tag, message id, time of birth and properties in the places the table names, and the body byte for
byte.
"""

import os
import time
from collections.abc import Iterator

import pytest

from penstock.client import LitePullConsumer, Message, Producer, ReceivedMessage
from penstock.testing.running import BrokerProcess, running_broker

pika = pytest.importorskip("pika", reason="pika is not installed (extra: dev)")

BODY = bytes(range(256))
BORN_S = 1_700_000_000
WAIT_S = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker() as running:
        yield running


@pytest.fixture
def amqp(broker: BrokerProcess):
    host, port = broker.address("amqp")
    with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
        yield connection.channel()


@pytest.fixture
def names(broker: BrokerProcess) -> str:
    host, port = broker.address("rocketmq")
    return f"{host}:{port}"


def pulled(names: str, topic: str, count: int) -> list[ReceivedMessage]:
    """The first messages of a topic, as a RocketMQ client sees them."""
    found: list[ReceivedMessage] = []
    group = f"group-of-{topic}"
    until = time.monotonic() + WAIT_S
    with LitePullConsumer(names, group, consume_from="first") as consumer:
        consumer.subscribe(topic)
        while len(found) < count and time.monotonic() < until:
            found += consumer.poll(200)
    assert len(found) == count
    return sorted(found, key=lambda message: message.stored_at_ms)


def consumed(amqp, queue: str, count: int):
    """The next messages of a queue, as an AMQP client sees them: method, properties, body."""
    found = []
    for method, properties, body in amqp.consume(queue, inactivity_timeout=WAIT_S):
        assert method is not None, f"only {len(found)} of {count} came"
        found.append((method, properties, body))
        amqp.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    amqp.cancel()
    return found


def test_what_amqp_published_is_consumed_by_rocketmq(amqp, names: str) -> None:
    amqp.exchange_declare("shop", "direct")
    amqp.queue_declare("golden-orders", durable=True)
    amqp.queue_bind("golden-orders", "shop", "customer-7")
    amqp.confirm_delivery()
    amqp.basic_publish(
        "shop",
        "customer-7",
        BODY,
        pika.BasicProperties(
            content_type="application/json",
            correlation_id="c-1",
            delivery_mode=2,
            headers={"colour": "red", "count": 7, "is_paid": True, "more": {"a": [1, "b"]}},
            message_id="id-1",
            timestamp=BORN_S,
            type="paid",
        ),
    )
    (message,) = pulled(names, "golden-orders", 1)
    assert message.body == BODY
    assert message.ordering_key == "customer-7"
    assert message.keys == ("customer-7",)
    assert message.tag == "paid"
    assert message.message_id == "id-1"
    assert message.born_at_ms == BORN_S * 1000
    own = {name: message.property_value(name) for name in ("colour", "count", "is_paid", "more")}
    assert own == {"colour": "red", "count": "7", "is_paid": "true", "more": '{"a":[1,"b"]}'}
    assert message.property_value("amqp.content_type") == "application/json"
    assert message.property_value("amqp.correlation_id") == "c-1"


def test_the_default_exchange_has_no_key_but_that_of_the_header(amqp, names: str) -> None:
    amqp.queue_declare("golden-plain", durable=True)
    amqp.confirm_delivery()
    amqp.basic_publish("", "golden-plain", b"plain")
    amqp.basic_publish("", "golden-plain", b"keyed", pika.BasicProperties(headers={"key": "k-1"}))
    amqp.basic_publish("", "golden-plain", b"")
    messages = pulled(names, "golden-plain", 3)
    assert [message.body for message in messages] == [b"plain", b"keyed", b""]
    assert [message.ordering_key for message in messages] == [None, "k-1", None]
    assert [message.tag for message in messages] == [None, None, None]


def test_a_name_with_a_dot_is_spelt_differently(amqp, names: str) -> None:
    amqp.queue_declare("golden.eu", durable=True)
    amqp.confirm_delivery()
    amqp.basic_publish("", "golden.eu", b"body")
    (message,) = pulled(names, "golden%2Eeu", 1)
    assert (message.topic, message.body) == ("golden%2Eeu", b"body")


def test_what_rocketmq_sent_is_consumed_by_amqp(amqp, names: str) -> None:
    with Producer(names, "golden-senders") as producer:
        # The first send makes the topic, and AMQP's subscription begins at its end (D11).
        producer.send(Message("golden-sent", b"before anybody asked"))
        amqp.queue_declare("golden-sent", durable=True)
        sent = producer.send(
            Message(
                "golden-sent",
                BODY,
                tag="paid",
                keys="order-1",
                ordering_key="customer-7",
                properties={"colour": "red", "amqp.content_type": "application/json"},
            )
        )
    before_s = int(time.time()) - 60
    ((method, properties, body),) = consumed(amqp, "golden-sent", 1)
    assert body == BODY
    assert (method.exchange, method.routing_key) == ("", "golden-sent")
    assert not method.redelivered
    assert properties.type == "paid"
    assert properties.message_id == sent.message_id
    assert properties.content_type == "application/json"
    assert properties.delivery_mode == 2
    assert before_s < properties.timestamp < before_s + 120
    assert properties.headers == {"colour": "red", "key": "customer-7"}


def test_a_compressed_body_is_inflated(amqp, names: str) -> None:
    large = os.urandom(100) * 200
    with Producer(names, "golden-packers") as producer:
        producer.send(Message("golden-packed", b"before"))
        amqp.queue_declare("golden-packed", durable=True)
        producer.send(Message("golden-packed", large))
    ((_, _, body),) = consumed(amqp, "golden-packed", 1)
    assert body == large


def test_each_protocol_has_its_own_copy(amqp, names: str) -> None:
    amqp.queue_declare("golden-both", durable=True)
    amqp.confirm_delivery()
    bodies = [b"%d" % number for number in range(20)]
    for body in bodies:
        amqp.basic_publish("", "golden-both", body, pika.BasicProperties(delivery_mode=2))
    assert [body for _, _, body in consumed(amqp, "golden-both", 20)] == bodies
    # An AMQP ack hides nothing from another subscription.
    assert sorted(message.body for message in pulled(names, "golden-both", 20)) == sorted(bodies)
    with Producer(names, "golden-mixers") as producer:
        producer.send(Message("golden-both", b"from RocketMQ"))
    ((_, _, body),) = consumed(amqp, "golden-both", 1)
    assert body == b"from RocketMQ"


def test_a_rejected_message_of_another_protocol_comes_again(amqp, names: str) -> None:
    with Producer(names, "golden-losers") as producer:
        producer.send(Message("golden-again", b"before"))
        amqp.queue_declare("golden-again", durable=True)
        producer.send(Message("golden-again", b"again", tag="t"))
    method = None
    until = time.monotonic() + WAIT_S
    while method is None and time.monotonic() < until:
        method, _, _ = amqp.basic_get("golden-again")
    assert method is not None
    amqp.basic_nack(method.delivery_tag, requeue=True)
    ((method, properties, body),) = consumed(amqp, "golden-again", 1)
    assert (method.redelivered, properties.type, body) == (True, "t", b"again")
