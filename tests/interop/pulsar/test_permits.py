"""FLOW and permits (observations 4)."""

import itertools

import pytest

from kit.pulsar_peer import Frame

ALL_TYPES = ("Exclusive", "Failover", "Shared", "Key_Shared")


@pytest.fixture
def backlog(pulsar, topic):
    """Publish so many entries of so many messages: ids."""
    producer = pulsar.peer().producer(topic)

    def publish(entries, messages=0):
        payload = [b"x"] * messages if messages else b"x"
        return producer.publish_all([payload] * entries, partition_key="k")

    return publish


def ready(peer, topic, kind="Shared", **fields):
    """A consumer of everything, and, on failover, its notice."""
    consumer = peer.consumer(topic, "s", kind, initialPosition="Earliest", **fields)
    if kind == "Failover":
        peer.expect("active_consumer_change", is_active=True)
    return consumer


@pytest.mark.parametrize("permits", [0, (1 << 32) - 1])
def test_flow_of_nothing_or_of_less_is_closed(peer, topic, permits):
    peer.consumer(topic, "s").flow(permits)
    peer.expect_closed()


def test_flow_twice_the_largest_is_accepted(peer, topic):
    consumer = peer.consumer(topic, "s")
    for _ in range(2):
        consumer.flow((1 << 31) - 1)
    peer.expect_nothing()


def test_flow_right_behind_subscribe_is_dropped(pulsar, peer, topic, backlog):
    backlog(1)
    # In one packet: the broker must see FLOW before the subscription stands.
    held = []
    peer.write, write = held.append, peer.write
    request, number = peer.subscribe(topic, "s", initialPosition="Earliest")
    peer.command("flow", consumer_id=number, messagePermits=5)
    peer.write = write
    peer.write(b"".join(held))
    assert peer.answer(request).kind == "success"
    peer.expect_nothing()
    peer.command("flow", consumer_id=number, messagePermits=1)
    peer.message()


def test_shared_counts_messages_before_each_entry(peer, topic, backlog):
    backlog(3, 20)
    consumer = ready(peer, topic)
    consumer.flow(5)
    consumer.message()
    peer.expect_nothing()
    assert consumer.permits == -15
    consumer.flow(10)
    peer.expect_nothing()
    assert consumer.permits == -5
    consumer.flow(10)
    consumer.message()
    peer.expect_nothing()
    assert consumer.permits == -15


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Key_Shared"])
def test_other_types_go_below_zero_by_no_more_than_one_entry(pulsar, peer, topic, backlog, kind):
    """Pulsar sends min(permits, 100) entries here; Penstock counts as on Shared."""
    backlog(30, 20)
    consumer = ready(peer, topic, kind)
    entries = 5 if pulsar.is_real else 1
    for _ in range(2):
        consumer.flow(5)
        consumer.messages(entries)
        peer.expect_nothing()
        assert consumer.permits == 5 - entries * 20
        consumer.flow(entries * 20 - 5)
        peer.expect_nothing()


def test_two_shared_consumers_by_their_own_permits(pulsar, peer, topic, backlog):
    first = peer.consumer(topic, "s", "Shared")
    second = pulsar.peer().consumer(topic, "s", "Shared")
    first.flow(5)
    second.flow(100)
    sent = backlog(6, 20)
    found = [first.message(), *second.messages(5)]
    assert sorted(each.id for each in found) == sent
    assert first.permits == -15
    assert second.permits == 0


def test_shared_entries_sent_one_by_one_alternate(pulsar, peer, topic):
    producer = pulsar.peer().producer(topic)
    for each in [peer.consumer(topic, "s", "Shared") for _ in "ab"]:
        each.flow(100)
    owners = []
    for _ in range(6):
        sent = producer.publish()
        found = peer.message()
        assert found.id == sent
        owners.append(found.command.consumer_id)
    assert owners[0] != owners[1]
    assert owners == owners[:2] * 3


def test_a_shared_backlog_is_dealt_in_slices_of_20(pulsar, peer, topic, backlog):
    """Penstock deals entry by entry."""
    sent = backlog(80)
    consumers = [peer.consumer(topic, "s", "Shared", initialPosition="Earliest") for _ in "ab"]
    for each in consumers:
        each.flow(100)
    owner = {}
    for each in peer.messages(80):
        owner.setdefault(each.command.consumer_id, []).append(each.id)
    assert sorted(itertools.chain(*owner.values())) == sent
    if pulsar.is_real:
        assert max(len(each) for each in owner.values()) >= 40


def test_a_lower_priority_is_served_when_the_higher_has_no_permits(pulsar, peer, topic):
    high = peer.consumer(topic, "s", "Shared", priority_level=0)
    low = pulsar.peer().consumer(topic, "s", "Shared", priority_level=1)
    high.flow(3)
    low.flow(100)
    low.peer.expect_nothing()
    peer.expect_nothing()
    producer = pulsar.peer().producer(topic)
    sent = [producer.publish() for _ in range(5)]
    assert [each.id for each in high.messages(3)] == sent[:3]
    assert [each.id for each in low.messages(2)] == sent[3:]


def test_replay_comes_first_in_the_order_of_ids(peer, topic, backlog):
    sent = backlog(6)
    consumer = ready(peer, topic)
    consumer.flow(3)
    consumer.messages(3)
    consumer.redeliver(sent[2], sent[0])
    peer.expect_nothing()
    consumer.flow(4)
    found = [(each.id, each.count) for each in consumer.messages(4)]
    assert found == [(sent[0], 1), (sent[2], 1), (sent[3], 0), (sent[4], 0)]


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_fields_of_a_message(peer, topic, backlog, kind):
    backlog(1)
    consumer = ready(peer, topic, kind)
    consumer.flow(1)
    found = consumer.message().command
    assert found.message_id.partition == -1
    assert not found.HasField("redelivery_count")
    assert not found.HasField("consumer_epoch")
    assert not found.ack_set


def test_a_message_names_its_partition(pulsar, peer):
    topic = f"{pulsar.topic(partitions=3)}-partition-2"
    pulsar.look_up(topic)
    peer.producer(topic).publish()
    consumer = peer.consumer(topic, "s", initialPosition="Earliest")
    consumer.flow(1)
    assert consumer.message().command.message_id.partition == 2


@pytest.mark.parametrize(("kind", "is_told"), [("Exclusive", True), ("Shared", False)])
def test_the_consumer_epoch_is_told_on_exclusive_only(peer, topic, backlog, kind, is_told):
    backlog(1)
    consumer = ready(peer, topic, kind, consumer_epoch=7)
    consumer.flow(1)
    found = consumer.message().command
    assert found.HasField("consumer_epoch") == is_told
    assert not is_told or found.consumer_epoch == 7


@pytest.mark.parametrize(
    ("kind", "is_told"), [("Exclusive", True), ("Failover", True), ("Shared", False)]
)
def test_the_epoch_of_a_redelivery_is_that_of_what_comes_again(peer, topic, backlog, kind, is_told):
    backlog(1)
    consumer = ready(peer, topic, kind)
    consumer.flow(10)
    assert not consumer.message().command.HasField("consumer_epoch")
    consumer.redeliver(consumer_epoch=3)
    found = consumer.message().command
    assert found.HasField("consumer_epoch") == is_told
    assert not is_told or found.consumer_epoch == 3


def test_a_client_that_does_not_read_stops_nobody_else(pulsar, peer, topic):
    """All of it arrives once it reads again."""
    sleeper = peer.consumer(topic, "s", "Shared")
    sleeper.flow(1000)
    other = pulsar.peer().consumer(topic, "t")
    other.flow(1000)
    producer = pulsar.peer().producer(topic)
    sent = producer.publish_all([b"x" * 20_000] * 300)
    assert [each.id for each in other.messages(300)] == sent
    assert [each.id for each in sleeper.messages(300)] == sent


def test_permits_die_with_the_consumer(pulsar, peer, topic, backlog):
    consumer = ready(peer, topic)
    consumer.flow(10)
    consumer.close()
    again = ready(peer, topic)
    backlog(1)
    peer.expect_nothing()
    assert again.permits == 0
    assert isinstance(peer.ask("close_consumer", consumer_id=again.id), Frame)
