"""What a new user of a broker sees first, and an operator at night: asked as they ask, by name.

Situations that the exam does not contain as they are here, on the manual clock: the answer, who is
concerned, and what ``penstock why`` prints of it.
"""

import json

import pytest

from kit.exam import EVERYTHING, Exam
from penstock.cli.flow_lines import name_lines, narrowed, why_lines
from penstock.engine.host import Mode
from penstock.engine.topic import FanoutRoute, Overflow, TopicPolicy
from penstock.flow.demand import Permits, Window
from penstock.flow.progress import STUCK_MS
from penstock.model.record import neutral_record
from penstock.model.steps import finished
from penstock.telemetry.flow_api import flow_page_steps


@pytest.fixture
def exam():
    return Exam()


def asked(exam):
    """``/api/flow``, as ``penstock why`` gets it."""
    clock = exam.bench.clock
    stages = exam.bench.engine.flow_map(clock.monotonic_ms())
    page = finished(flow_page_steps(stages, limits=(), events=(), clock=clock))
    return json.loads(page.body)


def why(exam, name=""):
    """What ``penstock why`` prints."""
    page = asked(exam)
    return "\n".join(name_lines(page, narrowed(page, name)) if name else why_lines(page))


def headline(finding):
    return "".join(part.text for part in finding.headline)


# Whom it names, and where.


def test_a_slow_consumer_is_found_by_the_name_of_its_connection(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(5), "127.0.0.1:4711 -> 127.0.0.1:5672 (1) ctag1")
    mailer = exam.bench.connect()
    reader.consumer.connection_id = mailer.connection_id
    exam.begins()
    exam.publish(topic, 50)
    found = exam.found("behind", "slow-consumer", "consumer/")
    assert found.detail == f"It is on connection {mailer.name}."
    assert "ctag1 is slow" in why(exam, mailer.name).splitlines()[0]
    assert "\nSince 6.5 s ago." in why(exam, "orders")
    (advice,) = found.do
    assert advice.command == "penstock why orders/billing"
    assert "ctag1" in why(exam, "orders/billing")


def test_who_is_refused_is_named_and_does_not_wait(exam):
    topic, _ = exam.topic(policy=TopicPolicy(length_max=5, overflow=Overflow.REJECT))
    channel = exam.bench.channel()
    publisher = channel.connection
    exam.begins()
    exam.meanwhile = lambda: exam.publish(topic, 9, channel)
    waiting = [publisher.stage.id]
    found = exam.found("refusing", "length-limit", "topic/orders", waiting=waiting)
    assert headline(found).endswith(f"it is full. {publisher.name} is refused.")
    assert f"\nRefused: {publisher.name}." in why(exam)
    assert why(exam, publisher.name).startswith("topic orders refuses")


def test_who_publishes_what_no_queue_wants_waits_for_nobody(exam):
    channel = exam.bench.channel()
    exam.begins()
    exam.meanwhile = lambda: exam.bench.publish(channel, FanoutRoute(()), b"x")
    exam.pass_ms(8_000)
    waiting = [channel.connection.stage.id]
    found = exam.now("discarding", "unroutable", "channel/", waiting=waiting)
    assert headline(found).endswith("publishes what no queue wants.")


def test_a_queue_that_drops_names_its_slow_reader_and_its_publishers(exam):
    policy = TopicPolicy(length_max=50, overflow=Overflow.DROP_HEAD)
    topic, subscription = exam.topic(policy=policy)
    reader, channel = exam.reader(subscription, Window(5), "mailer"), exam.bench.channel()
    exam.begins()
    exam.meanwhile = lambda: (exam.publish(topic, 60, channel), reader.ack(2))
    waiting = [channel.connection.stage.id]
    found = exam.found("discarding", "drop-head", "sub/orders/billing", waiting=waiting)
    assert "consumer mailer is slow: it has 5 unsettled messages" in found.sentence
    assert headline(found).endswith(f"They come from {channel.connection.name}.")
    assert "-> nobody" not in why(exam)
    subscription.detach(reader.consumer)
    exam.publish(topic, 60, channel)
    found = exam.now("discarding", "drop-head", "sub/", waiting=waiting)
    assert "nobody consumes" in found.sentence


# Consumers that have everything, or ask for no more.


@pytest.mark.parametrize("demand", [Window(1_000), Window(0), Permits(1_000)])
def test_a_consumer_with_a_wide_window_that_never_acks_is_found_while_nothing_is_ready(
    exam, demand
):
    topic, subscription = exam.topic()
    reader, channel = exam.reader(subscription, demand, "mailer"), exam.bench.channel()
    exam.begins()
    exam.meanwhile = lambda: exam.publish(topic, 5, channel)
    found = exam.found(
        "behind", "never-acks", "consumer/", name="mailer", within_ms=STUCK_MS + 2_000
    )
    assert found.since_ms == exam.now_ms - 3_500, "when the oldest was too old"
    exam.meanwhile = None
    reader.ack_all()
    exam.ok_again()


def test_a_wide_window_that_is_settled_a_little_slower_than_it_fills_is_slow(exam):
    topic, subscription = exam.topic()
    reader, channel = exam.reader(subscription, Permits(1_000), "mailer"), exam.bench.channel()
    exam.begins()
    exam.meanwhile = lambda: (exam.publish(topic, 5, channel), reader.ack(1))
    found = exam.found("behind", "slow-consumer", "consumer/", name="mailer", within_ms=60_000)
    assert found.since_ms is not None
    exam.meanwhile = lambda: (exam.publish(topic, 5, channel), reader.ack(40))
    exam.ok_again()


def test_a_burst_in_a_wide_window_that_is_worked_off_is_ok_in_every_look(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(0), "mailer")
    for _ in range(10):
        exam.publish(topic, 500)
    for _ in range(120):
        reader.ack(20)
        exam.bench.advance(500)
        exam.ok()


def test_a_consumer_of_few_permits_that_settles_slowly_is_slow_and_not_silent(exam):
    topic, subscription = exam.topic()
    reader, channel = exam.reader(subscription, Permits(10), "biller"), exam.bench.channel()

    def works():
        exam.publish(topic, 20, channel)
        reader.ack(1)
        reader.consumer.grant(1)
        exam.bench.settle()

    exam.begins()
    exam.meanwhile = works
    found = exam.found("behind", "slow-consumer", "consumer/", name="biller")
    assert "and asks for no more" in found.sentence
    exam.meanwhile = lambda: (reader.consumer.grant(1_000), reader.ack_all())
    exam.ok_again()


def test_a_key_that_is_stuck_is_the_fault_of_who_has_it_and_not_of_who_would_take_more(exam):
    topic, subscription = exam.topic(mode=Mode.KEY_SHARED)
    readers = {
        each: exam.reader(subscription, Permits(20), each, mode=Mode.KEY_SHARED) for each in "ab"
    }
    owners = subscription.cursor(topic.queues[0].queue_id).dispatcher.owners
    stuck = owners.owner(owners.slot(b"k")).label
    channel = exam.bench.channel()

    def publishes():
        exam.bench.publish(channel, topic, *[neutral_record(b"x", key=b"k")] * 5)
        exam.bench.settle()
        for name, reader in readers.items():
            if name != stuck:
                reader.ack_all()

    exam.begins()
    exam.meanwhile = publishes
    found = exam.found("behind", "demand", "sub/orders/billing")
    assert found.detail == f"Consumers: {stuck}."
    exam.found("behind", "never-acks", "consumer/", name=stuck, within_ms=STUCK_MS + 2_000)


# Messages that come back.


def test_a_message_that_is_nacked_again_and_again_is_a_loop_of_a_pulsar_consumer_too(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Permits(100_000), "nacker")

    def nacks():
        reader.outlet.deliveries.clear()
        subscription.redeliver(reader.consumer)
        exam.bench.settle()

    exam.begins()
    exam.publish(topic, 2)
    exam.meanwhile = nacks
    found = exam.found("behind", "requeue-loop", "consumer/", name="nacker")
    assert found.since_ms is not None
    exam.meanwhile = reader.ack_all
    exam.ok_again()


def test_a_loop_ends_with_its_consumer_and_nobody_is_said_to_requeue(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(1), "looper")
    exam.begins()
    exam.publish(topic)
    exam.meanwhile = reader.nack
    since_ms = exam.now_ms
    assert exam.found("behind", "requeue-loop", "consumer/", name="looper").since_ms == since_ms
    exam.meanwhile = None
    subscription.detach(reader.consumer)
    exam.pass_ms(1_000)
    assert "nobody consumes" in exam.now("behind", "nobody", "sub/orders/billing").sentence


def test_a_loop_ends_when_the_message_is_kept(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(1), "looper")
    exam.begins()
    exam.publish(topic)
    exam.meanwhile = reader.nack
    exam.found("behind", "requeue-loop", "consumer/", name="looper")
    exam.meanwhile = None
    exam.ok_again()


# Since when.


def test_a_poller_that_takes_everything_every_eight_seconds_is_ok_in_every_look(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(0), "batcher", is_passive=True)
    channel = exam.bench.channel()
    subscription.take(reader.consumer, 1)
    for second in range(60):
        exam.publish(topic, 5, channel)
        exam.bench.advance(1_000)
        exam.ok()
        if second % 8 == 7:
            taken = subscription.take(reader.consumer, 100)
            subscription.settle(topic.queues[0].queue_id, [each.offset for each in taken])
            exam.bench.settle()


def test_who_is_late_and_takes_all_within_a_second_is_not_late_any_more(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(0), "getter", is_passive=True)
    exam.publish(topic, 50)
    exam.pass_ms(6_000)
    subscription.take(reader.consumer, 10)
    assert subscription.progress.is_late
    subscription.take(reader.consumer, 100)
    assert not subscription.progress.is_late


def test_since_when_is_that_of_this_backlog_and_not_of_one_that_was_worked_off(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(5), "mailer")
    exam.begins()
    exam.publish(topic, 50)
    exam.found("behind", "slow-consumer", "consumer/", name="mailer")
    reader.ack_all()
    exam.ok_again()
    exam.begins()
    exam.publish(topic, 50)
    found = exam.found("behind", "slow-consumer", "consumer/", name="mailer")
    assert found.since_ms == exam.now_ms - 6_500


# Topics that are full, and who does not empty them.


@pytest.mark.parametrize("overflow", [Overflow.HOLD, Overflow.REJECT])
def test_a_full_queue_is_told_with_the_reader_that_does_not_empty_it(exam, overflow):
    policy = TopicPolicy(length_max=5, overflow=overflow)
    topic, subscription = exam.topic(policy=policy)
    reader, channel = exam.reader(subscription, Window(1), "mailer"), exam.bench.channel()
    exam.publish(topic, 30, channel)
    for _ in range(4):
        reader.ack(1)
        exam.publish(topic, 3, channel)
        exam.bench.advance(1_000)
    cause = ("holding", "held") if overflow is Overflow.HOLD else ("refusing", "length-limit")
    found = exam.answer()
    assert (found.severity, found.cause) == cause
    assert "Consumer mailer is slow: it has 1 unsettled message" in found.detail
    subscription.detach(reader.consumer)
    exam.publish(topic, 3, channel)
    assert "Nobody consumes subscription orders/billing." in exam.answer().detail


def test_a_publisher_that_left_what_is_held_does_not_wait_any_more(exam):
    topic, _ = exam.topic(policy=TopicPolicy(length_max=5, overflow=Overflow.HOLD))
    gone, there = exam.bench.channel(), exam.bench.channel()
    exam.publish(topic, 9, gone)
    exam.publish(topic, 9, there)
    gone.connection.close()
    exam.bench.advance(2_000)
    found = exam.answer()
    assert found.cause == "held"
    names = {each.name for each in found.waiters}
    assert names == {there.connection.name, f"{gone.stage.name} (closed)"}


# Dead letters.


def test_a_waiting_room_for_what_was_rejected_is_no_grave(exam):
    back = TopicPolicy(message_ttl_ms=4_000, dead_letter_topic="orders")
    room = exam.bench.topic("orders.wait", back)
    exam.bench.engine.create_subscription(room.name, "waits", EVERYTHING)
    topic, subscription = exam.topic(policy=TopicPolicy(dead_letter_topic="orders.wait"))
    reader, channel = exam.reader(subscription, Window(5), "mailer"), exam.bench.channel()
    for _ in range(30):
        exam.publish(topic, 1, channel)
        reader.reject(1)
        reader.ack_all()
        exam.bench.advance(1_000)
        exam.ok()


def test_dead_letters_that_somebody_reads_are_not_left_lying(exam):
    _, buried = exam.topic("orders.dead")
    topic, subscription = exam.topic(policy=TopicPolicy(dead_letter_topic="orders.dead"))
    reader, channel = exam.reader(subscription, Window(5), "mailer"), exam.bench.channel()
    undertaker = exam.reader(buried, Window(1), "undertaker")
    for _ in range(20):
        exam.publish(topic, 3, channel)
        reader.reject()
        exam.ok()
        undertaker.ack_all()
        exam.bench.advance(1_000)
