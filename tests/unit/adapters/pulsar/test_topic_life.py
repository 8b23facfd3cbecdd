"""Unit tests for what becomes of a topic's messages in time: time to live, retention, its end."""

import pytest

from kit.pulsar.bench import PulsarBench
from kit.pulsar.consumers import TOPIC, Publisher, Subscriber
from penstock.adapters.pulsar.namespaces import RetentionRule
from penstock.adapters.pulsar.naming import parse_name, subscription_name
from penstock.model.names import topic_name
from penstock.settings.broker import StorageSettings
from penstock.settings.load import Settings
from penstock.wire.pulsar.frames import NO_ID
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, CommandSubscribe

NAME = topic_name("orders")
NAMESPACE = "public/default"
EARLIEST = (NO_ID, NO_ID)
MINUTE_MS = 60_000


@pytest.fixture
def publisher(client):
    return Publisher(client)


def subscribed(client, subscription="s", kind="Shared", **fields):
    fields.setdefault("initialPosition", CommandSubscribe.Earliest)
    return Subscriber(client, subscription=subscription, kind=kind, **fields).opened()


def acked(bench, subscription="s"):
    """Everything below is acked."""
    topic = bench.engine.topic(NAME)
    stored = topic.subscriptions[subscription_name(subscription)]
    return stored.low_mark(topic.queues[0].queue_id)


def live(bench, seconds):
    bench.broker.namespaces.set_policies(NAMESPACE, message_ttl_s=seconds)


# ---- time to live -------------------------------------------------------------------------------


def test_a_time_to_live_acks_what_is_older_on_every_subscription_without_consumers(
    bench, client, publisher
):
    live(bench, 10)
    for name in ("s", "t"):
        subscribed(client, name).close()
    publisher.publish_all(3)
    bench.pass_time(6_000)
    publisher.publish_all(2, messages=2)
    bench.pass_time(5_000)
    assert (acked(bench, "s"), acked(bench, "t")) == (3, 3)
    bench.pass_time(6_000)

    assert (acked(bench, "s"), acked(bench, "t")) == (7, 7)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_what_is_too_old_is_not_delivered_to_who_comes_later(bench, client, publisher, kind):
    live(bench, 10)
    subscribed(client, kind=kind).close()
    publisher.publish_all(3)
    bench.pass_time(11_000)
    young = publisher.publish()
    consumer = subscribed(client, kind=kind).flow(10)
    bench.pass_time(1_100)

    assert consumer.ids() == [young]


def test_a_time_to_live_that_comes_later_holds_for_what_is_there(bench, client, publisher):
    subscribed(client).close()
    publisher.publish_all(3)
    bench.pass_time(20_000)
    live(bench, 10)
    bench.pass_time(100)
    assert acked(bench) == 3

    live(bench, 0)
    publisher.publish()
    bench.pass_time(MINUTE_MS)
    assert acked(bench) == 3


def test_a_topic_may_have_another_time_to_live_than_its_namespace(bench, client, publisher):
    live(bench, 10)
    bench.broker.namespaces.set_topic_policies(NAME, message_ttl_s=30)
    subscribed(client).close()
    publisher.publish()
    bench.pass_time(20_000)
    assert acked(bench) == 0
    bench.pass_time(11_000)

    assert acked(bench) == 1


def test_who_has_a_message_that_gets_too_old_may_ack_it_and_it_does_not_come_again(
    bench, client, publisher
):
    live(bench, 10)
    consumer = subscribed(client).flow(10)
    first, second = publisher.publish(), publisher.publish()
    assert consumer.ids() == [first, second]
    permits = consumer.permits
    bench.pass_time(20_000)
    client.say("PONG")
    assert (consumer.ids(), consumer.permits, consumer.unacked) == ([], permits, 2)
    consumer.ack(second)
    consumer.redeliver()

    assert consumer.ids() == []
    assert acked(bench) == 2


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_a_time_to_live_acked_stays_acked(bench, client, publisher, end):
    live(bench, 10)
    subscribed(client).close()
    publisher.publish_all(3)
    bench.pass_time(11_000)
    bench.settle()
    getattr(bench, end)()

    assert acked(bench) == 3
    later = bench.client()
    young = Publisher(later).publish()
    bench.pass_time(5_000)
    assert subscribed(later).flow(10).ids() == [young]


# ---- retention ----------------------------------------------------------------------------------


@pytest.fixture
def small():
    """A broker that keeps nothing by itself of what is settled."""
    storage = StorageSettings(segment_bytes_max=65_536, settled_keep_ms=0, settled_keep_bytes_max=0)
    return PulsarBench(Settings(storage=storage))


def filled(bench):
    """A topic of some segments whose only subscription has acked everything; the ids."""
    client = bench.client()
    publisher = Publisher(client)
    consumer = subscribed(client, kind="Exclusive").flow(1_000)
    sent = [publisher.publish(b"%03d" % number + b"." * 4_000) for number in range(60)]
    consumer.ids()
    consumer.ack(sent[-1], kind="Cumulative")
    bench.settle()
    client.vanish()
    return sent


def read(bench):
    """What a reader finds, from the earliest on."""
    reader = subscribed(bench.client(), "reader-1", "Exclusive", durable=False, start=EARLIEST)
    found = reader.flow(1_000).ids()
    reader.client.vanish()
    return found


def test_what_all_have_acked_goes_without_retention(small):
    sent = filled(small)
    small.pass_time(2 * MINUTE_MS)

    assert len(read(small)) < len(sent)


def test_retention_keeps_what_is_acked_for_readers_and_for_seek(small):
    small.broker.namespaces.set_policies(NAMESPACE, retention=RetentionRule(10, -1))
    sent = filled(small)
    small.pass_time(9 * MINUTE_MS)
    assert read(small) == sent

    consumer = subscribed(small.client(), kind="Exclusive")
    consumer.seek(sent[5])
    small.settle()
    again = subscribed(small.client(), kind="Exclusive").flow(1_000)
    assert again.ids() == sent[5:]


def test_after_its_time_retention_keeps_no_longer(small):
    small.broker.namespaces.set_policies(NAMESPACE, retention=RetentionRule(10, -1))
    sent = filled(small)
    small.pass_time(12 * MINUTE_MS)

    assert len(read(small)) < len(sent)


def test_retention_by_size_keeps_the_newest(small):
    small.broker.namespaces.set_policies(NAMESPACE, retention=RetentionRule(-1, 1))
    sent = filled(small)
    client = small.client()
    publisher, consumer = Publisher(client), subscribed(client, kind="Exclusive").flow(10_000)
    for number in range(300):
        sent.append(publisher.publish(b"%03d" % number + b"." * 4_000))
    consumer.ids()
    consumer.ack(sent[-1], kind="Cumulative")
    small.settle()
    client.vanish()
    small.pass_time(2 * MINUTE_MS)
    kept = read(small)

    assert kept == sent[-len(kept) :]
    assert 900_000 < 4_100 * len(kept) < 4_100 * len(sent)


def test_retention_survives_a_restart(small):
    small.broker.namespaces.set_policies(NAMESPACE, retention=RetentionRule(10, -1))
    sent = filled(small)
    small.stop()
    small.pass_time(5 * MINUTE_MS)

    assert read(small) == sent


# ---- its end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_all_consumers_of_a_subscription_that_has_acked_all_hear_of_the_end(
    bench, client, publisher, kind
):
    sent = publisher.publish_all(2)
    consumer = subscribed(client, kind=kind).flow(10)
    bench.pass_time(1_100)
    behind = subscribed(client, "behind").flow(1)
    assert consumer.ids() == sent
    consumer.ack(*sent)
    bench.engine.terminate_topic(NAME)
    bench.broker.subscriptions.topic_ended(bench.broker.topics.find(parse_name(TOPIC)))
    found = client.heard_of(BaseCommand.REACHED_END_OF_TOPIC)

    assert [each.reached_end_of_topic.consumer_id for each, _ in found] == [consumer.id]
    assert behind.ids() == sent[:1]
