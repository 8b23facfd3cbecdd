"""The exam of publishers with real clients: the disk, the pool, buffers, rates, a fast failure.

Each brings about by a fault or a limit what a user meets with a bad disk or a hard owner; the
broker is as it comes but for what a case needs. One runs in CI, the others with ``--long``; those
limited by a channel or a queue are in ``tests/scenario/test_amqp_bottlenecks.py``.
"""

import contextlib
import threading

import pika
import pulsar
import pytest

from kit.amqp.load import AmqpFlood
from kit.pulsar_peer import PulsarRest
from kit.real_exam import RealExam, exam_broker, examined, publish, queue
from penstock.client import Admin, ClientError, Message, Producer

KIB = 1 << 10
HUNG_S = 7
"""A sync that takes more than five seconds hangs, and that is said within two."""


@pytest.fixture(scope="module")
def broker():
    with exam_broker("--faults") as started:
        yield started


@pytest.fixture
def exam(broker):
    with examined(broker) as found:
        yield found
        found.run("penstock fault clear")


@pytest.fixture
def small(request):
    """A broker with settings of its own."""
    flags = [flag for each in request.param for flag in ("--set", each)]
    with exam_broker("--faults", *flags) as started, examined(started) as found:
        yield found
        # A broker whose disk stands still does not stop.
        found.run("penstock fault clear")


@contextlib.contextmanager
def flooded(exam: RealExam, fault, count=1, size=1000):
    """Publishers that do not stop by themselves, while a fault is in force."""
    channel = exam.channel()
    name = queue(channel, "flooded")
    exam.run(f"penstock fault {fault}")
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            endpoint = exam.broker.endpoints["amqp"]
            flood = AmqpFlood(endpoint, exchange="", key=name, body=b"x" * size)
            stack.enter_context(flood)
        yield
    exam.run("penstock fault clear")
    channel.queue_delete(name)
    exam.ok()


def held_by_the_log(exam, cause, *, count=1, size=1000):
    """All who publish wait for the disk, for that cause; when it lasts, because it hangs."""
    with flooded(exam, "store-hold --ms 5min", count, size):
        if cause != "hung":
            # For five seconds it is slow.
            exam.found("holding", cause, "log", waiting=count)
        exam.found("holding", "hung", "log", waiting=count, within_s=HUNG_S)


def test_a_disk_that_is_slow(exam):
    with flooded(exam, "sync-delay --ms 700"):
        exam.found("holding", "slow", "log", waiting=1)


@pytest.mark.long
def test_a_disk_that_hangs(exam):
    held_by_the_log(exam, "hung")


@pytest.mark.long
def test_a_disk_that_is_full_refuses_what_is_published(exam):
    channel = exam.channel()
    name = queue(channel, "full-disk")
    channel.confirm_delivery()
    exam.run("penstock fault write-error --count 1000000")

    def refused():
        with contextlib.suppress(pika.exceptions.NackError):
            publish(channel, name)

    exam.found("refusing", "write-failed", "log", waiting=[channel], meanwhile=refused)
    exam.run("penstock fault clear")
    exam.ok()
    channel.queue_delete(name)


@pytest.mark.long
def test_too_little_disk_is_free(exam):
    exam.run("penstock fault disk --bytes 1MiB")
    publisher = exam.channel()
    publish(publisher, "audit")
    exam.found("alarm", "disk", "alarm/disk", waiting=[publisher])
    exam.run("penstock fault clear")
    exam.ok()


@pytest.mark.long
@pytest.mark.parametrize(
    "small",
    [("storage.write_buffers_max=1", "storage.write_buffer_bytes=64KiB")],
    indirect=True,
)
def test_write_buffers_that_are_exhausted(small):
    held_by_the_log(small, "no-buffer", size=16 * KIB)


@pytest.mark.long
@pytest.mark.parametrize(
    "small",
    [("flow.connection_bytes_max=1MiB", "flow.inflight_bytes_max=2MiB")],
    indirect=True,
)
def test_an_in_flight_pool_that_is_full_names_the_disk_and_all_who_wait(small):
    held_by_the_log(small, "slow", count=4, size=50 * KIB)


@pytest.mark.long
def test_a_noisy_publisher_has_more_than_half_of_what_waits_for_the_disk_with_others(exam):
    quiet = exam.channel()
    for name in ("pictures", "notes"):
        queue(quiet, name)
    endpoint = exam.broker.endpoints["amqp"]
    exam.run("penstock fault store-hold --ms 5min")
    noisy = AmqpFlood(endpoint, exchange="", key="pictures", body=b"x" * 100 * KIB)
    place = "{}:{}".format(*noisy._socket.getsockname())
    with noisy:
        publish(quiet, "notes", 5_000)
        exam.found("holding", "slow", "log", waiting=2)
        (found,) = [each for each in exam.page()["findings"] if each["cause"] == "noisy"]
        assert found["severity"] == "holding"
        assert place in found["culprit"]["name"]
        assert found["waiters_total"] == 1
        assert place not in found["waiters"][0]["name"]
    exam.run("penstock fault clear")
    exam.ok()
    assert "noisy" not in [each["cause"] for each in exam.page()["findings"]]
    for name in ("pictures", "notes"):
        quiet.queue_delete(name)


@contextlib.contextmanager
def sending(exam, topic):
    """A producer of RocketMQ that does not try again when it is told that the store is busy."""
    is_over = threading.Event()
    options = {"retries": 0, "send_timeout_ms": 2_000}

    def sends():
        with Producer(exam.broker.name_server, "hasty", **options) as producer:
            while not is_over.wait(0.05):
                with contextlib.suppress(ClientError):
                    producer.send(Message(topic, b"x"))

    sender = threading.Thread(target=sends)
    sender.start()
    try:
        yield
    finally:
        exam.run("penstock fault clear")
        is_over.set()
        sender.join()


@pytest.mark.long
def test_a_fast_failure_tells_senders_and_names_the_disk(exam):
    with Admin(exam.broker.name_server) as admin:
        admin.create_topic("hasty", queues=1)
        with sending(exam, "hasty"):
            exam.run("penstock fault store-hold --ms 5min")
            exam.found("refusing", "slow", "log", waiting=1)
            exam.found("refusing", "hung", "log", waiting=1, within_s=HUNG_S)
            exam.run("penstock fault clear")
            exam.ok()
        admin.delete_topic("hasty")


@pytest.mark.long
def test_a_publish_rate(exam):
    channel = exam.channel()
    name = queue(channel, "paced")
    exam.run(f"penstock topics set {name} --publish-rate 5")
    publish(channel, name, 400)
    limit = "limit/publish_messages_per_s/topic/paced"
    exam.helps(exam.found("holding", "rate", limit, waiting=[channel]))
    exam.ok()
    channel.queue_delete(name)


@pytest.mark.long
def test_a_dispatch_rate_of_pulsar(exam):
    rest = PulsarRest(f"http://{exam.broker.endpoints['http']}")
    policy = "persistent/public/default/throttled/dispatchRate"
    host, port = exam.broker.address("pulsar")
    silent = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(f"pulsar://{host}:{port}", logger=silent)
    consumer = client.subscribe("throttled", "s", consumer_type=pulsar.ConsumerType.Shared)
    rate = {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 60}
    rest.done("POST", policy, rate)
    producer = client.create_producer("throttled")
    for _ in range(40):
        producer.send(b"x")
    exam.found("behind", "rate", "sub/throttled/pulsar%2Fs")
    rest.done("DELETE", policy)
    exam.ok()
    consumer.unsubscribe()
    client.close()
