"""The exam with real clients: what a user meets most, asked over HTTP as ``penstock why`` does.

pika, Penstock's RocketMQ client and pulsar-client. Before and after it is ``ok``; in between it is
the right culprit, for the right cause. A queue that nobody reads on purpose lies there all the
time. What takes half a minute, or differs little from another case, runs with ``--long``.
"""

import contextlib
import json
import os
import shlex
import socket
import threading
import time

import pika
import pulsar
import pytest
from click.testing import CliRunner

from penstock.cli.main import penstock
from penstock.client import Admin, ConsumeResult, Message, Producer, PullConsumer, PushConsumer
from penstock.flow.diagnosis import _LIMIT_OPTIONS, _advice
from penstock.testing.running import eventually, running_broker

BEHIND = ("--set", "flow.behind_ms=500")
"""Half a second instead of five: nothing else is different."""
OK_S_MAX = 10
"""Five are promised; a loaded machine has as many more to bring it about."""


class Exam:
    """A broker, and connections that are closed at the end of a test."""

    def __init__(self, broker):
        self.broker = broker
        self.open = []

    def channel(self):
        host, port = self.broker.address("amqp")
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
        self.open.append(connection)
        return connection.channel()

    def close(self):
        for connection in self.open:
            with contextlib.suppress(pika.exceptions.AMQPError):
                connection.close()

    def run(self, command):
        words = [*shlex.split(command)[1:], "--data", str(self.broker.data)]
        result = CliRunner().invoke(penstock, words)
        assert result.exit_code == 0, (command, result.output, result.exception)
        return result.output

    def answer(self):
        return json.loads(self.run("penstock why --json"))["answer"]

    def found(self, severity, cause, seconds=20):
        last = {}

        def asked():
            last.update(self.answer())
            return dict(last) if (last["severity"], last["cause"]) == (severity, cause) else None

        try:
            return eventually(asked, seconds)
        except AssertionError:
            pytest.fail(f"not {severity}, {cause}: {last['cause']}, {last['sentence']}")

    def lasts(self, found):
        """Asked again, in the middle, it is the same episode."""
        time.sleep(1)
        later = self.answer()
        assert (later["id"], later["cause"]) == (found["id"], found["cause"]), later["sentence"]
        # Told by the wall clock, of which each look takes its own reading.
        assert abs(later["since_ms"] - found["since_ms"]) <= 2

    def ok(self):
        def asked():
            return self.answer()["severity"] == "ok"

        eventually(asked, OK_S_MAX, what=f"ok; {self.answer()['sentence']}")


@pytest.fixture(scope="module")
def broker():
    with running_broker(*BEHIND) as started:
        exam = Exam(started)
        channel = exam.channel()
        channel.queue_declare("audit", durable=True)
        for _ in range(20):
            channel.basic_publish("", "audit", b"x")
        exam.close()
        yield started


@pytest.fixture
def exam(broker):
    found = Exam(broker)
    found.ok()
    yield found
    found.close()


def queue(channel, name, **arguments):
    channel.queue_delete(name)
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=named)
    return name


def publish(channel, name, count=1):
    for _ in range(count):
        channel.basic_publish("", name, b"x")


def consume(channel, name, tag, prefetch):
    channel.basic_qos(prefetch_count=prefetch)
    channel.basic_consume(name, lambda *_: None, consumer_tag=tag)
    channel.connection.process_data_events(0.1)


def test_a_slow_consumer_is_named_with_its_connection(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "emails")
    consume(reader, name, "mailer", 5)
    publish(channel, name, 50)
    found = exam.found("behind", "slow-consumer")
    assert "mailer" in found["culprit"]["name"]
    assert found["path"][-1].startswith("connection/")
    channel.queue_delete(name)
    exam.ok()


def test_a_standby_is_not_to_blame(exam):
    channel, first, second = exam.channel(), exam.channel(), exam.channel()
    name = queue(channel, "single", single_active_consumer=True)
    consume(first, name, "active", 5)
    consume(second, name, "standby", 5)
    publish(channel, name, 50)
    assert "active" in exam.found("behind", "slow-consumer")["culprit"]["name"]
    channel.queue_delete(name)
    exam.ok()


def test_nobody_consumes_any_more(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "left")
    consume(reader, name, "gone", 5)
    reader.close()
    publish(channel, name, 5)
    assert exam.found("behind", "nobody")["culprit_id"] == "sub/left/amqp"
    channel.queue_delete(name)
    exam.ok()


def test_a_full_queue_that_holds_names_everybody_and_the_command_that_helps_does(exam):
    channel = exam.channel()
    name = queue(channel, "full", max_length=3, overflow="hold")
    for publisher in (exam.channel(), exam.channel()):
        publish(publisher, name, 9)
    found = exam.found("holding", "held")
    assert found["culprit_id"] == "limit/length_max/topic/full"
    eventually(lambda: exam.answer()["waiters_total"] == 2)
    for advice in found["do"]:
        exam.run(advice["command"])
    exam.ok()
    channel.queue_delete(name)


def test_a_full_queue_that_rejects_says_whom(exam):
    channel = exam.channel()
    name = queue(channel, "strict", max_length=3, overflow="reject-publish")
    publish(channel, name, 20)
    found = exam.found("refusing", "length-limit")
    assert found["culprit_id"] == "topic/strict"
    assert found["waiters_total"] == 1
    exam.ok()
    channel.queue_delete(name)


def test_a_queue_that_drops_what_somebody_wants(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "short", max_length=3)
    consume(reader, name, "slow", 1)
    publish(channel, name, 20)
    assert exam.found("discarding", "drop-head")["culprit_id"] == "sub/short/amqp"
    channel.queue_delete(name)
    exam.ok()


def test_a_publisher_whose_messages_go_nowhere(exam):
    channel = exam.channel()
    until = time.monotonic() + 10
    while time.monotonic() < until:
        publish(channel, "no-such-queue")
        channel.connection.process_data_events(0.05)
        if exam.answer()["cause"] == "unroutable":
            break
    answer = exam.answer()
    assert (answer["severity"], answer["culprit"]["kind"]) == ("discarding", "channel")
    exam.ok()


def test_a_requeue_loop(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "loop")
    reader.basic_qos(prefetch_count=1)
    reader.basic_consume(
        name,
        lambda at, method, _properties, _body: at.basic_nack(method.delivery_tag, requeue=True),
        consumer_tag="retry",
    )
    publish(channel, name)

    def looped():
        reader.connection.process_data_events(0.05)
        return exam.answer()["cause"] == "requeue-loop"

    eventually(looped)
    channel.queue_delete(name)
    exam.ok()


def test_dead_letters_that_nobody_takes(exam):
    channel, reader = exam.channel(), exam.channel()
    dead = queue(channel, "dead")
    name = queue(channel, "work", dead_letter_exchange="", dead_letter_routing_key=dead)
    publish(channel, name, 5)
    for _ in range(5):
        method = eventually(lambda: reader.basic_get(name)[0])
        reader.basic_reject(method.delivery_tag, requeue=False)
    assert exam.found("dead", "dead-letters")["culprit_id"] == "topic/dead"
    exam.ok()
    for each in (name, dead):
        channel.queue_delete(each)


def test_an_alarm_is_an_answer_and_an_event(exam):
    exam.run("penstock limits set --memory 0")
    publish(exam.channel(), "audit")
    found = exam.found("alarm", "memory")
    assert found["culprit_id"] == "alarm/memory"
    exam.run("penstock limits set --memory 0.95")
    exam.ok()
    events = json.loads(exam.run("penstock why --json"))["events"]
    alarms = [each for each in events if each["kind"] == "alarm"]
    assert [each["event"] for each in alarms] == ["entered", "left"]
    assert alarms[0]["seq"] < alarms[1]["seq"]


# Clients of RocketMQ.


@contextlib.contextmanager
def topic_of(exam, name, queues=1):
    with Admin(exam.broker.name_server) as admin:
        admin.create_topic(name, queues=queues)
        yield name
        admin.delete_topic(name)


def send(exam, topic, *bodies):
    with Producer(exam.broker.name_server, "shop") as producer:
        for body in bodies:
            producer.send(Message(topic, body))


class Stuck:
    """A listener that does not come back, of one message or of any, until it may.

    But for the first: a group that never committed has no place in the topic yet.
    """

    def __init__(self, *, is_one_only=False):
        self.go_on = threading.Event()
        self._is_one_only = is_one_only
        self._lock = threading.Lock()
        self.seen = 0

    def __call__(self, _message):
        with self._lock:
            self.seen += 1
            number = self.seen
        if number == 2 or (number > 2 and not self._is_one_only):
            self.go_on.wait(120)


@contextlib.contextmanager
def pushed(exam, topic, listener, **options):
    consumer = PushConsumer(
        exam.broker.name_server, f"of-{topic}", listener, consume_from="first", **options
    )
    consumer.subscribe(topic)
    consumer.start()
    try:
        yield consumer
    finally:
        if isinstance(listener, Stuck):
            listener.go_on.set()
        consumer.stop()


def began(exam, topic):
    """The group has consumed a message, and said so."""
    send(exam, topic, b"first")

    def committed():
        with Admin(exam.broker.name_server) as admin:
            progress = admin.progress(f"of-{topic}", topic)
        return any(each.committed > 0 for each in progress.values())

    eventually(committed)


def held_by(exam, threshold, body, count, *, is_one_only=False, **options):
    """A push consumer that a threshold holds is named with it, and forgotten when it goes on."""
    name = f"push-{threshold}"
    stuck = Stuck(is_one_only=is_one_only)
    options["persist_interval_ms"] = 500
    with topic_of(exam, name) as topic, pushed(exam, topic, stuck, **options):
        began(exam, topic)
        send(exam, topic, *[body] * count)
        found = exam.found("behind", f"threshold-{threshold}")
        assert found["culprit"]["kind"] == "client"
        assert "its limit is" in found["sentence"]
        exam.lasts(found)
        stuck.go_on.set()
        exam.ok()


def test_a_push_consumer_held_by_its_threshold_of_messages(exam):
    held_by(exam, "messages", b"x", 60, pull_threshold_messages=5, pull_batch=4)


@pytest.mark.long
def test_a_push_consumer_held_by_its_threshold_of_bytes(exam):
    held_by(exam, "bytes", os.urandom(200_000), 20, pull_threshold_bytes=1 << 20, pull_batch=2)


@pytest.mark.long
def test_a_push_consumer_held_by_its_threshold_of_the_span(exam):
    held_by(exam, "span", b"x", 100, is_one_only=True, pull_threshold_span=10, pull_batch=4)


@contextlib.contextmanager
def pulled_once(exam, name):
    """A group with a member that pulled one message and has twenty more before it."""
    server = exam.broker.name_server
    with topic_of(exam, name) as topic, PullConsumer(server, f"of-{name}") as client:
        (queue,) = client.queues(topic)
        send(exam, topic, b"first")
        eventually(lambda: list(client.pull(queue, 0)))
        client.commit(queue, 1)
        send(exam, topic, *[b"x"] * 20)
        yield lambda: client.commit(queue, 21)


def test_a_pull_consumer_that_does_not_ask_for_more(exam):
    with pulled_once(exam, "pulled") as commit:
        exam.lasts(exam.found("behind", "does-not-ask"))
        commit()
        exam.ok()


@pytest.mark.long
def test_a_pull_consumer_that_stopped_pulling(exam):
    with pulled_once(exam, "stopped") as commit:
        exam.lasts(exam.found("behind", "stopped-pulling", 60))
        commit()
        exam.ok()


@pytest.mark.long
def test_a_pop_consumer_that_never_acks(exam):
    stuck = Stuck()
    options = {"is_popping": True, "pop_poll_ms": 1000}
    with topic_of(exam, "popped") as topic:
        with Admin(exam.broker.name_server) as admin:
            admin.set_consume_mode(f"of-{topic}", topic, "POP")
        with pushed(exam, topic, stuck, **options):
            send(exam, topic, *[b"x"] * 10)
            found = exam.found("behind", "never-acks", 60)
            assert found["culprit"]["kind"] == "client"
            stuck.go_on.set()
            exam.ok()


@pytest.mark.long
def test_an_ordered_queue_whose_first_message_fails(exam):
    answer = [ConsumeResult.SUSPEND]
    options = {"is_ordered": True, "persist_interval_ms": 500}
    with topic_of(exam, "ordered") as topic:
        send(exam, topic, *[b"x"] * 20)
        with pushed(exam, topic, lambda _: answer[0], **options):
            found = exam.found("behind", "ordered-stuck", 60)
            assert "stands still" in found["sentence"]
            answer[0] = ConsumeResult.SUCCESS
            exam.ok()


# Clients of Pulsar.


@pytest.fixture
def client(exam):
    host, port = exam.broker.address("pulsar")
    silent = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = pulsar.Client(f"pulsar://{host}:{port}", logger=silent)
    yield made
    made.close()


def sent(client, topic, count, **message):
    producer = client.create_producer(topic)
    for _ in range(count):
        producer.send(b"x", **message)
    producer.close()


def test_a_pulsar_consumer_that_takes_and_never_acks_is_at_the_limit_of_its_group(exam, client):
    consumer = client.subscribe("limited", "s", consumer_type=pulsar.ConsumerType.Shared)
    exam.run("penstock topics set limited --unacked 5")
    sent(client, "limited", 40)
    taken = [consumer.receive(5_000) for _ in range(5)]
    found = exam.found("behind", "subscription-unsettled")
    assert found["culprit_id"] == "sub/limited/pulsar%2Fs"
    exam.lasts(found)
    for advice in found["do"]:
        exam.run(advice["command"])
    exam.ok()
    taken += [consumer.receive(5_000) for _ in range(35)]
    for each in taken:
        consumer.acknowledge(each)
    consumer.unsubscribe()
    exam.ok()


def test_a_pulsar_consumer_that_does_not_receive_grants_no_permits(exam, client):
    consumer = client.subscribe("unasked", "s", receiver_queue_size=5)
    sent(client, "unasked", 40)
    found = exam.found("behind", "demand")
    exam.lasts(found)
    consumer.unsubscribe()
    exam.ok()


@pytest.mark.long
def test_a_standby_of_pulsar_is_not_to_blame(exam, client):
    kind = pulsar.ConsumerType.Failover
    readers = [client.subscribe("failover", "s", consumer_type=kind, receiver_queue_size=5)]
    readers.append(client.subscribe("failover", "s", consumer_type=kind, receiver_queue_size=5))
    sent(client, "failover", 40)
    exam.lasts(exam.found("behind", "demand"))
    for reader in readers:
        reader.close()
    exam.found("behind", "nobody")
    client.subscribe("failover", "s", consumer_type=kind).unsubscribe()
    exam.ok()


@pytest.mark.long
def test_keys_of_pulsar_that_drain(exam, client):
    kind = pulsar.ConsumerType.KeyShared
    former = client.subscribe("keys", "s", consumer_type=kind)
    sent(client, "keys", 1, partition_key="k")
    first = former.receive(5_000)
    others = [client.subscribe("keys", "s", consumer_type=kind) for _ in range(6)]
    for _ in range(30):
        sent(client, "keys", 1, partition_key="k")
    # With many who share the keys, the former owner of this one rarely keeps it.
    answer = exam.found("behind", "draining")
    exam.lasts(answer)
    former.acknowledge(first)
    exam.ok()
    for reader in (former, *others):
        reader.close()
    client.subscribe("keys", "s", consumer_type=kind).unsubscribe()


@pytest.mark.long
def test_a_backlog_quota_of_pulsar(exam, client):
    reader = client.subscribe("quota", "s", receiver_queue_size=1)
    exam.run("penstock topics set quota --quota-bytes-max 10000")
    producer = client.create_producer("quota", send_timeout_millis=0)
    for _ in range(50):
        producer.send_async(b"x" * 1_000, lambda *_: None)
    found = exam.found("holding", "quota")
    assert found["culprit_id"] == "limit/quota_bytes_max/topic/quota"
    assert found["waiters_total"] == 1
    for advice in found["do"]:
        exam.run(advice["command"])
    producer.flush()
    reader.unsubscribe()
    producer.close()
    exam.ok()


# More of AMQP.


@pytest.mark.long
def test_a_consumer_that_never_acks(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "unacked")
    consume(reader, name, "deaf", 5)
    publish(channel, name, 50)
    found = exam.found("behind", "never-acks", 60)
    assert "deaf" in found["culprit"]["name"]
    exam.lasts(found)
    channel.queue_delete(name)
    exam.ok()


@pytest.mark.long
def test_a_socket_that_is_not_read(exam):
    channel, reader = exam.channel(), exam.channel()
    peer = reader.connection._impl._transport._sock
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    name = queue(channel, "unread")
    reader.basic_consume(name, lambda *_: None, auto_ack=True, consumer_tag="deaf")
    for _ in range(3_000):
        channel.basic_publish("", name, b"x" * 10_000)
    found = exam.found("behind", "not-reading")
    assert "deaf" in found["culprit"]["name"]
    exam.lasts(found)
    # A polite close would wait for an answer that lies behind all it did not read.
    exam.open.remove(reader.connection)
    peer.shutdown(socket.SHUT_RDWR)
    channel.queue_delete(name)
    exam.ok()


def test_two_at_once_are_both_found_and_the_worse_comes_first(exam):
    channel, reader = exam.channel(), exam.channel()
    slow = queue(channel, "slow")
    consume(reader, slow, "mailer", 5)
    publish(channel, slow, 50)
    exam.found("behind", "slow-consumer")
    full = queue(channel, "full-too", max_length=1, overflow="hold")
    publish(exam.channel(), full, 9)
    exam.found("holding", "held")
    found = json.loads(exam.run("penstock why --json"))["findings"]
    told = [(each["severity"], each["cause"]) for each in found]
    assert told.index(("holding", "held")) < told.index(("behind", "slow-consumer"))
    for each in (slow, full):
        channel.queue_delete(each)
    exam.ok()


# What helps.


def test_every_command_that_a_finding_advises_works(exam):
    exam.run("penstock topics create 'a b' --space shop --queues 1")
    culprits = [
        ("alarm/memory", "memory"),
        ("alarm/disk", "disk"),
        *[(f"limit/{setting}/topic/a%20b@shop", "held") for setting in _LIMIT_OPTIONS],
        ("limit/unacked_max/sub/a%20b@shop/amqp", "pending"),
        ("limit/flow.pending_publishes_max/connection/1", "pending"),
        *[("sub/a%20b@shop/amqp", each) for each in ("nobody", "subscription-unsettled")],
        *[("topic/a%20b@shop", each) for each in ("length-limit", "letters-lost", "drop-head")],
        ("query/etl", "sink"),
        ("log", "slow"),
    ]
    advised = {each.command for culprit in culprits for each in _advice(*culprit)}
    assert len(advised) > 10
    for command in sorted(advised):
        exam.run(command)
    exam.run("penstock limits set --memory 0.95 --disk-free 64MiB")
    exam.run("penstock topics delete 'a b' --space shop --yes")
    exam.ok()
