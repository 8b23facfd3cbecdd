"""The exam with real clients: what a user meets most, asked over HTTP as ``penstock why`` does.

pika, Penstock's RocketMQ client and pulsar-client. Before it is ``ok``; then it is the right
culprit, for the right cause, with those who wait, in time and in the middle; and ``ok`` in time
when it is over (``kit.real_exam``). A queue that nobody reads on purpose lies there all the time.
What takes half a minute, or differs little from another case, runs with ``--long``.
"""

import contextlib
import os
import socket
import threading
import time

import pika
import pulsar
import pytest

from kit.real_exam import ack_all, consume, exam_broker, examined, publish, queue
from penstock.client import Admin, ConsumeResult, Message, Producer, PullConsumer, PushConsumer
from penstock.engine.subscription.dispatchers import LOOK_AHEAD_PER_CONSUMER_MAX
from penstock.flow.finding import LIMIT_OPTIONS, advice_for, brake_advice
from penstock.testing.running import eventually

BEHIND = ("--set", "flow.behind_ms=500")
"""Half a second instead of five, so that the dozen of CI takes a minute less; with ``--long`` the
broker is as it comes."""


NEVER_S = 32
"""Who settles, or asks for, nothing for half a minute: a moment later that is said."""
ORDERED_S = 25
"""An offset that stands still for fifteen seconds, of a group that is behind."""


@pytest.fixture(scope="module")
def broker(request):
    flags = () if request.config.getoption("--long") else BEHIND
    with exam_broker(*flags) as started:
        yield started


@pytest.fixture
def exam(broker):
    with examined(broker) as found:
        yield found


def test_a_slow_consumer_is_named_with_its_connection(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "emails")
    consume(reader, name, "mailer", 5)
    publish(channel, name, 50)
    found = exam.found("behind", "slow-consumer", "consumer/", name="mailer")
    assert found["path"][-1].startswith("connection/")
    assert "It is on connection amqp-" in found["detail"]
    exam.helps(found)
    exam.ok(ack_all(reader))
    channel.queue_delete(name)


def test_a_standby_is_not_to_blame(exam):
    channel, first, second = exam.channel(), exam.channel(), exam.channel()
    name = queue(channel, "single", single_active_consumer=True)
    consume(first, name, "active", 5)
    consume(second, name, "standby", 5)
    publish(channel, name, 50)
    exam.found("behind", "slow-consumer", "consumer/", name="active")
    exam.ok(ack_all(first))
    channel.queue_delete(name)


def test_nobody_consumes_any_more(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "left")
    consume(reader, name, "gone", 5)
    reader.close()
    publish(channel, name, 5)
    exam.helps(exam.found("behind", "nobody", "sub/left/amqp"))
    second = exam.channel()
    consume(second, name, "again", 5)
    exam.ok(ack_all(second))
    channel.queue_delete(name)


def test_a_full_queue_that_holds_names_everybody_and_the_command_that_helps_does(exam):
    channel = exam.channel()
    name = queue(channel, "full", max_length=3, overflow="hold")
    publishers = [exam.channel(), exam.channel()]
    for publisher in publishers:
        publish(publisher, name, 9)
    found = exam.found("holding", "held", "limit/length_max/topic/full", waiting=publishers)
    exam.helps(found)
    exam.ok()
    channel.queue_delete(name)


def test_a_full_queue_that_rejects_says_whom(exam):
    channel = exam.channel()
    name = queue(channel, "strict", max_length=3, overflow="reject-publish")
    found = exam.found(
        "refusing",
        "length-limit",
        "topic/strict",
        waiting=[channel],
        meanwhile=lambda: publish(channel, name, 20),
    )
    exam.ok()
    exam.helps(found)
    channel.queue_delete(name)


def test_a_queue_that_drops_what_somebody_wants(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "short", max_length=3)
    consume(reader, name, "slow", 1)
    found = exam.found(
        "discarding",
        "drop-head",
        "sub/short/amqp",
        waiting=[channel],
        meanwhile=lambda: publish(channel, name, 20),
    )
    assert "slow is slow" in found["sentence"]
    exam.ok(ack_all(reader))
    exam.helps(found)
    channel.queue_delete(name)


def test_a_queue_that_drops_and_that_nobody_reads_is_a_ring_on_purpose(exam):
    channel = exam.channel()
    name = queue(channel, "newest", max_length=3)

    def told():
        publish(channel, name, 20)
        page = exam.page()
        assert page["answer"]["severity"] == "ok", page["answer"]["sentence"]
        parked = {each["culprit_id"]: each["cause"] for each in page["findings"]}
        return parked.get("sub/newest/amqp") == "ring"

    eventually(told)
    assert told(), "and in the look after that"
    channel.queue_delete(name)


def test_a_publisher_whose_messages_go_nowhere(exam):
    channel = exam.channel()

    def publishes():
        publish(channel, "no-such-queue")
        channel.connection.process_data_events(0)

    # Every publish of five seconds must have gone nowhere (``flow.behind_ms``), then it is said.
    exam.found(
        "discarding", "unroutable", "channel/", waiting=[channel], within_s=7, meanwhile=publishes
    )
    exam.ok()


def test_a_requeue_loop(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "loop")
    reader.basic_qos(prefetch_count=1)
    gives_back = [True]

    def taken(at, method, _properties, _body):
        if gives_back[0]:
            at.basic_nack(method.delivery_tag, requeue=True)
        else:
            at.basic_ack(method.delivery_tag)

    reader.basic_consume(name, taken, consumer_tag="retry")
    publish(channel, name)

    def reads():
        reader.connection.process_data_events(0.05)

    exam.found("behind", "requeue-loop", "consumer/", name="retry", meanwhile=reads)
    gives_back[0] = False
    exam.ok(reads)
    channel.queue_delete(name)


def test_dead_letters_that_nobody_takes(exam):
    channel, reader = exam.channel(), exam.channel()
    dead = queue(channel, "dead")
    name = queue(channel, "work", dead_letter_exchange="", dead_letter_routing_key=dead)

    found = exam.found(
        "dead",
        "dead-letters",
        "topic/dead",
        waiting=["topic/work"],
        meanwhile=lambda: reject_one(channel, reader, name),
    )
    exam.helps(found)
    exam.ok()
    for each in (name, dead):
        channel.queue_delete(each)


@pytest.mark.long
def test_dead_letters_whose_target_is_full_are_lost(exam):
    channel, reader = exam.channel(), exam.channel()
    dead = queue(channel, "small-dead", max_length=2, overflow="reject-publish")
    name = queue(channel, "loses", dead_letter_exchange="", dead_letter_routing_key=dead)
    found = exam.found(
        "discarding",
        "letters-lost",
        "topic/small-dead",
        waiting=["topic/loses"],
        meanwhile=lambda: reject_one(channel, reader, name),
    )
    assert "were lost" in found["sentence"]
    exam.ok()
    exam.helps(found)
    for _ in range(3):
        reject_one(channel, reader, name)
    assert all(each["cause"] != "letters-lost" for each in exam.page()["findings"])
    for each in (name, dead):
        channel.queue_delete(each)
    exam.ok()


@pytest.mark.long
def test_dead_letters_whose_exchange_is_missing_are_lost(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "aimless", dead_letter_exchange="no-such-exchange")
    exam.found(
        "discarding",
        "letters-unrouted",
        "topic/aimless",
        meanwhile=lambda: reject_one(channel, reader, name),
    )
    exam.ok()
    channel.queue_delete(name)


def reject_one(channel, reader, name):
    publish(channel, name)
    method = eventually(lambda: reader.basic_get(name)[0])
    reader.basic_reject(method.delivery_tag, requeue=False)


def test_an_alarm_is_an_answer_and_an_event(exam):
    publisher = exam.channel()
    exam.run("penstock limits set --memory 0")
    publish(publisher, "audit")
    exam.found("alarm", "memory", "alarm/memory", waiting=[publisher])
    exam.run("penstock limits set --memory 0.95")
    exam.ok()
    events = exam.page()["events"]
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

    But for the first, so that the group has a place in the topic. Of one only: the others take
    their time, so that there are always some beyond the one that is stuck.
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
        elif number > 2:
            self.go_on.wait(0.3)


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
        found = exam.found("behind", f"threshold-{threshold}", "client/")
        assert "its limit is" in found["sentence"]
        stuck.go_on.set()
        exam.ok()


def test_a_push_consumer_held_by_its_threshold_of_messages(exam):
    held_by(exam, "messages", b"x", 60, pull_threshold_messages=5, pull_batch=4)


@pytest.mark.long
def test_a_push_consumer_held_by_its_threshold_of_bytes(exam):
    held_by(exam, "bytes", os.urandom(200_000), 20, pull_threshold_bytes=1 << 20, pull_batch=2)


@pytest.mark.long
def test_a_push_consumer_held_by_its_threshold_of_the_span(exam):
    options = {"pull_threshold_span": 10, "pull_batch": 4, "consume_threads": 2}
    held_by(exam, "span", b"x", 150, is_one_only=True, **options)


@pytest.mark.long
def test_a_new_group_that_is_stuck_in_its_first_messages(exam):
    """It never committed: it has no place in the topic, and is seen by what it asks for."""
    go_on = threading.Event()
    with topic_of(exam, "new") as topic:
        options = {"pull_threshold_messages": 4, "pull_batch": 2}
        with pushed(exam, topic, lambda _: bool(go_on.wait(120)) or None, **options):
            send(exam, topic, *[b"x"] * 30)
            exam.found("behind", "threshold-messages", "client/")
            go_on.set()
            exam.ok()


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
        exam.found("behind", "does-not-ask", "client/")
        commit()
        exam.ok()


@pytest.mark.long
def test_a_pull_consumer_that_stopped_pulling(exam):
    with pulled_once(exam, "stopped") as commit:
        exam.found("behind", "stopped-pulling", "client/", within_s=NEVER_S)
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
            exam.found("behind", "never-acks", "client/", within_s=NEVER_S)
            stuck.go_on.set()
            exam.ok()


@pytest.mark.long
def test_dead_letters_of_a_group_that_gives_up(exam):
    answer = [ConsumeResult.LATER]
    with (
        topic_of(exam, "poison") as topic,
        pushed(exam, topic, lambda _: answer[0], retries_max=0),
        Producer(exam.broker.name_server, "shop") as producer,
    ):
        exam.found(
            "dead",
            "dead-letters",
            "topic/%25DLQ%25of-poison",
            waiting=["topic/poison"],
            meanwhile=lambda: producer.send(Message(topic, b"x")),
        )
        answer[0] = ConsumeResult.SUCCESS
        exam.ok(lambda: producer.send(Message(topic, b"x")))


@pytest.mark.long
def test_an_ordered_queue_whose_first_message_fails(exam):
    answer = [ConsumeResult.SUSPEND]
    options = {"is_ordered": True, "persist_interval_ms": 500}
    with topic_of(exam, "ordered") as topic:
        send(exam, topic, *[b"x"] * 20)
        with pushed(exam, topic, lambda _: answer[0], **options):
            found = exam.found("behind", "ordered-stuck", "client/", within_s=ORDERED_S)
            assert "stands still" in found["sentence"]
            answer[0] = ConsumeResult.SUCCESS
            exam.ok()


@pytest.mark.long
def test_an_ordered_queue_that_fails_nothing_is_slow(exam):
    stuck = Stuck()
    options = {"is_ordered": True, "persist_interval_ms": 500}
    with topic_of(exam, "ordered-slow") as topic, pushed(exam, topic, stuck, **options):
        began(exam, topic)
        send(exam, topic, *[b"x"] * 20)
        exam.found("behind", "ordered-slow", "client/", within_s=ORDERED_S)
        stuck.go_on.set()
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
    exam.helps(exam.found("behind", "subscription-unsettled", "sub/limited/pulsar%2Fs"))
    exam.ok()
    taken += [consumer.receive(5_000) for _ in range(35)]
    for each in taken:
        consumer.acknowledge(each)
    consumer.unsubscribe()
    exam.ok()


def test_a_pulsar_consumer_that_does_not_receive_grants_no_permits(exam, client):
    consumer = client.subscribe("unasked", "s", receiver_queue_size=5)
    sent(client, "unasked", 40)
    exam.found("behind", "demand", "sub/unasked/pulsar%2Fs")
    for _ in range(40):
        consumer.acknowledge(consumer.receive(5_000))
    exam.ok()
    consumer.unsubscribe()


@pytest.mark.long
def test_a_standby_of_pulsar_is_not_to_blame(exam, client):
    kind = pulsar.ConsumerType.Failover
    readers = [client.subscribe("failover", "s", consumer_type=kind, receiver_queue_size=5)]
    readers.append(client.subscribe("failover", "s", consumer_type=kind, receiver_queue_size=5))
    sent(client, "failover", 40)
    exam.found("behind", "demand", "sub/failover/pulsar%2Fs")
    for reader in readers:
        reader.close()
    exam.found("behind", "nobody", "sub/failover/pulsar%2Fs")
    client.subscribe("failover", "s", consumer_type=kind).unsubscribe()
    exam.ok()


@pytest.mark.long
def test_keys_of_pulsar_that_drain(exam, client):
    kind = pulsar.ConsumerType.KeyShared
    former = client.subscribe("keys", "s", consumer_type=kind)
    # Some of its keys it may keep when others come to share them, but hardly all.
    keys = [f"k{number}" for number in range(8)]
    for key in keys:
        sent(client, "keys", 1, partition_key=key)
    firsts = [former.receive(5_000) for _ in keys]
    others = [client.subscribe("keys", "s", consumer_type=kind) for _ in range(6)]
    for key in keys:
        sent(client, "keys", 4, partition_key=key)
    exam.found("behind", "draining", "sub/keys/pulsar%2Fs")
    for first in firsts:
        former.acknowledge(first)
    exam.ok()
    for reader in (former, *others):
        reader.close()
    client.subscribe("keys", "s", consumer_type=kind).unsubscribe()


@pytest.mark.long
def test_too_much_of_pulsar_for_the_keys_of_a_consumer_that_does_not_receive(exam, client):
    """So much is set aside for it as may be, and other keys are not looked for beyond that."""
    kind = pulsar.ConsumerType.KeyShared
    ann = client.subscribe("ahead", "s", consumer_type=kind, receiver_queue_size=1)
    ben = client.subscribe("ahead", "s", message_listener=acks, consumer_type=kind)
    keys = (f"k{number}" for number in range(64))
    key = next(each for each in keys if is_of(ann, client, each))
    producer = client.create_producer("ahead", block_if_queue_full=True)
    for _ in range(LOOK_AHEAD_PER_CONSUMER_MAX * 2 + 100):
        producer.send_async(b"x", None, partition_key=key)
    producer.flush()
    exam.found("behind", "look-ahead", "sub/ahead/pulsar%2Fs")
    ann.close()
    exam.ok()
    ben.unsubscribe()


def acks(consumer, message):
    consumer.acknowledge(message)


def is_of(consumer, client, key):
    """Whether a message of that key comes to it."""
    sent(client, "ahead", 1, partition_key=key)
    with contextlib.suppress(pulsar.Timeout):
        consumer.acknowledge(consumer.receive(300))
        return True
    return False


@pytest.mark.long
def test_a_backlog_quota_of_pulsar(exam, client):
    reader = client.subscribe("quota", "s", receiver_queue_size=1)
    exam.run("penstock topics set quota --quota-bytes-max 10000")
    producer = client.create_producer("quota", send_timeout_millis=0)
    for _ in range(50):
        producer.send_async(b"x" * 1_000, lambda *_: None)
    limit = "limit/quota_bytes_max/topic/quota"
    exam.helps(exam.found("holding", "quota", limit, waiting=1))
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
    exam.found("behind", "never-acks", "consumer/", name="deaf", within_s=NEVER_S)
    exam.ok(ack_all(reader))
    channel.queue_delete(name)


@pytest.mark.long
def test_a_consumer_without_a_prefetch_is_found_by_the_age_of_what_it_has(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "greedy")
    consume(reader, name, "greedy", 0)
    publish(channel, name, 500)

    def goes_on():
        publish(channel, name, 2)
        reader.connection.process_data_events(0)

    exam.found(
        "behind", "never-acks", "consumer/", name="greedy", within_s=NEVER_S, meanwhile=goes_on
    )
    exam.ok(ack_all(reader))
    channel.queue_delete(name)


@pytest.mark.long
def test_a_consumer_without_a_prefetch_that_settles_too_little_is_slow(exam):
    channel, reader = exam.channel(), exam.channel()
    name = queue(channel, "trickle")
    taken = []
    reader.basic_consume(name, lambda _c, method, *_: taken.append(method), consumer_tag="slow")
    publish(channel, name, 1_000)
    due_s = time.monotonic()

    def works():
        nonlocal due_s
        reader.connection.process_data_events(0)
        if taken and time.monotonic() >= due_s:
            due_s += 1
            reader.basic_ack(taken.pop(0).delivery_tag)

    found = exam.found(
        "behind", "slow-consumer", "consumer/", name="slow", within_s=NEVER_S, meanwhile=works
    )
    assert "no limit (prefetch)" in found["sentence"]
    exam.ok(ack_all(reader))
    channel.queue_delete(name)


@pytest.mark.long
def test_a_socket_that_is_not_read(exam):
    channel, reader = exam.channel(), exam.channel()
    peer = reader.connection._impl._transport._sock
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    name = queue(channel, "unread")
    reader.basic_consume(name, lambda *_: None, auto_ack=True, consumer_tag="deaf")
    for _ in range(3_000):
        channel.basic_publish("", name, b"x" * 10_000)
    exam.found("behind", "not-reading", "consumer/", name="deaf")
    # A polite close would wait for an answer that lies behind all it did not read.
    peer.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(pika.exceptions.AMQPError):
        while True:
            reader.connection.process_data_events(1)
    channel.queue_delete(name)
    exam.ok()


def test_two_at_once_are_both_found_and_the_worse_comes_first(exam):
    channel, reader = exam.channel(), exam.channel()
    slow = queue(channel, "slow")
    consume(reader, slow, "mailer", 5)
    publish(channel, slow, 50)
    exam.found("behind", "slow-consumer", "consumer/", name="mailer")
    full, publisher = queue(channel, "full-too", max_length=1, overflow="hold"), exam.channel()
    publish(publisher, full, 9)
    exam.found("holding", "held", "limit/length_max/topic/full-too", waiting=[publisher])
    found = exam.page()["findings"]
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
        *[(f"limit/{setting}/topic/a%20b@shop", "held") for setting in LIMIT_OPTIONS],
        ("limit/unacked_max/sub/a%20b@shop/amqp", "pending"),
        ("limit/flow.pending_publishes_max/connection/1", "pending"),
        *[("sub/a%20b@shop/amqp", each) for each in ("nobody", "subscription-unsettled")],
        *[("topic/a%20b@shop", each) for each in ("length-limit", "letters-lost", "drop-head")],
        ("query/etl", "sink"),
        ("log", "slow"),
    ]
    advised = {each.command for culprit in culprits for each in advice_for(*culprit)}
    for bound in ("messages_max", "bytes_max", "age_ms_max"):
        brake = brake_advice("topic/a%20b@shop", f"spark_backlog_{bound}", 1 << 30)
        advised |= {each.command for each in brake}
    assert len(advised) > 10
    for command in sorted(advised):
        exam.run(command)
    exam.run("penstock limits set --memory 0.95 --disk-free 64MiB")
    exam.run("penstock topics delete 'a b' --space shop --yes")
    exam.ok()
