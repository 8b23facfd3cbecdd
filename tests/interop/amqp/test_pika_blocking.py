"""pika's blocking connection: what most Python programs that talk to RabbitMQ do."""

import time

import pika
import pytest
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    UnroutableError,
)

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def parameters(address):
    host, port = address
    return pika.ConnectionParameters(host, port)


@pytest.fixture
def connection(parameters):
    connection = pika.BlockingConnection(parameters)
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection):
    return connection.channel()


def got(channel, queue, count):
    """That many messages of a queue, settled; fails when they do not come."""
    found = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=10):
        assert method is not None, f"{len(found)} of {count} messages came"
        found.append((method, properties, body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def eventually_got(channel, queue, *, auto_ack=True):
    until = time.monotonic() + 10
    while time.monotonic() < until:
        method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
        if method is not None:
            return method, properties, body
        time.sleep(0.01)
    raise AssertionError(f"nothing came to {queue}")


def test_confirmed_messages_come_in_order_with_their_properties(channel, name):
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    properties = pika.BasicProperties(
        content_type="text/plain", delivery_mode=2, priority=3, correlation_id="c",
        headers={"text": "x", "number": 2**40, "list": [1, {"deep": True}], "none": None},
        message_id="m", timestamp=1_700_000_000, type="t", app_id="a", user_id="guest",
    )  # fmt: skip
    for number in range(50):
        channel.basic_publish("", name, b"%d" % number, properties, mandatory=True)
    found = got(channel, name, 50)
    assert [body for _, _, body in found] == [b"%d" % number for number in range(50)]
    assert found[0][1] == properties
    assert found[0][0].exchange == ""
    assert found[0][0].routing_key == name


def test_a_large_and_an_empty_body_arrive_whole(channel, name):
    channel.queue_declare(name)
    large = bytes(range(256)) * 4096
    channel.basic_publish("", name, large)
    channel.basic_publish("", name, b"")
    assert [body for _, _, body in got(channel, name, 2)] == [large, b""]


def test_an_unroutable_mandatory_message_comes_back(channel, name):
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as raised:
        channel.basic_publish("", name, b"nobody", mandatory=True)
    assert raised.value.messages[0].method.reply_text == "NO_ROUTE"


def test_a_full_queue_that_rejects_is_a_nack(channel, name):
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare(name, arguments=arguments)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"one")
    with pytest.raises(NackError):
        channel.basic_publish("", name, b"two")


def test_what_is_requeued_comes_again_and_says_so(channel, name):
    channel.queue_declare(name)
    for body in (b"one", b"two"):
        channel.basic_publish("", name, body)
    method, _, body = channel.basic_get(name)
    assert (method.redelivered, method.message_count, body) == (False, 1, b"one")
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, body = channel.basic_get(name)
    assert (method.redelivered, body) == (True, b"one")
    channel.basic_ack(method.delivery_tag)
    assert [body for _, _, body in got(channel, name, 1)] == [b"two"]


def test_prefetch_holds_back_what_is_not_settled(connection, name):
    channel = connection.channel()
    channel.queue_declare(name)
    channel.basic_qos(prefetch_count=2)
    for number in range(5):
        channel.basic_publish("", name, b"%d" % number)
    seen = []
    channel.basic_consume(name, lambda c, m, p, body: seen.append(m.delivery_tag))
    until = time.monotonic() + 10
    while len(seen) < 2 and time.monotonic() < until:
        connection.process_data_events(0.05)
    assert channel.queue_declare(name, passive=True).method.message_count == 3
    channel.basic_ack(seen[-1], multiple=True)
    while len(seen) < 4 and time.monotonic() < until:
        connection.process_data_events(0.05)
    assert seen == [1, 2, 3, 4]


def test_a_rejected_message_is_dead_lettered_with_its_history(channel, name):
    channel.exchange_declare(f"{name}-dead", "fanout", auto_delete=True)
    channel.queue_declare(f"{name}-grave")
    channel.queue_bind(f"{name}-grave", f"{name}-dead")
    channel.queue_declare(name, arguments={"x-dead-letter-exchange": f"{name}-dead"})
    channel.basic_publish("", name, b"bad", pika.BasicProperties(headers={"k": "v"}))
    for method, _, _ in channel.consume(name, inactivity_timeout=10):
        channel.basic_reject(method.delivery_tag, requeue=False)
        break
    channel.cancel()
    _, properties, body = eventually_got(channel, f"{name}-grave")
    assert body == b"bad"
    (death,) = properties.headers["x-death"]
    assert (death["count"], death["reason"], death["queue"]) == (1, "rejected", name)
    assert death["routing-keys"] == [name]
    assert properties.headers["x-first-death-reason"] == "rejected"
    assert properties.headers["k"] == "v"


def test_a_dead_letter_goes_where_cc_and_bcc_say_and_only_cc_is_told(channel, name):
    """Again when it dies a second time, and not where the queue has a key of its own."""
    exchange, again = f"{name}-dead", f"{name}-again"
    for each in (exchange, again):
        channel.exchange_declare(each, "direct")
    for key in ("main", "open", "hidden", "fixed"):
        arguments = {"x-dead-letter-exchange": again} if key == "hidden" else {}
        channel.queue_declare(f"{name}-{key}", arguments=arguments)
        channel.queue_bind(f"{name}-{key}", exchange, key)
    channel.queue_declare(f"{name}-second")
    channel.queue_bind(f"{name}-second", again, "hidden")
    own = {"x-dead-letter-exchange": exchange}
    channel.exchange_declare(name, "fanout")
    channel.queue_declare(name, arguments=own)
    channel.queue_declare(f"{name}-own", arguments=own | {"x-dead-letter-routing-key": "fixed"})
    for queue in (name, f"{name}-own"):
        channel.queue_bind(queue, name)
    copied = pika.BasicProperties(headers={"CC": ["open"], "BCC": ["hidden"]})
    channel.basic_publish(name, "main", b"bad", copied)
    for queue in (name, f"{name}-own", f"{name}-hidden"):
        method, properties, body = eventually_got(channel, queue, auto_ack=False)
        assert ("BCC" in properties.headers, body) == (False, b"bad")
        channel.basic_reject(method.delivery_tag, requeue=False)
    for key, cc in (("main", ["open"]), ("open", ["open"]), ("second", ["open"]), ("fixed", None)):
        method, properties, body = eventually_got(channel, f"{name}-{key}")
        assert (method.routing_key, body) == ("fixed" if key == "fixed" else "main", b"bad")
        assert (properties.headers.get("CC"), "BCC" in properties.headers) == (cc, False)
        keys = [death["routing-keys"] for death in properties.headers["x-death"]]
        assert keys == [["main", "open"]] * (2 if key == "second" else 1)
    assert channel.basic_get(f"{name}-hidden")[0] is None


def test_an_expired_message_keeps_its_old_expiration(channel, name):
    channel.queue_declare(f"{name}-late")
    channel.queue_declare(
        name,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-late"},
    )
    channel.basic_publish("", name, b"late", pika.BasicProperties(expiration="20"))
    _, properties, _ = eventually_got(channel, f"{name}-late")
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("expired", "20")
    assert properties.expiration is None


def test_higher_priorities_overtake(channel, name):
    channel.queue_declare(name, arguments={"x-max-priority": 5})
    channel.confirm_delivery()
    for priority in (0, 5, 1, 5):
        properties = pika.BasicProperties(priority=priority)
        channel.basic_publish("", name, b"%d" % priority, properties)
    assert [body for _, _, body in got(channel, name, 4)] == [b"5", b"5", b"1", b"0"]


def test_topics_and_headers_lead_where_they_say(channel, name):
    channel.exchange_declare(f"{name}-topic", "topic")
    channel.exchange_declare(f"{name}-headers", "headers")
    channel.exchange_bind(f"{name}-headers", f"{name}-topic", "audit.#")
    channel.queue_declare(f"{name}-a")
    channel.queue_declare(f"{name}-b")
    channel.queue_bind(f"{name}-a", f"{name}-topic", "*.error")
    channel.queue_bind(
        f"{name}-b", f"{name}-headers", arguments={"x-match": "all", "level": "high"}
    )
    properties = pika.BasicProperties(headers={"level": "high"})
    channel.basic_publish(f"{name}-topic", "audit.error", b"both", properties)
    channel.basic_publish(f"{name}-topic", "audit.info", b"low")
    assert eventually_got(channel, f"{name}-a")[2] == b"both"
    assert eventually_got(channel, f"{name}-b")[2] == b"both"
    assert channel.queue_delete(f"{name}-b").method.message_count == 0


def test_a_transaction_that_is_rolled_back_never_was(channel, name):
    channel.queue_declare(name)
    channel.tx_select()
    channel.basic_publish("", name, b"no")
    channel.tx_rollback()
    channel.basic_publish("", name, b"yes")
    channel.tx_commit()
    assert eventually_got(channel, name)[2] == b"yes"


def test_a_request_is_answered_directly(connection, name):
    channel = connection.channel()
    channel.queue_declare(name)
    answers = []

    def serve(its, method, properties, body):
        its.basic_publish("", properties.reply_to, body.upper())

    channel.basic_consume(name, serve, auto_ack=True)
    channel.basic_consume(
        "amq.rabbitmq.reply-to", lambda c, m, p, body: answers.append(body), auto_ack=True
    )
    properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    channel.basic_publish("", name, b"hello", properties)
    until = time.monotonic() + 10
    while not answers and time.monotonic() < until:
        connection.process_data_events(0.05)
    assert answers == [b"HELLO"]


def test_errors_close_the_channel_and_nothing_else(connection, parameters, name):
    with pytest.raises(ChannelClosedByBroker, match="NOT_FOUND - no queue") as raised:
        connection.channel().basic_consume(name, print)
    assert raised.value.reply_code == 404
    connection.channel().queue_declare(name, exclusive=True)
    other = pika.BlockingConnection(parameters)
    with pytest.raises(ChannelClosedByBroker) as raised:
        other.channel().queue_declare(name, passive=True)
    assert raised.value.reply_code == 405
    other.close()
    with pytest.raises(ChannelClosedByBroker, match="inequivalent arg 'auto_delete'"):
        connection.channel().queue_declare(name, exclusive=True, auto_delete=True)
    assert (
        connection.channel().queue_declare("", exclusive=True).method.queue.startswith("amq.gen-")
    )


def test_a_deleted_queue_ends_its_consumer(connection, name):
    channel = connection.channel()
    channel.queue_declare(name)
    channel.basic_consume(name, print)
    cancelled = []
    channel.add_on_cancel_callback(cancelled.append)
    connection.channel().queue_delete(name)
    until = time.monotonic() + 10
    while not cancelled and time.monotonic() < until:
        connection.process_data_events(0.05)
    assert cancelled[0].method.consumer_tag.startswith("ctag")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"credentials": pika.PlainCredentials("guest", "wrong")}, ProbableAuthenticationError),
        ({"virtual_host": "nowhere"}, (ProbableAccessDeniedError, ConnectionClosedByBroker)),
    ],
)
def test_the_wrong_password_and_the_wrong_vhost_are_refused(address, change, error):
    host, port = address
    with pytest.raises(error):
        pika.BlockingConnection(pika.ConnectionParameters(host, port, **change))
