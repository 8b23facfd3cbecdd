"""Redelivery, counts, and acknowledged parts of batches (observations 6)."""

import pytest

SHARED_TYPES = ("Shared", "Key_Shared")
SINGLE_TYPES = ("Exclusive", "Failover")


@pytest.fixture
def producer(pulsar, topic):
    return pulsar.peer().producer(topic)


def ready(peer, topic, kind="Shared", **fields):
    consumer = peer.consumer(topic, "s", kind, initialPosition="Earliest", **fields)
    if kind == "Failover":
        peer.expect("active_consumer_change", is_active=True)
    return consumer


def counts(deliveries):
    return [(each.id, each.count) for each in deliveries]


@pytest.mark.parametrize("kind", SHARED_TYPES)
def test_by_id_raises_the_count_of_those_only(peer, topic, producer, kind):
    sent = producer.publish_all([b"x"] * 4, partition_key="k")
    consumer = ready(peer, topic, kind)
    consumer.flow(100)
    consumer.messages(4)
    consumer.redeliver(sent[1], sent[3])
    assert counts(consumer.messages(2)) == [(sent[1], 1), (sent[3], 1)]
    consumer.redeliver(sent[1])
    assert counts([consumer.message()]) == [(sent[1], 2)]
    peer.expect_nothing()


@pytest.mark.parametrize("kind", SHARED_TYPES)
def test_all_raises_the_count_of_all_that_is_held(peer, topic, producer, kind):
    sent = producer.publish_all([b"x"] * 3, partition_key="k")
    consumer = ready(peer, topic, kind)
    consumer.flow(100)
    consumer.messages(3)
    consumer.acked(sent[1])
    consumer.redeliver()
    assert counts(consumer.messages(2)) == [(sent[0], 1), (sent[2], 1)]


def test_ids_that_one_does_not_hold_are_ignored(pulsar, peer, topic, producer):
    consumer = ready(peer, topic)
    other = pulsar.peer().consumer(topic, "s", "Shared")
    consumer.flow(100)
    peer.expect_nothing()
    sent = producer.publish_all([b"x"] * 2)
    consumer.messages(2)
    consumer.acked(sent[0])
    other.redeliver(sent[1])
    consumer.redeliver(sent[0], (sent[0][0], 9999))
    peer.expect_nothing()
    other.peer.expect_nothing()


@pytest.mark.parametrize("kind", SINGLE_TYPES)
def test_on_one_active_consumer_everything_unacked_comes_again(peer, topic, producer, kind):
    sent = producer.publish_all([b"x"] * 4)
    consumer = ready(peer, topic, kind)
    consumer.flow(100)
    consumer.messages(4)
    consumer.acked(sent[0])
    consumer.redeliver(sent[3])
    assert counts(consumer.messages(3)) == [(each, 0) for each in sent[1:]]
    assert consumer.permits == 93


def test_counts_move_to_the_next_consumer_as_they_were(pulsar, peer, topic, producer):
    first = ready(peer, topic)
    first.flow(100)
    peer.expect_nothing()
    sent = producer.publish_all([b"x"] * 3)
    first.messages(3)
    first.redeliver(sent[0], sent[2])
    first.messages(2)
    first.redeliver(sent[0])
    first.message()
    second = pulsar.peer().consumer(topic, "s", "Shared")
    second.flow(100)
    second.peer.expect_nothing()
    first.close()
    assert counts(second.messages(3)) == [(sent[0], 2), (sent[1], 0), (sent[2], 1)]


def test_counts_move_when_the_connection_is_lost(pulsar, peer, topic, producer):
    first = ready(peer, topic)
    first.flow(100)
    peer.expect_nothing()
    sent = producer.publish()
    first.message()
    first.redeliver(sent)
    first.message()
    second = pulsar.peer().consumer(topic, "s", "Shared")
    second.flow(100)
    peer.close()
    assert counts([second.message()]) == [(sent, 1)]


def test_counts_begin_anew_when_the_last_consumer_is_gone(peer, topic, producer):
    sent = producer.publish()
    first = ready(peer, topic)
    first.flow(100)
    first.message()
    first.redeliver(sent)
    first.message()
    first.close()
    second = ready(peer, topic)
    second.flow(100)
    assert counts([second.message()]) == [(sent, 0)]


# ---- parts of batches (acknowledgmentAtBatchIndexLevelEnabled=true)


def part(target, *words, size=10):
    return {
        "ledgerId": target[0],
        "entryId": target[1],
        "ack_set": words,
        "batch_size": size,
    }


@pytest.mark.parametrize("kind", ["Shared"])
def test_half_of_a_batch_comes_again_and_costs_as_much(peer, topic, producer, kind):
    sent = producer.publish([b"x"] * 10)
    consumer = ready(peer, topic, kind)
    consumer.flow(100)
    consumer.message()
    assert consumer.unacked == 10
    # Bits that are set are still to be acknowledged: 5 to 9.
    assert not consumer.acked(part(sent, 0b1111100000)).HasField("error")
    assert consumer.unacked == 5
    assert consumer.permits == 90
    consumer.redeliver()
    found = consumer.message()
    assert found.ack_set == [992]
    assert found.count == 1
    assert consumer.permits == 85


def test_two_parts_complete_the_entry(pulsar, peer, topic, producer):
    sent = producer.publish([b"x"] * 10)
    consumer = ready(peer, topic)
    consumer.flow(100)
    consumer.message()
    consumer.acked(part(sent, 0b1111100000))
    consumer.acked(part(sent, 0b0000011111))
    assert consumer.unacked == 0
    consumer.redeliver()
    peer.expect_nothing()
    assert pulsar.backlog(topic, "s") == 0


def test_an_empty_set_completes_the_entry(pulsar, peer, topic, producer):
    sent = producer.publish([b"x"] * 10)
    consumer = ready(peer, topic)
    consumer.flow(100)
    consumer.message()
    consumer.acked(part(sent, 0))
    assert consumer.unacked == 0
    assert pulsar.backlog(topic, "s") == 0


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_an_acknowledged_part_is_kept_over_a_reconnect(pulsar, peer, topic, producer, kind):
    sent = producer.publish([b"x"] * 10)
    consumer = ready(peer, topic, kind)
    consumer.flow(100)
    consumer.message()
    consumer.acked(part(sent, 0b1111100000))
    peer.close()
    second = pulsar.peer()
    again = second.consumer(topic, "s", kind)
    again.flow(100)
    assert again.message().ack_set == [992]


def test_a_batch_index_without_a_set_acks_the_whole_entry(pulsar, peer, topic, producer):
    sent = producer.publish([b"x"] * 10)
    consumer = ready(peer, topic)
    consumer.flow(100)
    consumer.message()
    consumer.acked({"ledgerId": sent[0], "entryId": sent[1], "batch_index": 3, "batch_size": 10})
    assert consumer.unacked == 0
    assert pulsar.backlog(topic, "s") == 0


def test_a_cumulative_part_acks_the_entries_before(pulsar, peer, topic, producer):
    sent = producer.publish_all([[b"x"] * 10] * 3)
    consumer = ready(peer, topic, "Exclusive")
    consumer.flow(100)
    consumer.messages(3)
    consumer.acked(part(sent[1], 0b1111100000), kind="Cumulative")
    consumer.redeliver()
    first, second = consumer.messages(2)
    assert (first.id, first.ack_set) == (sent[1], [992])
    assert (second.id, second.ack_set) == (sent[2], [])
