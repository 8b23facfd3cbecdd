"""The exam of what Pulsar's subscriptions meet: permits, limits, keys, the active one, rates."""

import pytest

from kit.exam import Exam
from penstock.engine.host import FailoverRule, Mode
from penstock.engine.topic import TopicPolicy
from penstock.flow.demand import Permits
from penstock.flow.quota import QuotaPolicy
from penstock.model.record import neutral_record
from penstock.settings.broker import TopicSettings


@pytest.fixture
def exam():
    return Exam()


def publish(exam, topic, count, *, key=b"", deliver_ms=0):
    records = [neutral_record(b"x", key=key) for _ in range(count)]
    for record in records:
        if deliver_ms:
            record.reshape(deliver_ms=deliver_ms)
    exam.bench.publish(exam.bench.channel(), topic, *records)
    exam.bench.settle()


def test_keys_that_wait_until_their_former_consumer_has_settled(exam):
    topic, subscription = exam.topic(mode=Mode.KEY_SHARED)
    former = exam.reader(subscription, Permits(100), "a", mode=Mode.KEY_SHARED)
    publish(exam, topic, 1, key=b"k")
    owners = subscription.cursor(topic.queues[0].queue_id).dispatcher.owners
    others = []
    while owners.owner(owners.slot(b"k")) is former.consumer:
        others.append(exam.reader(subscription, Permits(100), f"b{len(others)}"))
    exam.begins()
    publish(exam, topic, 5, key=b"k")
    found = exam.found("behind", "draining", "sub/orders/billing")
    assert f"consumer {others[-1].consumer.name}, for consumer a" in found.sentence
    former.ack()
    others[-1].ack()
    exam.ok_again()


def test_the_active_one_is_to_take_over_and_nobody_gets_anything_meanwhile(exam):
    topic, subscription = exam.topic(mode=Mode.FAILOVER)
    rule = FailoverRule(takeover_ms=20_000)
    first = exam.reader(subscription, Permits(100), "a", mode=Mode.FAILOVER, failover=rule)
    exam.reader(subscription, Permits(100), "b", mode=Mode.FAILOVER, failover=rule)
    exam.begins()
    publish(exam, topic, 5)
    exam.found("behind", "inactive", "sub/orders/billing")
    exam.bench.advance(9_000)
    first.ack()
    exam.ok_again()


def test_who_is_not_active_is_not_to_blame(exam):
    topic, subscription = exam.topic(mode=Mode.FAILOVER)
    active = exam.reader(subscription, Permits(2), "a", mode=Mode.FAILOVER)
    exam.reader(subscription, Permits(100), "b", mode=Mode.FAILOVER)
    exam.begins()
    publish(exam, topic, 10)
    found = exam.found("behind", "demand", "sub/orders/billing")
    assert found.detail == "Consumers: a."
    active.consumer.grant(100)
    active.consumer.wake()
    exam.bench.settle()
    exam.ok_again()


def test_no_permits(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Permits(2), "ann")
    exam.begins()
    publish(exam, topic, 10)
    found = exam.found("behind", "demand", "sub/orders/billing")
    assert "ann" in found.detail
    reader.consumer.grant(100)
    reader.consumer.wake()
    exam.bench.settle()
    exam.ok_again()


def test_too_much_for_the_keys_of_a_consumer_that_asks_for_nothing(exam):
    topic, subscription = exam.topic(mode=Mode.KEY_SHARED)
    silent = exam.reader(subscription, Permits(0), "ann", mode=Mode.KEY_SHARED)
    exam.reader(subscription, Permits(5_000), "ben", mode=Mode.KEY_SHARED)
    owners = subscription.cursor(topic.queues[0].queue_id).dispatcher.owners
    keys = (f"k{number}".encode() for number in range(1_000))
    key = next(each for each in keys if owners.owner(owners.slot(each)) is silent.consumer)
    for _ in range(10):
        publish(exam, topic, 500, key=key)
    exam.begins()
    exam.found("behind", "look-ahead", "sub/orders/billing")
    silent.consumer.grant(10_000)
    silent.consumer.wake()
    exam.bench.settle()
    exam.ok_again()


def test_a_backlog_quota_of_a_topic_that_holds_its_producers(exam):
    policy = TopicPolicy(quota_bytes_max=300, quota_policy=QuotaPolicy.HOLD)
    topic, subscription = exam.topic(policy=policy)
    reader = exam.reader(subscription, Permits(1), "ann")
    channel = exam.bench.channel()
    exam.begins()
    for _ in range(9):
        exam.bench.publish(channel, topic, b"x" * 100)
        exam.bench.settle()
    limit = "limit/quota_bytes_max/topic/orders"
    exam.found("holding", "quota", limit, waiting=[channel.connection.stage.id])
    reader.consumer.grant(100)
    reader.consumer.wake()
    exam.bench.settle()
    exam.meanwhile = reader.ack_all
    exam.ok_again()


def test_a_backlog_quota_that_refuses_what_is_published(exam):
    policy = TopicPolicy(quota_bytes_max=300, quota_policy=QuotaPolicy.EXCEPTION)
    topic, subscription = exam.topic(policy=policy)
    channel = exam.bench.channel()

    def publishes():
        exam.bench.publish(channel, topic, b"x" * 200)
        exam.bench.settle()

    exam.begins()
    exam.meanwhile = publishes
    exam.found("refusing", "quota", "topic/orders", waiting=[channel.connection.stage.id])
    exam.meanwhile = exam.reader(subscription).ack_all
    exam.ok_again()


def test_a_backlog_quota_that_evicts_is_a_loss_to_who_reads(exam):
    policy = TopicPolicy(quota_bytes_max=300, quota_policy=QuotaPolicy.EVICT)
    topic, subscription = exam.topic(policy=policy)
    reader, channel = exam.reader(subscription, Permits(1), "ann"), exam.bench.channel()

    def publishes():
        exam.bench.publish(channel, topic, b"x" * 200)
        exam.bench.settle()

    exam.begins()
    exam.meanwhile = publishes
    publisher = [channel.connection.stage.id]
    exam.found("discarding", "evict", "sub/orders/billing", waiting=publisher)
    exam.meanwhile = reader.ack_all
    reader.consumer.grant(100)
    reader.consumer.wake()
    exam.ok_again()


def test_no_room_to_put_delayed_messages_aside():
    topics = TopicSettings(delayed_in_memory_max=20, delayed_on_disk_max=0)
    exam = Exam(parts={"topics": topics})
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Permits(100), "ann")
    exam.begins()
    publish(exam, topic, 60, deliver_ms=exam.bench.clock.wall_ms() + 30_000)
    publish(exam, topic, 5)
    found = exam.found("behind", "delayed-room", "sub/orders/billing")
    assert "topics.delayed_on_disk_max" in found.sentence
    exam.bench.advance(19_000)
    exam.meanwhile = reader.ack_all
    exam.ok_again()
