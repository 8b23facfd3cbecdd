"""kombu over py-amqp: simple queues, entities, fanout, and AMQPLAIN, which py-amqp prefers."""

import socket

import kombu
import pytest


@pytest.fixture
def connection(url):
    with kombu.Connection(url, connect_timeout=10) as connection:
        yield connection


def test_a_simple_queue_is_simple(connection, name):
    queue = connection.SimpleQueue(name)
    queue.put({"hello": "world"}, headers={"k": "v"}, compression="zlib")
    message = queue.get(timeout=10)
    assert message.payload == {"hello": "world"}
    assert message.headers["k"] == "v"
    message.ack()
    with pytest.raises(queue.Empty):
        queue.get(block=False)
    queue.close()


def test_a_fanout_reaches_every_queue(connection, name):
    exchange = kombu.Exchange(name, "fanout", durable=False, auto_delete=True)
    queues = [kombu.Queue(f"{name}-{n}", exchange, exclusive=True) for n in range(3)]
    seen = []
    with connection.channel() as channel:
        consumers = [
            kombu.Consumer(
                channel, queue, callbacks=[lambda body, message: (seen.append(body), message.ack())]
            )
            for queue in queues
        ]
        for consumer in consumers:
            consumer.consume()
        kombu.Producer(connection.channel()).publish("to all", exchange=exchange)
        while len(seen) < 3:
            connection.drain_events(timeout=10)
    assert seen == ["to all"] * 3


def test_qos_changes_while_consumers_run(connection, name):
    """What celery does all the time: one prefetch for the whole channel, raised and lowered."""
    queue = kombu.Queue(name, durable=False, auto_delete=True)
    seen = []
    with connection.channel() as channel:
        channel.basic_qos(0, 1, True)
        with kombu.Consumer(channel, queue, callbacks=[lambda b, message: seen.append(message)]):
            producer = kombu.Producer(connection.channel())
            for number in range(4):
                producer.publish(number, routing_key=name)
            while not seen:
                connection.drain_events(timeout=10)
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.1)
            assert len(seen) == 1
            channel.basic_qos(0, 3, True)
            while len(seen) < 3:
                connection.drain_events(timeout=10)
            for message in seen[:3]:
                message.ack()
            while len(seen) < 4:
                connection.drain_events(timeout=10)
    assert [message.payload for message in seen] == [0, 1, 2, 3]


def test_priorities_and_limits_are_declared_by_name(connection, name):
    queue = kombu.Queue(
        name, max_priority=9, max_length=10, message_ttl=60.0, expires=60.0, durable=True
    )
    with connection.channel() as channel:
        bound = queue(channel)
        bound.declare()
        producer = kombu.Producer(channel)
        for priority in (1, 9, 5):
            producer.publish(priority, routing_key=name, priority=priority)
        got = [bound.get(no_ack=True).payload for _ in range(3)]
    assert got == [9, 5, 1]


def test_publishes_are_confirmed_when_asked(url, name):
    options = {"confirm_publish": True}
    with kombu.Connection(url, transport_options=options) as connection:
        queue = connection.SimpleQueue(name)
        for number in range(20):
            queue.put(number)
        assert queue.qsize() == 20
        assert queue.clear() == 20
        queue.close()
