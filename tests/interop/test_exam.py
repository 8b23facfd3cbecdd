"""The exam with real clients: what a user meets most, asked over HTTP as ``penstock why`` does.

Before and after it is ``ok``; in between it is the right culprit, for the right cause. A queue that
nobody reads on purpose lies there all the time.
"""

import contextlib
import json
import shlex
import time

import pika
import pytest
from click.testing import CliRunner

from penstock.cli.main import penstock
from penstock.testing.running import eventually, running_broker

BEHIND = ("--set", "flow.behind_ms=500")
"""Half a second instead of five: nothing else is different."""


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

    def found(self, severity, cause):
        def asked():
            answer = self.answer()
            return answer if (answer["severity"], answer["cause"]) == (severity, cause) else None

        return eventually(asked, what=f"{severity}, {cause}; {self.answer()['sentence']}")

    def ok(self):
        def asked():
            return self.answer()["severity"] == "ok"

        eventually(asked, what=f"ok; {self.answer()['sentence']}")


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
