"""Limits of unacknowledged messages (observations 5)."""

import pytest

from kit.pulsar_peer import Delivery

LIMIT = 10


@pytest.fixture
def limited(pulsar):
    """A topic whose consumers may hold 10 messages."""
    namespace = pulsar.namespace(maxUnackedMessagesPerConsumer=LIMIT)
    return pulsar.topic(namespace=namespace)


def publish(pulsar, topic, entries, messages=0):
    payload = [b"x"] * messages if messages else b"x"
    return pulsar.peer().producer(topic).publish_all([payload] * entries, partition_key="k")


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_a_consumer_is_sent_up_to_its_limit(pulsar, peer, limited, kind):
    publish(pulsar, limited, 30)
    consumer = peer.consumer(limited, "s", kind, initialPosition="Earliest")
    consumer.flow(100)
    consumer.messages(LIMIT)
    peer.expect_nothing()
    assert consumer.unacked == LIMIT
    assert consumer.permits == 90
    assert consumer.stats().blockedConsumerOnUnackedMsgs


def test_batches_pass_the_limit_by_less_than_one(pulsar, peer, limited):
    publish(pulsar, limited, 5, 7)
    consumer = peer.consumer(limited, "s", "Shared", initialPosition="Earliest")
    consumer.flow(100)
    consumer.messages(2)
    peer.expect_nothing()
    assert consumer.unacked == 14


def test_it_goes_on_at_half_with_the_permits_that_came_meanwhile(pulsar, peer, limited):
    publish(pulsar, limited, 30)
    consumer = peer.consumer(limited, "s", "Shared", initialPosition="Earliest")
    consumer.flow(100)
    held = [each.id for each in consumer.messages(LIMIT)]
    consumer.flow(7)
    assert consumer.permits == 90
    consumer.ack(*held[:4])
    peer.expect_nothing()
    assert consumer.unacked == 6
    consumer.ack(held[4])
    consumer.messages(5)
    peer.expect_nothing()
    assert consumer.unacked == LIMIT
    assert consumer.permits == 92


def test_redelivery_unblocks_and_the_same_come_again(pulsar, peer, limited):
    publish(pulsar, limited, 30)
    consumer = peer.consumer(limited, "s", "Shared", initialPosition="Earliest")
    consumer.flow(100)
    held = [each.id for each in consumer.messages(LIMIT)]
    peer.expect_nothing()
    consumer.redeliver()
    assert [(each.id, each.count) for each in consumer.messages(LIMIT)] == [(i, 1) for i in held]
    peer.expect_nothing()


def test_an_ack_by_another_consumer_counts_for_the_owner(pulsar, peer, limited):
    consumer = peer.consumer(limited, "s", "Shared")
    consumer.flow(100)
    peer.expect_nothing()
    publish(pulsar, limited, 20)
    held = [each.id for each in consumer.messages(LIMIT)]
    peer.expect_nothing()
    other = pulsar.peer().consumer(limited, "s", "Shared")
    other.acked(*held[:3])
    assert consumer.unacked == 7


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_exclusive_and_failover_have_no_limit(pulsar, peer, limited, kind):
    publish(pulsar, limited, 30)
    consumer = peer.consumer(limited, "s", kind, initialPosition="Earliest")
    if kind == "Failover":
        peer.expect("active_consumer_change")
    consumer.flow(100)
    consumer.messages(30)


def test_a_non_durable_shared_subscription_has_no_limit(pulsar, peer, limited):
    consumer = peer.reader(limited, kind="Shared")
    consumer.flow(100)
    peer.expect_nothing()
    publish(pulsar, limited, 30)
    consumer.messages(30)


def test_a_subscription_at_its_limit_reads_no_more_but_replays(pulsar, peer):
    namespace = pulsar.namespace(maxUnackedMessagesPerSubscription=LIMIT)
    topic = pulsar.topic(namespace=namespace)
    publish(pulsar, topic, 150)
    consumer = peer.consumer(topic, "s", "Shared", initialPosition="Earliest")
    consumer.flow(200)
    held = [Delivery(each).id for each in peer.gather()]
    assert LIMIT <= len(held) < 150
    consumer.redeliver(*held[:2])
    assert [(each.id, each.count) for each in consumer.messages(2)] == [(i, 1) for i in held[:2]]
    peer.expect_nothing()
    left = len(held)
    consumer.acked(*held[: left - 7])
    peer.expect_nothing()
    consumer.acked(*held[left - 7 : left - 4])
    assert consumer.message().id > held[-1]
