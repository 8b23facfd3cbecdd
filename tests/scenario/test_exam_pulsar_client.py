"""The exam of what Penstock's own Pulsar client says of itself: why it does not ask for more."""

import pytest

from kit.exam import Exam
from kit.pulsar.bench import PulsarBench
from kit.pulsar.consumers import Publisher, Subscriber

UNACKED = 20


@pytest.fixture
def exam():
    return Exam(PulsarBench)


@pytest.fixture
def publisher(exam):
    return Publisher(exam.bench.client())


@pytest.fixture
def consumer(exam):
    """One with a receiver queue of ten, which is granted."""
    return Subscriber(exam.bench.client(), consumer_name="ann").opened().flow(10)


def taken(exam, consumer):
    """Its application takes and acks everything from now on."""
    consumer.says("NOTHING")
    consumer.flow(1_000)

    def ack():
        ids = consumer.ids()
        if ids:
            consumer.ack(*ids)

    ack()
    exam.meanwhile = ack


@pytest.mark.parametrize(
    ("cause", "found", "words"),
    [
        ("NOT_RECEIVED", "not-received", "has not taken 10 messages out of its receiver queue"),
        ("QUEUE_BYTES", "queue-bytes", "its receiver queue has as many bytes as it may (4 B)"),
        ("LISTENERS", "listeners-busy", "its listener (threads: 4) took nothing"),
        ("PAUSED", "paused", "is paused by its application"),
        ("LETTERS", "letters-wait", "waits for its retry-letter or dead-letter topic"),
        ("STARTING", "starting", "has not begun"),
    ],
)
def test_why_a_client_has_granted_nothing_more(exam, consumer, cause, found, words):
    publisher = Publisher(exam.bench.client())
    exam.begins()
    publisher.publish_all(50)
    consumer.says(cause, waiting=10, limit=4)
    answer = exam.found("behind", found, "consumer/")
    assert words in answer.sentence
    assert answer.culprit.name.startswith("ann of s on ")
    taken(exam, consumer)
    exam.ok_again()


def test_a_client_that_says_nothing_only_does_not_ask(exam, publisher, consumer):
    exam.begins()
    publisher.publish_all(50)
    exam.found("behind", "demand", "sub/")
    taken(exam, consumer)
    exam.ok_again()


def test_an_application_that_takes_slowly_is_slow_and_one_that_stops_has_stopped(
    exam, publisher, consumer
):
    exam.begins()
    publisher.publish_all(50)
    exam.meanwhile = lambda: consumer.says("NOT_RECEIVED", waiting=10, limit=10)
    exam.found("behind", "slow-consumer", "consumer/")
    exam.meanwhile = None
    exam.pass_ms(6_000)
    exam.now("behind", "not-received", "consumer/")
    taken(exam, consumer)
    exam.ok_again()


def test_an_application_that_holds_what_it_got_and_one_that_left_it_in_the_queue(exam, publisher):
    exam.bench.broker.namespaces.set_policies(
        "public/default", max_unacked_messages_per_consumer=UNACKED
    )
    consumer = Subscriber(exam.bench.client(), consumer_name="ben").opened().flow(1_000)
    exam.begins()
    publisher.publish_all(50)
    consumer.says("UNACKED")
    answer = exam.found("behind", "slow-consumer", "consumer/")
    assert "its application holds 20 messages and has acked none for" in answer.sentence
    consumer.says("NOT_RECEIVED", waiting=UNACKED, limit=1_000, lasted_ms=8_000)
    answer = exam.now("behind", "not-received", "consumer/")
    assert "has not taken 20 messages out of its receiver queue for 8 s" in answer.sentence
    taken(exam, consumer)
    exam.ok_again()
