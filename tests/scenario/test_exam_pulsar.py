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
    exam.ok()
    publish(exam, topic, 5, key=b"k")
    exam.bench.advance(6_000)
    found = exam.found("behind", "draining", "sub/orders/billing", is_lasting=True)
    assert f"consumer {others[-1].consumer.name}, for consumer a" in found.sentence
    former.ack()
    others[-1].ack()
    exam.ok()


def test_the_active_one_is_to_take_over_and_nobody_gets_anything_meanwhile(exam):
    topic, subscription = exam.topic(mode=Mode.FAILOVER)
    rule = FailoverRule(takeover_ms=20_000)
    first = exam.reader(subscription, Permits(100), "a", mode=Mode.FAILOVER, failover=rule)
    exam.reader(subscription, Permits(100), "b", mode=Mode.FAILOVER, failover=rule)
    publish(exam, topic, 5)
    exam.ok()
    exam.bench.advance(6_000)
    exam.found("behind", "inactive", "sub/orders/billing", is_lasting=True)
    exam.bench.advance(15_000)
    first.ack()
    exam.ok()


def test_no_permits(exam):
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Permits(2), "ann")
    publish(exam, topic, 10)
    exam.ok()
    exam.bench.advance(6_000)
    found = exam.found("behind", "demand", "sub/orders/billing", is_lasting=True)
    assert "ann" in found.detail
    reader.consumer.grant(100)
    reader.consumer.wake()
    exam.bench.settle()
    exam.ok()


def test_a_backlog_quota_of_a_topic_that_holds_its_producers(exam):
    policy = TopicPolicy(quota_bytes_max=300, quota_policy=QuotaPolicy.HOLD)
    topic, subscription = exam.topic(policy=policy)
    reader = exam.reader(subscription, Permits(1), "ann")
    channel = exam.bench.channel()
    for _ in range(9):
        exam.bench.publish(channel, topic, b"x" * 100)
        exam.bench.settle()
    waiting = [channel.connection.stage.id]
    limit = "limit/quota_bytes_max/topic/orders"
    exam.found("holding", "quota", limit, waiting=waiting, is_lasting=True)
    reader.consumer.grant(100)
    reader.consumer.wake()
    exam.bench.settle()
    reader.ack_all()
    exam.bench.advance(2_000)
    reader.ack_all()
    exam.ok()


def test_no_room_to_put_delayed_messages_aside():
    topics = TopicSettings(delayed_in_memory_max=20, delayed_on_disk_max=0)
    exam = Exam(parts={"topics": topics})
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Permits(100), "ann")
    publish(exam, topic, 60, deliver_ms=exam.bench.clock.wall_ms() + 30_000)
    publish(exam, topic, 5)
    exam.ok()
    exam.bench.advance(6_000)
    found = exam.found("behind", "delayed-room", "sub/orders/billing", is_lasting=True)
    assert "topics.delayed_on_disk_max" in found.sentence
    exam.bench.advance(40_000)
    reader.ack_all()
    exam.ok()
