"""What RabbitMQ's clients published, as rows of a real Spark (D16): batch reads and a stream."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pika
import pytest

from penstock.testing.running import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BORN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HEADERS = {
    "text": "zwölf",
    "number": 12,
    "long": 2**40,
    "less": -7,
    "price": Decimal("12.5"),
    "is_gift": True,
    "is_late": False,
    "nothing": None,
    "raw": b"raw",
    "at": BORN,
    "lines": [1, "two", {"sku": "a"}],
    "customer": {"name": "Ada", "is_new": True, "limits": [15, None]},
}
TEXTS = {
    "text": "zwölf",
    "number": "12",
    "long": str(2**40),
    "less": "-7",
    "price": "12.5",
    "is_gift": "true",
    "is_late": "false",
    "nothing": "",
    "raw": "raw",
    "at": str(int(BORN.timestamp())),
    "lines": '[1,"two",{"sku":"a"}]',
    "customer": '{"name":"Ada","is_new":true,"limits":[15,null]}',
}
BODIES = (b"hello", b"", bytes(range(256)), b"x" * 300_000)
"""Text, nothing, bytes that are no text, and more than fits one frame."""


@pytest.fixture(scope="module")
def channel(broker):
    """pika's, with confirms: what it published is there to be read."""
    host, port = broker.address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


@pytest.fixture
def queue(channel, bench):
    """A durable queue behind a topic exchange of this test, both called the same."""
    name = f"amqp-{bench.topic}"
    channel.exchange_declare(name, "topic", durable=True)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name, "eu.#")
    return name


def publish_all(channel, exchange):
    """Every body once, with everything that a message can say of itself."""
    for number, body in enumerate(BODIES):
        properties = pika.BasicProperties(
            content_type="text/plain",
            content_encoding="identity",
            headers=HEADERS,
            delivery_mode=2,
            priority=3,
            correlation_id=f"c-{number}",
            reply_to="answers",
            expiration="3600000",
            message_id=f"m-{number}",
            timestamp=int(BORN.timestamp()),
            type="order",
            user_id="guest",
            app_id="till",
        )
        channel.basic_publish(exchange, f"eu.new.{number}", body, properties)


def is_as_published(rows, topic):
    """Whether the rows are what ``publish_all`` sent; fails with what differs."""
    rows = sorted(rows, key=lambda row: row.offset)
    assert [(row.topic, row.queue, row.offset) for row in rows] == [
        (topic, 0, number) for number in range(len(BODIES))
    ]
    assert [bytes(row.body) for row in rows] == list(BODIES)
    for number, row in enumerate(rows):
        assert (row.key, row.tag, row.protocol) == (f"eu.new.{number}", "order", "amqp")
        assert row.properties == TEXTS | {
            "message_id": f"m-{number}",
            "amqp.content_type": "text/plain",
            "amqp.content_encoding": "identity",
            "amqp.delivery_mode": "2",
            "amqp.priority": "3",
            "amqp.correlation_id": f"c-{number}",
            "amqp.reply_to": "answers",
            "amqp.user_id": "guest",
            "amqp.app_id": "till",
        }
    return True


def test_bodies_properties_headers_and_routing_keys_are_columns(bench, channel, queue):
    publish_all(channel, queue)
    frame = bench.table(topics=queue)
    assert is_as_published(frame.collect(), queue)
    [born] = frame.selectExpr("unix_seconds(born_timestamp) AS born").distinct().collect()
    assert born.born == int(BORN.timestamp())
    over_eleven = bench.table(topics=queue, filter="number > 11 AND amqp.app_id = 'till'")
    assert over_eleven.count() == len(BODIES)
    assert bench.table(topics=queue, filter="order").count() == len(BODIES)
    assert bench.table(topics=queue, filter="invoice").count() == 0


def test_a_stream_reads_them_too_whether_or_not_an_amqp_consumer_acked_them(bench, channel, queue):
    publish_all(channel, queue)
    for _ in BODIES:
        method, _, _ = channel.basic_get(queue)
        channel.basic_ack(method.delivery_tag)
    assert bench.run(topics=queue) == [len(BODIES)]
    assert is_as_published(bench.written(), queue)


def test_a_message_for_many_queues_is_a_row_of_each_of_them(bench, channel, queue):
    """A plain one, one with priorities, and one that goes with its connection."""
    names = [f"{queue}-plain", f"{queue}-urgent", f"{queue}-brief"]
    channel.queue_declare(names[0], durable=True)
    channel.queue_declare(names[1], durable=True, arguments={"x-max-priority": 5})
    channel.queue_declare(names[2], exclusive=True)
    for name in names:
        channel.queue_bind(name, "amq.fanout")
    for number in range(6):
        properties = pika.BasicProperties(priority=number, headers={"n": number})
        channel.basic_publish("amq.fanout", "all", b"%d" % number, properties)
    channel.basic_publish("", names[0], b"6", pika.BasicProperties(headers={"key": "k-6"}))
    rows = bench.table(topics=",".join(names)).collect()
    found = {name: sorted(bytes(row.body) for row in rows if row.topic == name) for name in names}
    everything = [b"%d" % number for number in range(6)]
    assert found == {names[0]: [*everything, b"6"], names[1]: everything, names[2]: everything}
    assert {row.key for row in rows if bytes(row.body) != b"6"} == {"all"}
    [last] = [row for row in rows if bytes(row.body) == b"6"]
    assert (last.key, last.tag) == ("k-6", None)


def test_a_dead_letter_tells_spark_where_it_died(bench, channel, queue):
    grave = f"{queue}-grave"
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": grave}
    channel.queue_declare(grave, durable=True)
    channel.queue_declare(f"{queue}-dying", durable=True, arguments=dying)
    channel.basic_publish("", f"{queue}-dying", b"late", pika.BasicProperties(expiration="1"))
    eventually(lambda: channel.queue_declare(grave, passive=True).method.message_count == 1)
    [row] = bench.table(topics=grave).collect()
    [death] = json.loads(row.properties["x-death"])
    assert (death["queue"], death["reason"], death["count"]) == (f"{queue}-dying", "expired", 1)
    assert bytes(row.body) == b"late"
