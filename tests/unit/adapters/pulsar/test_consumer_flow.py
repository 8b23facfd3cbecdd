"""Unit tests for permits, limits of what is unacked, and what a MESSAGE carries."""

import pytest

from kit.pulsar.bench import PulsarBench
from kit.pulsar.consumers import EARLIEST, KINDS, TOPIC, Publisher, Subscriber
from penstock.adapters.pulsar.consumer import WAITS_MAX
from penstock.adapters.pulsar.namespaces import DispatchRule
from penstock.flow.demand import PERMITS_MAX, ClientCause
from penstock.model.names import topic_name
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.settings.protocols import PulsarSettings
from penstock.wire.pulsar.frames import encode
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, ConsumerWait

TAKEOVER_MS = 1_000
SHARED_KINDS = ("Shared", "Key_Shared")
ALONE = ("Exclusive", "Failover")
LIMIT = 10


def policies(bench, **changes):
    bench.broker.namespaces.set_policies("public/default", **changes)


def ready(client, kind="Shared", **fields):
    """A consumer of everything, with its turn where there are turns."""
    fields.setdefault("initialPosition", "Earliest")
    consumer = Subscriber(client, kind=kind, **fields).opened()
    if kind == "Failover":
        client.bench.pass_time(TAKEOVER_MS)
    return consumer


@pytest.fixture
def publisher(client):
    return Publisher(client)


# ---- FLOW ---------------------------------------------------------------------------------------


def test_flow_before_connect_closes(bench):
    stranger = bench.stranger()
    stranger.say("FLOW", consumer_id=1, messagePermits=1)

    assert stranger.is_closed


def test_flow_of_an_unknown_consumer_is_ignored_also_of_nothing(client):
    for permits in (1, 0, 2**32 - 1):
        client.say("FLOW", consumer_id=99, messagePermits=permits)

    assert not client.is_closed
    assert client.commands() == []


def test_flow_before_the_consumer_is_done_does_not_count(client, publisher):
    publisher.publish()
    consumer = Subscriber(client, initialPosition="Earliest").flow(5)

    consumer.opened()
    assert consumer.permits == 0
    assert consumer.messages() == []


def test_flow_of_a_consumer_that_was_refused_is_ignored(client):
    consumer = Subscriber(client, subscription="")
    consumer.refusal()
    consumer.flow(0)

    assert not client.is_closed


@pytest.mark.parametrize("permits", [0, 2**31, 2**32 - 1])
def test_flow_of_nothing_or_of_less_closes(client, permits):
    ready(client).flow(permits)

    assert client.is_closed


def test_grants_add_up_and_are_never_beyond_what_a_queue_can_be(client):
    consumer = ready(client).flow(5).flow(7)
    assert consumer.permits == 12
    consumer.flow(2**31 - 1).flow(2**31 - 1)

    assert consumer.permits == PERMITS_MAX
    assert not client.is_closed


def test_without_permits_nothing_comes(client, publisher):
    consumer = ready(client)
    publisher.publish_all(3)

    assert consumer.messages() == []


@pytest.mark.parametrize("kind", KINDS)
def test_messages_come_as_far_as_permits_reach(client, publisher, kind):
    sent = publisher.publish_all(5, partition_key="k")
    consumer = ready(client, kind).flow(2)
    assert consumer.ids() == sent[:2]
    consumer.flow(2)

    assert consumer.ids() == sent[2:4]
    assert consumer.permits == 0


def test_the_time_of_the_last_flow_is_kept_for_operators(bench, client):
    ready(client)
    (stored,) = bench.engine.topic(topic_name("orders")).subscriptions.values()
    (consumer,) = stored.consumers
    assert consumer.last_grant_ms is None
    bench.pass_time(500)
    client.say("FLOW", consumer_id=5000, messagePermits=1)

    assert consumer.last_grant_ms == bench.clock.monotonic_ms()


def test_permits_die_with_the_consumer(client, publisher):
    ready(client).flow(100).close()
    consumer = ready(client)
    publisher.publish()

    assert consumer.messages() == []
    assert consumer.permits == 0


def test_a_cut_connection_leaves_the_place_and_no_permits_20_times(bench, publisher):
    sent = publisher.publish_all(60)
    for number in range(20):
        client = bench.client()
        consumer = ready(client)
        assert consumer.permits == 0
        found = consumer.flow(3).ids()
        assert found == sent[number * 2 : number * 2 + 3]
        consumer.ack(*found[:2])
        client.vanish()

    last = ready(bench.client()).flow(100)
    assert last.ids() == sent[40:]


# ---- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_comes_whole_and_permits_go_below_zero(client, publisher, kind):
    """Of all four types: Pulsar counts so on Shared, and overruns on the others."""
    sent = publisher.publish_all(3, messages=20, partition_key="k")
    consumer = ready(client, kind).flow(5)
    assert consumer.ids() == sent[:1]
    assert consumer.permits == -15
    consumer.flow(10)
    assert consumer.ids() == []
    assert consumer.permits == -5
    consumer.flow(5)
    assert consumer.ids() == []
    consumer.flow(1)

    assert consumer.ids() == sent[1:2]
    assert consumer.permits == -19


def test_each_shared_consumer_has_permits_of_its_own(client, publisher):
    """The sum is negative and one still has some: it is served."""
    poor, rich = ready(client).flow(1), ready(client).flow(50)
    sent = publisher.publish_all(4, messages=20)
    found = (poor.ids(), rich.ids())

    assert len(found[0]) == 1
    assert sorted(found[0] + found[1]) == sent
    assert (poor.permits, rich.permits) == (-19, -10)


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_again_costs_permits_again(client, publisher, kind):
    (sent,) = publisher.publish_all(1, messages=4, partition_key="k")
    consumer = ready(client, kind).flow(10)
    consumer.ids()
    consumer.redeliver()

    assert consumer.ids() == [sent]
    assert consumer.permits == 2


def test_redeliver_grants_no_permits(client, publisher):
    sent = publisher.publish_all(3)
    consumer = ready(client).flow(3)
    assert consumer.ids() == sent
    consumer.redeliver()

    assert consumer.ids() == []
    consumer.flow(2)
    assert consumer.ids() == sent[:2]


def test_acks_grant_no_permits(client, publisher):
    publisher.publish_all(4)
    consumer = ready(client).flow(2)
    consumer.ack(*consumer.ids())

    assert consumer.messages() == []
    assert consumer.permits == 0


def test_a_part_of_a_batch_costs_what_is_left_of_it(client, publisher):
    (sent,) = publisher.publish_all(1, messages=10)
    consumer = ready(client).flow(20)
    consumer.ids()
    consumer.ack({"ledgerId": sent[0], "entryId": sent[1], "ack_set": [0b1111100000]})
    assert consumer.permits == 10
    consumer.redeliver()

    (found,) = consumer.messages()
    assert found.ack_set == [992]
    assert consumer.permits == 5
    assert consumer.unacked == 5


# ---- limits of what is unacked ------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_consumer_gets_up_to_its_limit_of_unacked_messages(bench, client, publisher, kind):
    policies(bench, max_unacked_messages_per_consumer=LIMIT)
    publisher.publish_all(30, partition_key="k")
    consumer = ready(client, kind).flow(100)

    assert len(consumer.ids()) == LIMIT
    assert (consumer.unacked, consumer.permits) == (LIMIT, 90)
    assert consumer.stats().blockedConsumerOnUnackedMsgs


def test_a_batch_passes_the_limit_by_less_than_itself(bench, client, publisher):
    policies(bench, max_unacked_messages_per_consumer=LIMIT)
    publisher.publish_all(5, messages=7)
    consumer = ready(client).flow(100)

    assert len(consumer.ids()) == 2
    assert consumer.unacked == 14


def test_permits_that_come_at_the_limit_are_kept_aside_until_half(bench, client, publisher):
    policies(bench, max_unacked_messages_per_consumer=LIMIT)
    publisher.publish_all(30)
    consumer = ready(client).flow(100)
    held = consumer.ids()
    consumer.flow(7)
    assert consumer.permits == 90
    consumer.ack(*held[:4])
    assert (consumer.ids(), consumer.unacked, consumer.permits) == ([], 6, 90)
    consumer.ack(held[4])

    assert len(consumer.ids()) == 5
    assert (consumer.unacked, consumer.permits) == (LIMIT, 92)


def test_redeliver_unblocks_and_brings_what_was_kept_aside(bench, client, publisher):
    policies(bench, max_unacked_messages_per_consumer=LIMIT)
    sent = publisher.publish_all(30)
    consumer = ready(client).flow(100)
    consumer.ids()
    consumer.flow(7)
    consumer.redeliver(sent[0])

    assert consumer.ids() == sent[:1]
    assert consumer.permits == 96
    assert consumer.stats().blockedConsumerOnUnackedMsgs


def test_an_ack_by_another_consumer_counts_for_who_has_the_message(bench, client, publisher):
    policies(bench, max_unacked_messages_per_consumer=LIMIT)
    publisher.publish_all(20)
    consumer = ready(client).flow(100)
    held = consumer.ids()
    ready(client).ack(*held[:3])
    assert consumer.unacked == 7


@pytest.mark.parametrize("kind", ALONE)
def test_who_reads_alone_has_no_limit(bench, client, publisher, kind):
    policies(
        bench, max_unacked_messages_per_consumer=LIMIT, max_unacked_messages_per_subscription=LIMIT
    )
    sent = publisher.publish_all(30)

    assert ready(client, kind).flow(100).ids() == sent


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_non_durable_subscription_has_no_limit(bench, client, publisher, kind):
    policies(
        bench, max_unacked_messages_per_consumer=LIMIT, max_unacked_messages_per_subscription=LIMIT
    )
    sent = publisher.publish_all(30, partition_key="k")

    assert ready(client, kind, durable=False, start=EARLIEST).flow(100).ids() == sent


def test_0_is_no_limit(bench, client, publisher):
    policies(bench, max_unacked_messages_per_consumer=0, max_unacked_messages_per_subscription=0)

    assert len(ready(client).flow(100).ids()) == 0
    publisher.publish_all(30)


def test_a_new_limit_holds_for_consumers_that_are_there(bench, client, publisher):
    consumer = ready(client).flow(100)
    policies(bench, max_unacked_messages_per_consumer=LIMIT)
    publisher.publish_all(30)
    assert consumer.unacked == LIMIT
    policies(bench, max_unacked_messages_per_consumer=20)

    assert consumer.unacked == 20


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_subscription_at_its_limit_reads_no_more_but_replays(bench, client, publisher, kind):
    policies(bench, max_unacked_messages_per_subscription=LIMIT)
    publisher.publish_all(150, partition_key="k")
    consumer = ready(client, kind).flow(400)
    held = consumer.ids()
    assert len(held) == LIMIT
    consumer.redeliver(*held[:2])
    assert [(each.id, each.count) for each in consumer.messages()] == [(i, 1) for i in held[:2]]
    consumer.ack(*held[:3])
    assert consumer.ids() == []
    consumer.ack(*held[3:6])

    assert len(consumer.ids()) == 6
    assert consumer.unacked == LIMIT


def test_a_subscriptions_limit_is_of_all_its_consumers(bench, client, publisher):
    policies(bench, max_unacked_messages_per_subscription=LIMIT)
    publisher.publish_all(50)
    consumers = [ready(client).flow(100) for _ in range(3)]

    assert sum(each.unacked for each in consumers) == LIMIT


def test_the_limit_of_a_subscription_follows_the_type_of_who_comes(bench, client, publisher):
    policies(bench, max_unacked_messages_per_subscription=LIMIT)
    ready(client).close()
    sent = publisher.publish_all(30)
    alone = ready(client, "Exclusive").flow(100)
    assert alone.ids() == sent
    alone.ack(*sent)
    alone.close()
    publisher.publish_all(30)

    assert len(ready(client).flow(100).ids()) == LIMIT


# ---- MESSAGE ------------------------------------------------------------------------------------


def test_a_message_is_passed_on_as_it_came_with_its_partition(client, publisher):
    ready(client).flow(10)
    publisher.publish(b"body", partition_key="k", properties=[{"key": "a", "value": "b"}])

    ((command, tail),) = client.heard_of(BaseCommand.MESSAGE)
    assert command.message.message_id.partition == -1
    assert command.message.message_id.HasField("partition")
    assert not command.message.HasField("redelivery_count")
    assert not command.message.HasField("consumer_epoch")
    assert tail.endswith(b"body")


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_is_told_to_who_reads_alone_and_gave_one(client, publisher, kind):
    publisher.publish(partition_key="k")
    consumer = ready(client, kind, consumer_epoch=3).flow(10)
    (found,) = consumer.messages()
    consumer.redeliver(consumer_epoch=4)
    (again,) = consumer.messages()

    assert (found.epoch, again.epoch) == ((3, 4) if kind in ALONE else (None, None))


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_protocol_3_is_closed_at_its_first_batch(bench, publisher, kind):
    one = publisher.publish(b"one", partition_key="k")
    publisher.publish(b"a", b"b", partition_key="k")
    publisher.publish(b"behind it", partition_key="k")
    old = bench.client(protocol_version=3)
    consumer = ready(old, kind).flow(100)

    assert consumer.ids() == [one]
    assert old.is_closed


def test_what_the_old_client_could_not_take_is_there_for_the_next(bench, publisher):
    sent = publisher.publish(b"a", b"b")
    old = bench.client(protocol_version=3)
    ready(old).flow(100).messages()
    old.vanish()

    (found,) = ready(bench.client()).flow(100).messages()
    assert (found.id, found.count) == (sent, 0)


def test_metadata_that_nobody_can_read_are_skipped_and_cost_nothing(client, publisher):
    client.publish(publisher.producer_id, 50, tail=b"\x00\x00\x00\x03\xff\xff\xff")
    assert len(publisher.receipts()) == 1
    consumer = ready(client).flow(2)
    sent = publisher.publish_all(2)

    assert consumer.ids() == sent
    assert consumer.unacked == 2
    assert consumer.permits == 0


def test_a_socket_that_takes_nothing_stops_its_consumers_and_no_others():
    bench = PulsarBench(Settings(flow=FlowSettings(unsent_messages_max=10)))
    client, slow = bench.client(), bench.client()
    publisher = Publisher(client)
    slow.unsent_bytes = 1
    stuck, free = ready(slow).flow(1_000), ready(client, subscription="t").flow(1_000)
    sent = publisher.publish_all(50)

    got = list(iter(free.ids, []))
    assert [each for some in got for each in some] == sent
    held = stuck.ids()
    assert 0 < len(held) < 50
    assert stuck.ids() == []
    slow.unsent_bytes = 0
    slow.heard_of(BaseCommand.PONG)
    got = list(iter(stuck.ids, []))
    assert [*held, *[each for some in got for each in some]] == sent


def test_a_dispatch_rate_of_the_topic_gives_so_many_a_second(bench, client, publisher):
    policies(bench, dispatch_rate=DispatchRule(dispatch_throttling_rate_in_msg=10))
    publisher.publish_all(30)
    consumer = ready(client).flow(100)
    counts = [len(consumer.ids())]
    for _ in range(3):
        bench.pass_time(1_000)
        counts.append(len(consumer.ids()))

    assert counts == [10, 10, 10, 0]


def test_batch_index_acks_may_be_switched_off():
    bench = PulsarBench(Settings(pulsar=PulsarSettings(acknowledgment_at_batch_index_level=False)))
    client = bench.client()
    publisher = Publisher(client, TOPIC)
    (sent,) = publisher.publish_all(1, messages=10)
    consumer = ready(client).flow(100)
    consumer.ids()
    for words in ([0b1111100000], [0]):
        told = consumer.acked({"ledgerId": sent[0], "entryId": sent[1], "ack_set": words})
        assert not told.HasField("error")

    assert consumer.unacked == 10
    consumer.redeliver()
    (found,) = consumer.messages()
    assert found.ack_set == []


# ---- bytes --------------------------------------------------------------------------------------

BYTES_MAX = 300_000


@pytest.fixture
def tight():
    """A broker whose consumers may have 300 kB unacked."""
    return PulsarBench(Settings(flow=FlowSettings(unacked_consumer_bytes_max=BYTES_MAX)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_gets_up_to_its_limit_of_unacked_bytes(tight, kind):
    client = tight.client()
    publisher = Publisher(client)
    for _ in range(10):
        publisher.send(b"x" * 100_000, partition_key="k")
    consumer = ready(client, kind).flow(100)
    held = consumer.ids()
    assert len(held) == 3
    consumer.flow(5)
    consumer.ack(held[0])
    assert consumer.ids() == []
    consumer.ack(held[1])

    assert len(consumer.ids()) == 2
    (stored,) = tight.engine.topic(topic_name("orders")).subscriptions.values()
    assert "bytes" in stored.withheld_from(stored.consumers[0])


def test_another_limit_of_messages_leaves_that_of_bytes(tight):
    client = tight.client()
    publisher = Publisher(client)
    consumer = ready(client).flow(100)
    policies(tight, max_unacked_messages_per_consumer=7)
    for _ in range(10):
        publisher.send(b"x" * 100_000)

    assert len(consumer.ids()) == 3


def test_a_non_durable_subscription_has_no_limit_of_bytes(tight):
    """Readers need not ack at all."""
    client = tight.client()
    publisher = Publisher(client)
    for _ in range(10):
        publisher.send(b"x" * 100_000)

    assert len(ready(client, durable=False, start=EARLIEST).flow(100).ids()) == 10


def test_chunks_are_not_limited_by_bytes(tight):
    """Nothing of a chunked message is acked before its last chunk has come."""
    client = tight.client()
    publisher = Publisher(client)
    for number in range(10):
        publisher.send(
            b"x" * 100_000,
            uuid="u", chunk_id=number, num_chunks_from_msg=10, total_chunk_msg_size=1_000_000,
        )  # fmt: skip

    assert len(ready(client, "Exclusive").flow(100).ids()) == 10


@pytest.mark.parametrize(
    ("version", "cost"), [("Pulsar-CPP-v4.2.0", 10), ("Pulsar-Java-v4.0.8", 5)]
)
def test_a_client_that_grants_permits_for_acked_messages_pays_for_them(bench, version, cost):
    """C++ gives back a permit for every message of a batch, also for those it was told are acked:
    so its permits would grow without end."""
    client = bench.client(version)
    (sent,) = Publisher(client).publish_all(1, messages=10)
    consumer = ready(client).flow(100)
    consumer.ids()
    consumer.ack({"ledgerId": sent[0], "entryId": sent[1], "ack_set": [0b1111100000]})
    before = consumer.permits
    consumer.redeliver()

    (found,) = consumer.messages()
    assert found.ack_set == [992]
    assert consumer.permits == before - cost
    assert consumer.unacked == 5


# ---- what Penstock's own client says of itself --------------------------------------------------


def heard(bench):
    """What is known of consumers that said something, by their names in views."""
    views = bench.engine.flow_map(bench.clock.monotonic_ms()).views
    found = [consumer for view in views for consumer in view.consumers]
    return [each.says for each in found if each.says is not None]


def test_a_client_says_why_a_consumer_takes_no_more_and_that_it_does_again(bench, client):
    consumer = ready(client)
    bench.pass_time(20_000)
    consumer.says("NOT_RECEIVED", waiting=7, limit=10, lasted_ms=2_000)
    assert client.commands()[-1].type == BaseCommand.PONG, "it is a sign of life as any"
    bench.pass_time(3_000)
    (says,) = heard(bench)
    assert (says.cause, says.waiting, says.limit) == (ClientCause.NOT_RECEIVED, 7, 10)
    assert says.lasted_ms == 5_000
    consumer.says("NOTHING")
    assert heard(bench) == []


@pytest.mark.parametrize("cause", ConsumerWait.Cause.keys()[1:])
def test_every_cause_is_known(bench, client, cause):
    ready(client).says(cause)
    (says,) = heard(bench)
    assert says.cause.name == cause


def test_numbers_that_cannot_be_do_no_harm(bench, client):
    consumer = ready(client)
    bench.pass_time(4_000)
    consumer.says("QUEUE_BYTES", waiting=2**32 - 1, limit=2**64 - 1, lasted_ms=2**64 - 1)
    (says,) = heard(bench)
    assert says.lasted_ms == 4_000, "it waits no longer than it is there"
    assert (says.waiting, says.limit) == (2**32 - 1, 2**53)


def test_of_an_unknown_consumer_or_cause_nothing_is_kept(bench, client):
    consumer = ready(client)
    client.say("PING", waits=[{"consumer_id": 99, "cause": "PAUSED"}, {"cause": "PAUSED"}])
    # A cause of a later version: protobuf keeps it apart, and reads none.
    wait = ConsumerWait(consumer_id=consumer.id).SerializeToString() + bytes([0x10, 99])
    ping = BaseCommand(type=BaseCommand.PING)
    ping.ping.waits.add().ParseFromString(wait)
    client.raw(encode(ping))
    assert heard(bench) == []
    assert not client.is_closed


def test_of_many_in_one_ping_only_so_many_are_heard(bench, client):
    consumer = ready(client)
    others = [{"consumer_id": 10**6 + each} for each in range(WAITS_MAX)]
    client.say("PING", waits=[*others, {"consumer_id": consumer.id, "cause": "PAUSED"}])
    assert heard(bench) == []


def test_before_connect_and_before_success_nothing_is_heard(bench, client):
    stranger = bench.stranger()
    stranger.say("PING", waits=[{"consumer_id": 1, "cause": "PAUSED"}])
    assert [each.type for each in stranger.commands()] == [BaseCommand.PONG]
    consumer = Subscriber(client)
    consumer.says("PAUSED")
    consumer.opened()
    assert heard(bench) == []


def test_what_was_said_goes_with_its_consumer(bench, client):
    consumer = ready(client, consumer_id=5)
    consumer.says("PAUSED")
    consumer.close()
    ready(client, consumer_id=5)
    assert heard(bench) == []
