"""pika's callback connection: many confirms under way, and its connection on a loop of its own."""

import pika

MESSAGES = 1000


class Talk:
    """Publishes with confirms and consumes what it published, until both are complete."""

    def __init__(self, parameters, queue):
        self.queue = queue
        self.confirmed = set()
        self.bodies = []
        self.connection = pika.SelectConnection(
            parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.opened),
            on_open_error_callback=self.failed,
            on_close_callback=self.closed,
        )
        self.reason = None

    def run(self):
        self.connection.ioloop.call_later(30, self.failed)
        self.connection.ioloop.start()
        self.connection.ioloop.close()
        return self

    def opened(self, channel):
        self.channel = channel
        channel.confirm_delivery(self.acknowledged, callback=self.selected)

    def selected(self, frame):
        self.channel.queue_declare(self.queue, durable=True, callback=self.declared)

    def declared(self, frame):
        self.channel.basic_qos(prefetch_count=100)
        self.channel.basic_consume(self.queue, self.came)
        for number in range(MESSAGES):
            properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
            self.channel.basic_publish("", self.queue, b"%d" % number, properties)

    def acknowledged(self, frame):
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        tag = frame.method.delivery_tag
        first = min(set(range(1, MESSAGES + 1)) - self.confirmed)
        self.confirmed |= set(range(first, tag + 1)) if frame.method.multiple else {tag}
        self.end_if_complete()

    def came(self, channel, method, properties, body):
        assert properties.message_id.encode() == body
        self.bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        self.end_if_complete()

    def end_if_complete(self):
        if len(self.confirmed) == MESSAGES and len(self.bodies) == MESSAGES:
            self.connection.close()

    def closed(self, connection, reason):
        self.reason = reason
        connection.ioloop.stop()

    def failed(self, *why):
        self.reason = why
        self.connection.ioloop.stop()


def test_a_thousand_publishes_are_confirmed_and_delivered_once_in_order(address, name):
    talk = Talk(pika.ConnectionParameters(*address), name).run()
    assert talk.bodies == [b"%d" % number for number in range(MESSAGES)]
    assert talk.confirmed == set(range(1, MESSAGES + 1))
    assert talk.reason.reply_code == 200


def test_heartbeats_keep_an_idle_connection(address):
    """Heartbeats of a second: two silent ones would end it."""
    beats = []
    parameters = pika.ConnectionParameters(*address, heartbeat=1)

    def opened(connection):
        connection.ioloop.call_later(3.2, lambda: (beats.append(connection.is_open), end()))

    def end():
        connection.close()

    connection = pika.SelectConnection(
        parameters,
        on_open_callback=opened,
        on_close_callback=lambda connection, reason: connection.ioloop.stop(),
    )
    connection.ioloop.start()
    connection.ioloop.close()
    assert beats == [True]
