"""Unit tests for a producer that is held while a consumer shares its connection: no deadlock.

C++ clients have one connection for all their producers and consumers. Whatever holds a producer,
acks and permits come over the same socket, and may be what it waits for.
"""

import pytest

from kit.pulsar.bench import PulsarBench
from kit.pulsar.consumers import KINDS, Publisher, Subscriber
from penstock.adapters.pulsar.namespaces import PublishRate, QuotaRule
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

TAKEOVER_MS = 1_000
MESSAGES = 40
BODY = b"x" * 500


def policies(bench, **changes):
    bench.broker.namespaces.set_policies("public/default", **changes)
    while bench.broker.namespaces.is_applying:
        bench.broker.namespaces.apply_some()


def alarm(bench, used_bytes):
    bench.engine.set_alarm("disk", 1 << 40)
    bench.engine.set_alarm_limits(memory_bytes=1_000, disk_free_bytes=1)
    bench.engine.set_alarm("memory", used_bytes)


def hold_by_quota(bench):
    rule = QuotaRule(limit_size=2_000, policy="producer_request_hold")
    policies(bench, backlog_quotas={"destination_storage": rule})


def hold_by_rate(bench):
    policies(bench, publish_rate=PublishRate(publish_throttling_rate_in_msg=10))


def ready(client, kind):
    consumer = Subscriber(client, kind=kind, initialPosition="Earliest").opened()
    client.bench.pass_time(TAKEOVER_MS)
    return consumer


@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_drains_the_quota_that_holds_its_own_connections_producer(bench, client, kind):
    consumer = ready(client, kind)
    publisher = Publisher(client)
    hold_by_quota(bench)
    for _ in range(MESSAGES):
        publisher.send(BODY, partition_key="k")
    stored = publisher.receipts()
    assert 0 < len(stored) < MESSAGES, "the producer is held"
    assert client.connection.is_reading
    for _ in range(MESSAGES):
        consumer.flow(5)
        consumer.ack(*consumer.ids())
        stored += publisher.receipts()
        if len(stored) == MESSAGES:
            break

    assert len(stored) == MESSAGES
    assert not client.heard_of(BaseCommand.CLOSE_PRODUCER)


@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_reads_and_acks_while_a_rate_holds_its_own_connections_producer(
    bench, client, kind
):
    consumer = ready(client, kind).flow(1_000)
    publisher = Publisher(client)
    hold_by_rate(bench)
    for _ in range(MESSAGES):
        publisher.send(BODY, partition_key="k")
    stored, seen = publisher.receipts(), []
    assert len(stored) < MESSAGES, "the producer is held"
    for _ in range(50):
        got = consumer.ids()
        consumer.acked(*got)
        seen += got
        bench.pass_time(100)
        client.say("PONG")
        stored += publisher.receipts()
    seen += consumer.ids()

    assert seen == stored
    assert len(stored) == MESSAGES


@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_drains_while_an_alarm_holds_its_own_connections_producer(bench, client, kind):
    consumer = ready(client, kind)
    publisher = Publisher(client)
    stored = publisher.publish_all(10, partition_key="k")
    alarm(bench, 2_000)
    for _ in range(10):
        publisher.send(BODY, partition_key="k")
    assert publisher.receipts() == []
    assert client.connection.is_reading
    consumer.flow(100)
    assert consumer.ids() == stored
    told = consumer.acked(*stored)
    assert not told.HasField("error"), "the ack is on disk while publishes are held"
    assert consumer.unacked == 0
    alarm(bench, 0)

    more = publisher.receipts()
    assert len(more) == 10
    assert consumer.ids() == more


def test_a_consumer_drains_what_its_own_connection_waits_for(bench, client):
    """All at once: a quota and a rate hold, permits trickle in, and everything gets through."""
    consumer = ready(client, "Shared")
    publisher = Publisher(client)
    hold_by_quota(bench)
    hold_by_rate(bench)
    for _ in range(MESSAGES):
        publisher.send(BODY)
    stored, seen = publisher.receipts(), []
    for _ in range(120):
        consumer.flow(1)
        got = consumer.ids()
        consumer.ack(*got)
        seen += got
        bench.pass_time(100)
        client.say("PONG")
        stored += publisher.receipts()

    assert len(stored) == MESSAGES
    assert seen == stored


def test_a_consumer_is_served_when_more_sends_wait_than_a_producer_may_have():
    """F9 holds the producer's channel, not the socket."""
    bench = PulsarBench()
    client = bench.client()
    consumer = ready(client, "Shared")
    publisher = Publisher(client)
    alarm(bench, 2_000)
    for _ in range(bench.settings.pulsar.max_pending_publish_requests + 200):
        publisher.send(b"x")
    assert publisher.receipts() == []

    assert client.connection.is_reading
    assert client.call("PING").type == BaseCommand.PONG
    assert consumer.permits == 0


def test_a_connection_beyond_its_share_of_memory_is_not_read_and_goes_on_when_it_has_room():
    """The one case in which acks wait, too: bounded by bytes, and told by PONGs."""
    bench = PulsarBench(Settings(flow=FlowSettings(connection_bytes_max=100_000)))
    client = bench.client()
    publisher = Publisher(client)
    consumer = ready(client, "Shared").flow(1_000)
    alarm(bench, 2_000)
    sent = 0
    while client.connection.is_reading:
        publisher.send(b"x" * 5_000)
        bench.settle()
        sent += 1
        assert sent < 1_000
    client.commands()
    bench.pass_time(10_000)
    assert client.heard_of(BaseCommand.PONG)
    alarm(bench, 0)
    bench.settle()

    assert client.connection.is_reading
    assert len(publisher.receipts()) == sent
    while consumer.ids():
        pass
    assert consumer.unacked == sent


def test_the_answers_of_one_read_are_not_lost_when_the_producer_in_it_is_held(bench, client):
    """SENDs that are held, and behind them in the same packet an ACK, a FLOW and a PING."""
    consumer = ready(client, "Shared").flow(10)
    publisher = Publisher(client)
    (first,) = publisher.publish_all(1)
    assert consumer.ids() == [first]
    alarm(bench, 2_000)
    taken = []
    client.raw, raw = taken.append, client.raw
    publisher.send(b"held")
    client.say(
        "ACK", consumer_id=consumer.id, ack_type="Individual", request_id=1,
        message_id=[{"ledgerId": first[0], "entryId": first[1]}],
    )  # fmt: skip
    client.say("FLOW", consumer_id=consumer.id, messagePermits=5)
    client.say("PING")
    client.raw = raw
    client.raw(b"".join(taken))

    assert client.heard_of(BaseCommand.ACK_RESPONSE)
    assert client.heard_of(BaseCommand.PONG)
    assert consumer.permits == 14
    assert publisher.receipts() == []
